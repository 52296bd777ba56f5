//! HTTP/2 clients (connections.md), and the public mix-up of responses (connections.md, "Framing").

use cube_testkit::{By, Exchange, Gate, Origin};

use crate::support::tls;

/// An HTTP/2 client ends a body of unknown length with an empty DATA frame. Towards an HTTP/1.1
/// application the engine alone would then write the chunked terminator twice; the second becomes
/// the first "request" of whoever gets that pooled connection next, and every answer shifts by one.
#[tokio::test]
async fn an_upload_that_ends_with_an_empty_frame_shifts_nobodys_answer() {
    let tls = tls().await;
    let env = &tls.env;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let client = tls.h2().await;
    for round in 0..30 {
        let mut upload = client.open("POST", &host, "/upload", &[]).await;
        upload.data(format!("body {round}"), false).await.unwrap();
        // The terminator must come on its own, or the engine would have joined it to the data.
        origin_has(&origin, round).await;
        upload.data("", true).await.unwrap();
        let answer = upload.answer().await;
        assert_eq!(answer.passed(200).seen().body, format!("body {round}").into_bytes());
        for n in 0..5 {
            let target = format!("/own-{round}-{n}");
            let seen = if n % 2 == 0 {
                env.call(By::Path, &sandbox, "GET", &target, &[], "").await.seen()
            } else {
                client.get(&host, &target, &[]).await.seen()
            };
            assert_eq!(seen.target, target, "an answer of somebody else");
        }
    }
    for request in origin.received() {
        assert!(
            request.head.starts_with(b"GET /own-") || request.head.starts_with(b"POST /upload"),
            "{request:?}"
        );
    }
    assert_eq!(origin.count(), 30 * 6);
    assert!(origin.connections() < 30, "the pool was not used: {} connections", origin.connections());
}

/// Waits until the head of that upload is at the origin, so that its end comes later.
async fn origin_has(origin: &Origin, round: usize) {
    origin.wait_for(round * 6 + 1).await;
}

#[tokio::test]
async fn one_connection_carries_requests_for_many_sandboxes() {
    let tls = tls().await;
    let (one, two) = (Origin::named("one").echo().await, Origin::named("two").echo().await);
    let (first, second) = (tls.env.sandbox(&one).await, tls.env.sandbox(&two).await);
    let client = tls.h2().await;
    let first_host = first.host();
    let (a, b) = tokio::join!(client.get(&first_host, "/a%2Fb?c", &[]), async {
        let headers = [("e2b-sandbox-id", second.id.as_str()), ("e2b-sandbox-port", "8080")];
        client.get("sandbox.cube.test", "//x", &headers).await
    });
    let (a, b) = (a.passed(200).seen(), b.passed(200).seen());
    assert_eq!((a.origin.as_str(), a.target.as_str()), ("one", "/a%2Fb?c"));
    assert_eq!((b.origin.as_str(), b.target.as_str()), ("two", "//x"));
    assert_eq!(a.headers.all("X-Forwarded-Proto"), ["https"]);
    assert_eq!(a.headers.all("Host"), [first_host]);
    assert!(one.last().head.starts_with(b"GET /a%2Fb?c HTTP/1.1\r\n"));
}

#[tokio::test]
async fn an_unknown_sandbox_is_not_found_over_http_2_too() {
    let tls = tls().await;
    let answer = tls.h2().await.get(&tls.env.nobody().host(), "/", &[]).await;
    answer.is_not_found();
}

#[tokio::test]
async fn a_frame_of_the_client_is_at_the_application_at_once() {
    let tls = tls().await;
    let arrived = Gate::new();
    let seen = arrived.clone();
    let origin = Origin::scripted(move |mut exchange: Exchange| {
        let seen = seen.clone();
        async move {
            exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
            loop {
                let piece = exchange.piece().await?;
                if piece.is_empty() {
                    return exchange.end().await;
                }
                seen.open();
                exchange.chunk(piece).await?;
            }
        }
    })
    .await;
    let sandbox = tls.env.sandbox(&origin).await;
    let mut upload = tls.h2().await.open("POST", &sandbox.host(), "/", &[]).await;
    for piece in ["one", "two", "three"] {
        upload.data(piece, false).await.unwrap();
        arrived.pass().await;
    }
    upload.data("", true).await.unwrap();
    assert_eq!(upload.answer().await.text(), "onetwothree");
}

#[tokio::test]
async fn a_cut_answer_is_a_reset_stream_and_other_streams_go_on() {
    let tls = tls().await;
    let gate = Gate::new();
    gate.open();
    let origin =
        Origin::scripted(cube_testkit::scripts::cut(cube_testkit::scripts::Framing::Chunked, &gate, true))
            .await;
    let good = Origin::echo().await;
    let (cut, good) = (tls.env.sandbox(&origin).await, tls.env.sandbox(&good).await);
    let client = tls.h2().await;
    let answer = client.get(&cut.host(), "/", &[]).await;
    assert!(!answer.clean, "{}", answer.brief());
    client.get(&good.host(), "/", &[]).await.passed(200);
}

#[tokio::test]
async fn a_stream_that_the_client_resets_ends_its_upstream_request() {
    let tls = tls().await;
    let origin = Origin::scripted(cube_testkit::scripts::hang).await;
    let sandbox = tls.env.sandbox(&origin).await;
    let client = tls.h2().await;
    let upload = client.open("POST", &sandbox.host(), "/", &[]).await;
    origin.wait_for(1).await;
    assert_eq!(origin.open_connections(), 1);
    upload.reset();
    cube_testkit::eventually("the upstream connection to end", || async {
        (origin.open_connections() == 0).then_some(())
    })
    .await;
}
