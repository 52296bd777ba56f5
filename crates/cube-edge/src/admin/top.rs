//! What is busy now (`GET /admin/top`): what the metrics cannot say, since no label takes a
//! sandbox or a node.

use serde_json::{Value, json};

use super::Readiness;
use super::routes::word;
use crate::proxy::state::ProxyState;

/// Sandboxes that are named, unless the query says how many.
const DEFAULT: usize = 20;
/// The most that are named.
const LIMIT: usize = 200;

/// How many sandboxes are to be named: `most` of the query.
///
/// # Errors
/// What is wrong with it, for the caller.
pub(super) fn most(query: Option<&str>) -> Result<usize, String> {
    let mut most = DEFAULT;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let number = pair.strip_prefix("most=").and_then(|number| number.parse::<usize>().ok());
        most = number
            .filter(|number| (1..=LIMIT).contains(number))
            .ok_or_else(|| format!("the query may say most=1 to most={LIMIT}, nothing else"))?;
    }
    Ok(most)
}

/// `{"version", "ready", "reason", "window_ms", "under_way", "sandboxes_under_way", "busiest":
/// [{"sandbox_id", "under_way", "requests", "state"}], "open_nodes", "faulty_nodes"}`: `requests`
/// began in the last `window_ms`, which is 0 in the first response.
pub(super) fn describe(state: &ProxyState, readiness: &Readiness, most: usize) -> Value {
    let found = state.active_requests.busiest(most);
    let busiest = found.busiest.iter().map(|sandbox| {
        json!({
            "sandbox_id": sandbox.id.as_str(),
            "under_way": sandbox.under_way,
            "requests": sandbox.begun,
            "state": state.lifecycle.state(&sandbox.id).map(word),
        })
    });
    let reason = readiness.unready();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": reason.is_none(),
        "reason": reason,
        "window_ms": u64::try_from(found.window.as_millis()).unwrap_or(u64::MAX),
        "under_way": found.under_way,
        "sandboxes_under_way": found.sandboxes,
        "busiest": busiest.collect::<Value>(),
        "open_nodes": state.breaker.open_nodes(),
        "faulty_nodes": state.breaker.faulty(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_says_how_many() {
        assert_eq!(most(None), Ok(DEFAULT));
        assert_eq!(most(Some("most=7")), Ok(7));
        for bad in ["most=0", "most=201", "most=x", "least=1", "most"] {
            assert!(most(Some(bad)).is_err(), "{bad}");
        }
    }
}
