//! Everything around the running server: configuration, command line, bind check, run directory,
//! logging, the demo. The binary is a call of [`cli::main`].

pub mod config;
pub mod error;
pub mod serve;
