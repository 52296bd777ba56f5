//! What happened between two looks: the figures that are shown.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::scrape::{Scrape, Series};

/// Everything that `top` shows, and what `--json` writes. Rates are a second, times in milliseconds;
/// what no request has told is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Figures {
    /// The version that runs.
    pub(super) version: String,
    /// Whether `/readyz` says 200, and why not.
    pub(super) ready: bool,
    pub(super) reason: Option<String>,
    /// Seconds since the process began.
    pub(super) uptime_seconds: u64,
    /// Seconds between the two looks.
    pub(super) interval_seconds: f64,
    /// Requests that ended.
    pub(super) requests: f64,
    /// Those of them that were answered by the proxy with an error of 5xx or of the sandbox's connection.
    pub(super) failed: f64,
    /// From the head of a request to the end of its response.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// What the proxy itself adds.
    pub(super) added_p50_ms: Option<f64>,
    pub(super) added_p99_ms: Option<f64>,
    /// From sending the head to a sandbox to the first byte of its response.
    pub(super) first_byte_p99_ms: Option<f64>,
    /// Requests under way, responses among them that are being sent, tunnels, requests that wait for a
    /// sandbox.
    pub(super) under_way: u64,
    pub(super) open_streams: u64,
    pub(super) open_websockets: u64,
    pub(super) held: u64,
    pub(super) sandboxes_under_way: u64,
    /// Open connections of clients.
    pub(super) connections: u64,
    /// Bytes from and to clients.
    pub(super) bytes_in: f64,
    pub(super) bytes_out: f64,
    /// New connections to sandboxes, and requests on a pooled one.
    pub(super) connects: f64,
    pub(super) reused: f64,
    /// Share of lookups that did not wait for the store, 0 to 1.
    pub(super) cache_hit_rate: Option<f64>,
    pub(super) cache_entries: u64,
    /// Whether the store pushes its changes; null where it cannot tell (a file).
    pub(super) cache_tracked: Option<bool>,
    pub(super) store_p99_ms: Option<f64>,
    pub(super) store_errors: f64,
    /// Lines that the access log has lost, since the process began.
    pub(super) log_lines_lost: u64,
    /// Cores in use, memory, open files.
    pub(super) cores: f64,
    pub(super) resident_bytes: u64,
    pub(super) open_files: u64,
    /// Return codes of the interval, the most frequent first.
    pub(super) responses: Vec<ResponseRate>,
    /// The busiest sandboxes.
    pub(super) busiest: Vec<BusySandbox>,
    /// Nodes that are not dialled: for what this process saw, and by the shared set.
    pub(super) open_nodes: Vec<String>,
    pub(super) faulty_nodes: Vec<String>,
    /// Processes of before a hot restart that still drain, the longest first.
    pub(super) draining: Vec<DrainingProcess>,
}

/// A process that drains. What it does not say, being of an older version, is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct DrainingProcess {
    pub(super) pid: u64,
    pub(super) version: Option<String>,
    /// Requests, streams and tunnels under way in it, and its open client connections.
    pub(super) streams: Option<u64>,
    pub(super) connections: Option<u64>,
    /// For how long it has drained, and its oldest stream has run.
    pub(super) draining_seconds: Option<u64>,
    pub(super) oldest_seconds: Option<u64>,
    /// After how long what is left will be ended.
    pub(super) deadline_seconds: Option<u64>,
}

/// How often one return code was given for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ResponseRate {
    pub(super) retcode: String,
    pub(super) reason: String,
    pub(super) requests: f64,
}

/// One sandbox with traffic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct BusySandbox {
    pub(super) sandbox_id: String,
    /// A second, over the last seconds; null until they have been counted.
    pub(super) requests: Option<f64>,
    pub(super) under_way: u64,
    pub(super) state: Option<String>,
}

/// Return codes that say that proxy, store, node or sandbox failed.
const FAILURES: [&str; 6] = ["310500", "310501", "310503", "310508", "310509", "340500"];

impl Figures {
    /// What happened from `before` to `now`.
    pub(super) fn between(before: &Scrape, now: &Scrape) -> Self {
        let seconds = now.at.saturating_duration_since(before.at).max(Duration::from_millis(1)).as_secs_f64();
        let rate = |name: &str, labels: &[(&str, &str)]| {
            since(before.series.sum(name, labels), now.series.sum(name, labels)) / seconds
        };
        let gauge = |name: &str| count(now.series.sum(name, &[]));
        let quantile = |name: &str, q| quantile_ms(&deltas(&before.series, &now.series, name), q);
        let responses = responses(&before.series, &now.series, seconds);
        let failed = responses.iter().filter(|response| FAILURES.contains(&response.retcode.as_str()));
        let lookups = rate("cube_proxy_cache_lookups_total", &[]);
        let missed = rate("cube_proxy_cache_lookups_total", &[("outcome", "miss")]);
        let top = &now.top;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let nodes = |name: &str| top[name].as_array().into_iter().flatten().filter_map(text).collect();
        let window = top["window_ms"].as_f64().unwrap_or(0.0) / 1000.0;
        let busiest = top["busiest"].as_array().into_iter().flatten().map(|sandbox| BusySandbox {
            sandbox_id: text(&sandbox["sandbox_id"]).unwrap_or_default(),
            requests: (window > 0.0).then(|| sandbox["requests"].as_f64().unwrap_or(0.0) / window),
            under_way: sandbox["under_way"].as_u64().unwrap_or(0),
            state: text(&sandbox["state"]),
        });
        Self {
            version: text(&top["version"]).unwrap_or_default(),
            ready: top["ready"].as_bool().unwrap_or(false),
            reason: text(&top["reason"]),
            uptime_seconds: uptime(&now.series),
            interval_seconds: seconds,
            requests: rate("cube_proxy_request_total", &[]),
            // The empty sum would be -0.
            failed: failed.map(|response| response.requests).fold(0.0, std::ops::Add::add),
            p50_ms: quantile("cube_proxy_request_duration_seconds", 0.5),
            p99_ms: quantile("cube_proxy_request_duration_seconds", 0.99),
            added_p50_ms: quantile("cube_proxy_added_latency_seconds", 0.5),
            added_p99_ms: quantile("cube_proxy_added_latency_seconds", 0.99),
            first_byte_p99_ms: quantile("cube_proxy_upstream_first_byte_seconds", 0.99),
            under_way: gauge("cube_proxy_inflight_requests"),
            open_streams: gauge("cube_proxy_open_streams"),
            open_websockets: gauge("cube_proxy_open_websockets"),
            held: gauge("cube_proxy_held_requests"),
            sandboxes_under_way: top["sandboxes_under_way"].as_u64().unwrap_or(0),
            connections: gauge("cube_proxy_client_connections"),
            bytes_in: rate("cube_proxy_bytes_total", &[("direction", "in")]),
            bytes_out: rate("cube_proxy_bytes_total", &[("direction", "out")]),
            connects: rate("cube_proxy_upstream_connects_total", &[]),
            reused: rate("cube_proxy_upstream_reused_total", &[]),
            cache_hit_rate: (lookups > 0.0).then(|| ((lookups - missed) / lookups).clamp(0.0, 1.0)),
            cache_entries: gauge("cube_proxy_cache_entries"),
            cache_tracked: now
                .series
                .has("cube_proxy_cache_tracked")
                .then(|| now.series.sum("cube_proxy_cache_tracked", &[]) > 0.0),
            store_p99_ms: quantile("cube_proxy_store_latency_seconds", 0.99),
            store_errors: rate("cube_proxy_store_errors_total", &[]),
            log_lines_lost: gauge("cube_proxy_access_log_dropped_total"),
            cores: rate("process_cpu_seconds_total", &[]),
            resident_bytes: gauge("process_resident_memory_bytes"),
            open_files: gauge("process_open_fds"),
            responses,
            busiest: busiest.collect(),
            open_nodes: nodes("open_nodes"),
            faulty_nodes: nodes("faulty_nodes"),
            draining: draining(&now.processes),
        }
    }
}

fn draining(told: &Value) -> Vec<DrainingProcess> {
    let now = told["now"].as_u64().unwrap_or(0);
    let process = |process: &Value| {
        let past = |name: &str| process[name].as_u64().map(|at| now.saturating_sub(at) / 1000);
        DrainingProcess {
            pid: process["pid"].as_u64().unwrap_or(0),
            version: process["version"].as_str().map(str::to_owned),
            streams: process["streams"].as_u64(),
            connections: process["connections"].as_u64(),
            draining_seconds: past("draining_since"),
            oldest_seconds: past("oldest"),
            deadline_seconds: process["deadline"].as_u64().map(|at| at.saturating_sub(now) / 1000),
        }
    };
    told["processes"].as_array().into_iter().flatten().map(process).collect()
}

/// How much a counter grew. One that fell belongs to a new process and began at nothing.
fn since(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded, and no less than 0")]
fn count(value: f64) -> u64 {
    value.round().clamp(0.0, 9e15) as u64
}

fn uptime(series: &Series) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    count((now.as_secs_f64() - series.sum("process_start_time_seconds", &[])).max(0.0))
}

fn responses(before: &Series, now: &Series, seconds: f64) -> Vec<ResponseRate> {
    let name = "cube_proxy_answers_total";
    let known = before.by(name, ["retcode", "reason"]);
    let mut rates: Vec<ResponseRate> = now
        .by(name, ["retcode", "reason"])
        .into_iter()
        .map(|(key, value)| {
            let requests = since(known.get(&key).copied().unwrap_or(0.0), value) / seconds;
            let [retcode, reason] = key;
            ResponseRate { retcode, reason, requests }
        })
        .filter(|response| response.requests > 0.0)
        .collect();
    rates.sort_by(|a, b| b.requests.total_cmp(&a.requests));
    rates
}

/// Upper edges and how many of the interval's values were below each.
fn deltas(before: &Series, now: &Series, name: &str) -> Vec<(f64, f64)> {
    let known = before.buckets(name);
    let at = |edge: f64| known.iter().find(|(known, _)| known.total_cmp(&edge).is_eq()).map_or(0.0, |b| b.1);
    let now = now.buckets(name);
    // A new process: none of its buckets may be compared with the old one's.
    let restarted = now.iter().any(|(edge, count)| *count < at(*edge));
    now.into_iter().map(|(edge, count)| (edge, if restarted { count } else { count - at(edge) })).collect()
}

/// The quantile in milliseconds, within its bucket as if values were spread evenly; of the last
/// bucket, which has no upper edge, its lower one.
fn quantile_ms(buckets: &[(f64, f64)], quantile: f64) -> Option<f64> {
    let total = buckets.last().filter(|bucket| bucket.1 > 0.0)?.1;
    let wanted = total * quantile;
    let (mut low, mut below) = (0.0, 0.0);
    for &(edge, count) in buckets {
        if count >= wanted && count > below {
            let inside =
                if edge.is_finite() { (edge - low) * ((wanted - below) / (count - below)) } else { 0.0 };
            return Some((low + inside) * 1000.0);
        }
        (low, below) = (edge, count);
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    pub(in crate::cli::top) fn sample(at: Instant, text: &str, top: Value) -> Scrape {
        let processes = json!({
            "now": 3_700_000,
            "processes": [
                { "pid": 4711, "version": "0.0.9", "streams": 2, "connections": 3, "draining_since": 3_400_000,
                  "oldest": 100_000, "deadline": 7_000_000 },
                { "pid": 4712, "version": null, "streams": null },
            ],
        });
        Scrape { at, series: Series::parse(text), top, processes }
    }

    /// Two looks, two seconds apart.
    pub(in crate::cli::top) fn figures() -> Figures {
        let begin = Instant::now();
        let before = "cube_proxy_request_total{result=\"success\"} 100\n\
                      cube_proxy_answers_total{form=\"host\",reason=\"ok\",retcode=\"310200\"} 100\n\
                      cube_proxy_request_duration_seconds_bucket{le=\"0.001\"} 100\n\
                      cube_proxy_request_duration_seconds_bucket{le=\"0.002\"} 100\n\
                      cube_proxy_request_duration_seconds_bucket{le=\"+Inf\"} 100\n\
                      cube_proxy_cache_lookups_total{outcome=\"hit\"} 10\n\
                      cube_proxy_cache_lookups_total{outcome=\"miss\"} 5\n";
        let now = "cube_proxy_request_total{result=\"success\"} 290\n\
                   cube_proxy_request_total{result=\"fail\"} 10\n\
                   cube_proxy_answers_total{form=\"host\",reason=\"ok\",retcode=\"310200\"} 200\n\
                   cube_proxy_answers_total{form=\"path\",reason=\"ok\",retcode=\"310200\"} 90\n\
                   cube_proxy_answers_total{form=\"path\",reason=\"faulty_node\",retcode=\"340500\"} 10\n\
                   cube_proxy_request_duration_seconds_bucket{le=\"0.001\"} 200\n\
                   cube_proxy_request_duration_seconds_bucket{le=\"0.002\"} 300\n\
                   cube_proxy_request_duration_seconds_bucket{le=\"+Inf\"} 300\n\
                   cube_proxy_cache_lookups_total{outcome=\"hit\"} 185\n\
                   cube_proxy_cache_lookups_total{outcome=\"stale\"} 15\n\
                   cube_proxy_cache_lookups_total{outcome=\"miss\"} 15\n\
                   cube_proxy_cache_tracked 1\ncube_proxy_held_requests 3\n\
                   cube_proxy_open_websockets 2\nprocess_resident_memory_bytes 52428800\n";
        let top = json!({
            "version": "0.1.0", "ready": true, "reason": null, "window_ms": 4000, "sandboxes_under_way": 1,
            "busiest": [{ "sandbox_id": "box-1", "under_way": 2, "requests": 400, "state": "running" },
                        { "sandbox_id": "box-2", "under_way": 0, "requests": 4, "state": null }],
            "open_nodes": ["10.0.0.7"], "faulty_nodes": [],
        });
        let before = sample(begin, before, json!({}));
        Figures::between(&before, &sample(begin + Duration::from_secs(2), now, top))
    }

    #[test]
    fn figures_are_of_the_time_between_two_looks() {
        let figures = figures();
        assert_eq!((figures.requests, figures.failed), (100.0, 5.0));
        assert_eq!(figures.p50_ms, Some(1.0));
        assert!((figures.p99_ms.unwrap() - 1.98).abs() < 1e-9, "{:?}", figures.p99_ms);
        assert_eq!(figures.added_p99_ms, None);
        assert_eq!(figures.cache_hit_rate, Some(0.95));
        assert_eq!((figures.cache_tracked, figures.held, figures.open_websockets), (Some(true), 3, 2));
        let first = &figures.responses[0];
        assert_eq!((first.retcode.as_str(), first.reason.as_str(), first.requests), ("310200", "ok", 95.0));
        let busy: Vec<_> = figures.busiest.iter().map(|b| (b.sandbox_id.as_str(), b.requests)).collect();
        assert_eq!(busy, [("box-1", Some(100.0)), ("box-2", Some(1.0))]);
        assert_eq!(figures.open_nodes, ["10.0.0.7"]);
        let old = &figures.draining[0];
        assert_eq!((old.pid, old.streams, old.draining_seconds), (4711, Some(2), Some(300)));
        assert_eq!((old.oldest_seconds, old.deadline_seconds), (Some(3600), Some(3300)));
    }

    #[test]
    fn a_proxy_that_was_restarted_counts_from_nothing() {
        let begin = Instant::now();
        let text = |n: u32| {
            format!(
                "cube_proxy_request_total {n}\ncube_proxy_added_latency_seconds_bucket{{le=\"0.001\"}} {n}\n\
                 cube_proxy_added_latency_seconds_bucket{{le=\"+Inf\"}} {n}\n"
            )
        };
        let before = sample(begin, &text(1000), json!({}));
        let now = sample(begin + Duration::from_secs(1), &text(10), json!({}));
        let figures = Figures::between(&before, &now);
        assert_eq!((figures.requests, figures.added_p50_ms), (10.0, Some(0.5)));
        assert!(figures.failed.is_sign_positive(), "shown as -0");
    }

    #[test]
    fn a_quantile_beyond_the_last_edge_is_that_edge() {
        assert_eq!(quantile_ms(&[(1.0, 0.0), (f64::INFINITY, 4.0)], 0.99), Some(1000.0));
        assert_eq!(quantile_ms(&[(1.0, 0.0), (f64::INFINITY, 0.0)], 0.99), None);
        assert_eq!(quantile_ms(&[], 0.5), None);
    }
}
