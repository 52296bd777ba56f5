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
        None => say(match draining(options) {
            0 => "ready".to_owned(),
            1 => "ready; 1 process of before a hot restart still drains".to_owned(),
            more => format!("ready; {more} processes of before a hot restart still drain"),
        }),
        Some(reason) => Err(StartError::Assembly(format!("not ready: {reason}"))),
    }
}

/// How many processes of before a hot restart still drain. That it cannot be asked makes the proxy no
/// less ready: the admin API is off or of an earlier version, or its token is not for who asks.
fn draining(options: &Options) -> usize {
    let config = options.file.load_for(&["admin"]).ok().filter(|config| config.listen.admin.is_some());
    let told = config.and_then(|config| block_on(admin::processes(&config)).ok());
    told.and_then(|told| Some(told.get("processes")?.as_array()?.len())).unwrap_or(0)
}
