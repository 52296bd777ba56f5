//! Files that the configuration names.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Described, FileForm, Secret};

/// A path. One that is relative begins at the directory of the configuration file, which whoever loads
/// it puts before it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct FilePath(PathBuf);

impl Described for FilePath {
    fn words() -> String {
        "text".to_owned()
    }
}

impl FileForm<PathBuf> for FilePath {
    fn read(self) -> PathBuf {
        self.0
    }

    fn write(value: &PathBuf) -> Self {
        Self(value.clone())
    }
}

/// A file that holds a secret, and the secret once it was read. It stands for the secret: two with the
/// same one are equal.
#[derive(Clone, Deserialize, Serialize)]
#[serde(from = "FilePath", into = "FilePath")]
pub struct SecretFile {
    path: PathBuf,
    secret: Option<Secret>,
}

impl SecretFile {
    /// One that was not read yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), secret: None }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds; `None`: it was not read.
    #[must_use]
    pub fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Keeps what it holds.
    pub fn set(&mut self, secret: Option<Secret>) {
        self.secret = secret;
    }
}

impl PartialEq for SecretFile {
    fn eq(&self, other: &Self) -> bool {
        self.secret == other.secret && (self.secret.is_some() || self.path == other.path)
    }
}

impl Eq for SecretFile {}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl From<FilePath> for SecretFile {
    fn from(path: FilePath) -> Self {
        Self::new(path.0)
    }
}

impl From<SecretFile> for FilePath {
    fn from(file: SecretFile) -> Self {
        Self(file.path)
    }
}

impl FileForm<SecretFile> for FilePath {
    fn read(self) -> SecretFile {
        self.into()
    }

    fn write(value: &SecretFile) -> Self {
        value.clone().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stands_for_the_secret_in_it() {
        let read = |path: &str, secret: &str| {
            let mut file = SecretFile::new(path);
            file.set(Secret::non_empty(secret));
            file
        };
        assert_eq!(read("a", "example-token"), read("b", "example-token"));
        assert_ne!(read("a", "example-token"), read("a", "example-other"));
        assert_ne!(read("a", ""), read("b", ""), "not read");
        assert!(!format!("{:?}", read("a", "example-token")).contains("example"));
    }
}
