//! HTTP/1 as RFC 9112 has it: old clients, pipelines, and requests with two lengths.

use std::time::Duration;

use cube_testkit::scripts::{self, Framing};
use cube_testkit::serde_json::json;
use cube_testkit::{Client, Exchange, Gate, Origin, Response};
use futures_util::future::join_all;

use crate::support::{cube, limits, own, tls};

/// Writes bytes on a fresh connection and reads the first response.
async fn raw(bytes: impl AsRef<[u8]>) -> Response {
    let mut client = cube().await.client().await;
    client.send(bytes).await;
    client.response("GET").await
}

#[tokio::test]
async fn an_http_1_0_client_gets_no_chunks_and_the_connection_ends() {
    let env = cube().await;
    for framing in [Framing::Chunked, Framing::Close, Framing::Length] {
        let gate = Gate::new();
        gate.open();
        gate.open();
        let origin = Origin::scripted(scripts::drip(framing, "text/plain", &["one", "two"], &gate)).await;
        let sandbox = env.sandbox(&origin).await;
        let mut client = env.client().await;
        client.send(format!("GET / HTTP/1.0\r\nHost: {}\r\n\r\n", sandbox.host())).await;
        let response = client.response("GET").await;
        assert!(!response.headers.has("Transfer-Encoding"), "{framing:?}: {}", response.brief());
        assert_eq!((response.status, response.text().as_str()), (200, "onetwo"), "{framing:?}");
        assert!(client.ended().await, "{framing:?}");
    }
}

#[tokio::test]
async fn an_http_1_0_client_is_forwarded_as_http_1_1() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    raw(format!("GET / HTTP/1.0\r\nHost: {}\r\n\r\n", sandbox.host())).await.passed(200);
    assert!(origin.last().head.starts_with(b"GET / HTTP/1.1\r\n"));
}

#[tokio::test]
async fn an_http_1_0_client_that_asks_for_it_keeps_its_connection() {
    let env = cube().await;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    for _ in 0..2 {
        client
            .send(format!("GET / HTTP/1.0\r\nHost: {}\r\nConnection: keep-alive\r\n\r\n", sandbox.host()))
            .await;
        let response = client.response("GET").await;
        assert_eq!(response.text(), "ok");
        if response.headers.get("Connection").is_none_or(|value| !value.eq_ignore_ascii_case("keep-alive")) {
            // Keeping it is an offer of the server's; when it does not offer, it must close.
            assert!(client.ended().await);
            return;
        }
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let (one, two) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let mut bytes = Vec::new();
    for n in 0..5 {
        let host = if n % 2 == 0 { one.host() } else { two.host() };
        bytes.extend(
            format!("POST /{n} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\n\r\n{n}").into_bytes(),
        );
    }
    bytes.extend(format!("GET /x HTTP/1.1\r\nHost: {}\r\n\r\n", env.nobody().host()).into_bytes());
    bytes.extend(format!("GET /last HTTP/1.1\r\nHost: {}\r\n\r\n", one.host()).into_bytes());
    let mut client = env.client().await;
    client.send(bytes).await;
    for n in 0..5 {
        let seen = client.response("POST").await.passed(200).seen();
        assert_eq!((seen.target, seen.body), (format!("/{n}"), n.to_string().into_bytes()));
    }
    client.response("GET").await.is_not_found();
    assert_eq!(client.response("GET").await.seen().target, "/last");
}

#[tokio::test]
async fn a_request_with_two_ways_to_tell_its_length_is_refused() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for framing in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding : chunked",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4, 5",
        "Content-Length: -4",
        "Content-Length: +4",
        "Content-Length: 0x4",
        "Content-Length: four",
        "Content-Length: 99999999999999999999",
        "Content-Length:",
    ] {
        let mut client = env.client().await;
        client
            .send(format!(
                "POST /first HTTP/1.1\r\nHost: {}\r\n{framing}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: {}\r\n\r\n",
                sandbox.host(),
                sandbox.host()
            ))
            .await;
        let response = client.response("POST").await;
        assert_eq!(response.status, 400, "{framing}");
        // What follows on such a connection cannot be told apart, so nothing of it is served.
        assert!(client.ended().await, "{framing}");
    }
    assert_eq!(origin.count(), 0, "{:?}", origin.received().first());
    env.get(&sandbox, "/").await.passed(200);
}

#[tokio::test]
async fn the_same_content_length_twice_is_forwarded_once() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let head = format!("POST / HTTP/1.1\r\nHost: {}\r\n", sandbox.host());
    let response = raw(format!("{head}Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody")).await;
    let seen = response.passed(200).seen();
    assert_eq!((seen.headers.all("Content-Length"), seen.body.as_slice()), (vec!["4"], &b"body"[..]));
}

/// RFC 9112, 7.1 and 7.1.2. What follows a body that ends elsewhere for another recipient would be a
/// request for one of the two.
#[tokio::test]
async fn a_chunked_request_that_does_not_follow_the_grammar_is_refused() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    for body in [
        // sizes and data
        "zz\r\nbody\r\n0\r\n\r\n",
        "-1\r\nx\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nx",
        "4\r\nbodyX\r\n0\r\n\r\n",
        "4\nbody\n0\n\n",
        "4 \r\nbody\r\n0\r\n\r\n",
        "\r\n\r\n",
        "\r\nbody\r\n0\r\n\r\n",
        // extensions
        "4;a\nb\r\nbody\r\n0\r\n\r\n",
        "4;a\0b\r\nbody\r\n0\r\n\r\n",
        "4;\r\nbody\r\n0\r\n\r\n",
        "4;a=\"b\r\nbody\r\n0\r\n\r\n",
        ";a=b\r\n\r\n",
        "4\r\nbody\r\n0;a\nb\r\n\r\n",
        // trailers
        "4\r\nbody\r\n0\r\nGET /x HTTP/1.1\r\n\r\n",
        "4\r\nbody\r\n0\r\nX T: 1\r\n\r\n",
        "4\r\nbody\r\n0\r\n X: 1\r\n\r\n",
        "4\r\nbody\r\n0\r\nX: a\0\r\n\r\n",
        "4\r\nbody\r\n0\r\nX: a\nGET /x HTTP/1.1\r\n\r\n",
    ] {
        let case = body.escape_debug();
        let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let smuggled = format!("GET /smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n");
        // With the head, and behind it.
        for apart in [false, true] {
            let mut client = env.client().await;
            if apart {
                let before = origin.count();
                client.send(&head).await;
                origin.wait_for(before + 1).await;
                client.send(format!("{body}{smuggled}")).await;
            } else {
                client.send(format!("{head}{body}{smuggled}")).await;
            }
            let response = client.response("POST").await;
            assert_eq!((response.status, response.retcode()), (400, Some(310_400)), "{case}");
            assert!(client.ended().await, "{case}");
        }
    }
    assert!(origin.received().iter().all(|request| request.target != "/smuggled" && request.target != "/x"));
    env.get(&sandbox, "/").await.passed(200);
}

/// RFC 9112, 7.1.1 and 7.1.2: the framing of a body is bounded, not only its data.
#[tokio::test]
async fn a_chunked_request_with_endless_framing_is_refused() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let head = format!("POST / HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", sandbox.host());
    for (case, body) in [
        ("a line", format!("1;{}\r\nx\r\n0\r\n\r\n", "a".repeat(5_000))),
        ("lines", format!("{}0\r\n\r\n", format!("1;{}\r\nx\r\n", "a".repeat(2_000)).repeat(10))),
        ("fields", format!("0\r\n{}\r\n", "a: b\r\n".repeat(101))),
        ("a field", format!("0\r\na: {}\r\n\r\n", "b".repeat(17_000))),
    ] {
        let mut client = env.client().await;
        client.send(format!("{head}{body}")).await;
        let response = client.response("POST").await;
        assert_eq!((response.status, response.retcode()), (400, Some(310_400)), "{case}");
        assert!(client.ended().await, "{case}");
    }
    env.get(&sandbox, "/").await.passed(200);
}

/// However the bytes come, each request gets its own body and its own response.
#[tokio::test]
async fn requests_of_every_framing_are_told_apart_wherever_they_are_cut() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    let requests = [
        (
            "POST /chunks",
            "Transfer-Encoding: chunked\r\n",
            "3;a=\"b;c\"\r\none\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\n\r\n",
            "one!",
        ),
        ("GET /bare", "", "", ""),
        ("PUT /length", "Content-Length: 9\r\n", "GET / HTT", "GET / HTT"),
        ("POST /none", "Content-Length: 0\r\n", "", ""),
        ("POST /empty", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n\r\n", ""),
        ("DELETE /last", "", "", ""),
    ];
    let bytes: String = requests
        .iter()
        .map(|(line, framing, body, _)| format!("{line} HTTP/1.1\r\nHost: {host}\r\n{framing}\r\n{body}"))
        .collect();
    for size in [1, 2, 7, 61, bytes.len()] {
        let mut client = env.client().await;
        for piece in bytes.as_bytes().chunks(size) {
            client.send(piece).await;
        }
        for (line, _, _, body) in &requests {
            let seen = client.response("POST").await.passed(200).seen();
            assert_eq!(format!("{} {}", seen.method, seen.target), *line, "{size}");
            assert_eq!(seen.body, body.as_bytes(), "{line}, {size}");
        }
    }
}

/// What Pingora would change in a request line is refused in a request that was sent ahead too.
#[tokio::test]
async fn a_target_that_would_be_changed_is_refused_when_it_was_sent_ahead() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    for first in [
        "GET /1 HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "POST /1 HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\nab",
    ] {
        let first = first.replace("{host}", &host);
        let mut client = env.client().await;
        client.send(format!("{first}GET /a b HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        client.response("GET").await.passed(200);
        assert_eq!(client.response("GET").await.status, 400, "{first}");
    }
}

#[tokio::test]
async fn methods_that_make_no_sense_here_are_refused() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    for line in [format!("CONNECT {host}:80"), "TRACE /".to_owned()] {
        let response = raw(format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(response.status, 405, "{line}");
    }
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn chunk_framing_of_the_request_is_not_forwarded_with_trailers() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        let body = exchange.body().await?;
        exchange.reply(200, &[], body).await
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let response = raw(format!(
        "POST / HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4;ext=1\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n",
        sandbox.host()
    ))
    .await;
    assert_eq!(response.passed(200).text(), "body");
    assert!(!origin.last().headers.has("Trailer"));
}

#[tokio::test]
async fn a_connection_survives_the_proxys_own_responses() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    let mut client = env.client().await;
    client.call("GET", "/", &[("Host", &env.nobody().host())], "").await.is_not_found();
    client.call("GET", "/sandbox/x", &[("Host", "127.0.0.1")], "").await.is_bad_request();
    client.call("GET", "/", &[("Host", &host)], "").await.passed(200);
}

#[tokio::test]
async fn a_refused_request_with_a_body_gets_its_whole_response() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    let mut client = env.client().await;
    let response = client.call("POST", "/", &[("Host", &env.nobody().host())], "a body").await;
    response.is_not_found();
    // With the body unread the proxy may end the connection, but it must say so; or it goes on.
    if response.headers.get("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
        assert!(client.ended().await);
    } else {
        client.call("GET", "/", &[("Host", &host)], "").await.passed(200);
    }
}

#[tokio::test]
async fn connection_close_is_honoured() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    let mut client = env.client().await;
    client.call("GET", "/", &[("Host", &host), ("Connection", "close")], "").await.passed(200);
    assert!(client.ended().await);
}

#[tokio::test]
async fn requests_that_are_sent_ahead_are_each_read_right_wherever_the_reads_cut_them() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    // Enough for several reads, of whatever size they are; each cuts a head at another place.
    let one = |n: usize| format!("GET /{n} HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.host());
    client.send((0..300).map(one).collect::<String>()).await;
    for n in 0..300 {
        assert_eq!(client.response("GET").await.passed(200).seen().target, format!("/{n}"));
    }
}

/// Asks for a sandbox that is not there, and writes its body on after the whole response has come and
/// the proxy has ended its side.
async fn writes_on_after_a_refusal(mut client: Client, framing: &str) {
    let host = cube().await.nobody().host();
    client.send(format!("POST / HTTP/1.1\r\nHost: {host}\r\n{framing}\r\n\r\n")).await;
    let response = client.response("POST").await;
    assert_eq!((response.status, response.retcode()), (404, Some(310_507)), "{framing}");
    assert!(client.ended().await, "{framing}");
    for piece in 0..200 {
        let sent = client.wire().send_chunk("x".repeat(32)).await;
        assert!(sent.is_ok(), "{framing}, piece {piece}: {sent:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_refused_client_may_write_its_body_to_the_end() {
    let tls = tls().await;
    for framing in ["Transfer-Encoding: chunked", "Content-Length: 10000000"] {
        writes_on_after_a_refusal(cube().await.client().await, framing).await;
        writes_on_after_a_refusal(tls.h1().await, framing).await;
    }
}

#[tokio::test]
async fn the_rest_of_a_head_that_came_in_with_the_request_before_is_due_as_any() {
    let env = limits().await;
    let origin = Origin::replying(200, &[], "ok").await;
    let host = env.sandbox(&origin).await.host();
    let first = [
        format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\nab"),
        format!("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
    ];
    for first in first {
        let mut client = env.client().await;
        client.send(format!("{first}GET / HTTP/1.1\r\nHos")).await;
        client.response("GET").await.passed(200);
        let late = client.response("GET").await;
        assert_eq!((late.status, late.retcode()), (408, Some(310_408)), "{first}");
        assert!(client.ended().await);
        // Nor does it keep one that is sent in time from being served.
        let mut client = env.client().await;
        client.send(format!("{first}GET / HTTP/1.1\r\nHos")).await;
        client.response("GET").await.passed(200);
        client.send(format!("t: {host}\r\n\r\n")).await;
        client.response("GET").await.passed(200);
    }
}

/// RFC 9110, 15.2 and 10.1.1: HTTP/1.0 has no interim responses, and no expectation of one.
#[tokio::test]
async fn an_http_1_0_client_gets_no_interim_response_and_its_expect_stays_here() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        exchange.send("HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n").await?;
        exchange.send("HTTP/1.1 100 Continue\r\n\r\n").await?;
        let body = exchange.body().await?;
        exchange.reply(200, &[], body).await
    })
    .await;
    let host = env.sandbox(&origin).await.host();
    for (version, interim) in [("1.0", 0), ("1.1", 2)] {
        let mut client = env.client().await;
        client
            .send(format!(
                "POST / HTTP/{version}\r\nHost: {host}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody"
            ))
            .await;
        let response = client.response("POST").await;
        assert_eq!(response.passed(200).text(), "body", "HTTP/{version}");
        assert_eq!(response.informational.len(), interim, "HTTP/{version}");
        assert_eq!(origin.last().headers.has("Expect"), version == "1.1");
    }
}

/// RFC 9112, 2.3: the version of a message is that of its sender.
#[tokio::test]
async fn the_version_of_a_response_is_the_proxys_whatever_the_origin_speaks() {
    let env = cube().await;
    for (fields, body) in [
        ("Content-Length: 2\r\n", "ok"),
        ("Content-Length: 2\r\nConnection: keep-alive\r\n", "ok"),
        ("Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n", "2\r\nok\r\n0\r\n\r\n"),
        ("", "ok"),
    ] {
        let origin = Origin::raw(format!("HTTP/1.0 200 OK\r\n{fields}\r\n{body}")).await;
        let host = env.sandbox(&origin).await.host();
        let mut client = env.client().await;
        // The connection is kept, and takes a chunked upload.
        for _ in 0..2 {
            client
                .send(format!(
                    "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
                ))
                .await;
            let response = client.response("POST").await;
            assert_eq!(response.passed(200).text(), "ok", "{fields:?}");
            assert_eq!(response.version, "HTTP/1.1", "{fields:?}");
        }
        // A body without a length or chunks is the end of an HTTP/1.0 origin's connection.
        let mut old = env.client().await;
        old.send(format!("HEAD / HTTP/1.0\r\nHost: {host}\r\n\r\n")).await;
        let response = old.response("HEAD").await;
        assert_eq!((response.passed(200).version.as_str(), response.body.len()), ("HTTP/1.1", 0));
    }
    // There is no upgrade in HTTP/1.0.
    let origin =
        Origin::raw("HTTP/1.0 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n").await;
    let host = env.sandbox(&origin).await.host();
    let response =
        raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")).await;
    assert_eq!((response.status, response.retcode()), (502, Some(310_509)));
}

/// RFC 9110, 15.5.22: a 426 says to which protocol, and 7.8: in a header that is nominated.
#[tokio::test]
async fn the_upgrade_of_a_426_reaches_clients_that_can_do_it() {
    let env = cube().await;
    for (upgrade, kept) in [("websocket", true), ("TLS/1.3, websocket", true), ("h2c", false)] {
        let headers = [("Upgrade", upgrade), ("Connection", "Upgrade")];
        let origin = Origin::replying(426, &headers, "upgrade").await;
        let host = env.sandbox(&origin).await.host();
        let mut client = env.client().await;
        // On the kept connection too, and in what comes after it there is nothing of it.
        for _ in 0..2 {
            let response = client.call("GET", "/", &[("Host", &host)], "").await;
            assert_eq!(response.passed(426).text(), "upgrade");
            let want = if kept { vec![upgrade] } else { vec![] };
            assert_eq!(response.headers.all("Upgrade"), want);
            let connection = response.headers.all("Connection").join(",").to_ascii_lowercase();
            assert_eq!(connection.contains("upgrade"), kept, "{connection}");
            let other = client.call("GET", "/", &[("Host", &env.nobody().host())], "").await;
            assert!(!other.headers.all("Connection").join(",").to_ascii_lowercase().contains("upgrade"));
        }
        let mut old = env.client().await;
        old.send(format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n")).await;
        assert!(!old.response("GET").await.passed(426).headers.has("Upgrade"));
    }
    let tls = tls().await;
    let origin = Origin::replying(426, &[("Upgrade", "websocket"), ("Connection", "Upgrade")], "").await;
    let host = tls.env.sandbox(&origin).await.host();
    let response = tls.h2().await.get(&host, "/", &[]).await;
    assert!(!response.passed(426).headers.has("Upgrade"));
    let response = tls.h1().await.call("GET", "/", &[("Host", &host)], "").await;
    assert_eq!(response.passed(426).headers.all("Upgrade"), ["websocket"]);
}

/// RFC 9112, 2.2: an empty line before a request is ignored. It is no request that has begun.
#[tokio::test]
async fn an_empty_line_after_a_body_is_ignored_and_starts_no_clock() {
    const HEADER_TIMEOUT: Duration = Duration::from_millis(300);
    let env = own(json!({ "limits": { "header_timeout": "300ms" } })).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let host = env.sandbox(&origin).await.host();
    let post = format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\nab");
    let chunked =
        format!("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n");
    let get = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let case = async |with: &str, later: &str, first: &str| {
        let case = format!("{with:?}, {later:?} after {first}");
        let mut client = env.client().await;
        client.send(format!("{first}{with}")).await;
        client.response("POST").await.passed(200);
        client.send(later).await;
        let quiet = tokio::time::timeout(3 * HEADER_TIMEOUT, client.wire().some(1)).await;
        assert!(quiet.is_err(), "{case}: {quiet:?}");
        client.send(&get).await;
        client.response("GET").await.passed(200);
        // The head itself has its clock.
        client.send("\r\nGET / HTTP/1.1\r\n").await;
        assert_eq!(client.response("GET").await.status, 408, "{case}");
    };
    // What comes with the body, and what a moment later.
    let lines = [("\r\n", ""), ("\n", ""), ("\r\n\r\n", ""), ("\r", "\n"), ("", "\r\n"), ("\r\n", "\r\n")];
    let all = lines
        .iter()
        .flat_map(|(with, later)| [&post, &chunked, &get].into_iter().map(|first| case(with, later, first)));
    join_all(all).await;
    // At the beginning, in pieces, and before a request that is sent ahead.
    for bytes in ["\r\n", "\r\n\n\r\n", "\n"] {
        let mut client = env.client().await;
        for byte in bytes.as_bytes() {
            client.send([*byte]).await;
        }
        client.send(format!("{get}{bytes}{get}")).await;
        client.response("GET").await.passed(200);
        client.response("GET").await.passed(200);
    }
    // A CR alone is no line.
    let mut client = env.client().await;
    client.send(format!("\r{get}")).await;
    assert_eq!(client.response("GET").await.status, 400);
}
