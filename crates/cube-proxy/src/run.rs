//! `cube-proxy run`: everything before the server, in the order that leaves nothing half started.

use std::path::Path;

use crate::config::{self, Environment};
use crate::error::StartError;
use crate::hot_restart::{self, RestartReply, StartedAs};
use crate::logging;
use crate::run_dir::RunDir;
use crate::serve::{Process, ServeOptions, Startup, serve};

/// Serves with the configuration in `file` until the process is asked to end. With `upgrade`, takes
/// over from the process that serves now, or has it start its successor.
///
/// # Errors
/// [`StartError`] when it does not hold or the server cannot start.
pub fn run(file: &Path, upgrade: bool) -> Result<(), StartError> {
    raise_file_limit();
    spare_huge_pages();
    let environment = Environment::process();
    let loaded = config::load(file, &environment)?;
    let mut config = loaded.config;
    allow_core_dumps(config.server.core_dumps);
    logging::init(config.log);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let locate = if upgrade { RunDir::of_running } else { RunDir::locate };
    let run_dir = locate(config.server.run_dir.as_deref(), &environment);
    run_dir.create()?;
    config.server.run_dir = Some(run_dir.path().to_owned());
    let startup = if upgrade {
        match hot_restart::ask(&run_dir)? {
            RestartReply::Successor(predecessor, inherited) => Startup::Successor(predecessor, inherited),
            RestartReply::Done(text) => {
                tracing::info!("{text}");
                return Ok(());
            }
        }
    } else {
        Startup::First(run_dir.claim()?)
    };
    let process = Process { run_dir, startup, started: StartedAs::this_process(file) };
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

/// Keeps this process's memory in pages of the usual size. A huge page (2 MiB) is resident as a whole
/// as soon as one of its bytes is used, and what thousands of streams leave free in it is never given
/// back (docs/decisions/0008-memory-of-streams.md).
pub fn spare_huge_pages() {
    // A kernel without huge pages has none to disable.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Says whether the memory of this process may be written to a core dump, and read by other processes of its
/// user (`ptrace`, most of `/proc/<pid>`): it holds tokens, keys of certificates and the bytes of requests. Root
/// may read it in any case (operations.md, "Secrets in memory").
pub fn allow_core_dumps(allowed: bool) {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    let behavior = if allowed { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    if let Err(error) = set_dumpable_behavior(behavior) {
        tracing::warn!(%error, "core dumps stay as they were");
    }
}
