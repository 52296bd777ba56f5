//! The configuration: one YAML file, every key overridable from the environment (config.md).
//!
//! [`load`] reads text into the file's form (`file`), judges it (`resolve`) and answers a
//! [`Config`] in which every value holds. What does not hold is a [`ConfigError`] that names file,
//! line, column and key, all faults at once where one does not hide another.

mod check;
mod error;
mod file;
mod keys;
mod path;
mod resolve;
mod scalar;
mod settings;
mod source;
mod types;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod shape;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use error::{ConfigError, Origin, Problem};
pub use keys::{KEYS, Key, Takes};
pub use resolve::Machine;
pub use source::Environment;
pub use types::*;

/// A configuration, and what its author should know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// One line each; to be logged.
    pub warnings: Vec<String>,
}

/// A time as the file writes it: `500ms`, `3s`, `10m`, `1h`; nothing for anything else.
#[must_use]
pub fn duration(text: &str) -> Option<std::time::Duration> {
    scalar::Span::parse(text)
}

/// Reads the file at `path`, with the overrides of `environment`.
///
/// Relative paths in it begin at its own directory.
///
/// # Errors
/// [`ConfigError`] when it cannot be read or does not hold.
pub fn load(path: &Path, environment: &Environment) -> Result<Loaded, ConfigError> {
    let name = path.display().to_string();
    let unreadable = |message: String| {
        let problem = Problem { origin: Origin::File(None), key: String::new(), message };
        ConfigError { file: name.clone(), problems: vec![problem] }
    };
    let bytes = std::fs::read(path).map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable("is not UTF-8".to_owned()))?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse(text, &name, base, environment, &Machine::this())
}

/// Reads `text` as [`load`] does; `name` stands for the file in errors, relative paths begin at
/// `base`.
///
/// # Errors
/// [`ConfigError`] when it does not hold.
pub fn parse(
    text: String,
    name: &str,
    base: &Path,
    environment: &Environment,
    machine: &Machine,
) -> Result<Loaded, ConfigError> {
    let failed = |problems| ConfigError { file: name.to_owned(), problems };
    let (file, source, mut warnings) = source::read(text, environment).map_err(failed)?;
    let (config, more) =
        resolve::resolve(file, base, machine).map_err(|faults| failed(source.place(faults)))?;
    warnings.extend(more);
    Ok(Loaded { config, warnings })
}
