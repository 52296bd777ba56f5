//! Everything around the running server: configuration, command line, bind check, run directory,
//! logging, the demo. The binary is a call of [`cli::main`].

pub mod bind;
pub mod cli;
pub mod config;
pub mod demo;
pub mod error;
pub mod hot_restart;
pub mod logging;
pub mod run;
pub mod run_dir;
mod sd_notify;
pub mod serve;
pub mod terminal;
