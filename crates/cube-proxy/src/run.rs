//! `cube-proxy run`: everything before the server, in the order that leaves nothing half started.

use std::path::Path;

use crate::bind;
use crate::config::{self, Environment};
use crate::error::StartError;
use crate::logging;
use crate::rundir::RunDir;
use crate::serve::{ServeOptions, serve};

/// Serves with the configuration in `file` until the process is asked to end.
///
/// # Errors
/// [`StartError`] when it does not hold or the server cannot start.
pub fn run(file: &Path) -> Result<(), StartError> {
    raise_file_limit();
    let environment = Environment::process();
    let loaded = config::load(file, &environment)?;
    let mut config = loaded.config;
    logging::init(config.log);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let run_dir = RunDir::locate(config.server.run_dir.as_deref(), &environment);
    run_dir.create()?;
    let pid_file = run_dir.claim()?;
    bind::check(&config.listen)?;
    config.server.run_dir = Some(run_dir.path().to_owned());
    let outcome = serve(config, None, ServeOptions { file: Some(file.to_owned()), ready: None });
    drop(pid_file);
    outcome
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
