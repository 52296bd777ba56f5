//! How a request would be routed, step by step (operations.md, `explain`): for the admin API and
//! the command alike. It follows the phases of a real request (`admit.rs`, `judge.rs`) on what is
//! known now, and wakes, holds, counts and stamps nothing.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use cube_lifecycle::GateForecast;
use cube_metadata::{Access, FieldValue};
use cube_resolver::{Lookup, Route, RouteEntry, RouteError};
use cube_route::{ClientHost, ListenerKind, Port, RequestHead, SandboxTarget, envd_control_route};
use http::{Method, Version, header};
use serde_json::{Map, Value, json};

use super::ExplainQuery;
use super::routes;
use crate::error_response::{ProxyError, Reason, ResponseFormat, is_preflight, render};
use crate::preview::{Presented, PreviewHead, PreviewResult, Refusal, Right, judge};
use crate::proxy::access;
use crate::proxy::state::ProxyState;
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
enum End {
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

/// As what node a request is judged. Without `node_ip` that is the local address of its connection,
/// which a question does not have: it is assumed, and said.
struct SeenFrom {
    node_ip: IpAddr,
    /// The address of this machine that the client is taken to connect to.
    assumed: Option<IpAddr>,
    /// Whether another one would make the route another.
    matters: bool,
}

/// No connection's local address, so that every sandbox is another node's.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl SeenFrom {
    /// `node_ip` where it is set. Else the address in the URL, where clients reach this proxy there;
    /// else HostIP, where they do: a client that comes to the node of the sandbox. Where HostIP is no
    /// address of this machine, every request goes to another node, and nothing is assumed.
    fn of(settings: &Settings, question: &ExplainQuery, entry: &RouteEntry) -> Self {
        if let Some(node_ip) = settings.node_ip {
            return Self { node_ip, assumed: None, matters: false };
        }
        let reached = |ip: &IpAddr| settings.guard.is_reachable_at(*ip, &settings.listens);
        let host_ip = match entry.record.host_ip {
            FieldValue::Value(ip) => Some(ip).filter(reached),
            FieldValue::Missing | FieldValue::Malformed => None,
        };
        let assumed = question.connects_to.filter(reached).or(host_ip).filter(|_| host_ip.is_some());
        Self {
            node_ip: assumed.unwrap_or(ELSEWHERE),
            assumed,
            matters: assumed.is_some() && assumed == host_ip,
        }
    }

    /// The assumption in words. `otherwise`: what a client gets that connects to another address.
    fn says(&self, otherwise: impl FnOnce() -> String) -> String {
        match self.assumed {
            Some(address) if self.matters => format!(
                " (node_ip is null; assumed: the client connects to {address}. Through another address of this \
                 machine it is {})",
                otherwise()
            ),
            Some(address) => {
                format!(" (node_ip is null; the client connects to {address}, which is not HostIP)")
            }
            None => String::new(),
        }
    }
}

impl Explanation {
    /// Explains `question` with what this process knows.
    pub(crate) async fn of(state: &ProxyState, question: &ExplainQuery) -> Value {
        let settings = state.settings.load_full();
        let mut told = Self { steps: Vec::new() };
        let mut named = None;
        let answer = match told.follow(state, &settings, question, &mut named).await {
            Ok(end) => forwarded(question, end),
            Err(error) => refused(state, &settings, question, named.as_ref(), error),
        };
        json!({ "steps": told.steps, "answer": answer })
    }

    fn step(&mut self, step: &str, ok: bool, says: impl Into<String>, values: Value) {
        let mut shown = Map::new();
        shown.insert("step".to_owned(), step.into());
        shown.insert("ok".to_owned(), ok.into());
        shown.insert("says".to_owned(), says.into().into());
        if let Value::Object(values) = values {
            shown.extend(values);
        }
        self.steps.push(Value::Object(shown));
    }

    fn stop(&mut self, step: &str, says: impl Into<String>, values: Value, error: ProxyError) -> ProxyError {
        self.step(step, false, says, values);
        error
    }

    async fn follow(
        &mut self,
        state: &ProxyState,
        settings: &Settings,
        question: &ExplainQuery,
        named: &mut Option<SandboxTarget>,
    ) -> Result<End, ProxyError> {
        let Some(target) = self.name(settings, question)? else {
            let plane = settings.control_plane.as_ref();
            let address = plane.map(|plane| format!("{}:{}", plane.host, plane.port)).unwrap_or_default();
            return Ok(End::ControlPlane { address });
        };
        *named = Some(target.clone());
        self.limits(settings, question, Some(&target))?;
        let entry = self.lookup_record(state, &target).await?;
        if !self.token(settings, question, &target, &entry)? {
            return Ok(End::WithoutTicket);
        }
        if let Some(limit) = settings.limits.requests_per_sandbox {
            let running = state.active_requests.count(&target.id);
            let values = json!({ "running": running, "limit": limit });
            if running >= limit as usize {
                let error = ProxyError::TooManyForSandbox { limit };
                return Err(self.stop("limits", "as many requests run to the sandbox as may", values, error));
            }
            self.step("limits", true, format!("{running} of {limit} requests run to the sandbox"), values);
        }
        let after = self.gate(state, question, &target)?;
        let route = self.route(settings, question, &target, &entry)?;
        self.breaker(state, &route)?;
        let host = match access::masked_host(&entry, target.port)? {
            Some(masked) => crate::proxy::state::header_text(&masked).to_owned(),
            None => text(question.headers.get(header::HOST)),
        };
        // The path alone, which no ticket is in.
        let path = target.upstream_target(question.target.as_bytes());
        let path = path.split(|b| *b == b'?').next().map(|path| String::from_utf8_lossy(path).into_owned());
        Ok(End::Sandbox { target, route, host, path: path.unwrap_or_default(), after })
    }

    /// Whom the head names; none: the control plane.
    fn name(
        &mut self,
        settings: &Settings,
        question: &ExplainQuery,
    ) -> Result<Option<SandboxTarget>, ProxyError> {
        let head = RequestHead {
            version: Version::HTTP_11,
            method: &question.method,
            target: question.target.as_bytes(),
            authority: None,
            headers: &question.headers,
            listener: ListenerKind::Data,
        };
        let host = text(question.headers.get(header::HOST));
        match cube_route::parse_request(&head, &settings.rules) {
            Err(error) => {
                let refused_as = crate::proxy::request_filter::error_of(error);
                Err(self.stop("target", error.to_string(), json!({ "host": host }), refused_as))
            }
            Ok(read) => match read.target {
                Some(target) => {
                    let form = target.form.as_str();
                    let says = format!("sandbox {}, port {}, named by {form}", target.id, target.port);
                    let values = json!({
                        "sandbox_id": target.id.as_str(), "port": target.port.get(), "form": form, "host": host,
                    });
                    self.step("target", true, says, values);
                    Ok(Some(target))
                }
                None if settings.is_control_plane(&read.client_host) => {
                    self.limits(settings, question, None)?;
                    let says = "names no sandbox, and the host is one of routing.control_plane";
                    self.step("target", true, says, json!({ "host": host }));
                    Ok(None)
                }
                None => {
                    let says = format!(
                        "{}: a host is <port>-<sandbox-id>.<domain>, a path /sandbox/<sandbox-id>/<port>/, headers \
                         are E2b-Sandbox-Id and E2b-Sandbox-Port",
                        cube_route::BadRequest::NoForm
                    );
                    Err(self.stop("target", says, json!({ "host": host }), ProxyError::BadTarget))
                }
            },
        }
    }

    /// What refuses a head before anything is looked up.
    fn limits(
        &mut self,
        settings: &Settings,
        question: &ExplainQuery,
        target: Option<&SandboxTarget>,
    ) -> Result<(), ProxyError> {
        let limits = &settings.limits;
        let length = question.target.len();
        if length > limits.target {
            let says = format!("the target has {length} bytes; limits.target is {}", limits.target);
            return Err(self.stop("head", says, Value::Null, ProxyError::TargetTooLong));
        }
        let (bytes, fields) = (question.head_len(), question.headers.len());
        if bytes > limits.head || fields > limits.headers {
            let says =
                format!("{bytes} bytes and {fields} fields; limits.head and limits.headers allow less");
            return Err(self.stop("head", says, Value::Null, ProxyError::HeadTooLarge));
        }
        if matches!(question.method, Method::TRACE | Method::CONNECT) {
            let says = format!("{} is not forwarded", question.method);
            return Err(self.stop("head", says, Value::Null, ProxyError::MethodNotAllowed));
        }
        let Some(target) = target.filter(|target| target.port == Port::ENVD) else { return Ok(()) };
        let Some(path) = envd_control_route(&target.upstream_target(question.target.as_bytes())) else {
            return Ok(());
        };
        match &settings.envd_control_from {
            None => {
                self.step("envd", true, format!("{path} is a control route, open to everyone"), Value::Null)
            }
            Some(peers) => {
                let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
                let says = format!("{path} is a control route, for peers in routing.envd_control_from only");
                return Err(self.stop(
                    "envd",
                    says,
                    json!({ "from": peers }),
                    ProxyError::EnvdControl { path },
                ));
            }
        }
        Ok(())
    }

    async fn lookup_record(
        &mut self,
        state: &ProxyState,
        target: &SandboxTarget,
    ) -> Result<Arc<RouteEntry>, ProxyError> {
        let known = state.resolver.inspect(target.id.as_str()).is_some_and(|known| !known.must_be_read);
        if !known {
            match state.resolver.lookup(&target.id).await {
                Ok(Lookup::Found(_)) => {}
                Ok(Lookup::Unknown) => {
                    let says = "there is no record under any key prefix";
                    return Err(self.stop("record", says, Value::Null, ProxyError::NoRecord));
                }
                Err(error) => {
                    let says = format!("the store cannot answer: {error}");
                    return Err(self.stop("record", says, Value::Null, ProxyError::StoreUnavailable));
                }
            }
        }
        let Some(found) = state.resolver.inspect(target.id.as_str()) else {
            let says = "the record went while it was looked at";
            return Err(self.stop("record", says, Value::Null, ProxyError::NoRecord));
        };
        let kind = if known { "cached" } else { "read now" };
        let says = match state.store.key_prefix(found.entry.record.prefix) {
            Some(prefix) => format!("{kind}, under {prefix}{}", target.id),
            None => kind.to_owned(),
        };
        self.step("record", true, says, routes::describe(&found, &state.lifecycle, &state.breaker));
        Ok(found.entry)
    }

    /// Says by which right the request passes, and no ticket. `true`: it goes on; else it is sent to the same
    /// without its ticket.
    fn token(
        &mut self,
        settings: &Settings,
        question: &ExplainQuery,
        target: &SandboxTarget,
        entry: &RouteEntry,
    ) -> Result<bool, ProxyError> {
        let record = &entry.record;
        let presented = presented(settings, question, target);
        let judged = judge(
            &settings.previews,
            target,
            settings.exempt_ports.contains(&target.port),
            Some(record),
            &question.headers,
            presented.as_ref(),
        );
        let closed = matches!(record.access, Access::Closed);
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
        let values = result.map_or(Value::Null, |result| json!({ "preview": result }));
        self.step("token", judged.right.is_ok(), says, values);
        let redirects = |right| presented.is_some_and(|one| one.redirects(right, &settings.previews));
        judged.right.map(|right| !redirects(right)).map_err(Refusal::error)
    }

    /// What the request would be held for.
    fn gate(
        &mut self,
        state: &ProxyState,
        question: &ExplainQuery,
        target: &SandboxTarget,
    ) -> Result<Option<&'static str>, ProxyError> {
        let lifecycle_state = state.lifecycle.state(&target.id).map_or("unknown", routes::word);
        let values = json!({ "state": lifecycle_state });
        let preflight = is_preflight(&question.method, &question.headers);
        match state.lifecycle.forecast(&target.id) {
            GateForecast::Pass => {
                self.step("gate", true, format!("state {lifecycle_state}: passes"), values);
                Ok(None)
            }
            GateForecast::Refuse(refusal) => {
                let says = format!("state {lifecycle_state}: refused ({})", refusal.as_str());
                Err(self.stop("gate", says, values, access::error_of(refusal)))
            }
            GateForecast::Wait | GateForecast::Wake if preflight => {
                let error = state.lifecycle.gate_without_hold(&target.id).map(access::error_of);
                let says = format!("state {lifecycle_state}: a preflight wakes and holds nothing");
                Err(self.stop("gate", says, values, error.unwrap_or(ProxyError::Pausing)))
            }
            GateForecast::Wait => {
                let after = "held until the change ends, at most lifecycle.pause_wait; then judged again";
                self.step("gate", true, format!("state {lifecycle_state}: {after}"), values);
                Ok(Some(after))
            }
            GateForecast::Wake => {
                let after = "held while the sandbox is resumed, at most resume.timeout; then judged again";
                self.step("gate", true, format!("state {lifecycle_state}: {after}"), values);
                Ok(Some(after))
            }
        }
    }

    fn route(
        &mut self,
        settings: &Settings,
        question: &ExplainQuery,
        target: &SandboxTarget,
        entry: &RouteEntry,
    ) -> Result<Route, ProxyError> {
        let seen = SeenFrom::of(settings, question, entry);
        let from = |node_ip| cube_resolver::route(&entry.record, target.port, node_ip, &settings.guard);
        match from(seen.node_ip) {
            Ok(route) => {
                let place = if route.local { "this node" } else { "node" };
                let assumed = seen.says(|| match from(ELSEWHERE) {
                    Ok(route) => route.address.to_string(),
                    Err(error) => format!("none: {error}"),
                });
                let says = format!("{} on {place} {}{assumed}", route.address, route.node);
                let values = json!({
                    "address": route.address.to_string(), "node": route.node.to_string(), "local": route.local,
                    "connected_to": seen.assumed.map(|address| address.to_string()),
                });
                self.step("route", true, says, values);
                Ok(route)
            }
            Err(error) => {
                let values = match error {
                    RouteError::Forbidden { address, why } => {
                        json!({ "address": address.to_string(), "key": why.key() })
                    }
                    _ => Value::Null,
                };
                let refused_as = access::error_of_route(error);
                let assumed =
                    seen.says(|| from(ELSEWHERE).map_or_else(|e| e.to_string(), |r| r.address.to_string()));
                Err(self.stop("route", format!("{error}{assumed}"), values, refused_as))
            }
        }
    }

    fn breaker(&mut self, state: &ProxyState, route: &Route) -> Result<(), ProxyError> {
        let faulty = state.breaker.faulty();
        let address = route.address.ip().to_canonical();
        if faulty.contains(&route.node) || faulty.contains(&address) {
            let says = "the node is in the shared set of faulty nodes";
            return Err(self.stop("breaker", says, Value::Null, ProxyError::FaultyNode));
        }
        if route.node == address && state.breaker.open_nodes().contains(&route.node) {
            let says = "open: connecting to the node failed for several sandboxes; a probe may pass";
            return Err(self.stop("breaker", says, Value::Null, ProxyError::BreakerOpen));
        }
        self.step("breaker", true, "closed", Value::Null);
        Ok(())
    }
}

fn forwarded(question: &ExplainQuery, end: End) -> Value {
    match end {
        End::WithoutTicket => {
            let (code, reason) = (Retcode::PreviewRedirected.code(), Reason::PreviewRedirect.as_str());
            json!({
                "by": "proxy",
                "says": "a browser is sent to the same without the ticket, which it gets as a cookie",
                "status": 303, "retcode": code, "logged_retcode": code, "reason": reason,
            })
        }
        End::ControlPlane { address } => json!({
            "by": "control_plane",
            "says": format!("{} is forwarded to {address}", question.method),
            "address": address,
        }),
        End::Sandbox { target, route, host, path, after } => json!({
            "by": "sandbox",
            "says": format!(
                "{} {path} is forwarded to {}, Host {host}{}",
                question.method,
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
    question: &ExplainQuery,
    named: Option<&SandboxTarget>,
    error: ProxyError,
) -> Value {
    if let Some(target) = named
        && sent_to_log_in(settings, question, target, error)
    {
        let (code, reason) = (Retcode::Redirected.code(), Reason::PreviewLogin.as_str());
        return json!({
            "by": "proxy",
            "says": "a browser is sent to previews.login_url",
            "status": 302, "retcode": code, "logged_retcode": code, "reason": reason,
        });
    }
    // While the store cannot answer, a masked refusal is answered as an unknown id then is.
    let hidden = matches!(error, ProxyError::TokenMissing | ProxyError::TokenWrong);
    let masked_as_unavailable = hidden && settings.answers.mask_existence && state.store.failing();
    let shown = if masked_as_unavailable { ProxyError::StoreUnavailable } else { error };
    let format = ResponseFormat::new(&question.method, &question.headers);
    let format = match named {
        Some(target) => format.of(&target.id, target.port),
        None => format,
    };
    let own = render(shown, &format, settings.answers);
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
fn presented(settings: &Settings, question: &ExplainQuery, target: &SandboxTarget) -> Option<Presented> {
    let host = question.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let head = PreviewHead {
        method: &question.method,
        headers: &question.headers,
        origin_form: question.target.as_bytes(),
        form: target.form,
        host: ClientHost::parse(host?)?,
        tls: question.tls,
    };
    Presented::read(&head, &settings.previews).map(|(presented, _)| presented)
}

/// Whether a request that `error` refuses is sent to log in.
fn sent_to_log_in(
    settings: &Settings,
    question: &ExplainQuery,
    target: &SandboxTarget,
    error: ProxyError,
) -> bool {
    let with_ticket = presented(settings, question, target).is_some_and(|one| one.has_parameter());
    settings.previews.sends_to_log_in(&question.method, &question.headers, with_ticket)
        && error.leads_to_login()
}

fn text(value: Option<&http::HeaderValue>) -> String {
    value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
}
