//! The command line.

mod admin;
mod check;
mod explain;
mod sandbox;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::demo;
use crate::error::{EXIT_CONFIG, StartError};
use crate::run;

/// The ingress of a fleet of sandboxes.
#[derive(Debug, Parser)]
#[command(
    name = "cube-proxy",
    version,
    about = "Routes HTTP, WebSocket and gRPC traffic to sandboxes",
    long_about = "Routes HTTP, WebSocket and gRPC traffic to sandboxes.\n\n\
                  A client names a sandbox and a port, as <port>-<sandbox-id>.<domain>, with E2b-Sandbox-* headers \
                  or as /sandbox/<sandbox-id>/<port>/. The proxy finds where that sandbox runs, checks that the \
                  caller may reach it and that it is awake, and passes the request on.\n\n\
                  New here? Start with: cube-proxy demo",
    after_help = "Exit codes: 0 done; 64 the configuration (or this command line) does not hold; 1 something \
                  outside it is wrong, such as a port that is taken.",
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
    #[command(after_help = "Every key of the file can be overridden from the environment, e.g. \
                      CUBE_PROXY_LIMITS__BODY=1GiB or CUBE_PROXY_STORE__REDIS__URL=redis://10.0.0.7:6379/0.\n\
                      SIGTERM ends it when its streams have ended; a second one ends it at once.")]
    Run(ConfigFile),
    /// Try everything in one process: toy sandboxes, a proxy in front, commands to paste
    #[command(after_help = "Needs no Redis, no root and no network. Ctrl-C ends it.")]
    Demo(demo::Options),
    /// Say whether a configuration file holds, without serving
    #[command(
        after_help = "Exit codes: 0 it holds; 64 it does not, each fault with file, line, column and key; \
                      1 something outside it is wrong: a port that is taken or, with --strict, a store that \
                      does not answer."
    )]
    Check(check::Options),
    /// Read and write records of sandboxes in the configured store
    #[command(after_help = "Examples:\n  \
                      cube-proxy sandbox -c FILE list\n  \
                      cube-proxy sandbox -c FILE put 7c8fbcd45ffe HostIP=10.0.0.1 SandboxIP=192.168.1.100 8080=49983\n  \
                      cube-proxy sandbox -c FILE get 7c8fbcd45ffe --json\n  \
                      cube-proxy sandbox -c FILE delete 7c8fbcd45ffe\n  \
                      cube-proxy sandbox -c FILE state 7c8fbcd45ffe paused\n\n\
                      state tells the running proxy, through its admin API; the others use the store.")]
    Sandbox(sandbox::Options),
    /// Say how a request would be routed, step by step, and how it would be answered
    #[command(
        after_help = "Nothing is sent, woken or counted. The running proxy is asked, which knows the states \
                      and breakers of now; where none runs, the store is looked at.\n\n\
                      Examples:\n  \
                      cube-proxy explain -c FILE http://8080-7c8fbcd45ffe.cube.app/index.html\n  \
                      cube-proxy explain -c FILE -H 'e2b-traffic-access-token: ...' http://cube.app/sandbox/7c8fbcd45ffe/8080/"
    )]
    Explain(explain::Options),
}

/// Which configuration file.
#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration file (conf/cube-proxy.yaml names every key)
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command of this process's command line.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too; to a closed pipe nothing can be said.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_CONFIG) } else { ExitCode::SUCCESS };
        }
    };
    let outcome = match &cli.command {
        Command::Run(options) => run::run(&options.config),
        Command::Demo(options) => demo::run(options),
        Command::Check(options) => check::run(options),
        Command::Sandbox(options) => sandbox::run(options),
        Command::Explain(options) => explain::run(options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// One line a fault, on standard error.
fn complain(error: &StartError) {
    let _ = writeln!(std::io::stderr(), "{error}");
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
        .map_err(|error| StartError::Engine(format!("no runtime: {error}")))?
        .block_on(future)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_and_names_the_configuration_alike() {
        for args in [
            &["cube-proxy", "run", "-c", "x.yaml"][..],
            &["cube-proxy", "check", "--config", "x.yaml", "--strict"],
            &["cube-proxy", "sandbox", "-c", "x.yaml", "list", "--json"],
            &["cube-proxy", "sandbox", "-c", "x.yaml", "state", "a", "paused"],
            &["cube-proxy", "explain", "-c", "x.yaml", "-H", "A: b", "-H", "C: d", "http://8080-a.cube.app/"],
            &["cube-proxy", "demo", "--port", "9000"],
        ] {
            assert!(Cli::try_parse_from(args).is_ok(), "{args:?}");
        }
        for args in [&["cube-proxy"][..], &["cube-proxy", "run"], &["cube-proxy", "serve"]] {
            assert!(Cli::try_parse_from(args).is_err(), "{args:?}");
        }
    }
}
