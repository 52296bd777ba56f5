//! Why a command failed, and the exit code that says so.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::ConfigError;
use crate::hot_restart::UpgradeError;

/// Exit code for a configuration that does not hold (`EX_USAGE` of sysexits, operations.md).
pub const EXIT_CONFIG: u8 = 64;
/// Exit code for what is wrong outside the configuration.
pub const EXIT_FAILURE: u8 = 1;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration does not hold. Nothing was bound.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be bound.
    #[error("{option}: {address} {reason}")]
    Bind {
        /// The option that names it, e.g. `listen.http`.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says, in words.
        reason: String,
    },
    /// The command line asks for what cannot be, a line a fault.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// Several things at once, a line each; none of them is about the configuration.
    #[error("{}", lines(.0))]
    Several(Vec<StartError>),
    /// Another process serves from this run directory.
    #[error(
        "already running as process {pid} ({file}); take over from it with --upgrade, stop it first, or give \
         this one another server.run_dir"
    )]
    Running {
        /// Its id.
        pid: i32,
        /// The pid file.
        file: PathBuf,
    },
    /// Nobody listens where a running proxy would be asked.
    #[error("no proxy answers at {option} ({address}); is it running?")]
    NotRunning {
        /// The option that names the address, e.g. `listen.admin`.
        option: &'static str,
        /// Where it would be.
        address: SocketAddr,
    },
    /// A file or directory of the process cannot be used.
    #[error("{path}: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Something in the run directory cannot be made, read or written.
    #[error("server.run_dir: {path}: {source}{}", advice(directory, source))]
    RunDir {
        /// What in it.
        path: PathBuf,
        /// The run directory.
        directory: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that a key of the configuration names cannot be used.
    #[error("{key}: {path}: {reason}")]
    Named {
        /// The key.
        key: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why not, in words.
        reason: String,
    },
    /// The store cannot be reached or refuses.
    #[error("store: {0}")]
    Store(#[from] cube_metadata::StoreError),
    /// An upgrade came to nothing; where a process served before, it serves on.
    #[error("upgrade: {0}")]
    Upgrade(#[from] UpgradeError),
    /// What standard output shows is all there is: the command came to no more.
    #[error("{0}")]
    Told(String),
    /// Anything else that keeps the server from starting.
    #[error("{0}")]
    Assembly(String),
}

impl StartError {
    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            StartError::Config(_) | StartError::Usage(_) => EXIT_CONFIG,
            StartError::Upgrade(error) => error.code,
            _ => EXIT_FAILURE,
        }
    }
}

/// What to do about a run directory that this user cannot write to: in a container with a read-only
/// root, or under another user than the image's, that is the only one that must be writable.
fn advice(directory: &std::path::Path, source: &std::io::Error) -> String {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    if !matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem | NotADirectory) {
        return String::new();
    }
    let user = rustix::process::geteuid().as_raw();
    format!(
        "; {} must be a directory that user {user} may write to: mount one there (in a container, a tmpfs), or \
         name another",
        directory.display()
    )
}

fn lines(errors: &[StartError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
