//! `cube-proxy ready`: whether the running proxy may be given requests, for health checks of
//! containers and for scripts.

use std::path::PathBuf;

use clap::Args;

use super::{admin, block_on, say};
use crate::config::{self, Environment};
use crate::error::StartError;

/// Which proxy.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The configuration file, which names the listener that is asked
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn run(options: &Options) -> Result<(), StartError> {
    let config = config::load(&options.config, &Environment::process())?.config;
    match block_on(admin::unready(&config))? {
        None => say("ready"),
        Some(reason) => Err(StartError::Engine(format!("not ready: {reason}"))),
    }
}
