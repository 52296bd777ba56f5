//! The listeners beside the data plane, over real connections.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use cube_metadata::{FileStore, MetadataStore, SandboxState};
use cube_route::SandboxId;
use http::{HeaderMap, Uri};
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::{GetSocketDigest, SocketDigest};
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::auth::MAX_BODY;
use super::*;
use crate::drain::Stage;
use crate::gateway::Gateway;

const RECORD: &str = r#"
sandboxes:
  abc:
    HostIP: 10.0.0.1
    SandboxIP: 192.168.1.100
    AllowPublicTraffic: "false"
    TrafficAccessToken: example-token
    "8080": "40000"
    "9090": rubbish
"#;

/// One process's parts.
struct Parts {
    gateway: Gateway,
    readiness: Arc<Readiness>,
    registry: Registry,
}

fn settings() -> crate::Settings {
    crate::Settings {
        node_ip: Some([10, 0, 0, 9].into()),
        listens: Vec::new(),
        proxy_protocol: Vec::new(),
        rules: cube_route::Rules::new(&[], false).unwrap(),
        trace_ratio: 0.0,
        routing: crate::RoutingSettings {
            envd_control_from: cube_settings::Auto::new(Some(Vec::new())),
            ..crate::RoutingSettings::default()
        },
        control_plane: Some(crate::ControlPlaneSettings {
            host: "10.0.0.5".into(),
            port: 3000,
            hosts: vec!["api.cube.test".into()],
            tls: None,
        }),
        previews: crate::PreviewSettings::default(),
        own_responses: crate::OwnResponseSettings::of(crate::Dialect::Cube),
        traffic_token: crate::TrafficTokenSettings::default(),
        guard: Arc::new(cube_resolver::AddressGuard::new(None, 1024..=65535, Vec::new())),
        pause_wait: Duration::from_secs(2),
        upstream: crate::UpstreamSettings {
            connect_timeout: Duration::from_secs(1),
            silence_timeout: Duration::from_secs(1),
            pool_idle: Duration::from_secs(1),
            ..crate::UpstreamSettings::default()
        },
        limits: crate::Limits {
            target: 1024,
            header_timeout: Duration::from_secs(1),
            keepalive_idle: Duration::from_secs(1),
            connections: cube_settings::Auto::new(10),
            ..crate::Limits::default()
        },
    }
}

fn parts() -> Parts {
    let registry = Registry::new();
    let store: Arc<dyn MetadataStore> = FileStore::from_yaml(RECORD).unwrap();
    let resume = cube_lifecycle::ResumeSettings::new("http://127.0.0.1:1");
    let parts = crate::GatewayParts {
        store: store.clone(),
        settings: settings(),
        resolver: cube_resolver::Settings::default(),
        lifecycle: cube_lifecycle::Settings { resume: Some(resume), ..Default::default() },
        breaker: cube_breaker::Settings::default(),
        response_cache: None,
        access_log: None,
        traces: None,
        pool_size: 1,
        own_exchange: false,
        threads: 1,
    };
    let gateway = Gateway::new(parts, &registry).unwrap();
    let readiness = Arc::new(Readiness::new(store, gateway.drain().clone()));
    Parts { gateway, readiness, registry }
}

/// Serves `app` on a free port of loopback.
async fn serve<A: OperatorApp>(app: A) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Arc::new(app);
    tokio::spawn(async move {
        let (_running, shutdown) = watch::channel(false);
        while let Ok((tcp, peer)) = listener.accept().await {
            let digest = SocketDigest::from_raw_fd(tcp.as_raw_fd());
            let _ = digest.peer_addr.set(Some(peer.into()));
            let mut stream = Stream::from(tcp);
            stream.set_socket_digest(digest);
            let (app, shutdown) = (app.clone(), shutdown.clone());
            tokio::spawn(async move {
                let mut next: Option<pingora::protocols::Stream> = Some(Box::new(stream));
                while let Some(stream) = next.take() {
                    if let Some(request) = read_head(stream, &shutdown).await {
                        next = app.respond(request, &shutdown).await;
                    }
                }
            });
        }
    });
    address
}

async fn admin(token: Option<&str>) -> (SocketAddr, Parts) {
    let parts = parts();
    let token = token.map(cube_settings::Secret::new);
    let api = parts.gateway.admin_api(parts.readiness.clone(), token);
    (serve(AdminApp::new(api)).await, parts)
}

/// Sends `request` and reads to the end of the connection: status, head, body.
async fn send(address: SocketAddr, request: &[u8]) -> (u16, String, String) {
    let mut tcp = TcpStream::connect(address).await.unwrap();
    tcp.write_all(request).await.unwrap();
    let mut response = Vec::new();
    tokio::time::timeout(std::time::Duration::from_secs(20), tcp.read_to_end(&mut response))
        .await
        .expect("the connection ends")
        .unwrap();
    let text = String::from_utf8(response).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

async fn ask(address: SocketAddr, method: &str, path: &str, extra: &str, body: &str) -> (u16, Value) {
    let host = if extra.to_ascii_lowercase().contains("host:") { "" } else { "Host: 127.0.0.1\r\n" };
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n{extra}\r\n{body}"
    );
    let (status, head, body) = send(address, request.as_bytes()).await;
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(head.contains("cache-control: no-store"), "{head}");
    (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body:?}")))
}

#[tokio::test]
async fn lifecycle_routes_reach_the_lifecycle() {
    let (address, parts) = admin(None).await;
    let body = r#"{"sandbox_id":"abc","state":"paused"}"#;
    assert_eq!(ask(address, "POST", "/admin/state", "", body).await, (200, json!({"ok": true})));
    let id = SandboxId::parse("abc").unwrap();
    assert_eq!(
        parts.gateway.lifecycle().state(&id),
        Some(cube_metadata::Status::Known(SandboxState::Paused))
    );
    assert_eq!(ask(address, "GET", "/admin/routes/abc", "", "").await.0, 200);
    for deleted in [1, 0] {
        let response = ask(address, "POST", "/admin/backend_cache/delete", "", body).await;
        assert_eq!(response, (200, json!({"ok": true, "deleted": deleted})));
    }
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let (address, _parts) = admin(None).await;
    for (method, path, shown) in [
        ("GET", "/admin/nothing?a=1", "/admin/nothing"),
        ("GET", "/admin/state", "/admin/state"),
        ("POST", "/admin/last_active", "/admin/last_active"),
        ("POST", "/healthz", "/healthz"),
        ("POST", "/admin/healthz", "/admin/healthz"),
    ] {
        let want = json!({"error": format!("no route for {method} {shown}")});
        assert_eq!(ask(address, method, path, "", "{}").await, (404, want));
    }
}

#[tokio::test]
async fn the_token_is_needed_once_and_exactly_but_not_for_probes() {
    let (address, _parts) = admin(Some("example-token")).await;
    let mismatch = (403, json!({"error": "admin token mismatch"}));
    for extra in [
        "",
        "X-Cube-Admin-Token: example-toke\r\n",
        "X-Cube-Admin-Token: example-tokens\r\n",
        "X-Cube-Admin-Token: \r\n",
        "X-Cube-Admin-Token: example-token\r\nX-Cube-Admin-Token: example-token\r\n",
    ] {
        assert_eq!(ask(address, "GET", "/admin/healthz", extra, "").await, mismatch, "{extra}");
        assert_eq!(ask(address, "GET", "/admin/nothing", extra, "").await, mismatch, "{extra}");
    }
    let right = "X-Cube-Admin-Token: example-token\r\n";
    assert_eq!(ask(address, "GET", "/admin/healthz", right, "").await.0, 200);
    assert_eq!(ask(address, "GET", "/healthz", "", "").await.0, 200);
    assert_eq!(ask(address, "GET", "/readyz", "", "").await.0, 503);
}

#[test]
fn without_a_token_only_loopback_is_served() {
    let uri = Uri::from_static("/admin/healthz");
    let headers = HeaderMap::new();
    for (peer, served) in [
        ("127.0.0.1", true),
        ("127.9.9.9", true),
        ("::1", true),
        ("::ffff:127.0.0.1", true),
        ("192.0.2.1", false),
        ("::ffff:192.0.2.1", false),
    ] {
        let response = auth::check(None, Some(peer.parse().unwrap()), &uri, &headers);
        assert_eq!(response.is_ok(), served, "{peer}");
    }
    assert!(auth::check(None, None, &uri, &headers).is_err());
    assert!(
        auth::check(None, Some("192.0.2.1".parse().unwrap()), &Uri::from_static("/healthz"), &headers)
            .is_ok()
    );
}

#[tokio::test]
async fn a_browser_is_refused() {
    let (address, _parts) = admin(None).await;
    for extra in [
        "Origin: http://127.0.0.1\r\n",
        "Origin: null\r\n",
        "Host: rebound.example\r\n",
        "Host: rebound.example:8082\r\n",
        "Host: localhost.rebound.example\r\n",
        "Host: 127.0.0.1.rebound.example\r\n",
    ] {
        assert_eq!(ask(address, "GET", "/admin/healthz", extra, "").await.0, 403, "{extra}");
    }
    for extra in
        ["Host: localhost\r\n", "Host: LOCALHOST:8082\r\n", "Host: [::1]:8082\r\n", "Host: 192.0.2.9:1\r\n"]
    {
        assert_eq!(ask(address, "GET", "/admin/healthz", extra, "").await.0, 200, "{extra}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_whether_it_says_so_or_not() {
    let (address, _parts) = admin(None).await;
    let large = "x".repeat(2 * MAX_BODY);
    let want = (413, json!({"error": "payload too large"}));
    assert_eq!(ask(address, "POST", "/admin/state", "", &large).await, want);
    let mut chunked =
        b"POST /admin/state HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    chunked.extend_from_slice(format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len()).as_bytes());
    assert_eq!(send(address, &chunked).await.0, 413);
    let fits = "x".repeat(MAX_BODY);
    let (status, response) = ask(address, "POST", "/admin/state", "", &fits).await;
    assert_eq!(status, 400);
    assert!(response["error"].as_str().unwrap().starts_with("invalid json: "), "{response}");
}

#[tokio::test]
async fn a_refused_token_is_answered_before_the_body_comes() {
    let (address, _parts) = admin(Some("example-token")).await;
    let mut tcp = TcpStream::connect(address).await.unwrap();
    tcp.write_all(b"POST /admin/state HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n")
        .await
        .unwrap();
    let mut response = [0; 12];
    let read = tcp.read_exact(&mut response);
    tokio::time::timeout(std::time::Duration::from_secs(20), read).await.expect("a response").unwrap();
    assert_eq!(&response, b"HTTP/1.1 403");
}

#[tokio::test]
async fn a_client_that_waits_for_100_is_asked_for_its_body() {
    let (address, _parts) = admin(None).await;
    let mut tcp = TcpStream::connect(address).await.unwrap();
    let body = br#"{"sandbox_id":"abc","state":"paused"}"#;
    let head = format!(
        "POST /admin/state HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    tcp.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 12];
    tcp.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100");
    tcp.write_all(body).await.unwrap();
    let mut rest = String::new();
    tcp.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("HTTP/1.1 200") && rest.ends_with("{\"ok\":true}"), "{rest}");
}

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let (address, _parts) = admin(None).await;
    let mut tcp = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        tcp.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"{\"ok\":true}") {
            assert!(tcp.read_buf(&mut response).await.unwrap() > 0, "closed");
        }
    }
}

#[tokio::test]
async fn readiness_follows_the_process() {
    let (address, parts) = admin(None).await;
    let unready = |reason| (503, json!({"ready": false, "reason": reason}));
    let readyz = || ask(address, "GET", "/readyz", "", "");
    assert_eq!(readyz().await, unready("the listeners are not open yet"));
    parts.readiness.listening();
    assert_eq!(readyz().await, (200, json!({"ready": true})));
    parts.gateway.drain().advance(Stage::Unready);
    assert_eq!(readyz().await, unready("draining"));
    assert_eq!(ask(address, "GET", "/healthz", "", "").await.0, 200);
}

#[tokio::test]
async fn health_tells_the_sizes() {
    let (address, _parts) = admin(None).await;
    let (status, health) = ask(address, "GET", "/admin/healthz", "", "").await;
    assert_eq!((status, &health["ok"], &health["routes"]), (200, &json!(true), &json!(0)));
    assert!(health["heartbeat_last_pushed_ms"].is_null() && health.get("heartbeat_last_pushed_ms").is_some());
}

#[tokio::test]
async fn a_route_is_shown_without_its_token() {
    let (address, _parts) = admin(None).await;
    let (status, route) = ask(address, "GET", "/admin/routes/ABC", "", "").await;
    assert_eq!((status, &route["sandbox_id"]), (200, &json!("abc")));
    let record = &route["record"];
    assert_eq!(record["host_ip"], "10.0.0.1");
    assert_eq!(record["ports"], json!({"8080": "40000", "9090": "malformed"}));
    assert_eq!(record["access"], "token");
    assert_eq!(route["breaker"], "closed");
    for name in ["age_ms", "tracked", "generation", "state"] {
        assert!(route.get(name).is_some(), "{name}");
    }
    assert!(!route.to_string().contains("example-token"));
    assert_eq!(ask(address, "GET", "/admin/routes/nobody", "", "").await.0, 404);
    assert_eq!(ask(address, "GET", "/admin/routes/a%7Bb", "", "").await.0, 400);
}

#[tokio::test]
async fn metrics_are_served_and_health_alone_where_that_is_asked_for() {
    let parts = parts();
    let app = parts.gateway.metrics_app(parts.readiness.clone());
    let metrics = serve(app).await;
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").into_bytes()
    };
    let (status, head, body) = send(metrics, &get("/metrics")).await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("# TYPE cube_proxy_"), "{body}");
    assert!(body.contains("\ncube_proxy_ready "), "{body}");
    assert_eq!(send(metrics, &get("/healthz")).await.0, 200);
    assert_eq!(send(metrics, &get("/admin/healthz")).await.0, 404);
    let (status, head, body) =
        send(metrics, b"HEAD /metrics HTTP/1.1\r\nHost: [::1]:9101\r\nConnection: close\r\n\r\n").await;
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("content-length: "), "{head}");

    let health = serve(MetricsApp::health_only(parts.readiness.clone())).await;
    assert_eq!(send(health, &get("/healthz")).await.0, 200);
    assert_eq!(send(health, &get("/metrics")).await.0, 404);
}

#[tokio::test]
async fn metrics_are_not_for_browsers_and_probes_are_for_everybody() {
    let parts = parts();
    let metrics = serve(parts.gateway.metrics_app(parts.readiness.clone())).await;
    for (header, status) in [
        ("Host: rebound.example", 403),
        ("Host: 127.0.0.1\r\nOrigin: http://127.0.0.1", 403),
        ("Host: localhost:9101", 200),
    ] {
        let request = |path| format!("GET {path} HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n");
        assert_eq!(send(metrics, request("/metrics").as_bytes()).await.0, status, "{header}");
        assert_eq!(send(metrics, request("/healthz").as_bytes()).await.0, 200, "{header}");
    }
}

#[tokio::test]
async fn a_malformed_head_is_a_400_on_every_listener() {
    let (admin, parts) = admin(None).await;
    let metrics = serve(parts.gateway.metrics_app(parts.readiness.clone())).await;
    let long = format!("GET /healthz HTTP/1.1\r\nA: {}", "x".repeat(1 << 20));
    for address in [admin, metrics] {
        for head in [
            "nonsense\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            &long,
        ] {
            let (status, _, body) = send(address, head.as_bytes()).await;
            assert_eq!((status, body.as_str()), (400, r#"{"error":"malformed request"}"#));
        }
    }
}

/// The steps and how they went, and the response.
async fn explain(address: SocketAddr, url: &str, headers: &[&str]) -> (Vec<(String, bool)>, Value) {
    let encoded = |text: &str| {
        percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
    };
    let mut query = format!("url={}", encoded(url));
    for header in headers {
        query.push_str(&format!("&header={}", encoded(header)));
    }
    let (status, told) = ask(address, "GET", &format!("/admin/explain?{query}"), "", "").await;
    assert_eq!(status, 200, "{told}");
    assert!(!told.to_string().contains("example-"), "a secret: {told}");
    let steps = told["steps"].as_array().unwrap().iter();
    let steps = steps.map(|step| (step["step"].as_str().unwrap().to_owned(), step["ok"].as_bool().unwrap()));
    (steps.collect(), told["answer"].clone())
}

fn steps(good: &[&str], bad: Option<&str>) -> Vec<(String, bool)> {
    let good = good.iter().map(|step| ((*step).to_owned(), true));
    good.chain(bad.map(|step| (step.to_owned(), false))).collect()
}

#[tokio::test]
async fn explain_shows_each_step_to_the_address_that_would_be_dialled() {
    let (address, _parts) = admin(None).await;
    let token = "e2b-traffic-access-token: example-token";
    let all = steps(&["target", "record", "token", "gate", "route", "breaker"], None);
    for (url, headers, target) in [
        ("http://8080-abc.cube.test/a%2Fb?key=example-1", &[token][..], "/a%2Fb"),
        ("http://cube.test/sandbox/abc/8080/x", &[token], "/x"),
        ("127.0.0.1:8081", &[token, "E2b-Sandbox-Id: abc", "E2b-Sandbox-Port: 8080"], "/"),
    ] {
        let (told, answer) = explain(address, url, headers).await;
        assert_eq!(told, all, "{url}");
        assert_eq!(
            (&answer["by"], &answer["address"]),
            (&json!("sandbox"), &json!("10.0.0.1:40000")),
            "{url}"
        );
        assert_eq!((&answer["target"], &answer["after"]), (&json!(target), &Value::Null), "{url}");
    }
    let (told, answer) = explain(address, "http://api.cube.test/health", &[]).await;
    assert_eq!((told, &answer["address"]), (steps(&["target"], None), &json!("10.0.0.5:3000")));
}

#[tokio::test]
async fn explain_stops_where_the_request_would_and_gives_its_response() {
    let (address, _parts) = admin(None).await;
    let token = "cube-traffic-access-token: example-token";
    for (url, headers, good, bad, retcode, logged) in [
        ("http://8080-a.b/", &["Host: a b"][..], &[][..], "target", 310_400, 310_400),
        ("http://cube.test/", &[], &[], "target", 310_400, 310_400),
        ("http://8080-nobody.cube.test/", &[], &["target"], "record", 310_507, 310_507),
        ("http://8080-abc.cube.test/", &[], &["target", "record"], "token", 310_507, 310_403),
        (
            "http://8080-abc.cube.test/",
            &["e2b-traffic-access-token: example-wrong"],
            &["target", "record"],
            "token",
            310_507,
            310_403,
        ),
        ("http://49983-abc.cube.test/x/../init", &[token], &["target"], "envd", 310_404, 310_404),
        (
            "http://7-abc.cube.test/",
            &[token],
            &["target", "record", "token", "gate"],
            "route",
            310_507,
            310_507,
        ),
        (
            "http://9090-abc.cube.test/",
            &[token],
            &["target", "record", "token", "gate"],
            "route",
            310_508,
            310_508,
        ),
    ] {
        let (told, answer) = explain(address, url, headers).await;
        assert_eq!(told, steps(good, Some(bad)), "{url}");
        assert_eq!(answer["by"], "proxy", "{url}");
        assert_eq!(
            (&answer["retcode"], &answer["logged_retcode"]),
            (&json!(retcode), &json!(logged)),
            "{url}"
        );
        assert!(answer["body"].as_str().unwrap().starts_with(r#"{"error":""#), "{answer}");
    }
    let long = format!("http://8080-abc.cube.test/{}", "x".repeat(1024));
    let (told, answer) = explain(address, &long, &[]).await;
    assert_eq!((told, &answer["status"]), (steps(&["target"], Some("head")), &json!(414)));
    for query in ["", "?url=", "?url=ftp%3A%2F%2Fa"] {
        assert_eq!(ask(address, "GET", &format!("/admin/explain{query}"), "", "").await.0, 400, "{query}");
    }
}

#[tokio::test]
async fn explain_says_what_a_state_means_and_wakes_holds_and_stamps_nothing() {
    let (address, parts) = admin(None).await;
    let token = "cube-traffic-access-token: example-token";
    let id = SandboxId::parse("abc").unwrap();
    let preflight = ["Origin: https://a.test", "Access-Control-Request-Method: PUT", token];
    for (state, after, retcode) in [
        (SandboxState::Paused, "resume.timeout", 310_503),
        (SandboxState::Pausing, "lifecycle.pause_wait", 310_503),
        (SandboxState::Killed, "", 310_410),
    ] {
        parts.gateway.lifecycle().push_state(&id, state);
        let (told, answer) = explain(address, "http://8080-abc.cube.test/", &[token]).await;
        if after.is_empty() {
            assert_eq!(told, steps(&["target", "record", "token"], Some("gate")));
            assert_eq!((&answer["retcode"], &answer["status"]), (&json!(retcode), &json!(410)));
        } else {
            assert_eq!(answer["by"], "sandbox", "{state:?}");
            assert!(answer["after"].as_str().unwrap().contains(after), "{answer}");
        }
        let query = preflight.map(|line| line.replace(' ', "%20").replace('&', "%26")).join("&header=");
        let path = format!("/admin/explain?url=8080-abc.cube.test&method=OPTIONS&header={query}");
        let (_, told) = ask(address, "GET", &path, "", "").await;
        assert_eq!((&told["answer"]["status"], &told["answer"]["retcode"]), (&json!(204), &json!(retcode)));
    }
    let lifecycle = parts.gateway.lifecycle();
    assert_eq!((lifecycle.held(), lifecycle.active_len()), (0, 0));
    let counted: f64 = parts
        .registry
        .gather()
        .iter()
        .filter(|family| {
            ["cube_proxy_gate_verdicts_total", "cube_proxy_answers_total", "cube_proxy_resumes_total"]
                .contains(&family.name())
        })
        .flat_map(|family| family.get_metric())
        .map(|metric| metric.get_counter().get_value())
        .sum();
    assert_eq!(counted, 0.0);
}
