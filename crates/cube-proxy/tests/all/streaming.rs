//! Nothing is buffered, in either direction (connections.md, "Streaming").

use std::time::{Duration, Instant};

use cube_testkit::scripts::{self, Framing};
use cube_testkit::{By, Exchange, Gate, Origin, eventually};

use crate::support::{cube, tls, waking};

#[tokio::test]
async fn a_chunk_of_the_application_is_at_the_client_at_once() {
    let env = cube().await;
    for (by, framing, kind) in [
        (By::Host, Framing::Chunked, "application/octet-stream"),
        (By::Path, Framing::Chunked, "text/html"),
        (By::Host, Framing::Length, "application/json"),
        (By::Header, Framing::Chunked, "text/event-stream"),
        (By::Path, Framing::Close, "text/plain"),
    ] {
        let gate = Gate::new();
        let pieces = ["part0", "part1", "part2"];
        let origin = Origin::scripted(scripts::drip(framing, kind, &pieces, &gate)).await;
        let sandbox = env.sandbox(&origin).await;
        let (target, named) = env.naming(by, &sandbox, "/s");
        let named: Vec<(&str, &str)> = named.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let mut client = env.client().await;
        client.request("GET", &target, &named).await;
        // The head is here before any of the body was written.
        let head = client.head().await;
        assert_eq!(head.status, 200, "{by:?} {framing:?}");
        let chunked = head.headers.has("Transfer-Encoding");
        for piece in pieces {
            // The next piece is not written before this one was seen.
            gate.open();
            let got = if chunked {
                client.next_chunk().await
            } else {
                cube_testkit::within("a piece", client.wire().exactly(5)).await.unwrap()
            };
            assert_eq!(got, piece.as_bytes(), "{by:?} {framing:?}");
        }
        if chunked {
            assert!(client.next_chunk().await.is_empty());
        }
    }
}

#[tokio::test]
async fn a_chunk_of_the_client_is_at_the_application_before_the_response_begins() {
    let env = cube().await;
    for (by, chunked) in [(By::Host, true), (By::Path, true), (By::Header, false)] {
        let arrived = Gate::new();
        let origin = Origin::scripted(scripts::collect(&arrived)).await;
        let sandbox = env.sandbox(&origin).await;
        let (target, named) = env.naming(by, &sandbox, "/up");
        let mut headers: Vec<(&str, &str)> = named.iter().map(|(n, v)| (*n, v.as_str())).collect();
        headers.push(if chunked { ("Transfer-Encoding", "chunked") } else { ("Content-Length", "15") });
        let mut client = env.client().await;
        client.request("POST", &target, &headers).await;
        for piece in ["part0", "part1", "part2"] {
            if chunked {
                client.chunk(piece).await;
            } else {
                client.send(piece).await;
            }
            arrived.pass().await;
        }
        if chunked {
            client.send("0\r\n\r\n").await;
        }
        assert_eq!(client.response("POST").await.text(), "part0part1part2");
    }
}

#[tokio::test]
async fn both_directions_stream_at_the_same_time() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client.request("POST", "/", &[("Host", &sandbox.host()), ("Transfer-Encoding", "chunked")]).await;
    client.chunk("first").await;
    client.head().await.passed(200);
    assert_eq!(client.next_chunk().await, b"first");
    client.chunk("second").await;
    assert_eq!(client.next_chunk().await, b"second");
    client.send("0\r\n\r\n").await;
    assert!(client.next_chunk().await.is_empty());
}

#[tokio::test]
async fn a_100_continue_comes_from_the_application() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        assert_eq!(exchange.request.headers.get("Expect"), Some("100-continue"));
        exchange.send("HTTP/1.1 100 Continue\r\n\r\n").await?;
        let body = exchange.body().await?;
        exchange.reply(200, &[], body).await
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    let headers =
        [("Host", sandbox.host()), ("Expect", "100-continue".into()), ("Content-Length", "5".into())];
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    client.request("POST", "/", &headers).await;
    let interim = cube_testkit::within("a 100", client.wire().head()).await.unwrap().unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100"), "{}", interim.escape_ascii());
    client.send("hello").await;
    assert_eq!(client.response("POST").await.text(), "hello");
}

#[tokio::test]
async fn no_100_is_sent_for_a_sandbox_that_may_not_be_reached() {
    let env = cube().await;
    let mut client = env.client().await;
    let host = env.nobody().host();
    let headers = [("Host", host.as_str()), ("Expect", "100-continue"), ("Content-Length", "5")];
    client.request("POST", "/", &headers).await;
    let head = client.head().await;
    assert!(head.informational.is_empty());
    client.body(head, "POST").await.is_not_found();
}

/// Neither before the token nor before the gate nor before there is a connection.
#[tokio::test]
async fn no_100_comes_before_what_may_refuse_the_request() {
    let env = waking().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        exchange.send("HTTP/1.1 100 Continue\r\n\r\n").await?;
        let body = exchange.body().await?;
        exchange.reply(200, &[], body).await
    })
    .await;
    let private = env.sandbox(&origin).token("example-token").await;
    let asleep = env.sandbox(&origin).await;
    env.push(&asleep, "pausing").await;
    let closed = env.sandbox_at(([127, 0, 0, 1], cube_testkit::refused_port()).into()).await;
    for (sandbox, status) in [(private, 404), (asleep, 503), (closed, 502)] {
        let host = sandbox.host();
        let headers = [("Host", host.as_str()), ("Expect", "100-continue"), ("Content-Length", "5")];
        let mut client = env.client().await;
        client.request("POST", "/", &headers).await;
        let head = client.head().await;
        assert_eq!((head.status, head.informational.len()), (status, 0));
    }
    assert_eq!(origin.count(), 0);
}

/// HTTP/1.1 trailers do not pass, so the announcement of them does not either.
#[tokio::test]
async fn trailers_that_do_not_pass_are_not_announced() {
    let tls = tls().await;
    let origin = Origin::raw(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
    )
    .await;
    let sandbox = tls.env.sandbox(&origin).await;
    let h1 = tls.env.get(&sandbox, "/").await;
    let h2 = tls.h2().await.get(&sandbox.host(), "/", &[]).await;
    for response in [h1, h2] {
        assert_eq!(
            (response.passed(200).text().as_str(), response.clean),
            ("ok", true),
            "{}",
            response.version
        );
        assert!(
            !response.headers.has("Trailer") && response.trailers.get("X-Sum").is_none(),
            "{}",
            response.brief()
        );
    }
}

#[tokio::test]
async fn early_hints_pass() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        exchange.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n").await?;
        exchange.reply(200, &[], "ok").await
    })
    .await;
    let response = env.get(&env.sandbox(&origin).await, "/").await;
    assert_eq!(response.passed(200).text(), "ok");
    let hints: Vec<_> = response.informational.iter().map(|a| (a.status, a.headers.get("Link"))).collect();
    assert_eq!(hints, [(103, Some("</a.css>; rel=preload"))]);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_upstream_request_within_a_second() {
    let env = cube().await;
    for mid_response in [true, false] {
        let origin = Origin::scripted(move |mut exchange: Exchange| async move {
            if mid_response {
                exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
                exchange.chunk("first").await?;
            }
            exchange.gone().await;
            exchange.close().await
        })
        .await;
        let sandbox = env.sandbox(&origin).await;
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        origin.wait_for(1).await;
        if mid_response {
            client.head().await;
            client.next_chunk().await;
        }
        drop(client);
        let begin = Instant::now();
        eventually("the upstream connection to end", || async {
            (origin.open_connections() == 0).then_some(())
        })
        .await;
        assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_response_is_logged_as_gone() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::hang).await;
    let sandbox = env.sandbox(&origin).await;
    let id = cube_testkit::unique_id("left");
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host()), ("X-Cube-Request-Id", &id)]).await;
    origin.wait_for(1).await;
    drop(client);
    let line = env.proxy.log_line(&id).await;
    assert_eq!((line.field("retcode"), line.field("reason")), ("310499", "client_closed"));
}
