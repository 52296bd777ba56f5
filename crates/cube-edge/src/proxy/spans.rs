//! The spans of a traced request, made when it has ended: the request itself, what it waited for, and each
//! attempt at an upstream (fleet.md, Tracing). Nothing of the target, of headers and of bodies is in them.

use std::time::{Instant, SystemTime};

use cube_otlp::{Attribute, Span, SpanId, SpanKind, Value};
use http::{Method, Version};

use crate::access_log::UpstreamTry;
use crate::proxy::context::{Context, RequestOutcome};
use crate::trace::{RequestTrace, Wait, WaitKind};

/// All spans of a request that ended at `now`.
pub(crate) fn of(
    ctx: &Context,
    trace: &RequestTrace,
    version: Option<Version>,
    outcome: RequestOutcome,
    now: Instant,
) -> Vec<Span> {
    let clock = WallClock { now, is: SystemTime::now() };
    let child = |name, kind, id, begun, ended| Span {
        trace: trace.id(),
        id,
        parent: Some(trace.span),
        parent_is_remote: false,
        trace_state: trace.state.clone(),
        name,
        kind,
        began: clock.at(begun),
        ended: clock.at(ended),
        attributes: Vec::new(),
        failed: false,
    };
    let mut spans = Vec::with_capacity(1 + trace.waits.len() + trace.attempts.len());
    let method = method_name(&ctx.method);
    let name = format!("{} {}", if method == OTHER { "HTTP" } else { method }, ctx.form().as_str());
    spans.push(Span {
        parent: trace.parent,
        parent_is_remote: trace.parent.is_some(),
        attributes: request_attributes(ctx, trace, version, outcome),
        failed: failed(ctx, outcome),
        ..child(name.into(), SpanKind::Server, trace.span, ctx.started, now)
    });
    for Wait { kind, begun, ended, failed } in &trace.waits {
        let (name, kind) = match kind {
            WaitKind::Lookup => ("lookup", SpanKind::Client),
            WaitKind::Resume => ("resume", SpanKind::Internal),
            WaitKind::Hold => ("hold", SpanKind::Internal),
        };
        spans.push(Span { failed: *failed, ..child(name.into(), kind, SpanId::random(), *begun, *ended) });
    }
    for (number, (attempt, tried)) in trace.attempts.iter().zip(&ctx.attempts.list).enumerate() {
        let ended = tried.took.map_or(now, |took| attempt.begun + took);
        // What was cut is the response of the last one.
        let cut = ctx.seen.cut.filter(|_| number + 1 == trace.attempts.len());
        let failure = match tried.status {
            Some(status) if status >= 400 => Some(status.to_string().into()),
            Some(_) => cut.map(|reason| reason.as_str().into()),
            None => Some(attempt.failure.unwrap_or(outcome.reason).as_str().into()),
        };
        spans.push(Span {
            failed: failure.is_some(),
            attributes: attempt_attributes(method, number, tried, failure),
            ..child("upstream".into(), SpanKind::Client, attempt.span, attempt.begun, ended)
        });
    }
    spans
}

/// Whether a request failed for a reason on this side of the client.
fn failed(ctx: &Context, outcome: RequestOutcome) -> bool {
    outcome.status >= 500 || ctx.seen.cut.is_some()
}

fn request_attributes(
    ctx: &Context,
    trace: &RequestTrace,
    version: Option<Version>,
    outcome: RequestOutcome,
) -> Vec<Attribute> {
    let mut all: Vec<Attribute> = vec![
        ("http.request.method", method_name(&ctx.method).into()),
        ("cube.retcode", i64::from(outcome.retcode.code()).into()),
        ("cube.reason", outcome.reason.as_str().into()),
    ];
    if let Some(status) = ctx.seen.head_sent {
        all.push(("http.response.status_code", i64::from(status).into()));
    }
    if failed(ctx, outcome) {
        all.push(("error.type", outcome.reason.as_str().into()));
    }
    if let Some(version) = version {
        all.push(("network.protocol.version", protocol_version(version).into()));
    }
    if let Some(downstream) = &ctx.downstream {
        all.push(("url.scheme", downstream.conn.protocol.scheme().into()));
        let peer = downstream.conn.peer;
        all.push(("network.peer.address", peer.ip().to_canonical().to_string().into()));
        all.push(("network.peer.port", i64::from(peer.port()).into()));
    }
    if let Some(client) = ctx.seen.real_ip {
        all.push(("client.address", client.to_string().into()));
    }
    if let Some(target) = &ctx.target {
        all.push(("cube.sandbox_id", target.id.as_str().to_owned().into()));
        all.push(("cube.container_port", i64::from(target.port.get()).into()));
    }
    if let Some(resolve) = trace.resolve {
        all.push(("cube.resolve", resolve.as_str().into()));
    }
    if !ctx.held.is_zero() {
        all.push(("cube.held_ms", i64::try_from(ctx.held.as_millis()).unwrap_or(i64::MAX).into()));
    }
    all
}

fn attempt_attributes(
    method: &'static str,
    number: usize,
    tried: &UpstreamTry,
    failure: Option<Value>,
) -> Vec<Attribute> {
    let mut all: Vec<Attribute> = vec![
        ("http.request.method", method.into()),
        ("server.address", tried.address.ip().to_string().into()),
        ("server.port", i64::from(tried.address.port()).into()),
    ];
    if number > 0 {
        all.push(("http.request.resend_count", i64::try_from(number).unwrap_or(i64::MAX).into()));
    }
    if let Some(status) = tried.status {
        all.push(("http.response.status_code", i64::from(status).into()));
    }
    if let Some(failure) = failure {
        all.push(("error.type", failure));
    }
    all
}

/// What the conventions say for a method that is not theirs: a client can make up any.
const OTHER: &str = "_OTHER";

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::CONNECT => "CONNECT",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::PATCH => "PATCH",
        _ => OTHER,
    }
}

fn protocol_version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// Turns instants into the time of day, so that spans are as long as what they tell of also where the clock is
/// set meanwhile.
struct WallClock {
    now: Instant,
    is: SystemTime,
}

impl WallClock {
    fn at(&self, instant: Instant) -> SystemTime {
        let ago = self.now.saturating_duration_since(instant);
        self.is.checked_sub(ago).unwrap_or(self.is)
    }
}
