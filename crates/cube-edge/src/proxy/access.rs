//! The second phase: look up, token, limits of the sandbox, gate, route, breaker. The order is
//! part of the contract (routing.md, "Order of decisions"): who has not the right token must not be able to wake a
//! sandbox, keep it awake, learn its state, or learn that it exists.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cube_breaker::BreakerVerdict;
use cube_lifecycle::{GateRefusal, GateVerdict, HoldOutcome};
use cube_metadata::FieldValue;
use cube_resolver::{Lookup, RouteEntry, RouteError};
use cube_route::{Port, SandboxTarget};
use http::HeaderValue;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use tokio::io::Interest;

use crate::connection::Downstream;
use crate::error_response::{ProxyError, is_preflight};
use crate::limits::active_requests::EndReason;
use crate::preview::{Judgement, Refusal, judge};
use crate::proxy::context::{Context, Destination, Sandbox};
use crate::proxy::preview_redirect::sends_to_log_in;
use crate::proxy::rejection::Rejection;
use crate::proxy::state::{ProxyState, header_text};

/// How often a client whose request is held is looked for when it has bytes waiting.
const LOOK: Duration = Duration::from_millis(200);

/// Judges the request against what is known of its sandbox.
pub(crate) async fn check_access(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
) -> Result<(), Rejection> {
    check_access_from(state, session, ctx, false).await
}

/// The same on a record that is read after this call (after a failed connect).
pub(crate) async fn recheck_access(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
) -> Result<(), Rejection> {
    check_access_from(state, session, ctx, true).await
}

async fn check_access_from(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
    mut afresh: bool,
) -> Result<(), Rejection> {
    let Some(target) = ctx.target.clone() else {
        return Ok(()); // the control plane's
    };
    let Some(downstream) = ctx.downstream.clone() else { return Err(ProxyError::Internal.into()) };
    // Where an attempt has failed, what went on was not to be redirected.
    let may_redirect = !afresh;
    ctx.destination = Destination::Nowhere;
    if let Some(active) = &ctx.active {
        active.request.belongs_to(None);
    }
    loop {
        let looked_up = lookup_record(state, &target, afresh).await;
        let judged = judge(
            &ctx.settings.previews,
            &target,
            ctx.settings.exempt_ports.contains(&target.port),
            looked_up.as_ref().ok().map(|entry| &entry.record),
            &session.req_header().headers,
            ctx.preview.as_deref(),
        );
        let answered = !matches!(looked_up, Err(ProxyError::StoreUnavailable));
        ctx.preview_result = judged.result.filter(|_| answered);
        let entry = looked_up?;
        check_token(state, session, ctx, judged, may_redirect)?;
        take_slot(state, ctx, &target, &downstream, &entry)?;
        match state.lifecycle.gate(&target.id) {
            GateVerdict::Pass => {
                return choose_route(state, ctx, &target, &downstream, entry).map_err(Rejection::Error);
            }
            GateVerdict::Refuse(refusal) => return Err(error_of(refusal).into()),
            GateVerdict::Hold => {}
        }
        let request = session.req_header();
        let patient = ctx.held < ctx.settings.pause_wait || ctx.held.is_zero();
        if is_preflight(&request.method, &request.headers) || !patient {
            // A preflight wakes nothing and holds nothing; and a state that keeps changing
            // must not hold a request for longer than one that does not.
            match state.lifecycle.gate_without_hold(&target.id) {
                Some(refusal) => return Err(error_of(refusal).into()),
                None => {
                    return choose_route(state, ctx, &target, &downstream, entry).map_err(Rejection::Error);
                }
            }
        }
        // Nothing of the old life is kept while the request waits for the next one.
        drop(entry);
        if let Some(active) = &ctx.active {
            active.request.belongs_to(None);
        }
        let id = header_text(&ctx.request_id).to_owned();
        let begun = Instant::now();
        let held = tokio::select! {
            held = state.lifecycle.hold(&target.id, &id, !ctx.resumed) => held,
            () = client_left(session, &downstream) => return Err(Rejection::of_a_client_that_left(ctx)),
        };
        ctx.held += begun.elapsed();
        match held {
            HoldOutcome::Changed => {}
            HoldOutcome::Resumed => {
                ctx.resumed = true;
                ctx.attempts.tally.restart();
            }
            HoldOutcome::Refuse(refusal) => return Err(error_of(refusal).into()),
        }
        afresh = true;
    }
}

async fn lookup_record(
    state: &ProxyState,
    target: &SandboxTarget,
    afresh: bool,
) -> Result<Arc<RouteEntry>, ProxyError> {
    let looked_up = if afresh {
        state.resolver.lookup_fresh(&target.id).await
    } else if let Some(cached) = state.resolver.cached(target.id.as_str()) {
        Ok(cached)
    } else {
        state.resolver.lookup(&target.id).await
    };
    match looked_up {
        Ok(Lookup::Found(entry)) => Ok(entry),
        Ok(Lookup::Unknown) => Err(ProxyError::NoRecord),
        Err(error) => {
            tracing::debug!(%error, "lookup failed");
            Err(ProxyError::StoreUnavailable)
        }
    }
}

fn check_token(
    state: &ProxyState,
    session: &Session,
    ctx: &mut Context,
    judged: Judgement,
    may_redirect: bool,
) -> Result<(), Rejection> {
    let refusal = match judged.right {
        Ok(right) => {
            ctx.right = Some(right);
            let redirects = may_redirect
                && ctx.preview.as_ref().is_some_and(|one| one.redirects(right, &ctx.settings.previews));
            return if redirects { Err(Rejection::WithoutTicket) } else { Ok(()) };
        }
        Err(refusal) => refusal,
    };
    ctx.right = None;
    // While the store cannot answer, an unknown id is answered 310500; a masked refusal must
    // not differ from it.
    let masked = ctx.settings.answers.mask_existence || sends_to_log_in(session, ctx);
    ctx.masked_as_unavailable = masked && refusal != Refusal::Expired && state.store.failing();
    Err(refusal.error().into())
}

fn take_slot(
    state: &ProxyState,
    ctx: &mut Context,
    target: &SandboxTarget,
    downstream: &Downstream,
    entry: &RouteEntry,
) -> Result<(), ProxyError> {
    let active = match &ctx.active {
        Some(active) => active,
        None => {
            let limit = ctx.settings.limits.requests_per_sandbox;
            let active = state
                .active_requests
                .enter(&target.id, downstream, limit, ctx.started)
                .map_err(|limit| ProxyError::TooManyForSandbox { limit })?;
            ctx.active.insert(active)
        }
    };
    active.request.belongs_to(Some(entry.generation));
    match active.request.ended() {
        None => Ok(()),
        Some(EndReason::Killed) => Err(ProxyError::Killed),
        Some(EndReason::Revoked) => Err(ProxyError::Revoked),
        Some(EndReason::Drained) => Err(ProxyError::DrainTimeout),
    }
}

fn choose_route(
    state: &ProxyState,
    ctx: &mut Context,
    target: &SandboxTarget,
    downstream: &Downstream,
    entry: Arc<RouteEntry>,
) -> Result<(), ProxyError> {
    ctx.masked_host = masked_host(&entry, target.port)?;
    let node_ip: IpAddr = ctx.settings.node_ip.unwrap_or_else(|| downstream.conn.local.ip()).to_canonical();
    let route = cube_resolver::route(&entry.record, target.port, node_ip, &ctx.settings.guard)
        .map_err(error_of_route)?;
    let permit = match state.breaker.check_for(route.node, route.address.ip(), &target.id) {
        BreakerVerdict::Pass(permit) => permit,
        BreakerVerdict::Faulty => return Err(ProxyError::FaultyNode),
        BreakerVerdict::Open => return Err(ProxyError::BreakerOpen),
    };
    ctx.destination = Destination::Sandbox(Sandbox { entry, route, permit });
    Ok(())
}

/// What the sandbox sees as Host, where that is not the client's own.
pub(crate) fn masked_host(entry: &RouteEntry, port: Port) -> Result<Option<HeaderValue>, ProxyError> {
    if port == Port::ENVD {
        return Ok(None);
    }
    match &entry.record.mask_request_host {
        FieldValue::Missing => Ok(None),
        FieldValue::Malformed => Err(ProxyError::MalformedAddress),
        FieldValue::Value(mask) => {
            HeaderValue::from_str(&mask.render(port)).map(Some).map_err(|_| ProxyError::MalformedAddress)
        }
    }
}

/// What a refusal of the gate is answered as.
pub(crate) fn error_of(refusal: GateRefusal) -> ProxyError {
    match refusal {
        GateRefusal::Pausing => ProxyError::Pausing,
        GateRefusal::Paused => ProxyError::Paused,
        GateRefusal::ResumeFailed => ProxyError::ResumeFailed,
        GateRefusal::ResumeQuota => ProxyError::ResumeQuota,
        GateRefusal::Killed => ProxyError::Killed,
        GateRefusal::TooManyHeld => ProxyError::HeldTooMany,
    }
}

/// What a record without a route is answered as.
pub(crate) fn error_of_route(error: RouteError) -> ProxyError {
    match error {
        RouteError::NoHostIp => ProxyError::NoHostIp,
        RouteError::NoSandboxIp => ProxyError::NoSandboxIp,
        RouteError::NoMapping(_) => ProxyError::NoMapping,
        RouteError::Malformed(_) => ProxyError::MalformedAddress,
        RouteError::Forbidden { .. } => ProxyError::ForbiddenAddress,
    }
}

/// Returns when the client of a held request has left. Nobody reads its connection meanwhile, so
/// the socket is asked (HTTP/1.1) or the stream (HTTP/2).
pub(crate) async fn client_left(session: &mut Session, downstream: &Downstream) {
    if let ServerSession::H2(http2) = session.as_downstream_mut() {
        let _ = http2.idle().await;
        return;
    }
    loop {
        match downstream.conn.tcp.ready(Interest::READABLE).await {
            Ok(ready) if ready.is_read_closed() => return,
            Err(_) => return,
            // Bytes that wait (a body, a pipelined request) keep the socket readable.
            Ok(_) => tokio::time::sleep(LOOK).await,
        }
    }
}
