//! The balancer phase: which address this attempt dials, and what was the matter with a failed one.
//! Whether another one follows is decided in `retry.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cube_breaker::ConnectFailure;
use pingora::protocols::l4::ext::TcpKeepalive;
use pingora::proxy::Session;
use pingora::upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy, PeerOptions};
use pingora::{Error, ErrorSource, ErrorType, Result};

use crate::error_response::ProxyError;
use crate::limits::descriptors::OUT_OF_DESCRIPTORS;
use crate::metrics::ConnectOutcome;
use crate::proxy::access;
use crate::proxy::access::client_left;
use crate::proxy::context::{Context, Destination, RequestOutcome};
use crate::proxy::http_upgrade::UpgradeConnector;
use crate::proxy::pool_key::PoolKey;
use crate::proxy::rejection::Rejection;
use crate::proxy::retry::{self, BrokenExchange, Connect, Failure, NextAttempt, PORT_PAUSE, UpstreamKind};
use crate::proxy::state::{ProxyState, header_text};
use crate::retcode::Retcode;
use crate::trace::WaitKind;

/// Streams of one HTTP/2 connection to a gRPC server.
const GRPC_STREAMS: usize = 100;

/// The peer of the next attempt.
pub(crate) async fn select_peer(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
) -> Result<Box<HttpPeer>> {
    let next = std::mem::replace(&mut ctx.attempts.next, NextAttempt::Route);
    match next {
        NextAttempt::Route | NextAttempt::Fresh => {}
        NextAttempt::Port => tokio::time::sleep(PORT_PAUSE).await,
        NextAttempt::Reread(failed) => reroute(state, session, ctx, failed).await?,
    }
    let now = Instant::now();
    ctx.attempts.tally.first.get_or_insert(now);
    let (address, key) = match &ctx.destination {
        Destination::Sandbox(sandbox) => {
            (sandbox.route.address, PoolKey::Sandbox(sandbox.entry.generation.get()))
        }
        Destination::ControlPlane => match state.control_plane.address().await {
            Some(address) => (address, state.control_plane.pool_key()),
            None => return Err(ctx.fail(ProxyError::ControlPlaneUnresolved)),
        },
        Destination::Nowhere => return Err(ctx.fail(ProxyError::Internal)),
    };
    if next == NextAttempt::Fresh {
        ctx.begin_attempt(address, now);
        return Ok(dial_fresh(state, ctx, address));
    }
    if next != NextAttempt::Port {
        ctx.begin_attempt(address, now);
        let wait = *ctx.settings.upstream.port_open_wait;
        let tally = &mut ctx.attempts.tally;
        tally.routes += 1;
        // The series belongs to the first attempt alone.
        tally.port_until = (tally.routes == 1 && !wait.is_zero()).then(|| now + wait);
    }
    if let Some(body_end) = ctx.body_end.clone() {
        let mut peer = dial_fresh(state, ctx, address);
        let timeout = ctx.settings.upstream.connect_timeout;
        let descriptors = state.descriptors.clone();
        peer.options.custom_l4 = Some(Arc::new(UpgradeConnector { timeout, body_end, descriptors }));
        return Ok(peer);
    }
    Ok(dial(state, ctx, address, key))
}

/// A peer that gets a new connection, which is not kept: for an upgrade, and where a pooled one
/// was dead or did not take the request.
fn dial_fresh(state: &ProxyState, ctx: &Context, address: SocketAddr) -> Box<HttpPeer> {
    let mut peer = dial(state, ctx, address, PoolKey::unshared());
    // Nobody will look for it there.
    peer.options.idle_timeout = Some(Duration::ZERO);
    peer
}

/// Reads the record again after a failed connect and judges it afresh. Where it says what is
/// known already, what went wrong stays what the client is told.
async fn reroute(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
    failed: ProxyError,
) -> Result<()> {
    let before = ctx.sandbox().map(|sandbox| (sandbox.route.address, sandbox.entry.generation));
    let judged = match wake_after_timeout(state, session, ctx, failed).await {
        Ok(()) => access::recheck_access(state, session, ctx).await,
        Err(stop) => Err(stop),
    };
    match judged {
        Ok(()) => {}
        Err(Rejection::Error(error)) => return Err(ctx.fail(error)),
        // A redirect is only possible before the first attempt; here one has failed.
        Err(Rejection::WithoutTicket) => return Err(ctx.fail(ProxyError::Internal)),
        Err(Rejection::ClientLeft) => {
            ctx.outcome = Some(RequestOutcome::CLIENT_LEFT);
            return Err(Error::new_down(ErrorType::ConnectionClosed));
        }
    }
    let after = ctx.sandbox().map(|sandbox| (sandbox.route.address, sandbox.entry.generation));
    if !retry::worth_dialling(&before, &after, &ctx.attempts.tally) {
        return Err(ctx.fail(failed));
    }
    state.metrics.upstream_retries.inc();
    Ok(())
}

/// A connect time-out to a sandbox believed running may mean that it sleeps: one resume is
/// tried where its metadata allows it.
async fn wake_after_timeout(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
    failed: ProxyError,
) -> Result<(), Rejection> {
    let (Some(target), Some(downstream)) = (&ctx.target, &ctx.downstream) else { return Ok(()) };
    if failed != ProxyError::ConnectTimeout || ctx.resumed {
        return Ok(());
    }
    if let Some(active) = &ctx.active {
        active.request.belongs_to(None);
    }
    let begun = Instant::now();
    let woken = tokio::select! {
        woken = state.lifecycle.resume_after_timeout(&target.id, header_text(&ctx.request_id)) => woken,
        () = client_left(session, downstream) => return Err(Rejection::of_a_client_that_left(ctx)),
    };
    if let Some(trace) = &mut ctx.trace
        && woken
    {
        trace.waited(WaitKind::Resume, begun, false);
    }
    if woken {
        // A resume starts the count anew, once.
        ctx.resumed = true;
        ctx.attempts.tally.restart();
    }
    Ok(())
}

fn dial(state: &ProxyState, ctx: &Context, address: SocketAddr, key: PoolKey) -> Box<HttpPeer> {
    let upstream = &ctx.settings.upstream;
    let mut options = PeerOptions::new();
    options.connection_timeout = Some(upstream.connect_timeout);
    options.total_connection_timeout = Some(upstream.connect_timeout);
    options.read_timeout = Some(upstream.silence_timeout);
    options.write_timeout = Some(upstream.silence_timeout);
    options.idle_timeout = Some(upstream.pool_idle);
    options.tcp_keepalive = Some(TcpKeepalive {
        idle: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        count: 3,
        // Not set: it kills a live peer that merely reads slowly.
        user_timeout: Duration::ZERO,
    });
    options.upstream_tcp_sock_tweak_hook = Some(state.descriptors.upstream_check());
    // Which headers travel is decided in one place (upstream_request_filter.rs); Pingora's own policy would
    // refuse requests that nominate a header it guards.
    options.http_upstream_request_policy = HttpUpstreamRequestPolicy::preserve();
    if ctx.grpc {
        options.set_http_version(2, 2);
        options.max_h2_streams = GRPC_STREAMS;
    }
    let mut peer = HttpPeer::new(address, false, String::new());
    peer.group_key = key.group();
    peer.options = options;
    if matches!(ctx.destination, Destination::ControlPlane) {
        state.control_plane.secure(&mut peer);
    }
    Box::new(peer)
}

/// A connection is there, from the pool or new.
pub(crate) fn note_connected(state: &ProxyState, reused: bool, ctx: &mut Context) {
    // What an earlier attempt failed with is not this one's.
    ctx.error = None;
    if reused {
        state.metrics.upstream_reused.inc();
    } else {
        state.metrics.connected(ConnectOutcome::Ok);
        if let Some(sandbox) = ctx.sandbox() {
            sandbox.permit.connected();
        }
    }
}

/// No connection: what kind of failure, and is there another try in it?
pub(crate) fn note_connect_failure(
    state: &ProxyState,
    ctx: &mut Context,
    mut error: Box<Error>,
) -> Box<Error> {
    error.set_retry(false);
    if *error.etype() == ErrorType::H2Error {
        return note_refused_stream(state, ctx, error);
    }
    let (failure, shown, outcome) = match error.etype() {
        ErrorType::ConnectRefused => {
            (ConnectFailure::Refused, ProxyError::ConnectRefused, ConnectOutcome::Refused)
        }
        ErrorType::ConnectTimedout => {
            (ConnectFailure::TimedOut, ProxyError::ConnectTimeout, ConnectOutcome::TimedOut)
        }
        ErrorType::ConnectNoRoute => {
            (ConnectFailure::Unreachable, ProxyError::ConnectFailed, ConnectOutcome::Unreachable)
        }
        kind if *kind == OUT_OF_DESCRIPTORS => {
            (ConnectFailure::Other, ProxyError::OutOfDescriptors, ConnectOutcome::Other)
        }
        // So Pingora calls what this side could not do: open a socket, find a free port.
        ErrorType::InternalError | ErrorType::SocketError | ErrorType::BindError => {
            let ran_out = state.descriptors.ran_out(&error);
            let shown = if ran_out { ProxyError::OutOfDescriptors } else { ProxyError::Internal };
            (ConnectFailure::Other, shown, ConnectOutcome::Other)
        }
        // Only the control plane is spoken to over TLS.
        ErrorType::TLSHandshakeFailure | ErrorType::InvalidCert => {
            state.control_plane.handshake_failed(&error);
            (ConnectFailure::Other, ProxyError::ControlPlaneTls, ConnectOutcome::Other)
        }
        _ => (ConnectFailure::Other, ProxyError::ConnectFailed, ConnectOutcome::Other),
    };
    state.metrics.connected(outcome);
    let now = Instant::now();
    ctx.attempts.end(now);
    if let Some(sandbox) = ctx.sandbox() {
        sandbox.permit.failed(&sandbox.entry.id, failure);
    }
    ctx.error = Some(shown);
    trace_failure(ctx, shown);
    let failed = Failure::Connect(Connect {
        error: shown,
        refused: failure == ConnectFailure::Refused,
        own: shown.retcode() == Retcode::Internal,
        upstream: dialled_upstream(state, ctx),
    });
    again(ctx, &mut error, &failed, now);
    error
}

/// There is an HTTP/2 connection, pooled or new, but it ends and takes no stream: nothing was
/// sent, and the node is not to blame.
fn note_refused_stream(state: &ProxyState, ctx: &mut Context, mut error: Box<Error>) -> Box<Error> {
    let now = Instant::now();
    ctx.attempts.end(now);
    ctx.error = Some(ProxyError::UpstreamCut);
    trace_failure(ctx, ProxyError::UpstreamCut);
    if again(ctx, &mut error, &Failure::NoStream, now) {
        ctx.attempts.tally.unusable += 1;
        state.metrics.upstream_retries.inc();
    }
    error
}

fn dialled_upstream(state: &ProxyState, ctx: &Context) -> UpstreamKind {
    match ctx.destination {
        Destination::Sandbox(_) => UpstreamKind::Sandbox,
        Destination::ControlPlane => {
            UpstreamKind::ControlPlane { addresses: state.control_plane.addresses() }
        }
        Destination::Nowhere => UpstreamKind::Nowhere,
    }
}

/// The exchange broke after a connection was there.
pub(crate) fn note_exchange_failure(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
    mut error: Box<Error>,
    reused: bool,
) -> Box<Error> {
    let failed = Failure::Exchange(BrokenExchange {
        reused,
        died: is_dead(&error),
        not_processed: not_processed(&error),
        response_begun: ctx.seen.head_sent.is_some() || session.response_written().is_some(),
        idempotent: ctx.method.is_idempotent(),
        no_body_taken: ctx.body.up == 0 && ctx.body.request_done,
        body_kept: !session.downstream_session.retry_buffer_truncated(),
        sandbox_ended: ctx.active.as_ref().is_some_and(|active| active.request.ended().is_some()),
    });
    if again(ctx, &mut error, &failed, Instant::now()) {
        trace_failure(ctx, ProxyError::UpstreamCut);
        // Pingora hands out again what it has kept of the body.
        ctx.body.replayed = ctx.body.up;
        state.metrics.upstream_retries.inc();
    }
    error
}

/// Notes for the span of the last attempt what it failed with.
fn trace_failure(ctx: &mut Context, error: ProxyError) {
    if let Some(trace) = &mut ctx.trace {
        trace.fail_attempt(error.reason());
    }
}

/// Has another attempt follow, or none, as [`retry::next`] decides; whether one does.
fn again(ctx: &mut Context, error: &mut Error, failed: &Failure, now: Instant) -> bool {
    let next = retry::next(failed, &ctx.attempts.tally, now);
    error.set_retry(next.is_some());
    ctx.attempts.next = next.unwrap_or_default();
    next.is_some()
}

/// Whether the upstream connection ended under the request.
fn is_dead(error: &Error) -> bool {
    *error.esource() == ErrorSource::Upstream
        && matches!(
            error.etype(),
            ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::WriteError | ErrorType::H2Error
        )
}

/// Whether the upstream has said that it did not process the request: its stream is above the last
/// one that a GOAWAY names (RFC 9113, 6.8), or was refused (8.7). The protocol library reports a
/// remote GOAWAY for such streams alone, and for those that were not opened any more because of it.
fn not_processed(error: &Error) -> bool {
    *error.esource() == ErrorSource::Upstream
        && error.root_cause().downcast_ref::<h2::Error>().is_some_and(|error| {
            error.is_remote()
                && (error.is_go_away()
                    || (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)))
        })
}
