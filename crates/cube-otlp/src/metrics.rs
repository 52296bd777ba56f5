//! What becomes of spans, counted (operations.md, Metrics).

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// Why a span is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// As many wait as may.
    QueueFull,
    /// The collector cannot be reached, does not respond in time, or the process ended before.
    Unreachable,
    /// The collector does not take it.
    Rejected,
}

impl DropReason {
    /// All of them, in order of declaration.
    pub const ALL: [DropReason; 3] = [DropReason::QueueFull, DropReason::Unreachable, DropReason::Rejected];

    /// The label `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            DropReason::QueueFull => "queue_full",
            DropReason::Unreachable => "unreachable",
            DropReason::Rejected => "rejected",
        }
    }
}

/// The counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    exported: IntCounter,
    dropped: [IntCounter; DropReason::ALL.len()],
}

impl Metrics {
    /// Creates and registers them.
    ///
    /// # Errors
    /// When the registry has one of the names already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let exported =
            IntCounter::new("cube_proxy_trace_spans_exported_total", "Spans that the collector has taken.")?;
        let dropped = IntCounterVec::new(
            Opts::new("cube_proxy_trace_spans_dropped_total", "Spans that were lost, by the reason."),
            &["reason"],
        )?;
        registry.register(Box::new(exported.clone()))?;
        registry.register(Box::new(dropped.clone()))?;
        Ok(Self {
            exported,
            dropped: DropReason::ALL.map(|reason| dropped.with_label_values(&[reason.as_str()])),
        })
    }

    pub(crate) fn exported(&self, spans: usize) {
        self.exported.inc_by(spans as u64);
    }

    pub(crate) fn dropped(&self, reason: DropReason, spans: usize) {
        if let Some(counter) = self.dropped.get(reason as usize) {
            counter.inc_by(spans as u64);
        }
    }
}
