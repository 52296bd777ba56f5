//! Metrics of the crate (operations.md). Handles are looked up once.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, exponential_buckets,
};

use crate::GateRefusal;

/// How a resume ended, the values of the label `outcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResumeOutcome {
    /// The manager responded 200.
    Resumed,
    /// The manager responded 429.
    Quota,
    /// Another status, or no HTTP response.
    Failed,
    /// The call took longer than `resume.timeout`.
    TimedOut,
    /// `resume.max_concurrent` calls were under way: none was made.
    Crowded,
}

pub(crate) struct Metrics {
    pass: IntCounter,
    hold: IntCounter,
    refused: [(GateRefusal, IntCounter); 6],
    resumes: [(ResumeOutcome, IntCounter); 5],
    pub(crate) resume_seconds: Histogram,
    pub(crate) held: IntGauge,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let verdicts = registered(
            registry,
            IntCounterVec::new(
                Opts::new(
                    "cube_proxy_gate_verdicts_total",
                    "Verdicts of the gate; a request that is held and then refused counts as both.",
                ),
                &["verdict"],
            )?,
        )?;
        let resumes = registered(
            registry,
            IntCounterVec::new(
                Opts::new(
                    "cube_proxy_resumes_total",
                    "Resumes by how they ended; crowded: no call was made.",
                ),
                &["outcome"],
            )?,
        )?;
        let refused = |refusal: GateRefusal| (refusal, verdicts.with_label_values(&[refusal.as_str()]));
        let ended = |outcome, word| (outcome, resumes.with_label_values(&[word]));
        Ok(Self {
            pass: verdicts.with_label_values(&["pass"]),
            hold: verdicts.with_label_values(&["hold"]),
            refused: GateRefusal::ALL.map(refused),
            resumes: [
                ended(ResumeOutcome::Resumed, "resumed"),
                ended(ResumeOutcome::Quota, "quota"),
                ended(ResumeOutcome::Failed, "failed"),
                ended(ResumeOutcome::TimedOut, "timed_out"),
                ended(ResumeOutcome::Crowded, "crowded"),
            ],
            resume_seconds: registered(
                registry,
                Histogram::with_opts(
                    HistogramOpts::new("cube_proxy_resume_seconds", "Time a resume call took.")
                        .buckets(exponential_buckets(0.016, 2.0, 13)?),
                )?,
            )?,
            held: registered(
                registry,
                IntGauge::new("cube_proxy_held_requests", "Requests that wait for a sandbox now.")?,
            )?,
        })
    }

    pub(crate) fn pass(&self) {
        self.pass.inc();
    }

    pub(crate) fn hold(&self) {
        self.hold.inc();
    }

    pub(crate) fn refused(&self, refusal: GateRefusal) {
        count(&self.refused, refusal);
    }

    pub(crate) fn resume(&self, outcome: ResumeOutcome) {
        count(&self.resumes, outcome);
    }
}

fn count<K: PartialEq>(counters: &[(K, IntCounter)], key: K) {
    if let Some((_, counter)) = counters.iter().find(|(known, _)| *known == key) {
        counter.inc();
    }
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
