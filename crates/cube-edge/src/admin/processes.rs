//! `GET /admin/processes` and `POST /admin/processes/<pid>/end`: the processes of before a hot
//! restart that still drain (fleet.md, "Processes that drain").

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::response::AdminResponse;
use crate::processes::ProcessStanding;
use crate::proxy::state::ProxyState;

/// How long a process that is ended may take to be gone: more than until it is killed.
const GONE: Duration = Duration::from_secs(5);

/// `{"now", "main": {"pid", "version", "started"}, "processes": [{"pid", "version", "started",
/// "draining_since", "streams", "connections", "oldest", "deadline"}]}`, the longest draining first.
/// Times are unix milliseconds; `oldest` is when the oldest of its streams began, `deadline` when
/// what is left of them will be ended. What a process has not said (an older version says nothing)
/// is null.
pub(super) fn describe(state: &ProxyState) -> Value {
    let lifecycle = &state.lifecycle;
    let unix = |steady: u64| lifecycle.unix_ms_of(steady);
    let process = |standing: ProcessStanding| {
        json!({
            "pid": standing.pid,
            "version": standing.version,
            "started": Some(standing.started).filter(|at| *at != 0).map(unix),
            "draining_since": standing.draining_since.map(unix),
            "streams": standing.streams,
            "connections": standing.connections,
            "oldest": standing.oldest.map(unix),
            "deadline": standing.deadline.map(unix),
        })
    };
    let own = state.processes.own_standing();
    json!({
        "now": unix(lifecycle.steady_ms()),
        "main": { "pid": own.pid, "version": own.version, "started": unix(own.started) },
        "processes": state.processes.draining().into_iter().map(process).collect::<Value>(),
    })
}

/// The response where a process has been ended.
pub(super) fn is_ended() -> AdminResponse {
    AdminResponse::json(StatusCode::OK, &json!({ "ok": true }))
}

/// Ends a draining process with all that is under way in it.
pub(super) async fn end(state: &ProxyState, pid: &str) -> AdminResponse {
    let ended = match pid.parse() {
        Ok(pid) => state.processes.end(pid, GONE).await,
        Err(_) => None,
    };
    match ended {
        Some(true) => is_ended(),
        Some(false) => {
            AdminResponse::error(StatusCode::SERVICE_UNAVAILABLE, &format!("process {pid} does not end"))
        }
        None => AdminResponse::error(StatusCode::NOT_FOUND, &format!("no draining process {pid}")),
    }
}
