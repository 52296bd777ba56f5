//! Which store records come from.

use std::path::PathBuf;

use cube_settings::FilePath;

use crate::RedisSettings;

cube_settings::choice! {
    /// The kinds of store (metadata.md).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StoreKind {
        /// Redis.
        Redis = "redis",
        /// The embedded store: a YAML file, watched.
        File = "file",
    }
}

cube_settings::section! {
    /// The `store` section of config.md.
    #[derive(Debug, Clone, PartialEq)]
    pub struct StoreSettings in "store" {
        /// Which of the two.
        restart kind: StoreKind = StoreKind::Redis,
        /// The file of the embedded store.
        restart file: Option<PathBuf> as Option<FilePath> = None,
        /// How Redis is reached.
        section redis: RedisSettings = RedisSettings::default(),
    }
}
