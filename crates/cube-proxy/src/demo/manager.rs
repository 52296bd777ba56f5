//! The manager of the demo: what wakes the sandbox that sleeps, as the one of an installation does
//! (lifecycle.md, Resume), and what its page shows of states.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode};
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::SANDBOXES;
use crate::cli::admin;
use crate::config::Config;
use crate::error::StartError;

/// How long a sandbox takes to wake: long enough to be seen.
const WAKING: Duration = Duration::from_secs(1);

/// Who is being woken.
#[derive(Default)]
pub(super) struct DemoManager {
    /// Until when at the latest: the proxy knows that one is awake a moment after it has been told, and
    /// no other state is shown in between.
    waking: Mutex<BTreeMap<String, Instant>>,
}

/// The query of a resume call.
#[derive(serde::Deserialize)]
struct Resume {
    sandbox_id: String,
}

/// What the proxy calls when a request meets a paused sandbox.
pub(super) fn router(manager: Arc<DemoManager>) -> Router {
    Router::new().route("/internal/resume", post(resume)).with_state(manager)
}

async fn resume(
    State(manager): State<Arc<DemoManager>>,
    Query(asked): Query<Resume>,
) -> (StatusCode, String) {
    if !SANDBOXES.contains(&asked.sandbox_id.as_str()) {
        return (StatusCode::NOT_FOUND, json!({ "error": "no such sandbox" }).to_string());
    }
    manager.waking.lock().insert(asked.sandbox_id, Instant::now() + 2 * WAKING);
    tokio::time::sleep(WAKING).await;
    (StatusCode::OK, json!({ "ok": true }).to_string())
}

impl DemoManager {
    /// The state of each sandbox: what the running proxy knows, and `waking` while this manager is at
    /// it. A sandbox of which nothing is known runs.
    pub(super) async fn states(&self, config: &Config) -> Value {
        let mut states = Map::new();
        for id in SANDBOXES {
            let told = admin::ask(config, Method::GET, &format!("/admin/routes/{id}"), String::new()).await;
            let state =
                |route: Value| route.get("state").and_then(Value::as_str).unwrap_or("running").to_owned();
            let known = told.ok().map(state);
            let mut state = known.unwrap_or_else(|| "unknown".to_owned());
            if state == "running" {
                self.waking.lock().remove(id);
            } else if self.waking.lock().get(id).is_some_and(|until| *until > Instant::now()) {
                "waking".clone_into(&mut state);
            }
            states.insert(id.to_owned(), state.into());
        }
        states.into()
    }

    /// Tells the proxy that a sandbox sleeps now, as a manager does after it paused one.
    ///
    /// # Errors
    /// [`StartError`] when the proxy does not take it.
    pub(super) async fn put_to_sleep(&self, config: &Config, id: &str) -> Result<(), StartError> {
        self.waking.lock().remove(id);
        let body = json!({ "sandbox_id": id, "state": "paused" }).to_string();
        admin::ask(config, Method::POST, "/admin/state", body).await.map(drop)
    }
}
