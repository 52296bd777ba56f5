//! `routing.control_plane`: an API at the same address as its sandboxes (routing.md), plain and
//! over TLS, which is never left unverified.

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{Authority, Env, Origin, Response, refused_port};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{builder, own};

const API: &str = "api.cube.test";

/// A proxy whose control plane is at `url`; `ca` signs its certificate.
async fn env(url: &str, ca: Option<&Authority>) -> Env {
    let builder = builder(&json!({}));
    let ca = ca.map_or(Value::Null, |ca| json!(ca.write(builder.directory(), "ca")));
    let plane = json!({ "url": url, "ca_file": ca, "hosts": [API] });
    Env::start_with(builder.config(&json!({ "routing": { "control_plane": plane } }))).await
}

async fn ask(env: &Env) -> Response {
    let headers = [("Host", API), ("e2b-traffic-access-token", "example-token"), ("X-Api-Key", "example")];
    env.raw("POST", "/sandboxes?x=%2F", &headers, "{}").await
}

/// Refused, and the log says why.
async fn refused(env: &Env, reason: &str) {
    let response = ask(env).await;
    response.is_bad_gateway(310_509);
    assert_eq!(env.proxy.log_line(&response.request_id()).await.field("reason"), reason);
}

#[tokio::test]
async fn a_request_that_names_no_sandbox_reaches_it_unchanged_but_for_what_is_the_proxys() {
    let origin = Origin::echo().await;
    let env = env(&format!("http://{}", origin.address()), None).await;
    let seen = ask(&env).await.passed(200).seen();
    assert_eq!((seen.target.as_str(), seen.body.as_slice()), ("/sandboxes?x=%2F", &b"{}"[..]));
    assert_eq!(seen.headers.all("Host"), [API]);
    assert_eq!(seen.headers.all("X-Forwarded-Proto"), ["http"]);
    assert_eq!(seen.headers.get("X-Api-Key"), Some("example"));
    assert!(!seen.headers.has("e2b-traffic-access-token"));
}

#[tokio::test]
async fn over_tls_it_is_asked_for_by_its_name_and_pooled() {
    let (ca, origin) = (Authority::new(), Origin::echo().await);
    let front = ca.front(&["localhost"], origin.address()).await;
    // The name may have an address more than the front listens on: the next one is tried.
    let env = env(&format!("https://localhost:{}", front.address().port()), Some(&ca)).await;
    for _ in 0..4 {
        assert_eq!(ask(&env).await.passed(200).seen().headers.all("Host"), [API]);
    }
    assert_eq!(front.names(), [Some("localhost".to_owned())], "one handshake, with the URL's host");
}

#[tokio::test]
async fn an_address_is_verified_as_an_address() {
    let (ca, origin) = (Authority::new(), Origin::echo().await);
    let front = ca.front(&["127.0.0.1"], origin.address()).await;
    let env = env(&format!("https://{}", front.address()), Some(&ca)).await;
    ask(&env).await.passed(200);
}

#[tokio::test]
async fn a_certificate_of_a_stranger_is_refused() {
    let (ca, stranger, origin) = (Authority::new(), Authority::new(), Origin::echo().await);
    let front = stranger.front(&["127.0.0.1"], origin.address()).await;
    let url = format!("https://{}", front.address());
    for trusted in [Some(&ca), None] {
        let env = env(&url, trusted).await;
        refused(&env, "control_plane_tls").await;
        env.proxy.output_line(&["routing.control_plane.url", "the TLS handshake failed"]).await;
    }
    assert_eq!(origin.count(), 0, "not a byte went to the stranger");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let (ca, origin) = (Authority::new(), Origin::echo().await);
    let front = ca.front(&["other.example.org"], origin.address()).await;
    let env = env(&format!("https://localhost:{}", front.address().port()), Some(&ca)).await;
    refused(&env, "control_plane_tls").await;
    assert_eq!(origin.count(), 0, "not a byte went to the other");
}

#[tokio::test]
async fn one_that_speaks_no_tls_or_is_not_there_is_told_apart() {
    let ca = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = env(&format!("https://{}", listener.local_addr().unwrap()), Some(&ca)).await;
    let speaking = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = tcp.read_to_end(&mut Vec::new()).await;
    });
    refused(&plain, "control_plane_tls").await;
    speaking.await.unwrap();
    let nobody = env(&format!("https://127.0.0.1:{}", refused_port()), Some(&ca)).await;
    refused(&nobody, "connect_refused").await;
    let unresolved = env("https://nobody.invalid", Some(&ca)).await;
    refused(&unresolved, "control_plane_unresolved").await;
}

#[tokio::test]
async fn without_one_such_a_request_names_no_sandbox() {
    let env = own(json!({})).await;
    let response = ask(&env).await;
    assert_eq!((response.status, response.retcode()), (400, Some(310_400)));
}
