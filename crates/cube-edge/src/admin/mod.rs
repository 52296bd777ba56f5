//! The admin API (lifecycle.md), and the listeners for probes and scrapes (operations.md).
//!
//! [`AdminApp`] and [`MetricsApp`] are what the engine serves. What concerns lifecycles is
//! answered by [`Lifecycle::admin`]; here is who may ask, and what operators see of routes.

mod apps;
mod auth;
mod explain;
mod explain_query;
mod forwarding;
mod health;
mod processes;
mod response;
mod routes;
mod scrape;
#[cfg(test)]
mod tests;
mod top;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use cube_route::SandboxId;
use cube_settings::Secret;
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::json;

use crate::gateway::Gateway;
use crate::proxy::state::ProxyState;
pub use apps::{AdminApp, MetricsApp, OperatorApp, read_head};
pub(crate) use explain::Explanation;
pub use explain_query::{ExplainQuery, ExplainQueryError};
use forwarding::Turn;
pub use forwarding::{AdminForwarding, DrainerCommand, ForwardedRequest, Push, UnderWay};
pub use health::Readiness;
use response::{Answer, probe};

/// The most bytes of a body.
const MAX_BODY: usize = 1024 * 1024;

/// The admin API of one proxy.
pub struct AdminApi {
    state: Arc<ProxyState>,
    readiness: Arc<Readiness>,
}

impl AdminApi {
    /// `token` is `admin.token`; without one only loopback peers are served.
    #[must_use]
    pub fn new(gateway: &Gateway, readiness: Arc<Readiness>, token: Option<Secret>) -> Self {
        let state = gateway.state().clone();
        state.admin_token.store(token.map(Arc::new));
        Self { state, readiness }
    }

    /// For [`AdminApi::errand`]: who may ask is decided by the process where the request came in.
    #[must_use]
    pub fn for_forwarded(gateway: &Gateway, readiness: Arc<Readiness>) -> Self {
        Self { state: gateway.state().clone(), readiness }
    }

    /// Whether the request may go on to its body, which is not read before.
    fn check_head(&self, peer: Option<IpAddr>, uri: &Uri, headers: &HeaderMap) -> Result<(), Answer> {
        auth::check(self.state.admin_token.load().as_deref(), peer, uri, headers)
    }

    /// The answer to a request that [`AdminApi::check_head`] let through.
    async fn handle(&self, method: &Method, uri: &Uri, body: &[u8]) -> Answer {
        let path = uri.path();
        if let Some(answer) = probe(&self.readiness, method.as_str(), path) {
            return answer;
        }
        if path.starts_with("/admin/") {
            match self.state.forwarding.turn().await {
                Turn::Here(turn) => {
                    if let Some(answer) = self.state.lifecycle.admin(method, path, uri.query(), body) {
                        let told = (*method == Method::POST && answer.status == StatusCode::OK)
                            .then(|| self.state.forwarding.tell(path, body));
                        drop(turn);
                        if let Some(told) = told {
                            told.heard().await;
                        }
                        return answer.into();
                    }
                }
                Turn::There(successor) => {
                    let target = uri.path_and_query().map_or(path, |target| target.as_str());
                    return forwarding::ask(&successor, method.as_str(), target, body, forwarding::ERRAND)
                        .await;
                }
            }
        }
        if let (&Method::POST, Some(pid)) = (method, processes::to_end(path)) {
            return processes::end(&self.state, pid).await;
        }
        if method == Method::GET {
            if path == "/admin/healthz" {
                return self.health();
            }
            if path == "/admin/processes" {
                return Answer::json(StatusCode::OK, &processes::describe(&self.state));
            }
            if path == "/admin/top" {
                return self.top(uri.query());
            }
            if path == "/admin/explain" {
                return self.explain(uri.query().unwrap_or_default()).await;
            }
            if let Some(id) = path.strip_prefix("/admin/routes/") {
                return self.route(id).await;
            }
        }
        Answer::no_route(method.as_str(), path)
    }

    /// Answers a request that came to a process that this one took over from.
    pub async fn forwarded(&self, method: &str, target: &str, body: &[u8]) -> (u16, Bytes) {
        let answer = match (method.parse(), target.parse()) {
            (Ok(Method::GET), Ok(_)) if target == scrape::PATH => {
                scrape::scrape(&self.state, &self.readiness).await
            }
            (Ok(method), Ok(uri)) => self.handle(&method, &uri, body).await,
            _ => Answer::no_route(method, target),
        };
        (answer.status.as_u16(), answer.body)
    }

    /// The response to a draining process that passes on the request to end itself, which is process
    /// `pid`. It has to be told before that process is: it does not live to pass on a later one.
    #[must_use]
    pub fn own_end(pid: u32, method: &str, target: &str) -> Option<(u16, Bytes)> {
        let path = target.split('?').next().unwrap_or_default();
        let own =
            method == "POST" && processes::to_end(path).and_then(|named| named.parse().ok()) == Some(pid);
        own.then(|| {
            let answer = processes::is_ended();
            (answer.status.as_u16(), answer.body)
        })
    }

    /// `GET /admin/explain`.
    async fn explain(&self, query: &str) -> Answer {
        match ExplainQuery::of_query(query) {
            Ok(question) => Answer::json(StatusCode::OK, &Explanation::of(&self.state, &question).await),
            Err(error) => Answer::error(StatusCode::BAD_REQUEST, &error.to_string()),
        }
    }

    /// `GET /admin/top`.
    fn top(&self, query: Option<&str>) -> Answer {
        match top::most(query) {
            Ok(most) => Answer::json(StatusCode::OK, &top::describe(&self.state, &self.readiness, most)),
            Err(text) => Answer::error(StatusCode::BAD_REQUEST, &text),
        }
    }

    /// `GET /admin/healthz`.
    fn health(&self) -> Answer {
        let ProxyState { store, resolver, lifecycle, breaker, .. } = &*self.state;
        Answer::json(
            StatusCode::OK,
            &json!({
                "ok": true,
                "pid": std::process::id(),
                "ready": self.readiness.unready().is_none(),
                "version": env!("CARGO_PKG_VERSION"),
                "store": {
                    "answered": store.has_responded(),
                    "failing": store.failing(),
                    "tracked": store.tracking().is_some(),
                },
                "routes": resolver.len(),
                "states": lifecycle.states_len(),
                "active": lifecycle.active_len(),
                "held": lifecycle.held(),
                "open_nodes": breaker.open_nodes(),
                "faulty_nodes": breaker.faulty().len(),
                "heartbeat_last_pushed_ms": lifecycle.heartbeat_last_pushed_ms(),
            }),
        )
    }

    /// `GET /admin/routes/<id>`: the cached route, read first where there is none.
    async fn route(&self, id: &str) -> Answer {
        let Ok(id) = SandboxId::parse(id) else {
            return Answer::error(StatusCode::BAD_REQUEST, "not a sandbox id: 1 to 128 of A-Z a-z 0-9 _ -");
        };
        if self.state.resolver.inspect(id.as_str()).is_none()
            && let Err(error) = self.state.resolver.lookup(&id).await
        {
            tracing::warn!(sandbox = %id, %error, "the store cannot answer the admin API");
            return Answer::error(StatusCode::SERVICE_UNAVAILABLE, "the store cannot answer");
        }
        match self.state.resolver.inspect(id.as_str()) {
            Some(found) => Answer::json(
                StatusCode::OK,
                &routes::describe(&found, &self.state.lifecycle, &self.state.breaker),
            ),
            None => Answer::error(StatusCode::NOT_FOUND, "no such sandbox"),
        }
    }
}
