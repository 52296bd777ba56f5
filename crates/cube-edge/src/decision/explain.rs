//! How a request would be routed, step by step (operations.md, `explain`): for the admin API and the command
//! alike. It is the request path's own pipeline, looked at: it wakes, holds, counts and stamps nothing.

use std::sync::Arc;

use cube_lifecycle::GateForecast;
use cube_resolver::{Lookup, Route, RouteEntry};
use cube_route::{ClientHost, SandboxTarget};
use http::header;
use serde_json::{Map, Value, json};

use super::access::{self, AccessView, Decision, GateStep, NodeView, Surroundings};
use super::explain_query::ExplainQuery;
use super::head::{self, HeadView, NamedTarget};
use super::recorder::{DecisionStep, Recorder, StepText};
use super::seen_from::{ELSEWHERE, SeenFrom};
use crate::admin::routes;
use crate::error_response::{ProxyError, Reason, ResponseFormat, is_preflight, render};
use crate::preview::{Presented, PreviewHead};
use crate::proxy::state::{ProxyState, header_text};
use crate::retcode::Retcode;
use crate::settings::Settings;

/// What was found, in order, and the response it leads to.
///
/// As JSON: `{"steps": [{"step", "ok", "says", ...values}], "answer": {"by", "says", ...}}`. `by` is
/// `proxy`, `sandbox` or `control_plane`; a response of the proxy has `status`, `retcode`, `reason`,
/// `body`, one of a sandbox `address`, `host` and `target`. No token is ever in it.
pub(crate) struct Explanation {
    steps: Vec<Value>,
}

/// Where a request goes in the end.
enum ExplainedDestination {
    Sandbox {
        target: SandboxTarget,
        route: Route,
        host: String,
        path: String,
        after: Option<&'static str>,
    },
    ControlPlane {
        address: String,
    },
    /// A browser is sent to the same, with the ticket in a cookie.
    WithoutTicket,
}

impl Explanation {
    /// Explains `query` with what this process knows.
    pub(crate) async fn of(state: &ProxyState, query: &ExplainQuery) -> Value {
        let settings = state.settings.load_full();
        let mut told = Self { steps: Vec::new() };
        let head = query.head();
        let named = NamedTarget::read(&head, &settings);
        let target = named.parsed.as_ref().ok().and_then(|read| read.target.clone());
        let end = told.follow(state, &settings, query, &named, target.as_ref()).await;
        let answer = match end {
            Ok(end) => forwarded(query, end),
            Err(error) => refused(state, &settings, query, target.as_ref(), error),
        };
        json!({ "steps": told.steps, "answer": answer })
    }

    async fn follow(
        &mut self,
        state: &ProxyState,
        settings: &Settings,
        query: &ExplainQuery,
        named: &NamedTarget<'_>,
        target: Option<&SandboxTarget>,
    ) -> Result<ExplainedDestination, ProxyError> {
        let view = HeadView {
            head: query.head(),
            peer: None,
            bytes: Some(query.head_len()),
            sound: true,
            content_length: query.content_length(),
        };
        // The limit of requests from an address counts, so it is not asked.
        head::check(&view, named, settings, || true, self)?;
        let Some(target) = target else {
            let plane = settings.control_plane.as_ref();
            let address = plane.map(|plane| format!("{}:{}", plane.host, plane.port)).unwrap_or_default();
            return Ok(ExplainedDestination::ControlPlane { address });
        };
        let mut surroundings = LookingOn { state, settings, query, target, after: None };
        let presented = presented(settings, query, target);
        let view = AccessView {
            target,
            headers: &query.headers,
            settings,
            preview: presented.as_ref(),
            may_redirect: true,
        };
        let forward = match access::decide(&view, &mut surroundings, self).await.decision? {
            Decision::Forward(forward) => forward,
            Decision::WithoutTicket => return Ok(ExplainedDestination::WithoutTicket),
            // Nothing is held where somebody only looks.
            Decision::Hold => return Err(ProxyError::Internal),
        };
        let host = match &forward.masked_host {
            Some(masked) => header_text(masked).to_owned(),
            None => text(query.headers.get(header::HOST)),
        };
        // The path alone, which no ticket is in.
        let path = target.upstream_target(query.target.as_bytes());
        let path = path.split(|b| *b == b'?').next().map(|path| String::from_utf8_lossy(path).into_owned());
        Ok(ExplainedDestination::Sandbox {
            target: target.clone(),
            route: forward.route,
            host,
            path: path.unwrap_or_default(),
            after: surroundings.after,
        })
    }

    fn step(&mut self, step: DecisionStep, ok: bool, told: StepText) {
        let mut shown = Map::new();
        shown.insert("step".to_owned(), step.as_str().into());
        shown.insert("ok".to_owned(), ok.into());
        shown.insert("says".to_owned(), told.says.into());
        if let Value::Object(values) = told.values {
            shown.extend(values);
        }
        self.steps.push(Value::Object(shown));
    }
}

impl Recorder for Explanation {
    fn passed<T: Into<StepText>>(&mut self, step: DecisionStep, told: impl FnOnce() -> T) {
        self.step(step, true, told().into());
    }

    fn stopped<T: Into<StepText>>(&mut self, step: DecisionStep, told: impl FnOnce() -> T) {
        self.step(step, false, told().into());
    }
}

/// The steps as somebody sees them who only looks: nothing is counted, woken, held or taken.
struct LookingOn<'a> {
    state: &'a ProxyState,
    settings: &'a Settings,
    query: &'a ExplainQuery,
    target: &'a SandboxTarget,
    /// What the request would be held for.
    after: Option<&'static str>,
}

impl Surroundings for LookingOn<'_> {
    type Permit = ();

    async fn record(&mut self, recorder: &mut impl Recorder) -> Result<Arc<RouteEntry>, ProxyError> {
        let (state, id) = (self.state, &self.target.id);
        let known = state.resolver.inspect(id.as_str()).is_some_and(|known| !known.must_be_read);
        if !known {
            match state.resolver.lookup(id).await {
                Ok(Lookup::Found(_)) => {}
                Ok(Lookup::Unknown) => {
                    recorder.stopped(DecisionStep::Record, || "there is no record under any key prefix");
                    return Err(ProxyError::NoRecord);
                }
                Err(error) => {
                    recorder.stopped(DecisionStep::Record, || format!("the store cannot answer: {error}"));
                    return Err(ProxyError::StoreUnavailable);
                }
            }
        }
        let Some(found) = state.resolver.inspect(id.as_str()) else {
            recorder.stopped(DecisionStep::Record, || "the record went while it was looked at");
            return Err(ProxyError::NoRecord);
        };
        recorder.passed(DecisionStep::Record, || {
            let kind = if known { "cached" } else { "read now" };
            let says = match state.store.key_prefix(found.entry.record.prefix) {
                Some(prefix) => format!("{kind}, under {prefix}{id}"),
                None => kind.to_owned(),
            };
            (says, routes::describe(&found, &state.lifecycle, &state.breaker))
        });
        Ok(found.entry)
    }

    fn take_slot(&mut self, _: &RouteEntry, recorder: &mut impl Recorder) -> Result<(), ProxyError> {
        let Some(limit) = self.settings.limits.requests_per_sandbox else { return Ok(()) };
        let running = self.state.active_requests.count(&self.target.id);
        let values = json!({ "running": running, "limit": limit });
        if running >= limit as usize {
            recorder.stopped(DecisionStep::Limits, || {
                ("as many requests run to the sandbox as may".to_owned(), values)
            });
            return Err(ProxyError::TooManyForSandbox { limit });
        }
        recorder.passed(DecisionStep::Limits, || {
            (format!("{running} of {limit} requests run to the sandbox"), values)
        });
        Ok(())
    }

    fn gate(&mut self, recorder: &mut impl Recorder) -> Result<GateStep, ProxyError> {
        let lifecycle = &self.state.lifecycle;
        let known = lifecycle.state(&self.target.id).map_or("unknown", routes::word);
        let told = |says: &str| (format!("state {known}: {says}"), json!({ "state": known }));
        let preflight = is_preflight(&self.query.method, &self.query.headers);
        let after = match lifecycle.forecast(&self.target.id) {
            GateForecast::Pass => {
                recorder.passed(DecisionStep::Gate, || told("passes"));
                return Ok(GateStep::Pass);
            }
            GateForecast::Refuse(refusal) => {
                recorder.stopped(DecisionStep::Gate, || told(&format!("refused ({})", refusal.as_str())));
                return Err(access::error_of_gate(refusal));
            }
            GateForecast::Wait | GateForecast::Wake if preflight => {
                recorder.stopped(DecisionStep::Gate, || told("a preflight wakes and holds nothing"));
                let refusal = lifecycle.gate_without_hold(&self.target.id);
                return Err(refusal.map_or(ProxyError::Pausing, access::error_of_gate));
            }
            GateForecast::Wait => {
                "held until the change ends, at most lifecycle.pause_wait; then judged again"
            }
            GateForecast::Wake => {
                "held while the sandbox is resumed, at most resume.timeout; then judged again"
            }
        };
        recorder.passed(DecisionStep::Gate, || told(after));
        self.after = Some(after);
        Ok(GateStep::Pass)
    }

    fn node(&self, entry: &RouteEntry) -> NodeView {
        let seen = SeenFrom::of(self.settings, self.query, entry);
        let assumed = seen.says(|| {
            let other =
                cube_resolver::route(&entry.record, self.target.port, ELSEWHERE, &self.settings.guard);
            match other {
                Ok(route) => route.address.to_string(),
                Err(error) => format!("none: {error}"),
            }
        });
        NodeView { node_ip: seen.node_ip, connected_to: seen.assumed, assumed }
    }

    fn breaker(&mut self, route: &Route, recorder: &mut impl Recorder) -> Result<(), ProxyError> {
        let breaker = &self.state.breaker;
        let faulty = breaker.faulty();
        let address = route.address.ip().to_canonical();
        if faulty.contains(&route.node) || faulty.contains(&address) {
            recorder.stopped(DecisionStep::Breaker, || "the node is in the shared set of faulty nodes");
            return Err(ProxyError::FaultyNode);
        }
        if route.node == address && breaker.open_nodes().contains(&route.node) {
            recorder.stopped(
                DecisionStep::Breaker,
                || "open: connecting to the node failed for several sandboxes; a probe may pass",
            );
            return Err(ProxyError::BreakerOpen);
        }
        recorder.passed(DecisionStep::Breaker, || "closed");
        Ok(())
    }
}

fn forwarded(query: &ExplainQuery, end: ExplainedDestination) -> Value {
    match end {
        ExplainedDestination::WithoutTicket => {
            let (code, reason) = (Retcode::PreviewRedirected.code(), Reason::PreviewRedirect.as_str());
            json!({
                "by": "proxy",
                "says": "a browser is sent to the same without the ticket, which it gets as a cookie",
                "status": 303, "retcode": code, "logged_retcode": code, "reason": reason,
            })
        }
        ExplainedDestination::ControlPlane { address } => json!({
            "by": "control_plane",
            "says": format!("{} is forwarded to {address}", query.method),
            "address": address,
        }),
        ExplainedDestination::Sandbox { target, route, host, path, after } => json!({
            "by": "sandbox",
            "says": format!(
                "{} {path} is forwarded to {}, Host {host}{}",
                query.method,
                route.address,
                if after.is_some() { ", once it may go on" } else { "" },
            ),
            "address": route.address.to_string(),
            "host": host,
            "target": path,
            "port": target.port.get(),
            "after": after,
        }),
    }
}

fn refused(
    state: &ProxyState,
    settings: &Settings,
    query: &ExplainQuery,
    named: Option<&SandboxTarget>,
    error: ProxyError,
) -> Value {
    let sent_to_log_in = named.is_some_and(|target| sends_to_log_in(settings, query, target));
    let masks = *settings.own_responses.mask_existence || sent_to_log_in;
    let masked_as_unavailable = access::is_masked_as_unavailable(error, masks, state.store.failing());
    if sent_to_log_in && error.leads_to_login() && !masked_as_unavailable {
        let (code, reason) = (Retcode::Redirected.code(), Reason::PreviewLogin.as_str());
        return json!({
            "by": "proxy",
            "says": "a browser is sent to previews.login_url",
            "status": 302, "retcode": code, "logged_retcode": code, "reason": reason,
        });
    }
    let shown = if masked_as_unavailable { ProxyError::StoreUnavailable } else { error };
    let format = ResponseFormat::new(&query.method, &query.headers);
    let format = match named {
        Some(target) => format.of(&target.id, target.port),
        None => format,
    };
    let own = render(shown, &format, settings.own_responses);
    let (status, retcode) = (own.status.as_u16(), own.wire_retcode.code());
    let logged = error.retcode().code();
    let masked = if logged == retcode { String::new() } else { format!(", logged as {logged}") };
    json!({
        "by": "proxy",
        "says": format!("{status}, retcode {retcode}, reason {}{masked}", error.reason().as_str()),
        "status": status,
        "retcode": retcode,
        "logged_retcode": logged,
        "reason": error.reason().as_str(),
        "body": String::from_utf8_lossy(&own.body).trim_end(),
    })
}

/// The tickets of the request.
fn presented(settings: &Settings, query: &ExplainQuery, target: &SandboxTarget) -> Option<Presented> {
    let host = query.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let head = PreviewHead {
        method: &query.method,
        headers: &query.headers,
        origin_form: query.target.as_bytes(),
        form: target.form,
        host: ClientHost::parse(host?)?,
        tls: query.tls,
    };
    Presented::read(&head, &settings.previews).map(|(presented, _)| presented)
}

/// Whether a request that is refused for its token, or names no sandbox that is there, is sent to log in.
fn sends_to_log_in(settings: &Settings, query: &ExplainQuery, target: &SandboxTarget) -> bool {
    let with_ticket = presented(settings, query, target).is_some_and(|one| one.has_parameter());
    settings.previews.sends_to_log_in(&query.method, &query.headers, with_ticket)
}

fn text(value: Option<&http::HeaderValue>) -> String {
    value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
}
