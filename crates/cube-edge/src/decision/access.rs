//! What is known of the sandbox that a request names: record, token, limit of the sandbox, gate, route,
//! breaker. The order is part of the contract (routing.md, "Order of decisions"): who has not the right token
//! must not be able to wake a sandbox, keep it awake, learn its state, or learn that it exists.

use std::net::IpAddr;
use std::sync::Arc;

use cube_lifecycle::GateRefusal;
use cube_metadata::{Access, FieldValue};
use cube_resolver::{Route, RouteEntry, RouteError};
use cube_route::{Port, SandboxTarget};
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::recorder::{DecisionStep, Recorder, StepText};
use crate::error_response::ProxyError;
use crate::preview::{Judgement, Presented, PreviewResult, Refusal, Right, judge};
use crate::settings::Settings;

/// What of a request decides about its access.
pub(crate) struct AccessView<'a> {
    pub(crate) target: &'a SandboxTarget,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) settings: &'a Settings,
    /// The preview tickets that it presents, where it presents any.
    pub(crate) preview: Option<&'a Presented>,
    /// It may be sent to the same without its ticket: no attempt was made yet.
    pub(crate) may_redirect: bool,
}

/// What the state of a sandbox means for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateStep {
    /// The request goes on.
    Pass,
    /// The request has to wait for a change of state, and is judged anew then.
    Hold,
}

/// From which address of this proxy a route is looked at.
pub(crate) struct NodeView {
    /// `node_ip`: whether a sandbox is on this node is told by it.
    pub(crate) node_ip: IpAddr,
    /// The address of this machine that the client is taken to connect to, where that was assumed.
    pub(crate) connected_to: Option<IpAddr>,
    /// What `explain` says of it, where it had to assume one.
    pub(crate) assumed: String,
}

/// Where the steps are taken: in the request path they take something (a lookup, a slot, a permit), `explain`
/// looks only.
pub(crate) trait Surroundings: Send {
    /// What lets a request dial its node.
    type Permit: Send;

    /// The record of the sandbox.
    fn record(
        &mut self,
        recorder: &mut impl Recorder,
    ) -> impl Future<Output = Result<Arc<RouteEntry>, ProxyError>> + Send;

    /// A place among the requests of the sandbox, and whether they were ended from outside.
    fn take_slot(&mut self, entry: &RouteEntry, recorder: &mut impl Recorder) -> Result<(), ProxyError>;

    /// What the state of the sandbox means.
    fn gate(&mut self, recorder: &mut impl Recorder) -> Result<GateStep, ProxyError>;

    /// From where the route is looked at.
    fn node(&self, entry: &RouteEntry) -> NodeView;

    /// Whether the node may be dialled.
    fn breaker(&mut self, route: &Route, recorder: &mut impl Recorder) -> Result<Self::Permit, ProxyError>;
}

/// What the pipeline decides of a request that is not refused.
pub(crate) enum Decision<Permit> {
    /// The request goes to its sandbox.
    Forward(Box<Forward<Permit>>),
    /// It waits for a change of the sandbox's state, and is judged anew.
    Hold,
    /// A browser is sent to the same without the ticket in the query, which it gets as a cookie.
    WithoutTicket,
}

/// What was decided, and by which right.
pub(crate) struct AccessOutcome<Permit> {
    pub(crate) decision: Result<Decision<Permit>, ProxyError>,
    /// By which right the request reaches its sandbox; none where it does not, or was not asked.
    pub(crate) right: Option<Right>,
    /// What its preview ticket came to.
    pub(crate) preview_result: Option<PreviewResult>,
}

/// How a request reaches its sandbox.
pub(crate) struct Forward<Permit> {
    pub(crate) entry: Arc<RouteEntry>,
    pub(crate) route: Route,
    pub(crate) permit: Permit,
    /// What the sandbox sees as Host, where that is not the client's own.
    pub(crate) masked_host: Option<HeaderValue>,
}

/// Decides on a request to a sandbox.
pub(crate) async fn decide<S: Surroundings>(
    view: &AccessView<'_>,
    surroundings: &mut S,
    recorder: &mut impl Recorder,
) -> AccessOutcome<S::Permit> {
    let found = surroundings.record(recorder).await;
    // Tickets are judged for an unknown id as well, so that it takes the same time.
    let judged = judge(
        &view.settings.previews,
        view.target,
        view.settings.traffic_token.exempt_ports.contains(&view.target.port),
        found.as_ref().ok().map(|entry| &entry.record),
        view.headers,
        view.preview,
    );
    let answered = !matches!(found, Err(ProxyError::StoreUnavailable));
    let right = found.is_ok().then(|| judged.right.ok()).flatten();
    AccessOutcome {
        decision: found.and_then(|entry| go_on(view, &entry, judged, surroundings, recorder)),
        right,
        preview_result: judged.result.filter(|_| answered),
    }
}

/// The steps behind the record.
fn go_on<S: Surroundings>(
    view: &AccessView<'_>,
    entry: &Arc<RouteEntry>,
    judged: Judgement,
    surroundings: &mut S,
    recorder: &mut impl Recorder,
) -> Result<Decision<S::Permit>, ProxyError> {
    tell_of_token(judged, entry, recorder);
    let right = judged.right.map_err(Refusal::error)?;
    if view.may_redirect && view.preview.is_some_and(|one| one.redirects(right, &view.settings.previews)) {
        return Ok(Decision::WithoutTicket);
    }
    surroundings.take_slot(entry, recorder)?;
    if surroundings.gate(recorder)? == GateStep::Hold {
        return Ok(Decision::Hold);
    }
    let node = surroundings.node(entry);
    let (route, masked_host) = choose_route(view, entry, &node, recorder)?;
    let permit = surroundings.breaker(&route, recorder)?;
    Ok(Decision::Forward(Box::new(Forward { entry: entry.clone(), route, permit, masked_host })))
}

/// Says by which right the request passes, and no ticket.
fn tell_of_token(judged: Judgement, entry: &RouteEntry, recorder: &mut impl Recorder) {
    let told = || {
        let closed = matches!(entry.record.access, Access::Closed);
        let says = match (judged.right, judged.result) {
            (Ok(Right::ExemptPort), _) => "not asked for on this port (traffic_token.exempt_ports)",
            (Ok(Right::Public), _) => "not needed: the sandbox is public",
            (Ok(Right::Token), _) => "right",
            (Ok(Right::Query(_)), _) => "the preview ticket in the query is right",
            (Ok(Right::Cookie), _) => "the preview ticket in a cookie is right",
            (Err(Refusal::Expired), _) => "the preview ticket has expired",
            (Err(_), Some(PreviewResult::CrossSite)) => {
                "a preview ticket is in a cookie, and another site may have made the browser send it"
            }
            (Err(_), Some(_)) if closed => "needed, and the record has none: nobody gets in",
            (Err(_), Some(_)) => "the preview ticket opens nothing here",
            (Err(Refusal::Missing), None) => "needed, and none is presented",
            (Err(Refusal::Wrong), None) if closed => "needed, and the record has none: nobody gets in",
            (Err(Refusal::Wrong), None) => "the one that is presented is wrong",
        };
        let result = judged.result.map(PreviewResult::as_str);
        (says.to_owned(), result.map_or(Value::Null, |result| json!({ "preview": result })))
    };
    if judged.right.is_ok() {
        recorder.passed(DecisionStep::Token, told);
    } else {
        recorder.stopped(DecisionStep::Token, told);
    }
}

/// Whether masking hides this error.
pub(crate) fn is_hidden(error: ProxyError) -> bool {
    matches!(error, ProxyError::TokenMissing | ProxyError::TokenWrong)
}

/// Whether a refusal must look as if the store could not answer: while it cannot, that is what a request for
/// an unknown id gets, and a masked refusal must not differ from it. `masks`: refusals look as if there were no
/// sandbox, or both are sent to log in.
pub(crate) fn is_masked_as_unavailable(error: ProxyError, masks: bool, store_failing: bool) -> bool {
    is_hidden(error) && masks && store_failing
}

fn choose_route(
    view: &AccessView<'_>,
    entry: &RouteEntry,
    node: &NodeView,
    recorder: &mut impl Recorder,
) -> Result<(Route, Option<HeaderValue>), ProxyError> {
    let masked_host = masked_host(entry, view.target.port).inspect_err(|_| {
        recorder.stopped(DecisionStep::Route, || "MaskRequestHost makes no Host");
    })?;
    let assumed = &node.assumed;
    match cube_resolver::route(&entry.record, view.target.port, node.node_ip, &view.settings.guard) {
        Ok(route) => {
            recorder.passed(DecisionStep::Route, || tell_of_route(&route, node));
            Ok((route, masked_host))
        }
        Err(error) => {
            recorder.stopped(DecisionStep::Route, || {
                let values = match &error {
                    RouteError::Forbidden { address, why } => {
                        json!({ "address": address.to_string(), "key": why.key() })
                    }
                    _ => Value::Null,
                };
                (format!("{error}{assumed}"), values)
            });
            Err(error_of_route(&error))
        }
    }
}

fn tell_of_route(route: &Route, node: &NodeView) -> StepText {
    let on = if route.local { "this node" } else { "node" };
    StepText {
        says: format!("{} on {on} {}{}", route.address, route.node, node.assumed),
        values: json!({
            "address": route.address.to_string(), "node": route.node.to_string(), "local": route.local,
            "connected_to": node.connected_to.map(|address| address.to_string()),
        }),
    }
}

/// What the sandbox sees as Host, where that is not the client's own.
fn masked_host(entry: &RouteEntry, port: Port) -> Result<Option<HeaderValue>, ProxyError> {
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

/// The error that a refusal of the gate is.
pub(crate) fn error_of_gate(refusal: GateRefusal) -> ProxyError {
    match refusal {
        GateRefusal::Pausing => ProxyError::Pausing,
        GateRefusal::Paused => ProxyError::Paused,
        GateRefusal::ResumeFailed => ProxyError::ResumeFailed,
        GateRefusal::ResumeQuota => ProxyError::ResumeQuota,
        GateRefusal::Killed => ProxyError::Killed,
        GateRefusal::TooManyHeld => ProxyError::HeldTooMany,
    }
}

/// The error that a record without a route is.
fn error_of_route(error: &RouteError) -> ProxyError {
    match error {
        RouteError::NoHostIp => ProxyError::NoHostIp,
        RouteError::NoSandboxIp => ProxyError::NoSandboxIp,
        RouteError::NoMapping(_) => ProxyError::NoMapping,
        RouteError::Malformed(_) => ProxyError::MalformedAddress,
        RouteError::Forbidden { .. } => ProxyError::ForbiddenAddress,
    }
}
