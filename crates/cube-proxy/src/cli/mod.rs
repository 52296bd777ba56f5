//! The command line.

pub(crate) mod admin;
mod check;
mod explain;
mod file;
mod help;
mod pages;
mod progress;
mod ready;
mod sandbox;
mod top;
mod writable_paths;

use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::demo;
use crate::error::{EXIT_CONFIG, StartError};
use crate::logging::journal;
use crate::run;
use file::ConfigFile;

/// The ingress of a fleet of sandboxes.
#[derive(Debug, Parser)]
#[command(
    name = "cube-proxy",
    version,
    about = "Routes HTTP, WebSocket and gRPC traffic to sandboxes",
    long_about = help::ABOUT,
    after_help = help::MAIN,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve with a configuration file
    #[command(after_help = help::RUN)]
    Run(RunOptions),
    /// Try everything in one process: toy sandboxes, a proxy in front, commands to paste
    #[command(after_help = help::DEMO)]
    Demo(demo::Options),
    /// Say whether a configuration file holds, without serving
    #[command(after_help = help::CHECK)]
    Check(check::Options),
    /// Read and write records of sandboxes in the configured store
    #[command(after_help = help::SANDBOX)]
    Sandbox(sandbox::Options),
    /// Say how a request would be routed, step by step, and how it would be answered
    #[command(after_help = help::EXPLAIN)]
    Explain(explain::Options),
    /// Show what the running proxy does now: rates, latency, busiest sandboxes, nodes left alone
    #[command(after_help = help::TOP)]
    Top(top::Options),
    /// Say whether the running proxy may be given requests
    #[command(after_help = help::READY)]
    Ready(ready::Options),
    /// Print the completion script of a shell
    #[command(after_help = help::COMPLETIONS)]
    Completions(pages::CompletionOptions),
    /// Print the manual page, or write one for each command
    #[command(after_help = help::MAN)]
    Man(pages::ManOptions),
}

/// `run`.
#[derive(Debug, Args)]
struct RunOptions {
    #[command(flatten)]
    file: ConfigFile,
    /// Take over from the process that runs with this file's server.run_dir, losing nothing
    #[arg(long)]
    upgrade: bool,
}

impl Command {
    /// Whether a failure is told in JSON too. `check` tells it in its report.
    fn answers_in_json(&self) -> bool {
        match self {
            Command::Sandbox(options) => options.json,
            Command::Explain(options) => options.json,
            Command::Top(options) => options.json,
            _ => false,
        }
    }
}

/// Runs the command of this process's command line.
#[must_use]
pub fn main() -> ExitCode {
    // Before anything secret is read.
    run::allow_core_dumps(false);
    if let Some(code) = crate::hot_restart::launcher::main() {
        return code;
    }
    let parsed = Cli::command().color(crate::terminal::colour_choice()).try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too; to a closed pipe nothing can be said.
            let _ = error.print();
            if let Some(file) = stray_file(&error) {
                let _ = writeln!(std::io::stderr(), "\n  tip: a configuration file is named with -c {file}");
            }
            return if error.use_stderr() { ExitCode::from(EXIT_CONFIG) } else { ExitCode::SUCCESS };
        }
    };
    let outcome = match &cli.command {
        Command::Run(options) => options.file.path().and_then(|file| run::run(file, options.upgrade)),
        Command::Demo(options) => demo::run(options),
        Command::Check(options) => check::run(options),
        Command::Sandbox(options) => sandbox::run(options),
        Command::Explain(options) => explain::run(options),
        Command::Top(options) => top::run(options),
        Command::Ready(options) => ready::run(options),
        Command::Completions(options) => pages::completions(options, Cli::command()),
        Command::Man(options) => pages::man(options, Cli::command()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if cli.command.answers_in_json() && !matches!(error, StartError::Told(_)) {
                // A machine that reads standard output reads JSON, whatever happens.
                let _ = say(serde_json::json!({ "error": error.to_string() }));
            }
            complain(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// The configuration file that stands where no argument is expected.
fn stray_file(error: &clap::Error) -> Option<&str> {
    let kinds = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let text = kinds.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    })?;
    let yaml = [".yaml", ".yml"].iter().any(|end| text.ends_with(end));
    (yaml && !text.starts_with('-')).then_some(text)
}

/// One line a fault, on standard error.
fn complain(error: &StartError) {
    let priority = if journal::is_stderr() { journal::ERROR } else { "" };
    for line in error.to_string().lines() {
        let _ = writeln!(std::io::stderr(), "{priority}{line}");
    }
}

/// Writes a line of a command's outcome. A reader that went away is no fault.
fn say(line: impl std::fmt::Display) -> Result<(), StartError> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(StartError::File { path: "standard output".into(), source: error })
        }
        _ => Ok(()),
    }
}

/// A small runtime for commands that talk to a store.
fn block_on<T>(future: impl Future<Output = Result<T, StartError>>) -> Result<T, StartError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| StartError::Assembly(format!("no runtime: {error}")))?
        .block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_and_names_the_configuration_alike() {
        for args in [
            &["cube-proxy", "run", "-c", "x.yaml"][..],
            &["cube-proxy", "run", "-c", "x.yaml", "--upgrade"],
            &["cube-proxy", "check", "--config", "x.yaml", "--strict"],
            &["cube-proxy", "sandbox", "-c", "x.yaml", "list", "--json"],
            &["cube-proxy", "sandbox", "-c", "x.yaml", "state", "a", "paused"],
            &["cube-proxy", "explain", "-c", "x.yaml", "-H", "A: b", "-H", "C: d", "http://8080-a.cube.app/"],
            &["cube-proxy", "demo", "--port", "9000"],
            &["cube-proxy", "top", "-c", "x.yaml", "-i", "500ms", "--once", "--json"],
            &["cube-proxy", "completions", "bash"],
            &["cube-proxy", "man"],
        ] {
            assert!(Cli::try_parse_from(args).is_ok(), "{args:?}");
        }
        for command in ["run", "check", "top", "ready"] {
            assert!(Cli::try_parse_from(["cube-proxy", command]).is_ok(), "{command} without -c");
        }
        for args in [&["cube-proxy"][..], &["cube-proxy", "sandbox"], &["cube-proxy", "serve"]] {
            assert!(Cli::try_parse_from(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn every_command_teaches_with_examples() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Examples:\n"), "{name}");
            let line = after.lines().find(|line| line.contains(&format!("cube-proxy {name}")));
            assert!(line.is_some(), "{name}: no example of itself");
        }
    }

    #[test]
    fn completions_and_manual_know_every_command() {
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut Cli::command(), "cube-proxy", &mut script);
        let script = String::from_utf8(script).unwrap();
        let directory = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(Cli::command(), directory.path()).unwrap();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(script.contains(name), "{name}");
            assert!(directory.path().join(format!("cube-proxy-{name}.1")).exists(), "{name}");
        }
    }
}
