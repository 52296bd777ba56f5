//! The configuration: one YAML file, every key overridable from the environment (config.md).

mod error;
mod types;

pub use error::{ConfigError, Origin, Problem};
pub use types::*;
