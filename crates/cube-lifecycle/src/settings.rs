//! Settings of the lifecycle, and its error.

use std::net::IpAddr;
use std::time::Duration;

use cube_settings::{Auto, Count, FilePath, NonZeroCount, NonZeroSpan, SecretFile, Span};

/// Why a [`crate::Lifecycle`] cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// `resume.url` is not what a call can be made to.
    #[error("resume.url: {0}")]
    ResumeUrl(&'static str),
    /// The resume token cannot travel in a header.
    #[error("resume.token_file: the token has a byte that no header may carry")]
    ResumeToken,
    /// A metric of that name is registered already.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

cube_settings::section! {
    /// The `lifecycle` section of config.md, with `resume` and the sizes of tables.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Settings in "lifecycle" {
        /// Whether the state string in the store is a source of states.
        restart follow_redis: bool = true,
        /// How long a request waits for a change under way to end.
        live pause_wait: Duration as Span = Duration::from_secs(2),
        /// Requests held at one time, in all.
        live max_held: usize as Count = 100_000,
        /// Requests held at one time for one sandbox.
        live max_held_per_sandbox: usize as Count = 1024,
    }
    beside {
        /// How a paused sandbox is woken; `None`: it is not.
        resume: Option<ResumeSettings> = None,
        /// Sandboxes whose state is kept; the least used go first.
        max_states: usize = 1_000_000,
        /// Sandboxes whose last activity is kept; the longest idle go first.
        max_active: usize = 1_000_000,
    }
}

cube_settings::section! {
    /// How the manager is asked to wake a sandbox (config.md, `resume`).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ResumeSettings in "resume" {
        /// `http://host[:port][/path]`; `/internal/resume` is put behind it. `None`: nothing is woken.
        live url: Option<String> = None,
        /// How long one call may take, connecting included.
        live timeout: Duration as NonZeroSpan = Duration::from_secs(30),
        /// Calls under way at one time, over all sandboxes.
        live max_concurrent: usize as NonZeroCount = 256,
        /// What is in it is sent as `Authorization: Bearer`, where set.
        live token_file: Option<SecretFile> as Option<FilePath> = None,
    }
}

impl ResumeSettings {
    /// The defaults for a manager at `url`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::default() }
    }
}

cube_settings::section! {
    /// What this replica says about itself in the registry (lifecycle.md, "Registry").
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RegistrySettings in "registry" {
        /// Whether it announces itself.
        restart enabled: bool = false,
        /// Name of this replica, which is the row's. Follows from the host name.
        restart proxy_id: Auto<String> as Option<String> = Auto::new(String::new()),
        /// Where this replica's admin API is reached.
        restart admin_url: Option<String> = None,
        /// Where this replica has sandboxes resumed.
        restart resume_url: Option<String> = None,
        /// Time between two heartbeats.
        restart interval: Duration as NonZeroSpan = Duration::from_secs(5),
    }
    beside {
        /// This node's address, where configured.
        node_ip: Option<IpAddr> = None,
        /// Version of this binary.
        version: String = String::new(),
    }
}
