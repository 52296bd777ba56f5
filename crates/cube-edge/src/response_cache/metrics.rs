//! The metrics of the response cache; registered only where it is on.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::error::EdgeError;

/// What became of a response that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// It is stored.
    Stored,
    /// It is longer than `max_object`, or than all there is.
    TooLarge,
    /// Too many others were coming in at once.
    NoRoom,
    /// The response was cut short, or its client left.
    Cut,
    /// The sandbox's record changed meanwhile.
    Outdated,
}

/// The handles.
pub(crate) struct Metrics {
    pub(crate) hits: IntCounter,
    pub(crate) misses: IntCounter,
    pub(crate) bypassed: IntCounter,
    fills: [IntCounter; 5],
    pub(crate) evicted: IntCounter,
    pub(crate) forgotten: IntCounter,
    pub(crate) entries: IntGauge,
    pub(crate) bytes: IntGauge,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, EdgeError> {
        let lookups = counters(
            registry,
            "lookups_total",
            "Requests by what the response cache had for them; bypass: they may not use it.",
        )?;
        let fills =
            counters(registry, "fills_total", "Responses that were to be stored, by what became of them.")?;
        let by = |outcome| lookups.with_label_values(&[outcome]);
        Ok(Self {
            hits: by("hit"),
            misses: by("miss"),
            bypassed: by("bypass"),
            fills: ["stored", "too_large", "no_room", "cut", "outdated"]
                .map(|outcome| fills.with_label_values(&[outcome])),
            evicted: keep(
                registry,
                IntCounter::with_opts(opts("evictions_total", "Stored responses dropped for others."))?,
            )?,
            forgotten: keep(
                registry,
                IntCounter::with_opts(opts(
                    "forgotten_total",
                    "Stored responses dropped since their sandbox changed.",
                ))?,
            )?,
            entries: keep(registry, IntGauge::with_opts(opts("entries", "Stored responses."))?)?,
            bytes: keep(registry, IntGauge::with_opts(opts("bytes", "Bytes that stored responses take."))?)?,
        })
    }

    pub(crate) fn filled(&self, outcome: Fill) {
        if let Some(counter) = self.fills.get(outcome as usize) {
            counter.inc();
        }
    }
}

fn counters(registry: &Registry, name: &str, help: &str) -> Result<IntCounterVec, EdgeError> {
    keep(registry, IntCounterVec::new(opts(name, help), &["outcome"])?)
}

fn keep<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, EdgeError> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("cube_proxy").subsystem("response_cache")
}
