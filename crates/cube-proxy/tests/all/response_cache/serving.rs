//! A response from the store is a response like any other.

use std::time::{SystemTime, UNIX_EPOCH};

use cube_testkit::Client;

use super::*;

#[tokio::test]
async fn our_own_headers_are_made_new_for_each_response() {
    let env = cached().await;
    let theirs = [
        PUBLIC,
        ("X-Cube-Request-Id", "theirs"),
        ("X-Cube-Retcode", "999999"),
        ("X-Cube-Cache", "HIT"),
        ("Keep-Alive", "timeout=9"),
        ("Connection", "X-Hop"),
        ("X-Hop", "x"),
    ];
    let (_origin, sandbox) = sandbox_of(env, &theirs).await;
    for id in ["first", "second", "third"] {
        let response = env.get_with(&sandbox, "/", &[("X-Cube-Request-Id", id)]).await;
        assert_eq!(response.passed(200).request_id(), id);
        assert_eq!(verdict(&response), Some(if id == "first" { "MISS" } else { "HIT" }));
        for name in ["keep-alive", "x-hop"] {
            assert!(!response.headers.has(name), "{name}");
        }
    }
    let (one, other) = (env.get(&sandbox, "/").await, env.get(&sandbox, "/").await);
    assert_ne!(one.request_id(), other.request_id());
    // Where the cache has no part in it, it says nothing, and nobody says it in its place.
    is_bypass(&env.post(&sandbox, "/", "x").await);
}

#[tokio::test]
async fn what_leads_back_is_made_new_for_each_client() {
    let env = cached().await;
    let places = [
        PUBLIC,
        ("Content-Location", "/here"),
        ("Refresh", "5; url=/there"),
        ("Service-Worker-Allowed", "/"),
        ("Strict-Transport-Security", "max-age=1"),
    ];
    let (_origin, sandbox) = sandbox_of(env, &places).await;
    for round in ["MISS", "HIT", "HIT"] {
        let response = get(env, By::Path, &sandbox, "/", &[]).await;
        assert_eq!(verdict(&response), Some(round));
        let prefix = sandbox.prefix();
        assert_eq!(response.headers.all("content-location"), [format!("{prefix}/here")]);
        assert_eq!(response.headers.all("refresh"), [format!("5; url={prefix}/there")]);
        assert_eq!(response.headers.all("service-worker-allowed"), [format!("{prefix}/")]);
        assert!(!response.headers.has("strict-transport-security"));
    }
    let response = env.get(&sandbox, "/").await;
    is_miss(&response);
    assert_eq!(response.headers.all("content-location"), ["/here"]);
    assert!(response.headers.has("strict-transport-security"));
}

#[tokio::test]
async fn behind_a_mask_a_stored_location_leads_back_over_the_clients_scheme() {
    let tls = support::with_tls(&json!({ "response_cache": { "enabled": true } })).await;
    let origin = app(&[PUBLIC, ("Content-Location", "http://inner.test/here")]).await;
    let masked = tls.env.sandbox(&origin).field("MaskRequestHost", "inner.test").await;
    let sandbox = settled(&tls.env, masked).await;
    let host = sandbox.host();
    let mut places = Vec::new();
    for round in ["MISS", "HIT"] {
        let response = tls.h1().await.call("GET", "/", &[("Host", &host)], "").await;
        assert_eq!(verdict(&response), Some(round));
        places.push(response.headers.all("content-location").join(","));
    }
    assert!(places[0].contains(&host), "{places:?}");
    assert_eq!(places[0], places[1]);
}

#[tokio::test]
async fn every_protocol_and_every_end_of_a_connection_is_served() {
    let tls = support::with_tls(&json!({ "response_cache": { "enabled": true } })).await;
    let body = "0123456789".repeat(20_000);
    let chunked = body.clone();
    let origin = scripted(move |mut exchange| {
        let body = chunked.clone();
        async move {
            exchange.start(200, &[PUBLIC, ("Transfer-Encoding", "chunked"), ("ETag", "\"a\"")]).await?;
            for piece in body.as_bytes().chunks(7777) {
                exchange.chunk(piece).await?;
            }
            exchange.end().await
        }
    })
    .await;
    let sandbox = settled(&tls.env, tls.env.sandbox(&origin).await).await;
    let host = sandbox.host();
    is_miss(&tls.env.get(&sandbox, "/").await);
    let stored = tls.env.get(&sandbox, "/").await;
    is_hit(&stored, &body);
    assert_eq!(stored.headers.all("content-length"), [body.len().to_string()]);
    assert!(!stored.headers.has("transfer-encoding"));

    // Close, and HTTP/1.0.
    for (line, fields) in [("HTTP/1.1", "Connection: close\r\n"), ("HTTP/1.0", "")] {
        let mut client = tls.env.client().await;
        client.send(format!("GET / {line}\r\nHost: {host}\r\n{fields}\r\n")).await;
        let response = client.response("GET").await;
        is_hit(&response, &body);
        assert!(!response.headers.has("transfer-encoding"), "{line}");
        assert!(client.ended().await, "{line}");
    }
    // Requests sent ahead.
    let mut client = tls.env.client().await;
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.send(request.repeat(3)).await;
    for _ in 0..3 {
        is_hit(&client.response("GET").await, &body);
    }
    // TLS and HTTP/2: the scheme is another.
    let mut secure = tls.h1().await;
    is_miss(&secure.call("GET", "/", &[("Host", &host)], "").await);
    is_hit(&secure.call("GET", "/", &[("Host", &host)], "").await, &body);
    let h2 = tls.h2().await;
    for _ in 0..3 {
        is_hit(&h2.get(&host, "/", &[]).await, &body);
    }
    let unchanged = h2.get(&host, "/", &[("if-none-match", "\"a\"")]).await;
    assert_eq!(verdict(unchanged.passed(304)), Some("HIT"));
    is_hit(&h2.head(&host, "/", &[]).await, "");
}

#[tokio::test]
async fn a_hit_needs_no_application() {
    let env = cached().await;
    let (origin, sandbox) = sandbox_of(env, &[PUBLIC]).await;
    is_miss(&env.get(&sandbox, "/").await);
    let connections = origin.connections();
    is_hit(&env.get(&sandbox, "/").await, "1");
    assert_eq!(origin.connections(), connections);
    origin.stop().await;
    is_hit(&env.get(&sandbox, "/").await, "1");
    env.get(&sandbox, "/other").await.is_bad_gateway(310_509);
}

#[tokio::test]
async fn a_hit_is_logged_and_counted_and_keeps_no_sandbox_awake() {
    let env = with(json!({})).await;
    let (_origin, sandbox) = sandbox_of(&env, &[PUBLIC]).await;
    let first = env.get(&sandbox, "/a?b").await;
    is_miss(&first);
    // Counted before it is logged.
    env.proxy.log_line(&first.request_id()).await;
    let before = env.proxy.metrics().await;
    let active = env.last_active(&sandbox).await.unwrap();
    eventually("a stamp that would be a later one", || async {
        let response = env.get(&sandbox, "/a?b").await;
        is_hit(&response, "1");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        (now > u128::from(active) + 1_100).then_some(())
    })
    .await;
    let response = env.get(&sandbox, "/a?b").await;
    let line = env.proxy.log_line(&response.request_id()).await;
    for (field, value) in [
        ("status", "200"),
        ("retcode", "310200"),
        ("reason", "ok"),
        ("request_uri", "/a?b"),
        ("body_bytes_sent", "1"),
        ("upstream_addr", "-"),
        ("upstream_status", "-"),
        ("backend_ip", "-"),
        ("x_forwarded_proto", "http"),
        ("sandbox_id", &sandbox.id),
    ] {
        assert_eq!(line.field(field), value, "{field}");
    }
    assert_eq!(env.last_active(&sandbox).await, Some(active));
    let after = env.proxy.metrics().await;
    let grown = |name: &str, labels: &[(&str, &str)]| after.sum(name, labels) - before.sum(name, labels);
    let hits = grown("cube_proxy_response_cache_lookups_total", &[("outcome", "hit")]);
    assert!(hits >= 2.0);
    assert_eq!(grown("cube_proxy_answers_total", &[]), hits);
    assert_eq!(grown("cube_proxy_answers_total", &[("retcode", "310200"), ("reason", "ok")]), hits);
    assert_eq!(grown("cube_proxy_bytes_total", &[("direction", "out")]), hits);
    assert_eq!(grown("cube_proxy_upstream_connects_total", &[]), 0.0);
    no_stream_is_open(&env).await;
    is_bypass(&env.post(&sandbox, "/", "x").await);
    is_miss(&env.get(&sandbox, "/new").await);
    let after = env.proxy.metrics().await;
    let grown = |name: &str, labels: &[(&str, &str)]| after.sum(name, labels) - before.sum(name, labels);
    assert_eq!(grown("cube_proxy_response_cache_lookups_total", &[("outcome", "miss")]), 1.0);
    assert_eq!(grown("cube_proxy_response_cache_lookups_total", &[("outcome", "bypass")]), 1.0);
    assert_eq!(grown("cube_proxy_response_cache_fills_total", &[("outcome", "stored")]), 1.0);
    assert_eq!(after.sum("cube_proxy_response_cache_entries", &[]), 3.0);
    assert!(after.sum("cube_proxy_response_cache_bytes", &[]) > 1000.0);
}

#[tokio::test]
async fn five_hundred_at_once_are_served() {
    let env = cached().await;
    let body = "x".repeat(100_000);
    let origin = {
        let body = body.clone();
        scripted(move |exchange| {
            let body = body.clone();
            async move { exchange.reply(200, &[PUBLIC], body).await }
        })
        .await
    };
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    is_miss(&env.get(&sandbox, "/").await);
    let mut clients = Vec::new();
    for _ in 0..500 {
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        clients.push(client);
    }
    for client in &mut clients {
        is_hit(&client.response("GET").await, &body);
    }
    assert_eq!(asked(&origin), 1);
}

/// A stored response larger than the buffers on the way to a client that does not read, the sandbox
/// that gave it, and such a client.
async fn stuck(env: &Env) -> (Origin, Sandbox, Client, Response) {
    let origin =
        scripted(
            |exchange| async move { exchange.reply(200, &[PUBLIC], vec![b'x'; 30 * 1024 * 1024]).await },
        )
        .await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    is_miss(&env.get(&sandbox, "/").await);
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host())]).await;
    let head = client.head().await;
    assert!(hit(&head));
    (origin, sandbox, client, head)
}

fn large() -> Value {
    json!({ "response_cache": { "memory": "256MiB", "max_object": "32MiB" } })
}

#[tokio::test]
async fn a_kill_cuts_a_response_that_comes_from_the_store() {
    let env = with(large()).await;
    let (_origin, sandbox, mut client, head) = stuck(&env).await;
    let id = head.request_id();
    env.push(&sandbox, "killed").await;
    let response = client.body(head, "GET").await;
    assert!(!response.clean && response.body.len() < 30 * 1024 * 1024, "{}", response.body.len());
    let line = env.proxy.log_line(&id).await;
    assert_eq!((line.field("status"), line.field("reason")), ("200", "killed"));
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_hit_is_noticed() {
    let env = with(large()).await;
    let (_origin, sandbox, client, head) = stuck(&env).await;
    let id = head.request_id();
    drop(client);
    let line = env.proxy.log_line(&id).await;
    assert_eq!((line.field("status"), line.field("reason")), ("200", "client_closed"));
    is_hit_of(&env.get(&sandbox, "/").await, 30 * 1024 * 1024);
    no_stream_is_open(&env).await;
}

async fn no_stream_is_open(env: &Env) {
    eventually("no stream to be open", || async {
        (env.proxy.metrics().await.sum("cube_proxy_open_streams", &[]) == 0.0).then_some(())
    })
    .await;
}

#[track_caller]
fn is_hit_of(response: &Response, length: usize) {
    assert!(hit(response.passed(200)) && response.clean && response.body.len() == length);
}

#[tokio::test]
async fn an_upgrade_begins_with_an_empty_cache() {
    let env = with(json!({})).await;
    let (_origin, sandbox) = sandbox_of(&env, &[PUBLIC]).await;
    is_miss(&env.get(&sandbox, "/").await);
    is_hit(&env.get(&sandbox, "/").await, "1");
    env.proxy.upgrade().await;
    let response = env.get(&sandbox, "/").await;
    is_miss(&response);
    assert_eq!(response.text(), "2");
}

#[tokio::test]
async fn what_may_have_changed_a_target_ends_what_is_stored_for_it_alone() {
    let env = cached().await;
    let (_origin, sandbox) = sandbox_of(env, &[PUBLIC]).await;
    is_miss(&env.get(&sandbox, "/other").await);
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        env.get(&sandbox, "/").await.passed(200);
        assert!(hit(&env.get(&sandbox, "/").await), "{method}");
        env.call(By::Host, &sandbox, method, "/", &[("Cookie", "a=b")], "x").await.passed(200);
        is_miss(&env.get(&sandbox, "/").await);
    }
    assert!(hit(&env.get(&sandbox, "/other").await));
    env.call(By::Host, &sandbox, "OPTIONS", "/", &[], "").await.passed(200);
    assert!(hit(&env.get(&sandbox, "/").await), "OPTIONS changes nothing");
}

#[tokio::test]
async fn a_refused_change_ends_nothing() {
    let env = cached().await;
    let origin = scripted(|exchange| async move {
        let status = if exchange.request.method == "GET" { 200 } else { 409 };
        exchange.reply(status, &[PUBLIC], "x").await
    })
    .await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    is_miss(&env.get(&sandbox, "/").await);
    env.call(By::Host, &sandbox, "PUT", "/", &[], "x").await.passed(409);
    is_hit(&env.get(&sandbox, "/").await, "x");
}

#[tokio::test]
async fn an_early_response_says_nothing_of_the_cache() {
    let env = cached().await;
    let origin = Origin::raw(
        "HTTP/1.1 103 E\r\nX-Cube-Cache: HIT\r\nLink: </a>\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 1\r\nCache-Control: private\r\n\r\nx",
    )
    .await;
    let sandbox = env.sandbox(&origin).await;
    let response = env.get(&sandbox, "/").await;
    let early = &response.passed(200).informational[0];
    assert_eq!((early.headers.all("Link"), early.headers.has("X-Cube-Cache")), (vec!["</a>"], false));
}

/// What a link opens is for who has the link, also where the ticket is not needed: neither is it served from what
/// is stored, nor stored for others.
#[tokio::test]
async fn a_request_with_a_ticket_passes_by_the_cache() {
    let env = cached().await;
    let (origin, sandbox) = sandbox_of(env, &[PUBLIC]).await;
    let cookie = [("Cookie", "a=1; cube-preview=v1.1900000000.any.x"), ("Sec-Fetch-Site", "same-origin")];
    for (at, (target, fields)) in
        [("/?cube_preview=x", &[][..]), ("/", &cookie[..]), ("/?%63ube_preview", &[])].into_iter().enumerate()
    {
        // Nothing is stored yet, and what comes is not stored.
        let response = env.get_with(&sandbox, target, fields).await;
        is_bypass(&response);
        assert_eq!(response.headers.all("cache-control"), [PUBLIC.1, "private"], "{target}");
        assert_eq!((asked(&origin), origin.last().target.as_str()), (at + 1, "/"));
    }
    let first = env.get(&sandbox, "/").await;
    is_miss(&first);
    for (target, fields) in [("/?cube_preview=x", &[][..]), ("/", &cookie[..])] {
        is_bypass(&env.get_with(&sandbox, target, fields).await);
        is_hit(&env.get(&sandbox, "/").await, &first.text());
    }
    assert_eq!(asked(&origin), 6);
}
