//! Which configuration file a command is about.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::{self, Config, Environment};
use crate::error::StartError;

/// Where packages put it, and where it is looked for.
const PACKAGED: &str = "/etc/cube-proxy/cube-proxy.yaml";

/// `-c`, the same in every command.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ConfigFile {
    /// The configuration file; without it /etc/cube-proxy/cube-proxy.yaml, where there is one
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    /// Where it is.
    ///
    /// # Errors
    /// [`StartError::Usage`] where none is named and none is in its usual place.
    pub(super) fn path(&self) -> Result<&Path, StartError> {
        self.path_or(Path::new(PACKAGED))
    }

    fn path_or<'a>(&'a self, packaged: &'a Path) -> Result<&'a Path, StartError> {
        match &self.config {
            Some(path) => Ok(path),
            None if packaged.exists() => Ok(packaged),
            None => Err(StartError::Usage(vec![format!(
                "no configuration file: name one with -c FILE (there is none at {})",
                packaged.display()
            )])),
        }
    }

    /// Reads it for a command that uses these `sections` and nothing that other ones name
    /// ([`config::load_for`]).
    ///
    /// # Errors
    /// [`StartError`] where there is none or it does not hold.
    pub(super) fn load_for(&self, sections: &'static [&'static str]) -> Result<Config, StartError> {
        Ok(config::load_for(self.path()?, &Environment::process(), sections)?.config)
    }
}

#[cfg(test)]
impl From<PathBuf> for ConfigFile {
    fn from(path: PathBuf) -> Self {
        Self { config: Some(path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packaged_file_is_taken_where_none_is_named_and_there_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let packaged = directory.path().join("cube-proxy.yaml");
        let error = ConfigFile::default().path_or(&packaged).unwrap_err();
        assert_eq!(error.exit_code(), 64);
        let said = error.to_string();
        assert!(said.contains("-c FILE") && said.contains(&packaged.display().to_string()), "{said}");
        std::fs::write(&packaged, "").unwrap();
        assert_eq!(ConfigFile::default().path_or(&packaged).unwrap(), packaged);
        let named = ConfigFile::from(PathBuf::from("other.yaml"));
        assert_eq!(named.path_or(&packaged).unwrap(), Path::new("other.yaml"));
    }
}
