//! Who may use the admin API.

use cube_settings::{FilePath, Secret, SecretFile};

cube_settings::section! {
    /// The `admin` section of config.md.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AdminSettings in "admin" {
        /// What callers must present; `None`: only loopback peers are let in.
        live token: Option<Secret> = None,
        /// A file with it in its place.
        live token_file: Option<SecretFile> as Option<FilePath> = None,
    }
}

impl AdminSettings {
    /// The token, from wherever it is.
    #[must_use]
    pub fn token(&self) -> Option<&Secret> {
        self.token.as_ref().or_else(|| self.token_file.as_ref()?.secret())
    }
}
