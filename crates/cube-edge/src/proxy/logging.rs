//! The log phase: every request is counted once and logged once, however it ended.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Version, header};
use pingora::proxy::Session;

use crate::access_log::{LineValues, LogEntry, Texts};
use crate::connection::{Conn, Refuse, ip_value};
use crate::drain::Stage;
use crate::error_response::Reason;
use crate::error_response::{ProxyError, ResponseFormat, render};
use crate::metrics::{Finished, FormClass, MethodClass, RouteClass};
use crate::proxy::context::{Context, RequestOutcome};
use crate::proxy::request_id;
use crate::proxy::spans;
use crate::proxy::state::{ProxyState, header_text};
use crate::retcode::Retcode;

/// The end of a request stamps its sandbox only where the last stamp is that old.
const STAMPED: Duration = Duration::from_secs(1);

/// Counts and logs a request that has ended. `session` is missing where its task was dropped.
pub(crate) fn log_request(state: &ProxyState, ctx: &mut Context, mut session: Option<&mut Session>) {
    if std::mem::replace(&mut ctx.logged, true) {
        return;
    }
    let now = Instant::now();
    ctx.attempts.end(now);
    let drained = state.drain.stage() == Stage::Over;
    let outcome = outcome(ctx, session.is_none(), drained);
    if !ctx.body.request_done
        && outcome.status != 101
        && let (Some(session), Some(downstream)) = (session.as_mut(), &ctx.downstream)
        && !session.is_body_done()
    {
        downstream.conn.linger_on_close();
    }
    // A stamp younger than that would not be written anyway.
    if ctx.stamped.is_some_and(|stamped| now.saturating_duration_since(stamped) >= STAMPED) {
        stamp_activity(state, ctx);
    }
    let took = now.saturating_duration_since(ctx.started);
    state.metrics.finished(&Finished {
        method: MethodClass::of(&ctx.method),
        route: ctx.route_class,
        success: (200..400).contains(&outcome.status) || outcome.status == 101,
        took,
        retcode: outcome.retcode,
        reason: outcome.reason,
        form: ctx.form(),
    });
    if let Some(result) = ctx.preview_result {
        state.metrics.preview(result);
    }
    if let Some(begun) = ctx.attempts.first_begun() {
        let added = begun.saturating_duration_since(ctx.started).saturating_sub(ctx.held);
        state.metrics.added_latency.observe(added.as_secs_f64());
    }
    if let Some(traces) = &state.traces
        && let Some(trace) = &ctx.trace
    {
        let version = session.as_ref().map(|session| session.req_header().version);
        traces.submit(spans::of(ctx, trace, version, outcome, now));
    }
    write_access_log(state, ctx, session, outcome, took);
}

fn write_access_log(
    state: &ProxyState,
    ctx: &Context,
    session: Option<&mut Session>,
    outcome: RequestOutcome,
    took: Duration,
) {
    let Some(log) = &state.access_log else { return };
    let request = session.as_ref().map(|session| session.req_header());
    let raw = request.map_or(&b""[..], |request| request.raw_path());
    let upstream_target = ctx.upstream_target(raw);
    let went_up = !ctx.attempts.list.is_empty();
    let uri = upstream_target.split(|b| *b == b'?').next().filter(|_| went_up);
    let host = || request.and_then(|request| request.headers.get(header::HOST));
    let conn = ctx.downstream.as_ref().map(|downstream| &downstream.conn);
    let other_ip;
    let real_ip = match (ctx.seen.real_ip, conn) {
        (Some(ip), Some(conn)) if ip == conn.peer.ip().to_canonical() => conn.peer_text().as_bytes(),
        (Some(ip), _) => {
            other_ip = ip_value(ip);
            other_ip.as_bytes()
        }
        (None, _) => b"",
    };
    let scheme = conn.map(|conn| conn.protocol.scheme());
    log.submit(&LogEntry {
        texts: Texts {
            host: if ctx.host.is_empty() { text(host()) } else { &ctx.host },
            x_real_ip: real_ip,
            x_forwarded_for: ctx.seen.forwarded_for.as_ref().map_or(real_ip, |value| value.as_bytes()),
            x_forwarded_proto: match &ctx.seen.forwarded_proto {
                Some(proto) => proto.as_bytes(),
                None => scheme.map(str::as_bytes).unwrap_or_default(),
            },
            method: request.map(|request| request.method.as_str().as_bytes()).unwrap_or_default(),
            request_uri: raw,
            uri: uri.unwrap_or_default(),
            user_agent: text(ctx.seen.user_agent.as_ref()),
            x_cube_request_id: header_text(&ctx.request_id).as_bytes(),
            x_cube_instance_id: text(ctx.seen.instance_id.as_ref()),
            sandbox_id: ctx.target.as_ref().map(|target| target.id.as_str().as_bytes()).unwrap_or_default(),
        },
        values: LineValues {
            time: SystemTime::now(),
            server_addr: conn.map(|conn| conn.local.ip().to_canonical()),
            protocol: request.map(|request| protocol(request.version)),
            status: ctx.seen.head_sent,
            body_bytes_sent: ctx.body.down,
            took,
            connection_requests: u64::from(ctx.number),
            retcode: outcome.retcode,
            port: ctx.target.as_ref().map(|target| target.port),
            reason: outcome.reason,
            trace: ctx.trace.as_ref().map(|trace| trace.id()),
        },
        upstreams: &ctx.attempts.list,
    });
}

fn text(value: Option<&HeaderValue>) -> &[u8] {
    value.map(HeaderValue::as_bytes).unwrap_or_default()
}

impl Drop for Context {
    /// A request whose task was dropped in the middle (a kill, a panic) is counted and logged all
    /// the same.
    fn drop(&mut self) {
        if !self.logged {
            let state = self.state.clone();
            log_request(&state, self, None);
        }
    }
}

/// Notes that the sandbox is in use.
pub(crate) fn stamp_activity(state: &ProxyState, ctx: &mut Context) {
    if let Some(sandbox) = ctx.sandbox() {
        state.lifecycle.touch(&sandbox.entry.id);
        ctx.stamped = Some(Instant::now());
    }
}

/// How a request ended, where nothing has said it yet. `dropped`: its task was, in the middle;
/// `drained`: the time for draining is over.
fn outcome(ctx: &Context, dropped: bool, drained: bool) -> RequestOutcome {
    if let Some(outcome) = ctx.outcome {
        return outcome;
    }
    let ended = ctx.ended().or(drained.then_some(ProxyError::DrainTimeout));
    if let Some(status) = ctx.seen.head_sent {
        let reason = match ctx.seen.cut {
            Some(reason) => reason,
            None if dropped => ended.map_or(Reason::ClientClosed, ProxyError::reason),
            None if status >= 400 => Reason::UpstreamStatus,
            None => Reason::Ok,
        };
        return RequestOutcome { status, retcode: Retcode::Passed(status), reason };
    }
    match ended {
        Some(error) => RequestOutcome {
            status: error.status(ctx.settings.own_responses.dialect),
            retcode: error.retcode(),
            reason: error.reason(),
        },
        // The task was dropped: with its connection (the client has left), or by a panic.
        None if std::thread::panicking() => {
            RequestOutcome { status: 500, retcode: Retcode::Internal, reason: Reason::Internal }
        }
        None => RequestOutcome::CLIENT_LEFT,
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        Version::HTTP_09 => "HTTP/0.9",
        _ => "HTTP/1.1",
    }
}

impl Refuse for ProxyState {
    fn refuse(&self, conn: &Conn, status: u16) -> Bytes {
        let error = match status {
            405 => ProxyError::MethodNotAllowed,
            408 => ProxyError::HeadTimeout,
            414 => ProxyError::TargetTooLong,
            431 => ProxyError::HeadTooLarge,
            _ => ProxyError::BadHead,
        };
        let number = conn.next_request();
        let settings = self.settings.load();
        // Counted like any other. Its own response says what is wrong with it all the same: the
        // connection ends with it.
        if let Some(rate) = settings.limits.request_rate() {
            self.rate.allows(conn.peer.ip().to_canonical(), rate);
        }
        let own = render(error, &ResponseFormat::default(), settings.own_responses);
        self.metrics.finished(&Finished {
            method: MethodClass::Other,
            route: RouteClass::Other,
            success: false,
            took: Duration::ZERO,
            retcode: own.log_retcode,
            reason: own.reason,
            form: FormClass::Unnamed,
        });
        let id = request_id::new();
        if let Some(log) = &self.access_log {
            log.submit(&LogEntry {
                texts: Texts {
                    x_real_ip: conn.peer_text().as_bytes(),
                    x_forwarded_for: conn.peer_text().as_bytes(),
                    x_forwarded_proto: conn.protocol.scheme().as_bytes(),
                    x_cube_request_id: id.as_bytes(),
                    ..Texts::default()
                },
                values: LineValues {
                    time: SystemTime::now(),
                    server_addr: Some(conn.local.ip().to_canonical()),
                    protocol: None,
                    status: Some(own.status.as_u16()),
                    body_bytes_sent: own.body.len() as u64,
                    took: Duration::ZERO,
                    connection_requests: u64::from(number),
                    retcode: own.log_retcode,
                    port: None,
                    reason: own.reason,
                    trace: None,
                },
                upstreams: &[],
            });
        }
        let mut bytes = Vec::with_capacity(512);
        let reason = own.status.canonical_reason().unwrap_or_default();
        bytes.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", own.status.as_u16()).as_bytes());
        for (name, value) in &own.headers {
            push_field(&mut bytes, name, value.as_bytes());
        }
        push_field(&mut bytes, "X-Cube-Request-Id", id.as_bytes());
        push_field(&mut bytes, "Date", httpdate::fmt_http_date(SystemTime::now()).as_bytes());
        push_field(&mut bytes, "Connection", b"close");
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&own.body);
        bytes.into()
    }
}

fn push_field(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}
