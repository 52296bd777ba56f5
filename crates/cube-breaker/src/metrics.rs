//! Metrics of the breaker (operations.md).

use prometheus::{IntCounter, IntGauge, Registry};

#[derive(Debug)]
pub(crate) struct Metrics {
    /// Nodes refused by this process's own breaker.
    pub(crate) open_nodes: IntGauge,
    /// Times that a node's breaker opened; a failed probe is no new one.
    pub(crate) trips: IntCounter,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let open_nodes = IntGauge::new(
            "cube_proxy_breaker_open_nodes",
            "Nodes that this process does not dial for what its connects have told",
        )?;
        let trips =
            IntCounter::new("cube_proxy_breaker_trips_total", "Times that the breaker of a node opened")?;
        registry.register(Box::new(open_nodes.clone()))?;
        registry.register(Box::new(trips.clone()))?;
        Ok(Self { open_nodes, trips })
    }
}
