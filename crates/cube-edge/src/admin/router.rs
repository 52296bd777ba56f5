//! The routes of the admin API: one list of what it serves.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cube_lifecycle::LIFECYCLE_ROUTES;
use cube_route::SandboxId;
use cube_settings::Secret;
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::json;

use super::auth;
use super::forwarding::{self, Owner};
use super::health::Readiness;
use super::link;
use super::processes;
use super::response::{AdminResponse, probe};
use super::routes;
use super::scrape;
use super::top;
use crate::decision::{ExplainQuery, Explanation};
use crate::proxy::state::ProxyState;

/// What a handler gets of a request.
struct Call<'a> {
    /// What stands in the path where its route has `<...>`.
    parameter: &'a str,
    query: Option<&'a str>,
    body: &'a [u8],
}

type Responding<'a> = Pin<Box<dyn Future<Output = AdminResponse> + Send + 'a>>;

/// One thing that the API serves.
struct AdminRoute {
    method: Method,
    /// One segment may be `<id>` (any text) or `<pid>` (digits).
    path: &'static str,
    handle: for<'a> fn(&'a AdminApi, Call<'a>) -> Responding<'a>,
}

/// What is served beside the routes about lifecycles ([`LIFECYCLE_ROUTES`]).
const ROUTES: &[AdminRoute] = &[
    AdminRoute {
        method: Method::GET,
        path: "/admin/healthz",
        handle: |api, _| Box::pin(async { api.health() }),
    },
    AdminRoute {
        method: Method::GET,
        path: "/admin/processes",
        handle: |api, _| {
            Box::pin(async { AdminResponse::json(StatusCode::OK, &processes::describe(&api.state)) })
        },
    },
    AdminRoute {
        method: Method::POST,
        path: END_PROCESS,
        handle: |api, call| Box::pin(processes::end(&api.state, call.parameter)),
    },
    AdminRoute {
        method: Method::GET,
        path: "/admin/top",
        handle: |api, call| Box::pin(async move { api.top(call.query) }),
    },
    AdminRoute {
        method: Method::GET,
        path: "/admin/explain",
        handle: |api, call| Box::pin(async move { api.explain(call.query.unwrap_or_default()).await }),
    },
    AdminRoute {
        method: Method::GET,
        path: "/admin/routes/<id>",
        handle: |api, call| Box::pin(api.route(call.parameter)),
    },
    AdminRoute {
        method: Method::POST,
        path: "/admin/sandboxes/<id>/link",
        handle: |api, call| Box::pin(link::make(&api.state, call.parameter, call.body)),
    },
];

const END_PROCESS: &str = "/admin/processes/<pid>/end";

/// Method and path of everything that the API serves.
pub fn admin_routes() -> impl Iterator<Item = (String, &'static str)> {
    let lifecycle = LIFECYCLE_ROUTES.iter().map(|route| (route.method.to_string(), route.path));
    lifecycle.chain(ROUTES.iter().map(|route| (route.method.to_string(), route.path)))
}

/// What stands in `path` where `pattern` has `<...>`, empty where it has none; `None`: another path.
fn parameter<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let Some((before, rest)) = pattern.split_once('<') else {
        return (pattern == path).then_some("");
    };
    let (name, after) = rest.split_once('>')?;
    let found = path.strip_prefix(before)?.strip_suffix(after)?;
    let digits = name != "pid" || (!found.is_empty() && found.bytes().all(|b| b.is_ascii_digit()));
    digits.then_some(found)
}

/// The admin API of one proxy.
pub struct AdminApi {
    state: Arc<ProxyState>,
    readiness: Arc<Readiness>,
}

impl AdminApi {
    /// `token` is `admin.token`; without one only loopback peers are served.
    pub(crate) fn new(state: Arc<ProxyState>, readiness: Arc<Readiness>, token: Option<Secret>) -> Self {
        state.admin_token.store(token.map(Arc::new));
        Self { state, readiness }
    }

    /// For [`AdminApi::forwarded`]: who may call is decided by the process where the request came in.
    pub(crate) fn for_forwarded(state: Arc<ProxyState>, readiness: Arc<Readiness>) -> Self {
        Self { state, readiness }
    }

    /// Counts a call as under way until it is dropped.
    pub(super) fn under_way(&self) -> forwarding::PendingRequest<'_> {
        self.state.forwarding.under_way()
    }

    /// Whether the request may go on to its body, which is not read before.
    pub(super) fn check_head(
        &self,
        peer: Option<IpAddr>,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), AdminResponse> {
        auth::check(self.state.admin_token.load().as_deref(), peer, uri, headers)
    }

    /// The response to a request that [`AdminApi::check_head`] let through.
    pub(super) async fn handle(&self, method: &Method, uri: &Uri, body: &[u8]) -> AdminResponse {
        let path = uri.path();
        if let Some(response) = probe(&self.readiness, method.as_str(), path) {
            return response;
        }
        if path.starts_with("/admin/") {
            match self.state.forwarding.turn().await {
                Owner::This(turn) => {
                    if let Some(response) = self.state.lifecycle.admin(method, path, uri.query(), body) {
                        let told = (*method == Method::POST && response.status == StatusCode::OK)
                            .then(|| self.state.forwarding.tell(path, body));
                        drop(turn);
                        if let Some(told) = told {
                            told.heard().await;
                        }
                        return response.into();
                    }
                }
                Owner::Successor(successor) => {
                    let target = uri.path_and_query().map_or(path, |target| target.as_str());
                    return forwarding::ask(
                        &successor,
                        method.as_str(),
                        target,
                        body,
                        forwarding::FORWARD_TIMEOUT,
                    )
                    .await;
                }
            }
        }
        for route in ROUTES.iter().filter(|route| route.method == *method) {
            if let Some(parameter) = parameter(route.path, path) {
                return (route.handle)(self, Call { parameter, query: uri.query(), body }).await;
            }
        }
        AdminResponse::no_route(method.as_str(), path)
    }

    /// Answers a request that came to a process that this one took over from.
    pub async fn forwarded(&self, method: &str, target: &str, body: &[u8]) -> (u16, Bytes) {
        let response = match (method.parse(), target.parse()) {
            (Ok(Method::GET), Ok(_)) if target == scrape::PATH => {
                scrape::scrape(&self.state, &self.readiness).await
            }
            (Ok(method), Ok(uri)) => self.handle(&method, &uri, body).await,
            _ => AdminResponse::no_route(method, target),
        };
        (response.status.as_u16(), response.body)
    }

    /// The response to a draining process that passes on the request to end itself, which is process
    /// `pid`. It has to be told before that process is: it does not live to pass on a later one.
    #[must_use]
    pub fn own_end(pid: u32, method: &str, target: &str) -> Option<(u16, Bytes)> {
        let path = target.split('?').next().unwrap_or_default();
        let own = method == "POST"
            && parameter(END_PROCESS, path).and_then(|named| named.parse().ok()) == Some(pid);
        own.then(|| {
            let response = processes::is_ended();
            (response.status.as_u16(), response.body)
        })
    }

    /// `GET /admin/explain`.
    async fn explain(&self, query: &str) -> AdminResponse {
        match ExplainQuery::of_query(query) {
            Ok(query) => AdminResponse::json(StatusCode::OK, &Explanation::of(&self.state, &query).await),
            Err(error) => AdminResponse::error(StatusCode::BAD_REQUEST, &error.to_string()),
        }
    }

    /// `GET /admin/top`.
    fn top(&self, query: Option<&str>) -> AdminResponse {
        match top::most(query) {
            Ok(most) => {
                AdminResponse::json(StatusCode::OK, &top::describe(&self.state, &self.readiness, most))
            }
            Err(text) => AdminResponse::error(StatusCode::BAD_REQUEST, &text),
        }
    }

    /// `GET /admin/healthz`.
    fn health(&self) -> AdminResponse {
        let ProxyState { store, resolver, lifecycle, breaker, .. } = &*self.state;
        AdminResponse::json(
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
    async fn route(&self, id: &str) -> AdminResponse {
        let Ok(id) = SandboxId::parse(id) else {
            return AdminResponse::error(
                StatusCode::BAD_REQUEST,
                "not a sandbox id: 1 to 128 of A-Z a-z 0-9 _ -",
            );
        };
        if self.state.resolver.inspect(id.as_str()).is_none()
            && let Err(error) = self.state.resolver.lookup(&id).await
        {
            tracing::warn!(sandbox = %id, %error, "the store cannot answer the admin API");
            return AdminResponse::error(StatusCode::SERVICE_UNAVAILABLE, "the store cannot answer");
        }
        match self.state.resolver.inspect(id.as_str()) {
            Some(found) => AdminResponse::json(
                StatusCode::OK,
                &routes::describe(&found, &self.state.lifecycle, &self.state.breaker),
            ),
            None => AdminResponse::error(StatusCode::NOT_FOUND, "no such sandbox"),
        }
    }
}
