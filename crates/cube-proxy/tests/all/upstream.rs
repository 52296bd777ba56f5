//! Applications that do not behave: a clear response each, the process lives, the next request is
//! right (errors.md, docs/architecture.md).

use cube_testkit::{BlackHole, Env, Gate, Origin, Sandbox, refused_port, scripts};

use crate::support::{cube, limits};

/// The proxy still serves others, and this sandbox once it has an application that behaves.
async fn next_is_right(env: &Env, sandbox: &Sandbox, old: Option<Origin>) {
    if let Some(old) = old {
        old.stop().await;
    }
    let healthy = Origin::named("healthy").echo().await;
    env.get(&env.sandbox(&healthy).await, "/").await.passed(200);
    env.write(sandbox, &[("8080", &healthy.port().to_string())]).await;
    cube_testkit::eventually("the mended sandbox", || async {
        let response = env.get(sandbox, "/").await;
        (response.status == 200 && response.seen().origin == "healthy").then_some(())
    })
    .await;
}

#[tokio::test]
async fn refused_is_a_502_at_once() {
    let env = cube().await;
    let sandbox = env.sandbox_at(([127, 0, 0, 1], refused_port()).into()).await;
    let response = env.get(&sandbox, "/").await;
    response.is_bad_gateway(310_509);
    assert!(response.took.as_millis() < 1_000, "{:?}", response.took);
    assert_eq!(env.proxy.log_line(&response.request_id()).await.field("reason"), "connect_refused");
    next_is_right(env, &sandbox, None).await;
}

#[tokio::test]
async fn a_connect_that_never_ends_is_a_504() {
    let env = cube().await;
    let hole = BlackHole::open("127.0.0.52").await;
    let sandbox = env.sandbox_at(hole.address()).await;
    let response = env.get(&sandbox, "/").await;
    response.is_gateway_timeout();
    assert!((400..3_000).contains(&response.took.as_millis()), "{:?}", response.took);
    assert_eq!(env.proxy.log_line(&response.request_id()).await.field("reason"), "connect_timeout");
}

#[tokio::test]
async fn one_dead_sandbox_takes_no_neighbour_down() {
    let env = limits().await;
    let hole = BlackHole::open("127.0.0.53").await;
    let neighbour = Origin::named("neighbour").on("127.0.0.53").echo().await;
    let (dead, good) = (env.sandbox_at(hole.address()).await, env.sandbox(&neighbour).await);
    for _ in 0..4 {
        env.get(&dead, "/").await.is_gateway_timeout();
    }
    env.get(&good, "/").await.passed(200);
}

#[tokio::test]
async fn reset_or_closed_before_a_response_is_a_502() {
    let env = cube().await;
    for reset in [true, false] {
        let origin = Origin::scripted(move |exchange| async move {
            if reset { exchange.reset().await } else { exchange.close().await }
        })
        .await;
        let sandbox = env.sandbox(&origin).await;
        env.post(&sandbox, "/", "x").await.is_bad_gateway(310_509);
        env.get(&sandbox, "/").await.is_bad_gateway(310_509);
        next_is_right(env, &sandbox, Some(origin)).await;
    }
}

#[tokio::test]
async fn silence_is_a_504() {
    let env = limits().await;
    let origin = Origin::scripted(scripts::hang).await;
    let sandbox = env.sandbox(&origin).await;
    let response = env.post(&sandbox, "/", "x").await;
    response.is_gateway_timeout();
    assert!((800..2_500).contains(&response.took.as_millis()), "{:?}", response.took);
    assert_eq!(env.proxy.log_line(&response.request_id()).await.field("reason"), "upstream_timeout");
    next_is_right(env, &sandbox, Some(origin)).await;
}

#[tokio::test]
async fn garbage_for_a_response_is_a_502() {
    let env = cube().await;
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b",
        b"\0\0\0\0\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
    ] {
        let origin = Origin::raw(garbage).await;
        let sandbox = env.sandbox(&origin).await;
        env.post(&sandbox, "/", "x").await.is_bad_gateway(310_509);
        assert_eq!(origin.count(), 1, "{garbage:?}");
        next_is_right(env, &sandbox, Some(origin)).await;
    }
}

#[tokio::test]
async fn two_content_lengths_are_never_passed_on() {
    let env = cube().await;
    for (lengths, body) in
        [("3\r\nContent-Length: 5", "abcde"), ("3, 5", "abcde"), ("-1", ""), ("abc", "abc")]
    {
        let origin = Origin::raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {lengths}\r\n\r\n{body}")).await;
        let sandbox = env.sandbox(&origin).await;
        env.post(&sandbox, "/", "x").await.is_bad_gateway(310_509);
        next_is_right(env, &sandbox, Some(origin)).await;
    }
}

#[tokio::test]
async fn a_response_with_chunked_and_a_length_is_framed_once() {
    let env = cube().await;
    let origin = Origin::raw(
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    )
    .await;
    let response = env.get(&env.sandbox(&origin).await, "/").await;
    // RFC 9112, 6.3: chunked wins; a proxy may also refuse.
    if response.status == 200 {
        assert_eq!((response.text().as_str(), response.clean), ("abcde", true));
        assert!(!response.headers.has("Content-Length"), "{}", response.brief());
    } else {
        response.is_bad_gateway(310_509);
    }
}

#[tokio::test]
async fn a_cut_body_never_looks_like_a_clean_end() {
    use scripts::Framing::{Chunked, Close, Length};
    let env = cube().await;
    for (framing, reset) in
        [(Chunked, false), (Chunked, true), (Length, false), (Length, true), (Close, true)]
    {
        let gate = Gate::new();
        let origin = Origin::scripted(scripts::cut(framing, &gate, reset)).await;
        let sandbox = env.sandbox(&origin).await;
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        let head = client.head().await;
        assert_eq!((head.status, head.retcode()), (200, Some(310_200)));
        gate.open();
        let response = client.body(head, "GET").await;
        assert!(!response.clean, "{framing:?}, reset {reset}: {}", response.brief());
        let line = env.proxy.log_line(&response.request_id()).await;
        assert_eq!((line.field("retcode"), line.field("reason")), ("310200", "upstream_cut"), "{framing:?}");
        next_is_right(env, &sandbox, Some(origin)).await;
    }
}

#[tokio::test]
async fn bytes_after_a_complete_response_reach_nobody() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange| async move {
        exchange.body().await?;
        exchange
            .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
            .await?;
        Ok(exchange)
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    for _ in 0..10 {
        assert_eq!(client.call("GET", "/", &[("Host", &sandbox.host())], "").await.text(), "ok");
    }
}

/// Pingora reads a head into 256 places and has no setting for it (docs/architecture.md, "What is
/// not there"): what it takes passes whole, what it does not is a 502 that says so in the log.
#[tokio::test]
async fn a_response_has_as_many_headers_as_pingora_reads() {
    let env = cube().await;
    for (count, passes) in [(101, true), (256, true), (257, false)] {
        let headers: String = (1..count).map(|n| format!("X-{n}: {n}\r\n")).collect();
        let origin = Origin::raw(format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 2\r\n\r\nok")).await;
        let sandbox = env.sandbox(&origin).await;
        let response = env.get(&sandbox, "/").await;
        if passes {
            assert_eq!(response.passed(200).text(), "ok", "{count}");
            let own = response
                .headers
                .pairs()
                .iter()
                .filter(|(name, _)| name.starts_with("X-") && !name.starts_with("X-Cube"));
            assert_eq!(own.count(), count - 1);
        } else {
            response.is_bad_gateway(310_509);
            let line = env.proxy.log_line(&response.request_id()).await;
            assert_eq!(line.field("reason"), "upstream_malformed");
        }
        next_is_right(env, &sandbox, Some(origin)).await;
    }
}
