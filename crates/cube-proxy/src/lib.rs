//! Everything around the running server: configuration, command line, bind check, run directory,
//! logging, the demo. The binary is a call of [`cli::main`].

pub mod bind;
pub mod cli;
pub mod config;
pub mod demo;
pub mod error;
pub mod logging;
mod notify;
pub mod run;
pub mod rundir;
pub mod serve;
pub mod terminal;
pub mod upgrade;
