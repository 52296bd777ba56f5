//! `cube-proxy ready`: whether the running proxy may be given requests, for health checks of
//! containers and for scripts.

use clap::Args;

use super::file::ConfigFile;
use super::{admin, block_on, say};
use crate::error::StartError;

/// Which proxy.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    file: ConfigFile,
}

pub(super) fn run(options: &Options) -> Result<(), StartError> {
    let config = options.file.load_for(&[])?;
    match block_on(admin::unready(&config))? {
        None => say("ready"),
        Some(reason) => Err(StartError::Engine(format!("not ready: {reason}"))),
    }
}
