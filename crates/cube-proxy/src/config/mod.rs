//! The configuration: one YAML file, every key overridable from the environment (config.md).
//!
//! [`load`] reads text into a [`Config`] whose single values hold, and judges what hangs on more than
//! one of them (`resolve`). What does not hold is a [`ConfigError`] that names file,
//! line, column and key, all faults at once where one does not hide another.

mod check;
mod error;
#[cfg(any(test, cube_fuzz))]
pub mod fuzz;
mod keys;
mod otlp;
mod path;
mod resolve;
mod settings;
mod source;
mod types;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::path::Path;

use check::Reads;

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
    cube_settings::Span::parse(text)
}

/// Reads the file at `path`, with the overrides of `environment`, for a proxy that is to serve.
///
/// Relative paths in it begin at its own directory.
///
/// # Errors
/// [`ConfigError`] when it cannot be read or does not hold.
pub fn load(path: &Path, environment: &Environment) -> Result<Loaded, ConfigError> {
    load_reading(path, environment, Reads::All)
}

/// As [`load`], for a command that uses no more than some `sections`: what other sections name (keys
/// of certificates, tokens, stores) is not looked at, and whoever runs the command need not be
/// allowed to. Secrets of those sections are `None`.
///
/// # Errors
/// [`ConfigError`] when it cannot be read or does not hold.
pub fn load_for(
    path: &Path,
    environment: &Environment,
    sections: &'static [&'static str],
) -> Result<Loaded, ConfigError> {
    load_reading(path, environment, Reads::Only(sections))
}

fn load_reading(path: &Path, environment: &Environment, reads: Reads) -> Result<Loaded, ConfigError> {
    let name = path.display().to_string();
    let unreadable = |message: String| {
        let problem = Problem { origin: Origin::File(None), key: String::new(), message };
        ConfigError { file: name.clone(), problems: vec![problem] }
    };
    let bytes = std::fs::read(path).map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable("is not UTF-8".to_owned()))?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse_reading(text, &name, base, environment, &Machine::this(), reads)
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
    parse_reading(text, name, base, environment, machine, Reads::All)
}

fn parse_reading(
    text: String,
    name: &str,
    base: &Path,
    environment: &Environment,
    machine: &Machine,
    reads: Reads,
) -> Result<Loaded, ConfigError> {
    let failed = |problems| ConfigError { file: name.to_owned(), problems };
    let source::Reading { file, source, mut warnings, mut faults, broken } =
        source::read(text, environment).map_err(failed)?;
    match resolve::resolve(file, base, machine, reads, &broken) {
        Ok((config, more)) if faults.is_empty() => {
            warnings.extend(more);
            Ok(Loaded { config, warnings })
        }
        Ok(_) => Err(failed(source.place(faults))),
        Err(more) => {
            faults.extend(more);
            Err(failed(source.place(faults)))
        }
    }
}
