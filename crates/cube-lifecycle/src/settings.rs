//! Settings of the lifecycle, and its error.

use std::net::IpAddr;
use std::time::Duration;

use cube_settings::Secret;

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

/// Settings of gate, resume and tables (config.md, `lifecycle` and `resume`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether the state string in the store is a source of states.
    pub follow_redis: bool,
    /// How long a request waits for a change under way to end.
    pub pause_wait: Duration,
    /// Requests held at one time, in all.
    pub max_held: usize,
    /// Requests held at one time for one sandbox.
    pub max_held_per_sandbox: usize,
    /// How a paused sandbox is woken; `None`: it is not.
    pub resume: Option<ResumeSettings>,
    /// Sandboxes whose state is kept; the least used go first.
    pub max_states: usize,
    /// Sandboxes whose last activity is kept; the longest idle go first.
    pub max_active: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            follow_redis: true,
            pause_wait: Duration::from_secs(2),
            max_held: 100_000,
            max_held_per_sandbox: 1024,
            resume: None,
            max_states: 1_000_000,
            max_active: 1_000_000,
        }
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
    /// The row's name.
    pub proxy_id: String,
    /// Where this replica's admin API is reached.
    pub admin_url: Option<String>,
    /// Where this replica has sandboxes resumed.
    pub resume_url: Option<String>,
    /// This node's address, where configured.
    pub node_ip: Option<IpAddr>,
    /// Time between two heartbeats.
    pub interval: Duration,
    /// Version of this program.
    pub version: String,
}
