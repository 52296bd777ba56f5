//! The demo's page, and what it asks for while it is open.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{Html, Redirect};
use axum::routing::{get, post};
use cube_route::preview::{LinkBase, LinkForm, LinkRequest};
use cube_route::{Port, SandboxId};
use futures_util::Stream;
use serde_json::Value;

use super::manager::DemoManager;
use super::samples::{self, Ports, SampleCommand};
use super::{ASLEEP, TOKEN, html};
use crate::config::Config;

/// How soon a change of state shows.
const LOOK: Duration = Duration::from_millis(200);

/// What the page's own endpoints need.
#[derive(Clone)]
struct Demo {
    manager: Arc<DemoManager>,
    config: Arc<Config>,
    /// Where the sandboxes are for a browser.
    base: LinkBase,
}

/// What shows at the plain address: the sandboxes, links and commands; `/demo/states`, their states
/// as events; `/demo/sleep`, which puts the sleeping one to sleep again.
pub(super) fn router(
    samples: &[SampleCommand],
    ports: Ports,
    manager: Arc<DemoManager>,
    config: Arc<Config>,
) -> Router {
    let Ports { http, admin, metrics } = ports;
    let [port, admin, metrics] = [http, admin, metrics].map(|port| port.to_string());
    let values = [
        ("samples", &*samples::as_html(samples)),
        ("port", &*port),
        ("admin", &*admin),
        ("metrics", &*metrics),
        ("asleep", ASLEEP),
        ("token", TOKEN),
    ];
    let page = html::fill(include_str!("page.html"), &values);
    Router::new()
        .route("/", get(move || std::future::ready(Html(page.clone()))))
        .route("/demo/states", get(async |State(demo): State<Demo>| Sse::new(changes(demo))))
        .route("/demo/sleep", post(sleep))
        .route("/demo/private", get(private))
        .with_state(Demo { manager, config, base: LinkBase::new(false, "localhost", Some(http)) })
}

async fn sleep(State(demo): State<Demo>) -> StatusCode {
    match demo.manager.put_to_sleep(&demo.config, ASLEEP).await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::BAD_GATEWAY,
    }
}

/// A link that opens the private sandbox, made when it is asked for: links expire.
async fn private(State(demo): State<Demo>) -> Result<Redirect, StatusCode> {
    let id = SandboxId::parse("private").map_err(|_| StatusCode::NOT_FOUND)?;
    let port = Port::new(8080).ok_or(StatusCode::NOT_FOUND)?;
    let request = LinkRequest {
        id: &id,
        port,
        any_port: false,
        form: LinkForm::Host,
        path: "/",
        ttl: 3600,
        max_ttl: 3600,
        now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
    };
    let link = request.make(Some(&demo.base), Some(TOKEN.as_bytes()));
    link.map(|link| Redirect::to(&link.url)).map_err(|_| StatusCode::CONFLICT)
}

/// The states now, and again whenever one of them is another.
fn changes(demo: Demo) -> impl Stream<Item = Result<Event, Infallible>> {
    let ticks = tokio::time::interval(LOOK);
    futures_util::stream::unfold((demo, ticks, Value::Null), |(demo, mut ticks, before)| async move {
        loop {
            ticks.tick().await;
            let now = demo.manager.states(&demo.config).await;
            if now != before {
                return Some((Ok(Event::default().data(now.to_string())), (demo, ticks, now)));
            }
        }
    })
}
