//! `GET /metrics`: this process's metrics with those of the processes that drain, or have drained,
//! added (fleet.md, "Processes that drain").
//!
//! It waits for no process that drains: what they counted is what they last said. Where a successor
//! has taken over, it answers, or a counter would be scraped that is lower than before. For one that
//! hangs a scrape waits shortly: one that takes longer than a scraper waits is none.

use std::time::Duration;

use http::StatusCode;
use prometheus::TextEncoder;
use tokio::time::timeout;

use super::Readiness;
use super::forwarding::{self, Owner};
use super::response::AdminResponse;
use crate::proxy::state::ProxyState;

/// Where it is scraped.
pub(super) const PATH: &str = "/metrics";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long a successor that is taking over may take, which is a matter of milliseconds. After that
/// this process responds, which serves on if the successor hangs.
const TURN: Duration = Duration::from_secs(1);
/// How long a successor that has taken over may take to respond. Together with its own wait for a
/// further one it is well below the 10 s that Prometheus waits.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(3);

/// Answers, here or by the successor of this process.
pub(super) async fn scrape(state: &ProxyState, readiness: &Readiness) -> AdminResponse {
    match timeout(TURN, state.forwarding.turn()).await {
        Ok(Owner::This(_)) | Err(_) => here(state, readiness),
        Ok(Owner::Successor(successor)) => {
            let response = forwarding::ask(&successor, "GET", PATH, b"", FORWARD_TIMEOUT).await;
            match response.status {
                StatusCode::OK => AdminResponse { kind: TEXT, ..response },
                // A successor of an earlier version has no such route: this process responds for itself alone.
                StatusCode::NOT_FOUND => here(state, readiness),
                _ => response,
            }
        }
    }
}

fn here(state: &ProxyState, readiness: &Readiness) -> AdminResponse {
    let metrics = &state.metrics;
    metrics.ready.set(i64::from(readiness.unready().is_none()));
    let draining = state.processes.draining().len();
    metrics.draining_processes.set(i64::try_from(draining).unwrap_or(i64::MAX));
    match TextEncoder::new().encode_to_string(&state.processes.gather()) {
        Ok(text) => AdminResponse { status: StatusCode::OK, kind: TEXT, body: text.into() },
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written out");
            AdminResponse::error(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
        }
    }
}
