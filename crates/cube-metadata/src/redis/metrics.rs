//! What the store tells about itself.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::StoreError;

pub(crate) struct Metrics {
    latency: Histogram,
    unreachable: IntCounter,
    timeout: IntCounter,
    refused: IntCounter,
    invalid: IntCounter,
    pub(crate) legacy_hits: IntCounter,
    pub(crate) tracked: IntGauge,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let latency = Histogram::with_opts(
            HistogramOpts::new(
                "cube_proxy_store_latency_seconds",
                "Time of one lookup in the store, failed ones too",
            )
            .buckets(vec![0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.5]),
        )?;
        let errors = IntCounterVec::new(
            Opts::new("cube_proxy_store_errors_total", "Lookups and commands that the store did not answer"),
            &["kind"],
        )?;
        let legacy_hits = IntCounter::new(
            "cube_proxy_store_legacy_hits_total",
            "Records found under the legacy prefix only; zero means it can be dropped",
        )?;
        let tracked = IntGauge::new("cube_proxy_cache_tracked", "1 while changes in the store are pushed")?;
        registry.register(Box::new(latency.clone()))?;
        registry.register(Box::new(errors.clone()))?;
        registry.register(Box::new(legacy_hits.clone()))?;
        registry.register(Box::new(tracked.clone()))?;
        Ok(Self {
            latency,
            unreachable: errors.with_label_values(&["unreachable"]),
            timeout: errors.with_label_values(&["timeout"]),
            refused: errors.with_label_values(&["refused"]),
            invalid: errors.with_label_values(&["invalid"]),
            legacy_hits,
            tracked,
        })
    }

    pub(crate) fn asked(&self, took: Duration) {
        self.latency.observe(took.as_secs_f64());
    }

    pub(crate) fn failed(&self, error: &StoreError) {
        match error {
            StoreError::Unreachable(_) => self.unreachable.inc(),
            StoreError::Timeout | StoreError::TimeoutAt(_) => self.timeout.inc(),
            StoreError::Refused(_) => self.refused.inc(),
            StoreError::Invalid(_) => self.invalid.inc(),
        }
    }
}
