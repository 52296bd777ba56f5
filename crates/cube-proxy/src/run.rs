//! `cube-proxy run`: everything before the server, in the order that leaves nothing half started.

use std::path::Path;

use crate::config::{self, Environment};
use crate::error::StartError;
use crate::logging;
use crate::rundir::RunDir;
use crate::serve::{Origin, Process, ServeOptions, serve};
use crate::upgrade::{self, Answer, StartedAs};

/// Serves with the configuration in `file` until the process is asked to end. With `upgrade`, takes
/// over from the process that serves now, or has it start its successor.
///
/// # Errors
/// [`StartError`] when it does not hold or the server cannot start.
pub fn run(file: &Path, upgrade: bool) -> Result<(), StartError> {
    raise_file_limit();
    let environment = Environment::process();
    let loaded = config::load(file, &environment)?;
    let mut config = loaded.config;
    logging::init(config.log);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let locate = if upgrade { RunDir::of_running } else { RunDir::locate };
    let run_dir = locate(config.server.run_dir.as_deref(), &environment);
    run_dir.create()?;
    config.server.run_dir = Some(run_dir.path().to_owned());
    let origin = if upgrade {
        match upgrade::ask(&run_dir)? {
            Answer::Successor(predecessor, inherited) => Origin::Successor(predecessor, inherited),
            Answer::Done(text) => {
                tracing::info!("{text}");
                return Ok(());
            }
        }
    } else {
        Origin::First(run_dir.claim()?)
    };
    let process = Process { run_dir, origin, started: StartedAs::this_process(file) };
    serve(config, None, ServeOptions { file: Some(file.to_owned()), ready: None, process: Some(process) })
}

/// Lets this process open as many files as it may: the soft limit is there for programs that use
/// `select`, and a proxy needs two descriptors a request.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What cannot be raised stays; the configuration warns when it is too low.
    let _ = setrlimit(Resource::Nofile, limit);
}
