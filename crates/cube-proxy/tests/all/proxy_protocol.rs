//! Behind a layer-4 balancer: the header of the PROXY protocol (fleet.md, "Behind a layer-4 balancer").

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{Client, Env, Guarded, Origin, Response, Sandbox, TlsClient, eventually, free_port};

use crate::support::{Tls, own, with_tls};

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The balancer is 127.0.0.1, where tests connect from; other clients come from 127.0.0.2.
fn balanced(more: Value) -> Value {
    let mut config = json!({ "listen": { "proxy_protocol": ["127.0.0.1/32"] } });
    cube_testkit::merge(&mut config, &more);
    config
}

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [V2, &[0x20 | command, family], &length, body].concat()
}

/// A version 2 header that names 192.0.2.7, or 2001:db8::7.
fn named(ipv6: bool) -> Vec<u8> {
    let ports = [4321_u16.to_be_bytes(), 443_u16.to_be_bytes()].concat();
    if ipv6 {
        let source: std::net::Ipv6Addr = "2001:db8::7".parse().unwrap();
        v2(1, 0x21, &[&source.octets()[..], &source.octets(), &ports].concat())
    } else {
        v2(1, 0x11, &[&[192, 0, 2, 7, 10, 0, 0, 1], &ports[..]].concat())
    }
}

fn get(sandbox: &Sandbox) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.host()).into_bytes()
}

/// The response to `header` and a request, in one piece.
async fn behind(address: SocketAddr, header: &[u8], sandbox: &Sandbox) -> Option<Response> {
    let mut client = Client::connect(address).await;
    client.send([header, &get(sandbox)].concat()).await;
    let response = client.try_head().await.ok()??;
    Some(client.body(response, "GET").await)
}

/// The client's address as the sandbox and the log have it.
async fn seen_as(env: &Env, response: &Response) -> (String, String) {
    response.passed(200);
    let seen = response.seen();
    let line = env.proxy.log_line(&response.request_id()).await;
    assert_eq!(seen.headers.get("x-forwarded-for"), seen.headers.get("x-real-ip"));
    (seen.headers.get("x-real-ip").unwrap().to_owned(), line.field("x_real_ip").to_owned())
}

async fn refused(env: &Env) -> f64 {
    let metrics = env.proxy.metrics().await;
    metrics.sum("cube_proxy_client_connections_refused_total", &[("limit", "proxy_protocol")])
}

#[tokio::test]
async fn the_client_is_whom_the_header_names() {
    let env = own(balanced(json!({}))).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for (header, client) in [
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 4321 443\r\n".to_vec(), "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 4321 443\r\n".to_vec(), "2001:db8::7"),
        (named(false), "192.0.2.7"),
        (named(true), "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (v2(0, 0, &[]), "127.0.0.1"),
        (v2(1, 0x31, &[0; 216]), "127.0.0.1"),
    ] {
        let response = behind(env.proxy.http(), &header, &sandbox).await.expect("a response");
        assert_eq!(seen_as(&env, &response).await, (client.to_owned(), client.to_owned()), "{header:?}");
    }
    assert_eq!(refused(&env).await, 0.0);
}

#[tokio::test]
async fn a_header_may_come_byte_by_byte_and_its_connection_is_kept() {
    let env = own(balanced(json!({}))).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for header in [b"PROXY TCP4 192.0.2.7 10.0.0.1 4321 443\r\n".to_vec(), named(true)] {
        let mut client = Client::connect(env.proxy.http()).await;
        for byte in header {
            client.send([byte]).await;
            tokio::task::yield_now().await;
        }
        for _ in 0..2 {
            client.send(get(&sandbox)).await;
            client.response("GET").await.passed(200);
        }
    }
}

#[tokio::test]
async fn what_is_no_header_ends_the_connection_and_is_counted() {
    let env = own(balanced(json!({ "limits": { "header_timeout": "1s" } }))).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let mut ended = 0.0;
    let long = format!("PROXY TCP4 {}", "1".repeat(200)).into_bytes();
    for bytes in [
        Vec::new(), // an HTTP request at once
        b"garbage that is longer than any signature\r\n".to_vec(),
        long,
        v2(1, 0x12, &[0; 12]),                              // a datagram
        v2(1, 0x11, &[0; 4]),                               // too short for its family
        v2(1, 0x11, &vec![0; 5000]),                        // too long
        b"PROXY TCP4 192.0.2.7 10.0.0.1 4321 443".to_vec(), // no end
    ] {
        assert!(behind(env.proxy.http(), &bytes, &sandbox).await.is_none(), "{bytes:?}");
        ended += 1.0;
        eventually("it to be counted", || async { (refused(&env).await == ended).then_some(()) }).await;
    }
    // One that does not come in time, and a balancer that looks whether somebody listens.
    let mut silent = Client::connect(env.proxy.http()).await;
    silent.send(b"PROXY TC").await;
    assert!(silent.ended().await);
    drop(Client::connect(env.proxy.http()).await);
    let response = behind(env.proxy.http(), &named(false), &sandbox).await.expect("a response");
    response.passed(200);
    assert_eq!(refused(&env).await, ended + 1.0);
    assert_eq!(origin.count(), 1);
    let logged = env.proxy.output().matches("listen.proxy_protocol").count();
    assert!((1..=5).contains(&logged), "{logged} lines for {ended} connections");
}

#[tokio::test]
async fn a_header_of_anybody_else_and_a_second_one_are_no_headers() {
    let env = own(balanced(json!({}))).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let line = b"PROXY TCP4 192.0.2.7 10.0.0.1 4321 443\r\n";
    let mut other = Client::connect_from("127.0.0.2", env.proxy.http()).await;
    other.send([&line[..], &get(&sandbox)].concat()).await;
    assert_eq!(other.response("GET").await.status, 400);
    let mut plain = Client::connect_from("127.0.0.2", env.proxy.http()).await;
    plain.send(get(&sandbox)).await;
    assert_eq!(plain.response("GET").await.passed(200).seen().headers.get("x-real-ip"), Some("127.0.0.2"));
    let twice = [&line[..], line].concat();
    let response = behind(env.proxy.http(), &twice, &sandbox).await.expect("a response");
    assert_eq!(response.status, 400);
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn trust_and_limits_go_by_the_named_address() {
    let env = own(balanced(json!({
        "routing": { "trusted_proxies": ["192.0.2.0/24"], "envd_control_from": ["192.0.2.0/24"] },
        "limits": { "connections_per_ip": 1 },
    })))
    .await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let ask = async |header: &str, path: &str, host: &str| {
        let mut client = Client::connect(env.proxy.http()).await;
        let request =
            format!("{header}GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: 198.51.100.9\r\n\r\n");
        client.send(request).await;
        let response = client.response("GET").await;
        (client, response)
    };
    let (trusted, other) =
        ("PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n", "PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n");
    let (held, response) = ask(trusted, "/", &sandbox.host()).await;
    assert_eq!(response.passed(200).seen().headers.get("x-real-ip"), Some("198.51.100.9"));
    let mut second = Client::connect(env.proxy.http()).await;
    second.send([trusted.as_bytes(), &get(&sandbox)].concat()).await;
    assert!(second.ended().await, "a second connection of the same client");
    drop(held);
    let (_other, response) = ask(other, "/", &sandbox.host()).await;
    assert_eq!(response.passed(200).seen().headers.get("x-real-ip"), Some("203.0.113.7"));
    let envd = env.sandbox(&origin).port(49983).await;
    let control = |header: &'static str| {
        let (host, ask) = (envd.host(), &ask);
        async move { ask(header, "/init", &host).await.1.status }
    };
    assert_eq!(control("PROXY TCP4 203.0.113.8 10.0.0.1 1 2\r\n").await, 404);
    assert_eq!(control("PROXY TCP4 192.0.2.8 10.0.0.1 1 2\r\n").await, 200);
}

#[tokio::test]
async fn tls_follows_the_header() {
    let Tls { env, .. } = with_tls(&balanced(json!({}))).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let client = TlsClient::of("1.3");
    let mut session = client.connect_after(env.proxy.https(), &named(false), "a.cube.test").await.unwrap();
    session.client.send(get(&sandbox)).await;
    let response = session.client.response("GET").await;
    assert_eq!(seen_as(&env, &response).await.0, "192.0.2.7");
    let http2 = client.offering(&["h2"]);
    http2.connect_after(env.proxy.https(), &named(true), "a.cube.test").await.expect("a handshake");
    assert!(http2.connect(env.proxy.https(), "a.cube.test").await.is_err(), "without a header");
}

#[tokio::test]
async fn the_list_follows_sighup_for_new_connections() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let mut before = Client::connect(env.proxy.http()).await;
    before.send(get(&sandbox)).await;
    before.response("GET").await.passed(200);
    env.proxy.reconfigure(&balanced(json!({}))).await;
    let response = behind(env.proxy.http(), &named(false), &sandbox).await.expect("a response");
    assert_eq!(seen_as(&env, &response).await.0, "192.0.2.7");
    before.send(get(&sandbox)).await;
    before.response("GET").await.passed(200);
}

/// A real HAProxy that passes connections on with `option`.
fn haproxy(env: &Env, option: &str) -> (Guarded, SocketAddr) {
    let port = free_port("127.0.0.1");
    let config = env.proxy.directory().join(format!("{option}.cfg"));
    std::fs::write(
        &config,
        format!(
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
             listen front\n  bind 127.0.0.1:{port}\n  server proxy {} source 127.0.0.1 {option}\n",
            env.proxy.http()
        ),
    )
    .unwrap();
    let mut command = Command::new("/usr/sbin/haproxy");
    command.arg("-db").arg("-f").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
    (Guarded::spawn(&mut command, None), ([127, 0, 0, 1], port).into())
}

#[tokio::test]
async fn haproxy_in_front_is_not_seen() {
    let env = own(balanced(json!({}))).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for option in ["send-proxy", "send-proxy-v2"] {
        let (_balancer, address) = haproxy(&env, option);
        eventually("the balancer to listen", || async {
            tokio::net::TcpStream::connect(address).await.ok().map(drop)
        })
        .await;
        let mut client = Client::connect_from("127.0.0.5", address).await;
        for _ in 0..3 {
            client.send(get(&sandbox)).await;
            let response = client.response("GET").await;
            assert_eq!(seen_as(&env, &response).await.0, "127.0.0.5", "{option}");
        }
    }
}
