//! Settings of the breaker, and its error.

use std::time::Duration;

use cube_settings::{NonZeroCount, NonZeroSpan, Span};

cube_settings::section! {
    /// The `breaker` section of config.md.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Settings in "breaker" {
        /// Name of the faulty set, which the store reads; the breaker itself does not need it.
        restart shared_set: String = "faulty_backend_set".to_owned(),
        /// How often the faulty set is read although no change of it was pushed.
        live shared_poll: Duration as NonZeroSpan = Duration::from_secs(5),
        /// Failed connects older than this do not count.
        live window: Duration as NonZeroSpan = Duration::from_secs(10),
        /// Failed connects must be to as many different sandboxes of a node to count against the node.
        live min_sandboxes: usize as NonZeroCount = 3,
        /// How long a node is refused when its breaker opens.
        live open_min: Duration as NonZeroSpan = Duration::from_secs(5),
        /// The most that this doubles to while probes fail.
        live open_max: Duration as Span = Duration::from_secs(60),
    }
}

/// Why no breaker could be made.
#[derive(Debug, thiserror::Error)]
pub enum BreakerError {
    /// A metric of that name exists in the registry.
    #[error("cannot register the metrics of the breaker: {0}")]
    Metrics(#[from] prometheus::Error),
}
