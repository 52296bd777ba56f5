//! `cube-proxy check`: whether a configuration holds, and whether this machine lets it serve.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::config::{self, Config, ConfigError, Environment, Origin, Store};
use crate::error::StartError;
use crate::rundir::RunDir;
use crate::{bind, run};

use super::{block_on, progress, say};

/// How to check.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Fail when the store does not answer, instead of warning
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
        say(format_args!("{}: holds", options.config.display()))?;
    }
    outcome
}

fn examine(options: &Options, warnings: &mut Vec<String>) -> Result<(), StartError> {
    let environment = Environment::process();
    let loaded = config::load(&options.config, &environment)?;
    warnings.extend(loaded.warnings);
    let config = loaded.config;
    match RunDir::of_running(config.server.run_dir.as_deref(), &environment).running() {
        // It holds these ports itself.
        Ok(Some(pid)) => {
            warnings.push(format!("process {pid} is serving from this run directory; ports are not checked"));
        }
        _ => bind::check(&config.listen, &[])?,
    }
    match block_on(progress::with("asking the store", ask_store(&config))) {
        Err(StartError::Store(error)) if !options.strict => warnings.push(format!("the store: {error}")),
        other => other?,
    }
    Ok(())
}

/// One question to the store, bounded as every lookup is.
async fn ask_store(config: &Config) -> Result<(), StartError> {
    let store = config.open_store(&prometheus::Registry::new())?;
    let bound = match &config.store {
        Store::Redis(redis) => redis.command_timeout.saturating_mul(3),
        Store::File(_) => return Ok(()),
    };
    match tokio::time::timeout(bound, store.faulty_nodes()).await {
        Ok(answer) => Ok(answer.map(drop)?),
        Err(_) => Err(StartError::Store(cube_metadata::StoreError::Timeout)),
    }
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
        let outcome = examine(&Options { config, strict, json: false }, &mut warnings);
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
}
