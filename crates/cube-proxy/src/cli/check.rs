//! `cube-proxy check`: whether a configuration holds, and whether this machine lets it serve. What
//! `run` would try is tried here, as far as that leaves nothing behind.

use std::path::Path;

use clap::Args;
use cube_metadata::{StoreError, StoreKind};
use prometheus::Registry;
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::config::{self, Config, ConfigError, Environment, Origin};
use crate::error::StartError;
use crate::run_dir::RunDir;
use crate::{bind, run, serve};

use super::file::ConfigFile;
use super::{block_on, progress, say, writable_paths};

/// The user that the package's service runs as.
const SERVICE_USER: &str = "cube-proxy";

/// How to check.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    file: ConfigFile,
    /// Fail when the store does not answer or refuses what the proxy needs, instead of warning
    #[arg(long)]
    strict: bool,
    /// Answer with one JSON object: ok, problems, warnings
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<(), StartError> {
    run::raise_file_limit();
    let mut warnings = Vec::new();
    let outcome = examine(options, &mut warnings);
    if options.json {
        say(report(&outcome, &warnings))?;
        return outcome;
    }
    for warning in &warnings {
        say(format_args!("warning: {warning}"))?;
    }
    if outcome.is_ok() {
        say(format_args!("{}: holds", options.file.path()?.display()))?;
    }
    outcome
}

/// Looks at everything, so that all that is wrong is told at once.
fn examine(options: &Options, warnings: &mut Vec<String>) -> Result<(), StartError> {
    let environment = Environment::process();
    let loaded = config::load(options.file.path()?, &environment)?;
    warnings.extend(loaded.warnings);
    let config = loaded.config;
    warnings.extend(as_root());
    let mut faults = Vec::new();
    let mut found = |outcome: Result<(), StartError>| match outcome {
        Err(StartError::Several(errors)) => faults.extend(errors),
        Err(error) => faults.push(error),
        Ok(()) => {}
    };

    let configured = config.server.run_dir.as_deref();
    let running = RunDir::of_running(configured, &environment).running();
    match (running, writable_paths::run_dir(&RunDir::locate(configured, &environment))) {
        // A proxy that runs from the same directory holds these ports, so that their being taken is no fault.
        (Ok(Some(pid)), _) => {
            warnings.push(format!("process {pid} is serving from this run directory; ports are not checked"));
        }
        // The usual place of another user, whose service this may be about.
        (_, Err(error)) if configured.is_none() => {
            warnings.push(format!("this user could not serve: {error}"));
            found(bind::check(&config.listen, &[]));
        }
        (running, usable) => {
            // Where the directory cannot be used, neither can what is in it.
            found(usable.and(running.map(drop)));
            found(bind::check(&config.listen, &[]));
        }
    }
    if let Some(path) = config.access_log.path.as_deref().filter(|path| *path != "-") {
        found(writable_paths::access_log(Path::new(path)));
    }
    let asked = match block_on(progress::with("asking the store", ask_store(&config))) {
        Ok(faults) => faults.into_iter().map(|fault| Err(StartError::Store(fault))).collect(),
        Err(error) => vec![Err(error)],
    };
    for outcome in asked {
        match outcome {
            // Redis may come later, and rights too.
            Err(StartError::Store(error)) if !options.strict && !matches!(error, StoreError::Invalid(_)) => {
                warnings.push(format!("the store: {error}"));
            }
            other => found(other),
        }
    }
    match faults.len() {
        0 => Ok(()),
        1 => faults.pop().map_or(Ok(()), Err),
        _ => Err(StartError::Several(faults)),
    }
}

/// Root reads and writes everything, so that what the service's own user may not is not noticed.
fn as_root() -> Option<String> {
    let users = geteuid().is_root().then(|| std::fs::read_to_string("/etc/passwd").ok()).flatten()?;
    let there = users.lines().any(|line| line.split(':').next() == Some(SERVICE_USER));
    there.then(|| {
        format!(
            "checked as root, who may read and write everything; for the service: sudo -u {SERVICE_USER} \
             cube-proxy check"
        )
    })
}

/// Puts the proxy together, and asks the store what `run` would, bounded as every lookup is: what it
/// refuses.
async fn ask_store(config: &Config) -> Result<Vec<StoreError>, StartError> {
    let registry = Registry::new();
    let store = config.open_store(&registry)?;
    serve::assemble(config, store.clone(), serve::Told::default(), &registry)?;
    if config.store.kind == StoreKind::File {
        return Ok(Vec::new());
    }
    let bound = config.store.redis.command_timeout.saturating_mul(3);
    let mut faults = match tokio::time::timeout(bound, store.faulty_nodes()).await {
        Ok(Ok(_)) => Vec::new(),
        // Another command may be refused too.
        Ok(Err(error @ StoreError::Refused(_))) => vec![error],
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => return Err(StartError::Store(StoreError::Timeout)),
    };
    // Each of its questions is bounded by itself.
    for fault in store.dry_run(config.registry.enabled).await {
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    Ok(faults)
}

fn report(outcome: &Result<(), StartError>, warnings: &[String]) -> Value {
    let problems = match outcome {
        Ok(()) => Vec::new(),
        Err(StartError::Config(error)) => problems(error),
        Err(StartError::Several(errors)) => errors.iter().map(other).collect(),
        Err(error) => vec![other(error)],
    };
    json!({ "ok": outcome.is_ok(), "problems": problems, "warnings": warnings })
}

fn other(error: &StartError) -> Value {
    json!({ "message": error.to_string() })
}

fn problems(error: &ConfigError) -> Vec<Value> {
    let one = |problem: &config::Problem| {
        let (place, variable) = match &problem.origin {
            Origin::File(place) => (*place, None),
            Origin::Environment(name) => (None, Some(name)),
        };
        json!({
            "file": error.file,
            "line": place.map(|(line, _)| line),
            "column": place.map(|(_, column)| column),
            "variable": variable,
            "key": problem.key,
            "message": problem.message,
        })
    };
    error.problems.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, strict: bool) -> (Result<(), StartError>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("cube-proxy.yaml");
        std::fs::write(&config, text).unwrap();
        let mut warnings = Vec::new();
        let outcome = examine(&Options { file: config.into(), strict, json: false }, &mut warnings);
        (outcome, warnings)
    }

    /// Listeners on ports that are free now, and a store at a port where nothing listens.
    fn good() -> String {
        let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        format!(
            "listen: {{http: [\"{}\"], admin: \"{}\", metrics: null}}\nserver: {{run_dir: run}}\n\
             store: {{redis: {{url: \"redis://{}\", command_timeout: 100ms}}}}\n",
            port(),
            port(),
            port()
        )
    }

    #[test]
    fn a_store_that_is_away_is_a_warning_and_with_strict_a_fault() {
        let (outcome, warnings) = check(&good(), false);
        outcome.unwrap();
        assert!(warnings.iter().any(|warning| warning.starts_with("the store: ")), "{warnings:?}");
        let error = check(&good(), true).0.unwrap_err();
        assert_eq!(error.exit_code(), 1, "{error}");
    }

    #[test]
    fn a_file_that_does_not_hold_is_64_and_a_taken_port_is_1() {
        let error = check("nothing: 1\n", false).0.unwrap_err();
        assert_eq!(error.exit_code(), 64);
        let json = report(&Err(error), &[]);
        assert_eq!((json["ok"].as_bool(), json["problems"][0]["line"].as_u64()), (Some(false), Some(1)));
        assert_eq!(json["problems"][0]["key"], "nothing");

        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let text =
            format!("listen: {{http: [\"{}\"]}}\nserver: {{run_dir: run}}\n", taken.local_addr().unwrap());
        let error = check(&text, false).0.unwrap_err();
        assert_eq!(error.exit_code(), 1, "{error}");
    }

    #[test]
    fn a_broken_file_store_is_a_fault_as_it_is_for_run() {
        let text = good().replace("redis: {url", "kind: file, file: cube-proxy.yaml, redis: {url");
        let error = check(&text, false).0.unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert!(error.to_string().contains("cube-proxy.yaml: line 1"), "{error}");
    }
}
