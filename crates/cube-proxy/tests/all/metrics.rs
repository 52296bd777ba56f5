//! What `/metrics` says (operations.md, Metrics): which names there are, that they add up, and that
//! no client makes them grow.

use std::collections::BTreeMap;

use cube_testkit::serde_json::json;
use cube_testkit::{Client, Env, Metrics, Origin, Sandbox, eventually, scripts};
use tokio::task::JoinSet;

use crate::support::{own, waking_with};

/// Every name of the contract's page, with its labels. The first three are the old gateway's, which
/// dashboards of others depend on.
const NAMES: &[(&str, &[&str])] = &[
    ("request_total", &["method", "result", "route"]),
    ("inflight_requests", &["route"]),
    ("request_duration_seconds", &["method", "result", "route"]),
    ("answers_total", &["form", "reason", "retcode"]),
    ("upstream_first_byte_seconds", &[]),
    ("added_latency_seconds", &[]),
    ("cache_lookups_total", &["outcome"]),
    ("cache_entries", &[]),
    ("cache_invalidations_total", &[]),
    ("cache_tracked", &[]),
    ("store_latency_seconds", &[]),
    ("store_errors_total", &["kind"]),
    ("gate_verdicts_total", &["verdict"]),
    ("resumes_total", &["outcome"]),
    ("resume_seconds", &[]),
    ("held_requests", &[]),
    ("breaker_open_nodes", &[]),
    ("breaker_trips_total", &[]),
    ("upstream_connects_total", &["outcome"]),
    ("upstream_reused_total", &[]),
    ("upstream_retries_total", &[]),
    ("open_streams", &[]),
    ("open_websockets", &[]),
    ("client_connections", &["listener", "protocol"]),
    ("bytes_total", &["direction"]),
    ("tls_handshakes_total", &["outcome"]),
    ("tls_certificate_expiry_timestamp_seconds", &["certificate"]),
    ("access_log_lines_total", &[]),
    ("access_log_dropped_total", &[]),
    ("build_info", &["version"]),
    ("draining_processes", &[]),
    ("service_start_time_seconds", &[]),
    ("config_reloads_total", &["outcome"]),
    ("config_last_reload_successful", &[]),
];

#[tokio::test]
async fn every_name_of_the_contract_is_there_with_its_labels_and_the_old_gateways_are_unchanged() {
    let waking = waking_with(json!({})).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let response = waking.get(&waking.sandbox(&origin).await, "/").await;
    // Counted by then.
    waking.proxy.log_line(&response.passed(200).request_id()).await;
    let metrics = waking.proxy.metrics().await;
    for (name, labels) in NAMES {
        let name = format!("cube_proxy_{name}");
        let counted = format!("{name}_count");
        let mut samples = metrics.samples().filter(|(n, _, _)| *n == name || *n == counted).peekable();
        assert!(samples.peek().is_some(), "{name} is missing");
        for (_, have, _) in samples {
            assert_eq!(have.keys().map(String::as_str).collect::<Vec<_>>(), *labels, "{name}");
        }
    }
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(metrics.has(name), "{name}");
    }
    // The old gateway's values.
    let of = |name, label| metrics.labels(name, label).into_iter().collect::<Vec<_>>();
    assert_eq!(of("cube_proxy_request_total", "method"), ["GET", "POST", "other"]);
    assert_eq!(of("cube_proxy_request_total", "result"), ["fail", "success"]);
    let routes = ["other", "sandbox_exec", "sandbox_files"];
    assert_eq!(of("cube_proxy_request_total", "route"), routes);
    assert_eq!(of("cube_proxy_inflight_requests", "route"), routes);
    let mut edges: Vec<f64> = of("cube_proxy_request_duration_seconds_bucket", "le")
        .iter()
        .map(|edge| edge.parse().unwrap())
        .collect();
    edges.sort_by(f64::total_cmp);
    let want: Vec<f64> = (0..14).map(|n| 0.001 * f64::from(1 << n)).chain([f64::INFINITY]).collect();
    assert_eq!(edges, want);
}

/// One outcome: how it is brought about, and what is to be counted for it.
struct Outcome {
    retcode: &'static str,
    reason: &'static str,
    request: Vec<u8>,
    method: &'static str,
    /// Whether the sandbox is looked up.
    looked_up: bool,
    /// Whether the status says success to the old gateway's metrics.
    success: bool,
}

impl Outcome {
    fn new(retcode: &'static str, reason: &'static str, request: impl Into<Vec<u8>>) -> Self {
        let request = request.into();
        let method = match request.split(|byte| *byte == b' ').next() {
            Some(b"GET") => "GET",
            Some(b"POST") => "POST",
            Some(b"HEAD") => "HEAD",
            _ => "other",
        };
        Self { retcode, reason, request, method, looked_up: true, success: false }
    }

    fn success(mut self) -> Self {
        self.success = true;
        self
    }

    /// It is refused before anybody asks for the sandbox.
    fn unasked(mut self) -> Self {
        self.looked_up = false;
        self
    }
}

fn request(method: &str, sandbox: &Sandbox, target: &str, more: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n{more}\r\n", sandbox.host())
}

/// Every outcome that a client can bring about without waiting.
async fn outcomes(env: &Env) -> Vec<Outcome> {
    fn leak(origin: Origin) -> &'static Origin {
        Box::leak(Box::new(origin))
    }
    let good = env.sandbox(leak(Origin::replying(200, &[], "ok").await)).await;
    let created = env.sandbox(leak(Origin::replying(201, &[], "ok").await)).await;
    let moved = env.sandbox(leak(Origin::replying(302, &[("Location", "/x")], "").await)).await;
    let sick = env.sandbox(leak(Origin::replying(500, &[], "no").await)).await;
    let odd = env.sandbox(leak(Origin::replying(599, &[], "no").await)).await;
    let mute = env.sandbox(leak(Origin::raw("").await)).await;
    let open = cube_testkit::Gate::new();
    (0..20_000).for_each(|_| open.open());
    let cut =
        env.sandbox(leak(Origin::scripted(scripts::cut(scripts::Framing::Length, &open, false)).await)).await;
    let private = env.sandbox_at(([127, 0, 0, 1], 1024).into()).token("example-token").await;
    // Bound and not listening: it refuses, and nobody else can take it meanwhile.
    let taken = Box::leak(Box::new(tokio::net::TcpSocket::new_v4().unwrap()));
    taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let refused = env.sandbox_at(taken.local_addr().unwrap()).await;
    let outside = env.sandbox_at(([127, 99, 0, 1], 2048).into()).await;
    let unmapped = good.at_port(9999);
    let envd = env.sandbox_at(([127, 0, 0, 1], 1025).into()).port(49983).await;
    let faulty = env.sandbox_at(([127, 0, 0, 66], 1026).into()).await;
    let (asleep, dead) = (env.sandbox_at(([127, 0, 0, 1], 1027).into()).await, env.nobody());
    env.push(&asleep, "paused").await;
    env.push(&dead, "killed").await;
    let dead = {
        let sandbox = env.sandbox_at(([127, 0, 0, 1], 1028).into()).await;
        env.push(&sandbox, "killed").await;
        sandbox
    };
    env.redis.command(&["SADD", "faulty_backend_set", "127.0.0.66"]).await;
    eventually("the faulty node to be known", || async {
        (env.get(&faulty, "/").await.retcode() == Some(340_500)).then_some(())
    })
    .await;
    let nobody = env.nobody();
    let fields: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    let wrong = "e2b-traffic-access-token: example-token-wrong\r\n";
    let get = |sandbox: &Sandbox| request("GET", sandbox, "/", "");
    vec![
        Outcome::new("310200", "ok", get(&good)).success(),
        Outcome::new("310200", "ok", request("HEAD", &good, "/", "")).success(),
        Outcome::new("310200", "ok", request("POST", &good, "/files", "Content-Length: 2\r\n") + "hi")
            .success(),
        Outcome::new("310200", "ok", request("PUT", &good, "/process.Process/Start", "")).success(),
        Outcome::new("330201", "ok", get(&created)).success(),
        Outcome::new("330302", "ok", get(&moved)).success(),
        Outcome::new("330500", "upstream_status", get(&sick)),
        Outcome::new("330xxx", "upstream_status", get(&odd)),
        Outcome::new("310509", "upstream_cut", request("POST", &mute, "/", "Content-Length: 2\r\n") + "hi"),
        Outcome::new("310200", "upstream_cut", get(&cut)).success(),
        Outcome::new("310403", "token_missing", get(&private)),
        Outcome::new("310403", "token_wrong", request("GET", &private, "/", wrong)),
        Outcome::new("310507", "no_record", get(&nobody)),
        Outcome::new("310507", "no_port_mapping", get(&unmapped)),
        Outcome::new("310508", "forbidden_address", get(&outside)),
        Outcome::new("310509", "connect_refused", get(&refused)),
        Outcome::new("340500", "faulty_node", get(&faulty)),
        Outcome::new("310503", "paused", get(&asleep)),
        Outcome::new("310410", "killed", get(&dead)),
        Outcome::new("310404", "envd_control", request("GET", &envd, "/init", "")).unasked(),
        Outcome::new("310413", "body_limit", request("POST", &good, "/", "Content-Length: 2000\r\n")),
        Outcome::new("310414", "target_limit", request("GET", &good, &format!("/{}", "x".repeat(5000)), ""))
            .unasked(),
        Outcome::new("310431", "head_limit", request("GET", &good, "/", &fields)).unasked(),
        Outcome::new("310400", "bad_target", "GET / HTTP/1.1\r\nHost: nothing.example\r\n\r\n").unasked(),
        Outcome::new("310400", "bad_head", "GET / HTTP/1.1\r\nno colon\r\n\r\n").unasked(),
        Outcome::new("310405", "method_not_allowed", request("TRACE", &good, "/", "")).unasked(),
    ]
}

/// Sends it so often, on a connection that is kept where it can be.
async fn bring_about(mut client: Client, address: std::net::SocketAddr, outcome: &Outcome, times: usize) {
    let method = if outcome.method == "HEAD" { "HEAD" } else { "GET" };
    for n in 0..times {
        client.send(&outcome.request).await;
        let Ok(Some(head)) = client.try_head().await else {
            panic!("no answer to number {n} of {} {}", outcome.retcode, outcome.reason)
        };
        let response = client.body(head, method).await;
        let close =
            response.headers.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if close || !response.clean {
            client = Client::connect(address).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_over_every_outcome_equal_the_sums() {
    const ALL: usize = 10_000;
    let env = own(json!({
        "limits": { "body": "1KiB", "target": 4096, "keepalive_requests": 1_000_000 },
        "routing": { "envd_control_from": [] },
        "breaker": { "min_sandboxes": 100_000 },
        // A busy machine is no outcome.
        "upstream": { "connect_timeout": "9s" },
    }))
    .await;
    let outcomes = outcomes(&env).await;
    // A request is counted when it is over, which its client may see a moment earlier.
    eventually("no request to be under way", || async {
        (env.proxy.metrics().await.sum("cube_proxy_inflight_requests", &[]) == 0.0).then_some(())
    })
    .await;
    let before = eventually("a log line for each request so far", || async {
        let metrics = env.proxy.metrics().await;
        let of = |name| metrics.sum(name, &[]);
        (of("cube_proxy_access_log_lines_total") == of("cube_proxy_answers_total")).then_some(metrics)
    })
    .await;
    let (each, others) = (ALL / outcomes.len(), outcomes.len() - 1);
    let mut expected: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let (mut success, mut looked_up, mut by_method) = (0, 0, BTreeMap::<&str, usize>::new());
    let mut asking = JoinSet::new();
    for (n, outcome) in outcomes.into_iter().enumerate() {
        // The first makes up what the division leaves.
        let times = if n == 0 { ALL - each * others } else { each };
        *expected.entry((outcome.retcode, outcome.reason)).or_default() += times;
        // Of a head that cannot be parsed nobody knows the method.
        let known = matches!(outcome.method, "GET" | "POST") && outcome.reason != "bad_head";
        let method = if known { outcome.method } else { "other" };
        *by_method.entry(method).or_default() += times;
        success += if outcome.success { times } else { 0 };
        looked_up += if outcome.looked_up { times } else { 0 };
        let (client, address) = (env.client().await, env.proxy.http());
        asking.spawn(async move { bring_about(client, address, &outcome, times).await });
    }
    let sent: usize = expected.values().sum();
    assert_eq!(sent, ALL);
    asking.join_all().await;
    let since = |metrics: &Metrics, name: &str, labels: &[(&str, &str)]| {
        metrics.count(name, labels) - before.count(name, labels)
    };
    let metrics = eventually("every request to be counted", || async {
        let metrics = env.proxy.metrics().await;
        let log = since(&metrics, "cube_proxy_access_log_lines_total", &[]);
        let counted = since(&metrics, "cube_proxy_answers_total", &[]);
        (counted >= sent && log >= sent).then_some(metrics)
    })
    .await;
    let since = |name: &str, labels: &[(&str, &str)]| since(&metrics, name, labels);
    let counted: BTreeMap<(&str, &str), usize> = expected
        .keys()
        .map(|(retcode, reason)| {
            let labels = [("retcode", *retcode), ("reason", *reason)];
            ((*retcode, *reason), since("cube_proxy_answers_total", &labels))
        })
        .collect();
    assert_eq!(counted, expected);
    for name in ["answers_total", "request_total", "request_duration_seconds_count", "access_log_lines_total"]
    {
        assert_eq!(since(&format!("cube_proxy_{name}"), &[]), sent, "{name}");
    }
    assert_eq!(since("cube_proxy_access_log_dropped_total", &[]), 0);
    for name in ["cube_proxy_request_total", "cube_proxy_request_duration_seconds_count"] {
        assert_eq!(since(name, &[("result", "success")]), success, "{name}");
        for (method, times) in &by_method {
            assert_eq!(since(name, &[("method", method)]), *times, "{name} {method}");
        }
    }
    // The log tells the same, request by request.
    let mut logged: BTreeMap<(String, String), usize> = BTreeMap::new();
    let log = env.proxy.access_log();
    let skip = before.count("cube_proxy_access_log_lines_total", &[]);
    for line in log.lines().skip(skip) {
        let fields: Vec<&str> = line.split("||").collect();
        *logged.entry((fields[22].to_owned(), fields[25].to_owned())).or_default() += 1;
    }
    for ((retcode, reason), times) in &expected {
        let retcode = if *retcode == "330xxx" { "330599" } else { retcode };
        assert_eq!(
            logged.get(&(retcode.to_owned(), (*reason).to_owned())),
            Some(times),
            "{retcode} {reason}"
        );
    }
    let lookups: usize = ["hit", "miss", "negative", "stale"]
        .iter()
        .map(|outcome| since("cube_proxy_cache_lookups_total", &[("outcome", outcome)]))
        .sum();
    assert_eq!(lookups, looked_up, "lookups");
    // Read again, the record leads to the same place, which is not dialled twice.
    let refused = since("cube_proxy_upstream_connects_total", &[("outcome", "refused")]);
    assert_eq!(refused, expected[&("310509", "connect_refused")], "refused connections");
    for gauge in ["inflight_requests", "open_streams", "held_requests", "open_websockets"] {
        assert_eq!(metrics.sum(&format!("cube_proxy_{gauge}"), &[]), 0.0, "{gauge}");
    }
}

/// Random requests, reproducible by their seed: method, host, path, query and ids.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn of<'a>(&mut self, some: &[&'a str]) -> &'a str {
        let at = usize::try_from(self.next()).expect("64 bits") % some.len();
        some[at]
    }

    fn request(&mut self) -> String {
        let word = format!("{:x}", self.next());
        let method = match self.next() % 3 {
            0 => self.of(&["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"]).to_owned(),
            _ => format!("M{}", word.to_uppercase()),
        };
        let host = match self.next() % 4 {
            0 => format!("{}-{word}.cube.test", self.next() % 70_000),
            1 => format!("8080-{word}.{word}.test"),
            2 => format!("{word}.example"),
            _ => "127.0.0.1".to_owned(),
        };
        let path = match self.next() % 4 {
            0 => format!("/sandbox/{word}/{}/x", self.next() % 70_000),
            1 => format!("/files/{word}?{word}={word}"),
            2 => format!("/process.Process/{word}"),
            _ => format!("/{word}/%{:02x}", self.next() % 256),
        };
        let header = match self.next() % 3 {
            0 => format!("E2b-Sandbox-Id: {word}\r\nE2b-Sandbox-Port: {}\r\n", self.next() % 70_000),
            1 => format!("X-Cube-Request-Id: {word}\r\nX-Cube-Instance-Id: {word}\r\n"),
            _ => format!("Content-Type: application/{word}\r\nUser-Agent: {word}\r\n"),
        };
        format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{header}\r\n")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_methods_hosts_paths_and_ids_make_no_labels() {
    const ASKERS: usize = 16;
    // A build without optimisations takes more than a minute for as many.
    let count = if std::env::var_os("PROXY_UNDER_TEST").is_some() { 100_000 } else { 12_000 };
    let env =
        own(json!({ "limits": { "keepalive_requests": 1_000_000 }, "access_log": { "path": null } })).await;
    let mut asking = JoinSet::new();
    for asker in 0..ASKERS {
        let address = env.proxy.http();
        asking.spawn(async move {
            let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (asker as u64 + 1));
            let mut client = Client::connect(address).await;
            for _ in 0..count / ASKERS {
                let request = random.request();
                client.send(&request).await;
                let head = client.try_head().await.ok().flatten();
                let Some(head) = head else { panic!("no answer to {request}") };
                let method = if request.starts_with("HEAD ") { "HEAD" } else { "GET" };
                let response = client.body(head, method).await;
                if response.headers.get("connection") == Some("close") {
                    client = Client::connect(address).await;
                }
            }
        });
    }
    asking.join_all().await;
    // A request is counted when all of it is over, a moment after the client has its response.
    let metrics = eventually("every request to be counted", || async {
        let metrics = env.proxy.metrics().await;
        let counted = metrics.count("cube_proxy_answers_total", &[]);
        (counted >= count / ASKERS * ASKERS).then_some(metrics)
    })
    .await;
    assert_eq!(metrics.count("cube_proxy_answers_total", &[]), count / ASKERS * ASKERS);
    let mut values: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut series = 0;
    for (name, labels, _) in metrics.samples() {
        series += 1;
        for label in labels.keys() {
            values.entry((name, label)).or_insert_with(|| metrics.labels(name, label).len());
        }
    }
    let most = values.iter().max_by_key(|(_, count)| **count).unwrap();
    println!("{count} random requests: {series} series; the label with most values is {most:?}");
    for ((name, label), count) in values {
        assert!(count < 200, "{name} has {count} values of {label}");
    }
}
