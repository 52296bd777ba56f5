//! The access phase: carries out what is decided of the sandbox that a request names
//! ([`crate::decision::access`]), and holds the request where it has to wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cube_breaker::{BreakerVerdict, DialPermit};
use cube_lifecycle::{GateRefusal, GateVerdict, HoldOutcome};
use cube_metadata::StoreError;
use cube_resolver::{Lookup, Resolver, Route, RouteEntry};
use cube_route::SandboxTarget;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use tokio::io::Interest;

use crate::connection::Downstream;
use crate::decision::access::{
    AccessView, Decision, GateStep, NodeView, Surroundings, decide, error_of_gate, is_hidden,
    is_masked_as_unavailable,
};
use crate::decision::recorder::{Recorder, Unrecorded};
use crate::error_response::{ProxyError, is_preflight};
use crate::limits::active_requests::{ActiveRequest, EndReason};
use crate::proxy::context::{AdmittedSandbox, Context, Destination};
use crate::proxy::preview_redirect::sends_to_log_in;
use crate::proxy::rejection::Rejection;
use crate::proxy::state::{ProxyState, header_text};
use crate::settings::Settings;
use crate::trace::{RequestTrace, Resolve, WaitKind};

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
    let settings = ctx.settings.clone();
    // Where an attempt has failed, what went on was not to be redirected.
    let may_redirect = !afresh;
    let mut confirmed = false;
    ctx.destination = Destination::Nowhere;
    if let Some(active) = &ctx.active {
        active.request.belongs_to(None);
    }
    loop {
        let request = session.req_header();
        let patient = ctx.held < settings.pause_wait || ctx.held.is_zero();
        let view = AccessView {
            target: &target,
            headers: &request.headers,
            settings: &settings,
            preview: ctx.preview.as_deref(),
            may_redirect,
        };
        let mut surroundings = LiveSurroundings {
            state,
            settings: &settings,
            target: &target,
            downstream: &downstream,
            active: &mut ctx.active,
            started: ctx.started,
            trace: ctx.trace.as_deref_mut(),
            afresh,
            from_memory: false,
            // A preflight wakes nothing and holds nothing; and a state that keeps changing must not hold a
            // request for longer than one that does not.
            may_be_held: patient && !is_preflight(&request.method, &request.headers),
        };
        let outcome = decide(&view, &mut surroundings, &mut Unrecorded).await;
        let from_memory = surroundings.from_memory;
        ctx.right = outcome.right;
        ctx.preview_result = outcome.preview_result;
        let forward = match outcome.decision {
            Ok(Decision::Forward(forward)) => forward,
            Ok(Decision::WithoutTicket) => return Err(Rejection::WithoutTicket),
            Ok(Decision::Hold) => {
                hold(state, session, ctx, &target, &downstream).await?;
                afresh = true;
                continue;
            }
            Err(error) => {
                let masks = *settings.own_responses.mask_existence || sends_to_log_in(session, ctx);
                let mut unavailable = false;
                if masks && is_hidden(error) && !confirmed {
                    confirmed = true;
                    let begun = Instant::now();
                    let read = confirm_refusal(state, &target, from_memory).await;
                    if let Some(trace) = &mut ctx.trace
                        && !matches!(read, Ok(false))
                    {
                        trace.waited(WaitKind::Lookup, begun, read.is_err());
                    }
                    match read {
                        Ok(true) => continue,
                        Ok(false) => {}
                        Err(_) => unavailable = true,
                    }
                }
                let failing = unavailable || state.store.failing();
                ctx.masked_as_unavailable = is_masked_as_unavailable(error, masks, failing);
                return Err(error.into());
            }
        };
        ctx.masked_host = forward.masked_host;
        ctx.destination = Destination::Sandbox(AdmittedSandbox {
            entry: forward.entry,
            route: forward.route,
            permit: forward.permit,
        });
        return Ok(());
    }
}

/// Has a refusal that is masked take the read that an unknown id takes; whether the record was read now, and
/// the request is to be judged again.
///
/// # Errors
/// [`StoreError`] when the store cannot answer, as an unknown id would have it.
async fn confirm_refusal(
    state: &ProxyState,
    target: &SandboxTarget,
    from_memory: bool,
) -> Result<bool, StoreError> {
    if !from_memory {
        state.resolver.refused_after_read(&target.id);
        return Ok(false);
    }
    state.resolver.confirm_refusal(&target.id).await.inspect_err(|error| {
        tracing::debug!(%error, "a refusal cannot be confirmed");
    })
}

/// Holds the request until the state of its sandbox has changed.
async fn hold(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
    target: &SandboxTarget,
    downstream: &Downstream,
) -> Result<(), Rejection> {
    // Nothing of the old life is kept while the request waits for the next one.
    if let Some(active) = &ctx.active {
        active.request.belongs_to(None);
    }
    let id = header_text(&ctx.request_id).to_owned();
    let begun = Instant::now();
    let held = tokio::select! {
        held = state.lifecycle.hold(&target.id, &id, !ctx.resumed) => held,
        () = client_left(session, downstream) => {
            trace_hold(ctx, begun, None);
            return Err(Rejection::of_a_client_that_left(ctx));
        }
    };
    ctx.held += begun.elapsed();
    trace_hold(ctx, begun, Some(held));
    match held {
        HoldOutcome::Changed => {}
        HoldOutcome::Resumed => {
            ctx.resumed = true;
            ctx.attempts.tally.restart();
        }
        HoldOutcome::Refuse(refusal) => return Err(error_of_gate(refusal).into()),
    }
    Ok(())
}

/// Notes for the spans of a request that it was held; `outcome`: none where its client left.
fn trace_hold(ctx: &mut Context, begun: Instant, outcome: Option<HoldOutcome>) {
    use HoldOutcome::{Changed, Refuse, Resumed};
    let Some(trace) = &mut ctx.trace else { return };
    let (kind, failed) = match outcome {
        Some(Resumed) => (WaitKind::Resume, false),
        Some(Refuse(GateRefusal::ResumeFailed | GateRefusal::ResumeQuota)) => (WaitKind::Resume, true),
        Some(Changed) => (WaitKind::Hold, false),
        Some(Refuse(_)) | None => (WaitKind::Hold, true),
    };
    trace.waited(kind, begun, failed);
}

/// The steps as a request takes them.
struct LiveSurroundings<'a> {
    state: &'a ProxyState,
    settings: &'a Settings,
    target: &'a SandboxTarget,
    downstream: &'a Downstream,
    active: &'a mut Option<ActiveRequest>,
    started: Instant,
    trace: Option<&'a mut RequestTrace>,
    /// The record is read anew, whatever is cached.
    afresh: bool,
    /// The record was in memory.
    from_memory: bool,
    may_be_held: bool,
}

impl Surroundings for LiveSurroundings<'_> {
    type Permit = DialPermit;

    async fn record(&mut self, _: &mut impl Recorder) -> Result<Arc<RouteEntry>, ProxyError> {
        let (resolver, id) = (&self.state.resolver, &self.target.id);
        let begun = self.trace.is_some().then(Instant::now);
        let looked_up = if self.afresh {
            resolver.lookup_fresh(id).await
        } else if let Some(cached) = resolver.cached(id.as_str()) {
            self.from_memory = true;
            Ok(cached)
        } else {
            resolver.lookup(id).await
        };
        if let (Some(trace), Some(begun)) = (&mut self.trace, begun) {
            trace.looked_up(begun, self.from_memory, served_from(resolver, self.from_memory, &looked_up));
        }
        match looked_up {
            Ok(Lookup::Found(entry)) => Ok(entry),
            Ok(Lookup::Unknown) => Err(ProxyError::NoRecord),
            Err(error) => {
                tracing::debug!(%error, "lookup failed");
                Err(ProxyError::StoreUnavailable)
            }
        }
    }

    fn take_slot(&mut self, entry: &RouteEntry, _: &mut impl Recorder) -> Result<(), ProxyError> {
        let active = match &*self.active {
            Some(active) => active,
            None => {
                let limit = self.settings.limits.requests_per_sandbox;
                let active = self
                    .state
                    .active_requests
                    .enter(&self.target.id, self.downstream, limit, self.started)
                    .map_err(|limit| ProxyError::TooManyForSandbox { limit })?;
                self.active.insert(active)
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

    fn gate(&mut self, _: &mut impl Recorder) -> Result<GateStep, ProxyError> {
        let (lifecycle, id) = (&self.state.lifecycle, &self.target.id);
        match lifecycle.gate(id) {
            GateVerdict::Pass => Ok(GateStep::Pass),
            GateVerdict::Refuse(refusal) => Err(error_of_gate(refusal)),
            GateVerdict::Hold if self.may_be_held => Ok(GateStep::Hold),
            GateVerdict::Hold => lifecycle
                .gate_without_hold(id)
                .map_or(Ok(GateStep::Pass), |refusal| Err(error_of_gate(refusal))),
        }
    }

    fn node(&self, _: &RouteEntry) -> NodeView {
        let own = self.settings.node_ip.unwrap_or_else(|| self.downstream.conn.local.ip());
        NodeView { node_ip: own.to_canonical(), connected_to: None, assumed: String::new() }
    }

    fn breaker(&mut self, route: &Route, _: &mut impl Recorder) -> Result<DialPermit, ProxyError> {
        match self.state.breaker.check_for(route.node, route.address.ip(), &self.target.id) {
            BreakerVerdict::Pass(permit) => Ok(permit),
            BreakerVerdict::Faulty => Err(ProxyError::FaultyNode),
            BreakerVerdict::Open => Err(ProxyError::BreakerOpen),
        }
    }
}

/// Where the record of a traced request comes from.
fn served_from(
    resolver: &Resolver,
    from_memory: bool,
    looked_up: &Result<Lookup, StoreError>,
) -> Result<Resolve, ()> {
    match looked_up {
        Ok(Lookup::Found(entry)) if resolver.is_stale(entry) => Ok(Resolve::Stale),
        Ok(_) if from_memory => Ok(Resolve::Hit),
        Ok(_) => Ok(Resolve::Miss),
        Err(_) => Err(()),
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
