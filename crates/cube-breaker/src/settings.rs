//! Settings of the breaker, and its error.

use std::time::Duration;

/// The `breaker` section of config.md. (`shared_set`, the name of the faulty set, is the store's.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How often the faulty set is read although no change of it was pushed.
    pub shared_poll: Duration,
    /// Failed connects older than this do not count.
    pub window: Duration,
    /// How long a node is refused when its breaker opens.
    pub open_min: Duration,
    /// The most that this doubles to while probes fail.
    pub open_max: Duration,
    /// Failed connects must be to as many different sandboxes of a node to tell about the node.
    pub min_sandboxes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            shared_poll: Duration::from_secs(5),
            window: Duration::from_secs(10),
            open_min: Duration::from_secs(5),
            open_max: Duration::from_secs(60),
            min_sandboxes: 3,
        }
    }
}

/// Why no breaker could be made.
#[derive(Debug, thiserror::Error)]
pub enum BreakerError {
    /// A metric of that name exists in the registry.
    #[error("cannot register the metrics of the breaker: {0}")]
    Metrics(#[from] prometheus::Error),
}
