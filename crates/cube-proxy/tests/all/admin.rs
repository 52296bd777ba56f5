//! The admin API over its own listener (lifecycle.md, "Admin API"), and the commands that use it.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{Client, Env, Origin, Response, refused_port};

use crate::resume::sleeps_on;
use crate::support::{binary, cannot, own, waking};

const TOKEN: (&str, &str) = ("X-Cube-Admin-Token", "example-admin-token");

fn error(response: &Response) -> (u16, String) {
    let json: Value = serde_json::from_slice(&response.body).expect("JSON");
    let text = json["error"].as_str().unwrap_or_else(|| panic!("no error: {}", response.brief()));
    (response.status, text.to_owned())
}

async fn ask(env: &Env, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let mut client = Client::connect(env.proxy.admin_address()).await;
    let mut all = headers.to_vec();
    if !headers.iter().any(|(name, _)| *name == "Host") {
        all.push(("Host", "127.0.0.1"));
    }
    client.call(method, path, &all, body).await
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said() {
    let env = waking().await;
    let mismatch = (403, "admin token mismatch".to_owned());
    let body = r#"{"sandbox_id":"a","state":"paused"}"#;
    for headers in [&[][..], &[("X-Cube-Admin-Token", "example-wrong")], &[TOKEN, TOKEN]] {
        for path in ["/admin/state", "/admin/healthz", "/admin/nothing", "/admin/explain"] {
            assert_eq!(error(&ask(env, "POST", path, headers, body).await), mismatch, "{path} {headers:?}");
        }
    }
    let of_browser = (403, "requests of browsers are refused".to_owned());
    for headers in [[TOKEN, ("Origin", "http://127.0.0.1")], [TOKEN, ("Host", "rebound.example")]] {
        assert_eq!(error(&ask(env, "POST", "/admin/state", &headers, body).await), of_browser);
    }
    for (path, body, status, text) in [
        ("/admin/state", "", 400, "empty body"),
        ("/admin/meta/upsert", "[]", 400, "body must be a JSON object"),
        ("/admin/meta/delete", "{}", 400, r#"field "sandbox_id" must be a non-empty string"#),
        (
            "/admin/backend_cache/delete",
            r#"{"sandbox_id":""}"#,
            400,
            r#"field "sandbox_id" must be a non-empty string"#,
        ),
        ("/admin/nothing", "{}", 404, "no route for POST /admin/nothing"),
        ("/admin/last_active", "{}", 404, "no route for POST /admin/last_active"),
    ] {
        assert_eq!(error(&ask(env, "POST", path, &[TOKEN], body).await), (status, text.to_owned()), "{path}");
    }
    let (status, text) = error(&ask(env, "POST", "/admin/state", &[TOKEN], "{no").await);
    assert!(status == 400 && text.starts_with("invalid json: "), "{text}");
    let unknown = r#"{"sandbox_id":"a","state":"hibernated"}"#;
    let (status, text) = error(&ask(env, "POST", "/admin/state", &[TOKEN], unknown).await);
    assert_eq!(status, 400);
    for state in ["running", "pausing", "paused", "resuming", "killing", "killed"] {
        assert!(text.contains(state), "{text}");
    }
    let large = "x".repeat(2 << 20);
    assert_eq!(
        error(&ask(env, "POST", "/admin/state", &[TOKEN], &large).await),
        (413, "payload too large".to_owned())
    );
}

/// An address of this machine that is not of loopback, where it has one.
fn own_address() -> Option<IpAddr> {
    // Connecting a datagram socket sends nothing; it only chooses the source.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[tokio::test]
async fn a_listener_beyond_loopback_asks_everybody_for_the_token() {
    let Some(ip) = own_address() else { return cannot("there is no network but loopback") };
    let listen = format!("{ip}:{}", cube_testkit::free_port(&ip.to_string()));
    let env = own(json!({ "listen": { "admin": listen }, "admin": { "token": TOKEN.1 } })).await;
    let response = ask(&env, "GET", "/admin/healthz", &[("Host", "cube.test")], "").await;
    assert_eq!(error(&response), (403, "admin token mismatch".to_owned()));
    let mut client = Client::connect(env.proxy.admin_address()).await;
    let headers = [("Host", "admin.cube.test"), TOKEN];
    assert_eq!(client.call("GET", "/admin/healthz", &headers, "").await.status, 200);
    // Without a token it is not even started.
    let file = env.proxy.directory().join("open.yaml");
    std::fs::write(&file, json!({ "listen": { "admin": listen } }).to_string()).unwrap();
    let output = Command::new(binary()).args(["check", "-c"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}

#[tokio::test]
async fn a_thousand_requests_a_second_leave_the_data_plane_alone() {
    const CLIENTS: usize = 20;
    const EACH: usize = 100;
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let mut data = env.client().await;
    let slowest = async |data: &mut Client, until: Instant| {
        let (mut most, mut count) = (Duration::ZERO, 0);
        while Instant::now() < until {
            let response = data.call("GET", "/", &[("Host", &host)], "").await;
            response.passed(200);
            most = most.max(response.took);
            count += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        (most, count)
    };
    let (before, _) = slowest(&mut data, Instant::now() + Duration::from_millis(500)).await;

    let address = env.proxy.admin_address();
    let begun = Instant::now();
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..CLIENTS {
        asking.spawn(async move {
            let mut client = Client::connect(address).await;
            // CLIENTS requests in 20 ms: a thousand a second in all.
            let mut ticks = tokio::time::interval(Duration::from_millis(20));
            for m in 0..EACH {
                ticks.tick().await;
                let headers = [("Host", "127.0.0.1"), TOKEN];
                if m % 2 == 0 {
                    let body =
                        json!({ "sandbox_id": format!("busy-{n}-{m}"), "state": "paused" }).to_string();
                    let response = client.call("POST", "/admin/state", &headers, body).await;
                    assert_eq!((response.status, response.text().as_str()), (200, r#"{"ok":true}"#));
                } else {
                    let response = client.call("GET", "/admin/last_active", &headers, "").await;
                    assert_eq!(response.status, 200, "{}", response.brief());
                }
            }
        });
    }
    let (during, count) = slowest(&mut data, begun + Duration::from_secs(2)).await;
    asking.join_all().await;
    let rate = CLIENTS as f64 * EACH as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{rate:.0} admin requests a second; slowest of {count} data requests {during:?}, {before:?} without"
    );
    assert!(during < Duration::from_millis(500), "{during:?}");
}

/// Runs the binary with the configuration of a running proxy.
fn run(env: &Env, command: &[&str], more: &[&str]) -> (Option<i32>, String) {
    let config = env.proxy.directory().join("cube-proxy.yaml");
    let output = Command::new(binary()).args(command).arg("-c").arg(config).args(more).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn an_operator_pushes_a_state_from_the_command_line() {
    let env = own(json!({ "admin": { "token": TOKEN.1 } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.get(&sandbox, "/").await.passed(200);
    let id = sandbox.id.as_str();
    assert_eq!(run(&env, &["sandbox"], &["state", id, "paused"]), (Some(0), format!("{id}: paused\n")));
    sleeps_on(&env.get(&sandbox, "/").await);
    assert_eq!(
        run(&env, &["sandbox"], &["--json", "state", id, "running"]),
        (Some(0), "{\"ok\":true}\n".to_owned())
    );
    env.get(&sandbox, "/").await.passed(200);
    let (code, text) = run(&env, &["sandbox"], &["state", id, "hibernated"]);
    assert!(code == Some(64) && text.contains("running, pausing, paused"), "{text}");
    env.proxy.terminate();
    env.proxy.terminate();
    env.proxy.ended().await;
    let (code, text) = run(&env, &["sandbox"], &["state", id, "paused"]);
    assert!(code == Some(1) && text.contains("is it running?"), "{text}");
}

#[tokio::test]
async fn a_request_is_explained_step_by_step_and_nothing_comes_of_it() {
    let env = own(json!({
        "admin": { "token": TOKEN.1 },
        "resume": { "url": format!("http://127.0.0.1:{}", refused_port()) },
    }))
    .await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token").await;
    let url = format!("http://{}/a%2Fb?key=example-key", sandbox.host());
    let token = "e2b-traffic-access-token: example-token";
    let explain = |more: &[&str]| {
        let (code, text) = run(&env, &["explain"], more);
        assert_eq!(code, Some(0), "{text}");
        assert!(!text.contains("example-"), "a secret: {text}");
        text
    };
    let text = explain(&["-H", token, &url]);
    let steps: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(steps, ["target", "record", "token", "gate", "route", "breaker", "answer", "(as"], "{text}");
    assert!(text.contains(&format!("GET /a%2Fb is forwarded to {}", origin.address())), "{text}");

    let text = explain(&[&url]);
    assert!(text.contains("404, retcode 310507, reason token_missing, logged as 310403"), "{text}");
    assert!(text.contains(r#"{"error":"not found"}"#), "{text}");
    env.push(&sandbox, "paused").await;
    let told: Value = serde_json::from_str(&explain(&["--json", "-H", token, &url])).unwrap();
    assert_eq!(told["source"], "running proxy");
    assert!(told["answer"]["after"].as_str().unwrap().contains("resumed"), "{told}");

    assert_eq!((origin.count(), env.last_active(&sandbox).await), (0, None));
    let metrics = env.proxy.metrics().await;
    for name in ["cube_proxy_resumes_total", "cube_proxy_gate_verdicts_total", "cube_proxy_answers_total"] {
        assert_eq!(metrics.sum(name, &[]), 0.0, "{name}");
    }
    let (code, text) = run(&env, &["explain"], &["ftp://a"]);
    assert!(code == Some(1) && text.contains("http://host/path"), "{text}");

    // Where no proxy runs the store is looked at, which knows nothing of the push.
    env.proxy.terminate();
    env.proxy.terminate();
    env.proxy.ended().await;
    let told: Value = serde_json::from_str(&explain(&["--json", "-H", token, &url])).unwrap();
    assert_eq!((&told["source"], &told["answer"]["after"]), (&json!("store"), &Value::Null));
    assert_eq!(told["answer"]["address"], origin.address().to_string());
}

#[tokio::test]
async fn without_node_ip_a_request_is_explained_as_it_is_routed() {
    let env = own(json!({ "node_ip": null })).await;
    let origin = Origin::echo().await;
    let (inside, port) = (origin.address().ip().to_string(), origin.address().port());
    // Its node is the address that clients of this proxy connect to, so that it is dialled itself.
    let here = env.proxy.http().ip().to_string();
    let local = env.sandbox(&origin).field("HostIP", &here).field("SandboxIP", &inside).without("8080").await;
    let local = local.at_port(port);
    let url = format!("http://{}/", local.host());
    env.get(&local, "/").await.passed(200);
    let explained = |url: &str| {
        let (code, text) = run(&env, &["explain"], &["--json", url]);
        assert_eq!(code, Some(0), "{text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let told = explained(&url);
    assert_eq!(told["answer"]["address"], origin.address().to_string(), "{told}");
    let route = told["steps"].as_array().unwrap().iter().find(|step| step["step"] == "route").unwrap();
    assert_eq!((&route["local"], &route["connected_to"]), (&json!(true), &json!(here)), "{route}");
    let says = route["says"].as_str().unwrap();
    assert!(says.contains("node_ip is null") && says.contains(&format!("connects to {here}")), "{says}");
    // Another node: nothing has to be assumed.
    let there = env.sandbox(&origin).field("HostIP", "127.0.0.9").await;
    let told = explained(&format!("http://{}/", there.host()));
    assert_eq!(told["answer"]["address"], format!("127.0.0.9:{port}"), "{told}");
    assert!(!told.to_string().contains("node_ip"), "{told}");
    // What may not be dialled is named, with the key that decides.
    let wrong = env.sandbox(&origin).field("HostIP", "192.0.2.7").await;
    let told = explained(&format!("http://{}/", wrong.host()));
    let route = told["steps"].as_array().unwrap().last().unwrap();
    assert_eq!(route["key"], "upstream.cidrs", "{route}");
    assert!(route["says"].as_str().unwrap().starts_with("192.0.2.7:"), "{route}");
    assert_eq!(told["answer"]["retcode"], 310_508);

    // No proxy runs: the same, and the last line says what is taken for the proxy's.
    env.proxy.terminate();
    env.proxy.terminate();
    env.proxy.ended().await;
    let told = explained(&url);
    assert_eq!(
        (&told["source"], &told["answer"]["address"]),
        (&json!("store"), &json!(origin.address().to_string()))
    );
    let (_, text) = run(&env, &["explain"], &[&url]);
    assert!(text.contains("as the store says and this machine is"), "{text}");
}
