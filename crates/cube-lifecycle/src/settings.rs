//! Settings of the lifecycle, and its error.

use std::net::IpAddr;
use std::time::Duration;

use cube_settings::{Count, Secret, Span};

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

/// How the manager is asked to wake a sandbox (config.md, `resume`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeSettings {
    /// `http://host[:port][/path]`; `/internal/resume` is put behind it.
    pub url: String,
    /// How long one call may take, connecting included.
    pub timeout: Duration,
    /// Calls under way at one time, over all sandboxes.
    pub max_concurrent: usize,
    /// Sent as `Authorization: Bearer`, where set.
    pub token: Option<Secret>,
}

impl ResumeSettings {
    /// The defaults for a manager at `url`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), timeout: Duration::from_secs(30), max_concurrent: 256, token: None }
    }
}

/// What this replica says about itself in the registry (lifecycle.md, "Registry").
#[derive(Debug, Clone)]
pub struct RegistrySettings {
    /// Name of this replica, which is the row's.
    pub proxy_id: String,
    /// Where this replica's admin API is reached.
    pub admin_url: Option<String>,
    /// Where this replica has sandboxes resumed.
    pub resume_url: Option<String>,
    /// This node's address, where configured.
    pub node_ip: Option<IpAddr>,
    /// Time between two heartbeats.
    pub interval: Duration,
    /// Version of this binary.
    pub version: String,
}
