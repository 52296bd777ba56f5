//! What is wrong with a configuration, and where.

use std::fmt;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In the file: line and column, from 1, where they are known.
    File(Option<(usize, usize)>),
    /// In an environment variable.
    Environment(String),
}

/// One thing that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written.
    pub origin: Origin,
    /// Dotted path of the key; empty for the file as a whole.
    pub key: String,
    /// What is wrong, in words. Never a secret.
    pub message: String,
}

/// A configuration that does not hold; at least one problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as named on the command line.
    pub file: String,
    /// In the order of the file where known.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            match &problem.origin {
                Origin::File(Some((line, column))) => write!(f, "{}:{line}:{column}: ", self.file)?,
                Origin::File(None) => write!(f, "{}: ", self.file)?,
                // The file is still named: the value stands in for one of its keys.
                Origin::Environment(name) => write!(f, "{}: {name}: ", self.file)?,
            }
            if !problem.key.is_empty() {
                write!(f, "{}: ", problem.key)?;
            }
            f.write_str(&problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
