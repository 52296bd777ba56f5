//! HTTP/2 clients (connections.md), and the public mix-up of responses (connections.md, "Framing").

use cube_testkit::{By, Exchange, Gate, Origin};

use crate::support::tls;

/// An HTTP/2 client ends a body of unknown length with an empty DATA frame. Towards an HTTP/1.1
/// application Pingora alone would then write the chunked terminator twice; the second becomes
/// the first "request" of whoever gets that pooled connection next, and every response shifts by one.
#[tokio::test]
async fn an_upload_that_ends_with_an_empty_frame_shifts_nobodys_response() {
    let tls = tls().await;
    let env = &tls.env;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let client = tls.h2().await;
    for round in 0..30 {
        let mut upload = client.open("POST", &host, "/upload", &[]).await;
        upload.data(format!("body {round}"), false).await.unwrap();
        // The terminator must come on its own, or Pingora would have joined it to the data.
        origin_has(&origin, round).await;
        upload.data("", true).await.unwrap();
        let response = upload.response().await;
        assert_eq!(response.passed(200).seen().body, format!("body {round}").into_bytes());
        for n in 0..5 {
            let target = format!("/own-{round}-{n}");
            let seen = if n % 2 == 0 {
                env.call(By::Path, &sandbox, "GET", &target, &[], "").await.seen()
            } else {
                client.get(&host, &target, &[]).await.seen()
            };
            assert_eq!(seen.target, target, "a response of somebody else");
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
    let response = tls.h2().await.get(&tls.env.nobody().host(), "/", &[]).await;
    response.is_not_found();
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
    assert_eq!(upload.response().await.text(), "onetwothree");
}

#[tokio::test]
async fn a_cut_response_is_a_reset_stream_and_other_streams_go_on() {
    let tls = tls().await;
    let gate = Gate::new();
    gate.open();
    let origin =
        Origin::scripted(cube_testkit::scripts::cut(cube_testkit::scripts::Framing::Chunked, &gate, true))
            .await;
    let good = Origin::echo().await;
    let (cut, good) = (tls.env.sandbox(&origin).await, tls.env.sandbox(&good).await);
    let client = tls.h2().await;
    let response = client.get(&cut.host(), "/", &[]).await;
    assert!(!response.clean, "{}", response.brief());
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

/// RFC 9110, 8.6: HTTP/1.1 has only the length to tell that there is no content.
#[tokio::test]
async fn a_request_that_ends_with_its_head_says_so_in_http_1_1() {
    let tls = tls().await;
    let origin = Origin::echo().await;
    let host = tls.env.sandbox(&origin).await.host();
    let client = tls.h2().await;
    for (method, headers, lengths) in [
        ("POST", &[][..], vec!["0"]),
        ("PUT", &[], vec!["0"]),
        ("PATCH", &[], vec!["0"]),
        ("POST", &[("content-length", "0")], vec!["0"]),
        ("GET", &[], vec![]),
        ("DELETE", &[], vec![]),
        ("OPTIONS", &[], vec![]),
    ] {
        let seen = client.bare(method, &host, "/", headers).await.passed(200).seen();
        assert_eq!(seen.headers.all("Content-Length"), lengths, "{method}");
        assert!(!seen.headers.has("Transfer-Encoding"), "{method}");
    }
    let mut upload = client.open("POST", &host, "/", &[]).await;
    upload.data("body", true).await.unwrap();
    let seen = upload.response().await.passed(200).seen();
    assert_eq!((seen.body.as_slice(), seen.headers.has("Content-Length")), (&b"body"[..], false));
}

/// RFC 9113, 8.2.3: a cookie may come in pieces, and is one header.
#[tokio::test]
async fn the_pieces_of_a_cookie_count_as_the_header_they_make() {
    let tls = tls().await;
    let origin = Origin::echo().await;
    let host = tls.env.sandbox(&origin).await.host();
    let client = tls.h2().await;
    let pieces: Vec<String> = (0..1001).map(|n| format!("c{n}=v")).collect();
    let crumbs =
        |count: usize| pieces.iter().take(count).map(|piece| ("cookie", piece.as_str())).collect::<Vec<_>>();
    for count in [1, 2, 110, 1000] {
        let seen = client.get(&host, "/", &crumbs(count)).await.passed(200).seen();
        assert_eq!(seen.headers.all("Cookie"), [pieces[..count].join("; ")], "{count}");
    }
    let refused = client.get(&host, "/", &crumbs(1001)).await;
    assert_eq!((refused.status, refused.retcode()), (431, Some(310_431)));
    // Beside them the limit of headers stays what it was: 98 and the authority and one cookie pass.
    let names: Vec<String> = (0..99).map(|n| format!("x-{n}")).collect();
    let with = |others: usize| {
        let mut headers = crumbs(110);
        headers.extend(names.iter().take(others).map(|name| (name.as_str(), "v")));
        headers
    };
    client.get(&host, "/", &with(98)).await.passed(200);
    assert_eq!(client.get(&host, "/", &with(99)).await.status, 431);
}
