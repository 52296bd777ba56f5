//! What is known of one request, from its head to its line in the log.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cube_breaker::DialPermit;
use cube_resolver::{Route, RouteEntry};
use cube_route::SandboxTarget;
use http::{HeaderValue, Method};
use pingora::{Error, ErrorType};

use crate::access_log::UpstreamTry;
use crate::connection::Downstream;
use crate::error_response::ProxyError;
use crate::error_response::Reason;
use crate::limits::active_requests::{ActiveRequest, EndReason};
use crate::metrics::{FormClass, GaugeGuard, RouteClass};
use crate::preview::{Presented, PreviewResult, Right};
use crate::proxy::http_upgrade::BodyEnd;
use crate::proxy::retry::{NextAttempt, Tally};
use crate::proxy::state::ProxyState;
use crate::response_cache::CacheUse;
use crate::retcode::Retcode;
use crate::settings::Settings;
use crate::trace::RequestTrace;

/// Where a request goes.
pub(crate) enum Destination {
    /// Not decided, or nowhere: the proxy responds itself.
    Nowhere,
    /// To a sandbox.
    Sandbox(AdmittedSandbox),
    /// To `routing.control_plane`.
    ControlPlane,
}

/// A sandbox that a request was judged fit for.
pub(crate) struct AdmittedSandbox {
    pub(crate) entry: Arc<RouteEntry>,
    pub(crate) route: Route,
    pub(crate) permit: DialPermit,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOutcome {
    /// The status that counts: the response's, or the one it would have without gRPC or Connect.
    pub(crate) status: u16,
    pub(crate) retcode: Retcode,
    pub(crate) reason: Reason,
}

impl RequestOutcome {
    /// The client left before the response began.
    pub(crate) const CLIENT_LEFT: Self =
        Self { status: 499, retcode: Retcode::ClientClosed, reason: Reason::ClientClosed };
}

/// The context of one request.
pub struct Context {
    pub(crate) state: Arc<ProxyState>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) downstream: Option<Downstream>,
    pub(crate) started: Instant,
    /// The request's number on its connection.
    pub(crate) number: u32,
    pub(crate) method: Method,
    /// What of envd it is for, in metrics.
    pub(crate) route_class: RouteClass,
    pub(crate) request_id: HeaderValue,
    /// The client's Host as sent; empty when there is no valid one.
    pub(crate) host: Bytes,
    /// The origin form of the target where it differs from the raw one (absolute form, a ticket in the query).
    pub(crate) origin_form: Option<Bytes>,
    pub(crate) target: Option<SandboxTarget>,
    /// The tickets that it presents, where it presents any.
    pub(crate) preview: Option<Box<Presented>>,
    /// By which right it reaches its sandbox, once that was decided.
    pub(crate) right: Option<Right>,
    /// What a ticket, or the lack of one, came to.
    pub(crate) preview_result: Option<PreviewResult>,
    pub(crate) destination: Destination,
    /// The request's place among those of its sandbox.
    pub(crate) active: Option<ActiveRequest>,
    /// `MaskRequestHost`, rendered: what the sandbox sees as Host.
    pub(crate) masked_host: Option<HeaderValue>,
    pub(crate) upgrade: bool,
    /// It had an `Upgrade` field, be it a real one or not.
    pub(crate) upgrade_named: bool,
    /// For an upgrade request without a body: what its upstream connection waits for.
    pub(crate) body_end: Option<Arc<BodyEnd>>,
    pub(crate) grpc: bool,
    /// What the proxy has to say instead of an upstream.
    pub(crate) error: Option<ProxyError>,
    /// A refused token is answered as an outage of the store, which is what an unknown id gets now.
    pub(crate) masked_as_unavailable: bool,
    pub(crate) resumed: bool,
    pub(crate) attempts: Attempts,
    pub(crate) body: BodyBytes,
    /// What the response cache has to do with it.
    pub(crate) cache_use: CacheUse,
    /// When the sandbox's activity was stamped last; `None`: nothing was sent yet.
    pub(crate) stamped: Option<Instant>,
    pub(crate) outcome: Option<RequestOutcome>,
    pub(crate) logged: bool,
    pub(crate) seen: LoggedHead,
    pub(crate) gauges: Gauges,
    /// How long the request was held at the gate.
    pub(crate) held: Duration,
    /// What is recorded for its spans, where it is traced.
    pub(crate) trace: Option<Box<RequestTrace>>,
}

/// What is counted as under way because of this request.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) inflight: Option<GaugeGuard>,
    pub(crate) stream: Option<GaugeGuard>,
    pub(crate) websocket: Option<GaugeGuard>,
}

/// The attempts at upstreams, and what they leave to further ones (connections.md, Retries).
#[derive(Default)]
pub(crate) struct Attempts {
    /// As the log lists them; how long the last one took is not known while it is under way.
    pub(crate) list: Vec<UpstreamTry>,
    /// When the last one and the first of all began.
    begun: Option<Instant>,
    first_begun: Option<Instant>,
    /// When the request head was sent last.
    pub(crate) sent_at: Option<Instant>,
    /// What bounds further ones.
    pub(crate) tally: Tally,
    /// What the next attempt is.
    pub(crate) next: NextAttempt,
}

/// Bodies, counted as they pass.
#[derive(Debug, Default)]
pub(crate) struct BodyBytes {
    pub(crate) up: u64,
    /// How much of `up` is still to come a second time, for another upstream connection.
    pub(crate) replayed: u64,
    pub(crate) down: u64,
    /// The whole request has been read.
    pub(crate) request_done: bool,
    /// When the client's body moved last.
    pub(crate) moved: Option<Instant>,
}

/// What the log shows of the request beside what is kept above; taken while the head is at hand.
#[derive(Debug, Default)]
pub(crate) struct LoggedHead {
    pub(crate) real_ip: Option<std::net::IpAddr>,
    pub(crate) forwarded_for: Option<HeaderValue>,
    pub(crate) forwarded_proto: Option<HeaderValue>,
    pub(crate) user_agent: Option<HeaderValue>,
    pub(crate) instance_id: Option<HeaderValue>,
    /// The response's head went to the client, with this status.
    pub(crate) head_sent: Option<u16>,
    /// The response was cut after its head, for this reason.
    pub(crate) cut: Option<Reason>,
}

impl Attempts {
    /// Notes an attempt that begins now.
    pub(crate) fn begin(&mut self, address: SocketAddr, now: Instant) {
        self.end(now);
        self.begun = Some(now);
        self.first_begun.get_or_insert(now);
        self.list.push(UpstreamTry { address, status: None, took: None });
    }

    /// Notes that the last attempt is over.
    pub(crate) fn end(&mut self, now: Instant) {
        if let (Some(last), Some(begun)) = (self.list.last_mut(), self.begun) {
            last.took.get_or_insert_with(|| now.saturating_duration_since(begun));
        }
    }

    /// When the first of all attempts began.
    pub(crate) fn first_begun(&self) -> Option<Instant> {
        self.first_begun
    }
}

impl Context {
    /// The path and query as the client meant it, without a scheme and authority before it.
    pub(crate) fn origin_form<'a>(&'a self, raw: &'a [u8]) -> &'a [u8] {
        self.origin_form.as_deref().unwrap_or(raw)
    }

    /// What goes upstream as path and query.
    pub(crate) fn upstream_target<'a>(&'a self, raw: &'a [u8]) -> Cow<'a, [u8]> {
        let origin_form = self.origin_form(raw);
        self.target.as_ref().map_or(Cow::Borrowed(origin_form), |target| target.upstream_target(origin_form))
    }

    /// The form in metrics.
    pub(crate) fn form(&self) -> FormClass {
        match (&self.target, &self.destination) {
            (None, Destination::ControlPlane) => FormClass::ControlPlane,
            (target, _) => target.as_ref().map(|target| target.form).into(),
        }
    }

    /// Notes an attempt at an upstream that begins now.
    pub(crate) fn begin_attempt(&mut self, address: SocketAddr, now: Instant) {
        self.attempts.begin(address, now);
        if let Some(trace) = &mut self.trace {
            trace.begin_attempt(now);
        }
    }

    pub(crate) fn sandbox(&self) -> Option<&AdmittedSandbox> {
        match &self.destination {
            Destination::Sandbox(sandbox) => Some(sandbox),
            _ => None,
        }
    }

    /// What to say of a request that was ended from outside.
    pub(crate) fn ended(&self) -> Option<ProxyError> {
        match self.active.as_ref()?.request.ended()? {
            EndReason::Killed => Some(ProxyError::Killed),
            EndReason::Revoked => Some(ProxyError::Revoked),
            EndReason::Drained => Some(ProxyError::DrainTimeout),
        }
    }

    /// Notes what the client is to be told; the error that ends the attempts.
    pub(crate) fn fail(&mut self, error: ProxyError) -> Box<Error> {
        self.error = Some(error);
        Error::new_in(ErrorType::Custom("refused"))
    }
}
