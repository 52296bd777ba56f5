//! What one traced request carries from phase to phase: ids, and when what began and ended.

use std::time::Instant;

use cube_otlp::{SpanId, TraceId, TraceParent};
use http::{HeaderMap, HeaderValue};
use pingora::http::RequestHeader;
use pingora::{ErrorType, OrErr, Result};

use super::decision::{TRACEPARENT, TRACESTATE, decide, parent_of, trace_state};
use crate::error_response::Reason;

/// Waits that are told, at most: a request whose sandbox keeps changing its state is looked up again and again.
const WAITS_MOST: usize = 32;

/// Where a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolve {
    /// From memory.
    Hit,
    /// From the store.
    Miss,
    /// From memory, past its time, since the store cannot answer.
    Stale,
}

impl Resolve {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Resolve::Hit => "hit",
            Resolve::Miss => "miss",
            Resolve::Stale => "stale",
        }
    }
}

/// What a request waited for before it went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// A reading of its record from the store.
    Lookup,
    /// The sandbox was being woken.
    Resume,
    /// The sandbox was changing its state otherwise.
    Hold,
}

/// A wait that is over.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) kind: WaitKind,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) failed: bool,
}

/// An attempt at an upstream. Address, status and time are in [`crate::access_log::UpstreamTry`].
#[derive(Debug)]
pub(crate) struct AttemptTrace {
    pub(crate) span: SpanId,
    pub(crate) begun: Instant,
    /// What it failed with, where another one may have followed.
    pub(crate) failure: Option<Reason>,
}

/// What is recorded of one request.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    id: TraceId,
    /// The span of the request itself.
    pub(crate) span: SpanId,
    pub(crate) parent: Option<SpanId>,
    /// `tracestate` of a trusted peer.
    pub(crate) state: String,
    /// Where its record came from, the last time.
    pub(crate) resolve: Option<Resolve>,
    pub(crate) waits: Vec<Wait>,
    /// In the order of the attempts of the request.
    pub(crate) attempts: Vec<AttemptTrace>,
}

impl RequestTrace {
    /// Decides whether a request with these headers is traced. `trusted`: its peer is of
    /// `routing.trusted_proxies`; `ratio`: `tracing.otlp.sample_ratio`.
    pub(crate) fn begin(headers: &HeaderMap, trusted: bool, ratio: f64) -> Option<Box<Self>> {
        let parent = parent_of(headers);
        let id = decide(parent, trusted, ratio, fastrand::f64())?;
        Some(Box::new(Self {
            id,
            span: SpanId::random(),
            parent: parent.map(|parent| parent.span),
            state: if trusted && parent.is_some() { trace_state(headers) } else { String::new() },
            resolve: None,
            waits: Vec::new(),
            attempts: Vec::new(),
        }))
    }

    /// The trace.
    pub(crate) fn id(&self) -> TraceId {
        self.id
    }

    /// Notes a look-up that began at `begun` and ends now.
    pub(crate) fn looked_up(&mut self, begun: Instant, from_memory: bool, came: Result<Resolve, ()>) {
        if let Ok(resolve) = came {
            self.resolve = Some(resolve);
        }
        if !from_memory {
            self.waited(WaitKind::Lookup, begun, came != Ok(Resolve::Miss));
        }
    }

    /// Notes a wait that began at `begun` and ends now.
    pub(crate) fn waited(&mut self, kind: WaitKind, begun: Instant, failed: bool) {
        if self.waits.len() < WAITS_MOST {
            self.waits.push(Wait { kind, begun, ended: Instant::now(), failed });
        }
    }

    /// Notes an attempt.
    pub(crate) fn begin_attempt(&mut self, begun: Instant) {
        self.attempts.push(AttemptTrace { span: SpanId::random(), begun, failure: None });
    }

    /// Notes what the last attempt failed with.
    pub(crate) fn fail_attempt(&mut self, reason: Reason) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.failure = Some(reason);
        }
    }

    /// Names the span of the last attempt as the parent of what the upstream does.
    pub(crate) fn propagate(&self, request: &mut RequestHeader) -> Result<()> {
        let span = self.attempts.last().map_or(self.span, |attempt| attempt.span);
        let value = TraceParent { trace: self.id, span, sampled: true }.value();
        let value = HeaderValue::from_str(&value).or_err(ErrorType::InternalError, "traceparent")?;
        request.insert_header(&TRACEPARENT, value)?;
        if self.parent.is_none() {
            // It belongs to the traceparent that it came with.
            request.remove_header(&TRACESTATE);
        }
        Ok(())
    }
}
