//! HTTP/1 as RFC 9112 has it: old clients, pipelines, and requests with two lengths.

use cube_testkit::scripts::{self, Framing};
use cube_testkit::{Answer, Client, Exchange, Gate, Origin};

use crate::support::{cube, limits, tls};

/// Writes bytes on a fresh connection and reads the first answer.
async fn raw(bytes: impl AsRef<[u8]>) -> Answer {
    let mut client = cube().await.client().await;
    client.send(bytes).await;
    client.answer("GET").await
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
        let answer = client.answer("GET").await;
        assert!(!answer.headers.has("Transfer-Encoding"), "{framing:?}: {}", answer.brief());
        assert_eq!((answer.status, answer.text().as_str()), (200, "onetwo"), "{framing:?}");
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
        let answer = client.answer("GET").await;
        assert_eq!(answer.text(), "ok");
        if answer.headers.get("Connection").is_none_or(|value| !value.eq_ignore_ascii_case("keep-alive")) {
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
        let seen = client.answer("POST").await.passed(200).seen();
        assert_eq!((seen.target, seen.body), (format!("/{n}"), n.to_string().into_bytes()));
    }
    client.answer("GET").await.is_not_found();
    assert_eq!(client.answer("GET").await.seen().target, "/last");
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
        let answer = client.answer("POST").await;
        assert_eq!(answer.status, 400, "{framing}");
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
    let answer = raw(format!("{head}Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody")).await;
    let seen = answer.passed(200).seen();
    assert_eq!((seen.headers.all("Content-Length"), seen.body.as_slice()), (vec!["4"], &b"body"[..]));
}

#[tokio::test]
async fn a_chunked_request_that_is_malformed_reaches_no_second_request() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for body in [
        "zz\r\nbody\r\n0\r\n\r\n",
        "-1\r\nx\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nx",
        "4\r\nbodyX\r\n0\r\n\r\n",
    ] {
        let before = origin.received().iter().filter(|r| r.target == "/smuggled").count();
        let mut client = env.client().await;
        let host = sandbox.host();
        client
            .send(format!(
                "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n{body}GET /smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n"
            ))
            .await;
        let answer = client.try_head().await;
        assert!(!matches!(answer, Ok(Some(Answer { status: 200, .. }))), "{body:?}");
        let after = origin.received().iter().filter(|r| r.target == "/smuggled").count();
        assert_eq!(before, after, "{body:?}");
    }
    env.get(&sandbox, "/").await.passed(200);
}

#[tokio::test]
async fn methods_that_make_no_sense_here_are_refused() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    for line in [format!("CONNECT {host}:80"), "TRACE /".to_owned()] {
        let answer = raw(format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(answer.status, 405, "{line}");
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
    let answer = raw(format!(
        "POST / HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4;ext=1\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n",
        sandbox.host()
    ))
    .await;
    assert_eq!(answer.passed(200).text(), "body");
    assert!(!origin.last().headers.has("Trailer"));
}

#[tokio::test]
async fn a_connection_survives_the_proxys_own_answers() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    let mut client = env.client().await;
    client.call("GET", "/", &[("Host", &env.nobody().host())], "").await.is_not_found();
    client.call("GET", "/sandbox/x", &[("Host", "127.0.0.1")], "").await.is_bad_request();
    client.call("GET", "/", &[("Host", &host)], "").await.passed(200);
}

#[tokio::test]
async fn a_refused_request_with_a_body_gets_its_whole_answer() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    let mut client = env.client().await;
    let answer = client.call("POST", "/", &[("Host", &env.nobody().host())], "a body").await;
    answer.is_not_found();
    // With the body unread the proxy may end the connection, but it must say so; or it goes on.
    if answer.headers.get("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
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
        assert_eq!(client.answer("GET").await.passed(200).seen().target, format!("/{n}"));
    }
}

/// Asks for a sandbox that is not there, and writes its body on after the whole answer has come and
/// the proxy has ended its side.
async fn writes_on_after_a_refusal(mut client: Client, framing: &str) {
    let host = cube().await.nobody().host();
    client.send(format!("POST / HTTP/1.1\r\nHost: {host}\r\n{framing}\r\n\r\n")).await;
    let answer = client.answer("POST").await;
    assert_eq!((answer.status, answer.retcode()), (404, Some(310_507)), "{framing}");
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
        client.answer("GET").await.passed(200);
        let late = client.answer("GET").await;
        assert_eq!((late.status, late.retcode()), (408, Some(310_408)), "{first}");
        assert!(client.ended().await);
        // Nor does it keep one that is sent in time from being served.
        let mut client = env.client().await;
        client.send(format!("{first}GET / HTTP/1.1\r\nHos")).await;
        client.answer("GET").await.passed(200);
        client.send(format!("t: {host}\r\n\r\n")).await;
        client.answer("GET").await.passed(200);
    }
}
