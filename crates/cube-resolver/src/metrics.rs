//! What operators see of the cache (operations.md). Handles are looked up once.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// What a lookup came to; each counts exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupOutcome {
    /// Served from an entry in its time.
    Hit,
    /// Waited for the store.
    Miss,
    /// "No such sandbox", from memory.
    Negative,
    /// Served past its time since the store cannot answer.
    Stale,
    /// Served past its time, which the store's pushes allow, and read again in the background.
    Refresh,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    hit: IntCounter,
    miss: IntCounter,
    negative: IntCounter,
    stale: IntCounter,
    refresh: IntCounter,
    /// Sandboxes in the cache.
    pub(crate) entries: IntGauge,
    /// Changes that the store pushed.
    pub(crate) invalidations: IntCounter,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let lookups = IntCounterVec::new(
            Opts::new("cube_proxy_cache_lookups_total", "Lookups of a sandbox, by what they came to"),
            &["outcome"],
        )?;
        let entries = IntGauge::new("cube_proxy_cache_entries", "Sandboxes in the route cache")?;
        let invalidations = IntCounter::new(
            "cube_proxy_cache_invalidations_total",
            "Changes that the store pushed, a distrust of everything counting as one",
        )?;
        registry.register(Box::new(lookups.clone()))?;
        registry.register(Box::new(entries.clone()))?;
        registry.register(Box::new(invalidations.clone()))?;
        let outcome = |name| lookups.with_label_values(&[name]);
        Ok(Self {
            hit: outcome("hit"),
            miss: outcome("miss"),
            negative: outcome("negative"),
            stale: outcome("stale"),
            refresh: outcome("refresh"),
            entries,
            invalidations,
        })
    }

    pub(crate) fn count(&self, outcome: LookupOutcome) {
        self.of(outcome).inc();
    }

    pub(crate) fn of(&self, outcome: LookupOutcome) -> &IntCounter {
        match outcome {
            LookupOutcome::Hit => &self.hit,
            LookupOutcome::Miss => &self.miss,
            LookupOutcome::Negative => &self.negative,
            LookupOutcome::Stale => &self.stale,
            LookupOutcome::Refresh => &self.refresh,
        }
    }
}
