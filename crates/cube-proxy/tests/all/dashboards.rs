//! deploy/grafana and deploy/prometheus against the live `/metrics` of a proxy under a little of
//! every traffic, as a real Prometheus scrapes and evaluates them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{By, Client, Guarded, Origin, eventually, free_port, scripts};

use crate::support::{Waking, waking_with};

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

fn dashboard() -> Value {
    serde_json::from_str(&std::fs::read_to_string(deploy("grafana/cube-proxy.json")).unwrap()).unwrap()
}

/// Every expression of the dashboard, with the title of its panel.
fn panels(dashboard: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            found.push((text(&panel["title"]), text(&target["expr"])));
        }
    }
    found
}

/// A Prometheus that scrapes one proxy.
struct Prometheus {
    address: std::net::SocketAddr,
    _process: Guarded,
}

impl Prometheus {
    async fn start(scraped: &str) -> Self {
        let directory = std::env::temp_dir().join(cube_testkit::unique_id("cube-prometheus-"));
        std::fs::create_dir(&directory).unwrap();
        let config = json!({
            "global": { "scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms" },
            "rule_files": [deploy("prometheus/cube-proxy.rules.yml").canonicalize().unwrap()],
            "scrape_configs": [{ "job_name": "cube-proxy", "static_configs": [{ "targets": [scraped] }] }],
        });
        std::fs::write(directory.join("prometheus.yml"), config.to_string()).unwrap();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port("127.0.0.1")));
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error");
        let process = Guarded::spawn(&mut command, Some(&directory));
        let prometheus = Self { address, _process: process };
        eventually("Prometheus to be ready", || async {
            let stream = tokio::net::TcpStream::connect(address).await.ok()?;
            let mut client = Client::over(stream);
            client.request("GET", "/-/ready", &[("Host", "localhost")]).await;
            let status = client.try_head().await.ok()??.status;
            (status == 200).then_some(())
        })
        .await;
        prometheus
    }

    async fn get(&self, path: &str) -> Value {
        let host = self.address.to_string();
        let response = Client::connect(self.address).await.call("GET", path, &[("Host", &host)], "").await;
        let told: Value = serde_json::from_slice(&response.body).expect("JSON");
        assert_eq!(told["status"], "success", "{path}: {told}");
        told["data"].clone()
    }

    /// The series that an expression gives now.
    async fn query(&self, expression: &str) -> Vec<Value> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let told = self.get(&format!("/api/v1/query?query={encoded}")).await;
        told["result"].as_array().unwrap().clone()
    }

    async fn gives(&self, expression: &str, about: &str) -> Vec<Value> {
        eventually(&format!("a value of {about}: {expression}"), || async {
            Some(self.query(expression).await).filter(|found| !found.is_empty())
        })
        .await
    }
}

/// A little of everything: all forms, TLS and HTTP/2, a WebSocket, refusals, a resume.
async fn traffic(env: &Waking, origin: &Origin) -> cube_testkit::WebSocket {
    let sandbox = env.sandbox(origin).await;
    for by in By::ALL {
        env.call(by, &sandbox, "GET", "/", &[], "").await;
        env.call(by, &sandbox, "POST", "/files?path=x", &[], "body").await;
    }
    env.get(&env.nobody(), "/").await;
    let mut client = env.tls.h1().await;
    client.call("GET", "/", &[("Host", &sandbox.host())], "").await;
    drop(env.tls.h2().await);
    env.push(&sandbox, "paused").await;
    env.get(&sandbox, "/").await;
    let talking = Origin::scripted(scripts::websocket).await;
    let talked = env.sandbox(&talking).await;
    env.websocket(By::Host, &talked, "/", &[]).await.expect("a 101")
}

/// The selectors of an expression: name, matchers as written, labels that it aggregates by.
fn selectors(expression: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = expression;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
        rest = &rest[at..];
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        if !["cube_proxy_", "process_", "up"].iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let matchers = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        found.push((name.to_owned(), matchers.map_or("", |(inner, _)| inner).to_owned()));
    }
    found
}

fn labels_of(series: &[Value]) -> BTreeSet<String> {
    series.iter().flat_map(|one| one["metric"].as_object().unwrap().keys().cloned()).collect()
}

/// Labels that an expression names in `by (...)`, `on (...)` or `group_left (...)`.
fn grouped(expression: &str) -> Vec<String> {
    let mut labels = Vec::new();
    for keyword in ["by (", "on ("] {
        for part in expression.split(keyword).skip(1) {
            let inner = part.split(')').next().unwrap_or_default();
            labels.extend(inner.split(',').map(|label| label.trim().to_owned()));
        }
    }
    labels
}

#[tokio::test(flavor = "multi_thread")]
async fn panels_and_rules_name_what_is_there_and_a_prometheus_evaluates_them() {
    let env = waking_with(json!({
        "limits": { "connections_per_ip": 1000 },
        "response_cache": { "enabled": true },
    }))
    .await;
    let origin = Origin::echo().await;
    let _socket = traffic(&env, &origin).await;
    let scraped = env.proxy.metrics_address().to_string();
    let prometheus = Prometheus::start(&scraped).await;
    prometheus.gives("cube_proxy_build_info", "the first scrape").await;

    let dashboard = dashboard();
    let expressions: Vec<(String, String)> = panels(&dashboard)
        .into_iter()
        .map(|(title, expression)| {
            (title, expression.replace("$__rate_interval", "5s").replace("$instance", ".*"))
        })
        .collect();
    // Rates need traffic between two scrapes.
    for (title, expression) in &expressions {
        env.get(&env.nobody(), "/").await;
        let found = prometheus.gives(expression, title).await;
        assert!(!found.is_empty());
    }

    let rules = prometheus.get("/api/v1/rules").await;
    let rules = rules["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() >= 10, "{rules:?}");
    let alerts = rules.iter().map(|rule| {
        let text = |name: &str| rule[name].as_str().unwrap().to_owned();
        (text("name"), text("query"))
    });
    for (name, expression) in alerts.chain(expressions) {
        for (metric, matchers) in selectors(&expression) {
            let series = prometheus.gives(&metric, &name).await;
            let labels = labels_of(&series);
            for matcher in matchers.split("\",").filter(|matcher| !matcher.is_empty()) {
                let label = matcher.split(['=', '!']).next().unwrap().trim();
                assert!(labels.contains(label), "{name}: {metric} has no label {label}, only {labels:?}");
            }
            // Label values of closed lists are there from the beginning, but for return codes.
            if metric != "cube_proxy_answers_total" && !matchers.is_empty() {
                prometheus.gives(&format!("{metric}{{{matchers}}}"), &name).await;
            }
        }
        let all: BTreeSet<String> = {
            let mut all = BTreeSet::new();
            for (metric, _) in selectors(&expression) {
                all.extend(labels_of(&prometheus.query(&metric).await));
            }
            all
        };
        for label in grouped(&expression) {
            assert!(all.contains(&label), "{name} groups by {label}, which none of its metrics has");
        }
    }
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        let quiet = ["inactive", "pending"].contains(&rule["state"].as_str().unwrap());
        let certificate = rule["name"].as_str().unwrap().contains("Certificate");
        assert!(quiet || certificate, "an alert in good times: {rule}");
    }
}

#[test]
fn the_rules_pass_the_checker_of_prometheus() {
    let output = Command::new("promtool")
        .args(["check", "rules"])
        .arg(deploy("prometheus/cube-proxy.rules.yml"))
        .output()
        .expect("promtool is installed by scripts/test (prometheus)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What an alert says of a series after so many minutes, a value a minute; nothing: it is silent.
fn alert(name: &str, metric: &str, values: &str, minutes: u32, says: Option<(&str, &str)>) -> Value {
    let rules = std::fs::read_to_string(deploy("prometheus/cube-proxy.rules.yml")).unwrap();
    let rule = rules.split(&format!("- alert: {name}\n")).nth(1).unwrap().split("- alert:").next().unwrap();
    let field = |name: &str| {
        let value = rule.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: "))).unwrap();
        value.trim_matches(['"', '\'']).to_owned()
    };
    let severity = field("labels").replace("{ severity: ", "").replace(" }", "");
    let expected = says.map(|(summary, description)| {
        json!({
            "exp_labels": { "instance": "a:9101", "job": "cube-proxy", "severity": severity },
            "exp_annotations": {
                "summary": summary, "description": description, "runbook_url": field("runbook_url"),
            },
        })
    });
    json!({
        "interval": "1m",
        "input_series": [
            { "series": format!("{metric}{{instance=\"a:9101\",job=\"cube-proxy\"}}"), "values": values },
            // Of a process that a hot restart replaces every minute.
            { "series": "process_start_time_seconds{instance=\"a:9101\",job=\"cube-proxy\"}",
              "values": "1000+60x60" },
            { "series": "cube_proxy_build_info{instance=\"a:9101\",job=\"cube-proxy\",version=\"1\"}",
              "values": "1x60" },
        ],
        "alert_rule_test": [
            { "eval_time": format!("{minutes}m"), "alertname": name, "exp_alerts": Vec::from_iter(expected) },
        ],
    })
}

#[test]
fn alerts_tell_restarts_from_hot_restarts_and_count_in_whole_numbers() {
    let started = "cube_proxy_service_start_time_seconds";
    let lost = "cube_proxy_access_log_dropped_total";
    let tests = json!({
        "rule_files": [deploy("prometheus/cube-proxy.rules.yml").canonicalize().unwrap()],
        "evaluation_interval": "1m",
        "tests": [
            alert("CubeProxyRestarts", started, "1000x60", 30, None),
            alert("CubeProxyRestarts", started, "1000+60x20", 5, Some((
                "a:9101 starts again and again", "5 starts in a quarter of an hour.",
            ))),
            // A counter that was first scraped in the middle of the ten minutes: the increase is no
            // whole number.
            alert("CubeProxyLogLinesLost", lost, "_x3 5 5 12x20", 10, Some((
                "a:9101 has lost 8 access log lines",
                "The disk is full or slow, or the directory is gone. Requests are not concerned.",
            ))),
            alert("CubeProxyLogLinesLost", lost, "7x20", 10, None),
            alert("CubeProxyManyHeld", "cube_proxy_held_requests", "1234567x20", 10, Some((
                "a:9101 holds 1234567 requests", "Beyond lifecycle.max_held they are refused with 310503.",
            ))),
            alert("CubeProxyNodesLeftAlone", "cube_proxy_breaker_open_nodes", "2x20", 10, Some((
                "a:9101 leaves 2 nodes alone",
                "Connecting to several sandboxes on them failed; their requests get 340500.",
            ))),
        ],
    });
    let directory = std::env::temp_dir().join(cube_testkit::unique_id("cube-promtool-"));
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("tests.yml");
    std::fs::write(&file, tests.to_string()).unwrap();
    let output = Command::new("promtool").args(["test", "rules"]).arg(&file).output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn alert_texts_format_their_value_and_name_an_absolute_page() {
    let rules = std::fs::read_to_string(deploy("prometheus/cube-proxy.rules.yml")).unwrap();
    for (at, _) in rules.match_indices("{{ $value") {
        assert!(rules[at..].starts_with("{{ $value | "), "as it is: {}", &rules[at..at + 40]);
    }
    let alerts = rules.matches("- alert: ").count();
    let links = rules.lines().filter(|line| line.trim().starts_with("runbook_url: ") && line.contains("://"));
    assert_eq!(links.count(), alerts);
}

#[test]
fn the_dashboard_has_what_an_import_needs() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    assert_eq!((&dashboard["uid"], &dashboard["title"]), (&json!("cube-proxy"), &json!("Cube Proxy")));
    assert!(dashboard.get("id").is_none(), "an id belongs to one Grafana");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!((&variables[0]["type"], &variables[0]["name"]), (&json!("datasource"), &json!("datasource")));
    let mut ids = BTreeSet::new();
    let mut places: Vec<[u64; 4]> = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "an id twice: {panel}");
        let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        let place = ["x", "y", "w", "h"].map(side);
        assert!(place[0] + place[2] <= 24, "beyond the grid: {panel}");
        let apart = |other: &[u64; 4]| {
            place[0] >= other[0] + other[2]
                || other[0] >= place[0] + place[2]
                || place[1] >= other[1] + other[3]
                || other[1] >= place[1] + place[3]
        };
        assert!(places.iter().all(apart), "two panels at one place: {panel}");
        places.push(place);
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        assert!(!panel["targets"].as_array().unwrap().is_empty(), "{panel}");
    }
}
