//! Limits and times (connections.md), in a proxy where all of them are small.

use std::time::{Duration, Instant};

use cube_testkit::{Exchange, Gate, Origin, eventually, scripts, within};

use cube_testkit::serde_json::json;

use crate::support::{limits, own, with_open_files};

#[tokio::test]
async fn a_body_over_the_limit_is_a_413_before_the_application_hears_of_it() {
    let env = limits().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.post(&sandbox, "/", "x".repeat(1024)).await.passed(200);
    let mut client = env.client().await;
    client.request("POST", "/big", &[("Host", &sandbox.host()), ("Content-Length", "1025")]).await;
    client.response("POST").await.is_own(413, 310_413, r#"{"error":"payload too large"}"#);
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn a_chunked_body_over_the_limit_is_aborted_and_never_completed() {
    let env = limits().await;
    let cut = Gate::new();
    let seen = cut.clone();
    let origin = Origin::scripted(move |mut exchange: Exchange| {
        let seen = seen.clone();
        async move {
            if exchange.body().await.is_err() {
                seen.open();
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            exchange.reply(200, &[], "whole").await
        }
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client.request("POST", "/", &[("Host", &sandbox.host()), ("Transfer-Encoding", "chunked")]).await;
    client.chunk(vec![b'x'; 1000]).await;
    origin.wait_for(1).await;
    client.chunk(vec![b'x'; 25]).await;
    client.response("POST").await.is_own(413, 310_413, r#"{"error":"payload too large"}"#);
    cut.pass().await;
}

#[tokio::test]
async fn a_head_over_a_limit_is_refused_with_its_own_status() {
    let env = limits().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let long = "x".repeat(5000);
    env.get_with(&sandbox, "/", &[("X-Long", &long)]).await.is_own(
        431,
        310_431,
        r#"{"error":"header fields too large"}"#,
    );
    // Host counts: 19 more pass, 20 more do not.
    let names: Vec<String> = (0..20).map(|n| format!("X-{n}")).collect();
    let fields: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    env.get_with(&sandbox, "/", &fields[..19]).await.passed(200);
    env.get_with(&sandbox, "/", &fields).await.is_own(431, 310_431, r#"{"error":"header fields too large"}"#);
    let target = format!("/{}", "t".repeat(511));
    env.get(&sandbox, &target).await.passed(200);
    let target = format!("/{}", "t".repeat(512));
    env.get(&sandbox, &target).await.is_own(414, 310_414, r#"{"error":"uri too long"}"#);
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn requests_of_one_sandbox_are_limited_and_others_are_not_touched() {
    let env = limits().await;
    let gate = Gate::new();
    let origin =
        Origin::scripted(scripts::drip(scripts::Framing::Chunked, "text/plain", &["end"], &gate)).await;
    let (busy, other) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let mut held = Vec::new();
    for n in 1..=2 {
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &busy.host())]).await;
        client.head().await;
        origin.wait_for(n).await;
        held.push(client);
    }
    env.get(&busy, "/").await.is_own(429, 310_429, r#"{"error":"too many requests"}"#);
    gate.open();
    gate.open();
    gate.open();
    env.get(&other, "/").await.passed(200);
    for mut client in held {
        assert_eq!(client.next_chunk().await, b"end");
        assert!(client.next_chunk().await.is_empty());
    }
    gate.open();
    eventually("room again", || async { (env.get(&busy, "/").await.status == 200).then_some(()) }).await;
}

#[tokio::test]
async fn a_head_that_trickles_in_is_ended_by_the_deadline() {
    let env = limits().await;
    let mut client = env.client().await;
    let begin = Instant::now();
    let mut ended = None;
    for byte in b"GET / HTTP/1.1\r\nHost: x\r\nX-A: bcdefghijklmnopqrstuvwxyz".chunks(1) {
        // A byte now and then keeps any per-read timeout from firing.
        match tokio::time::timeout(Duration::from_millis(100), client.wire().some(4096)).await {
            Ok(end) => {
                ended = Some(end);
                break;
            }
            Err(_) => client.send(byte).await,
        }
    }
    assert!(ended.is_some(), "still open after {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    // What is said before the end, if anything, is a 408.
    if let Some(Ok(bytes)) = ended {
        assert!(bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 408"), "{}", bytes.escape_ascii());
    }
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_without_a_word() {
    let env = limits().await;
    let mut client = env.client().await;
    let begin = Instant::now();
    assert!(client.ended().await, "a response to nothing");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_body_that_stops_coming_is_a_408() {
    let env = limits().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client.request("POST", "/", &[("Host", &sandbox.host()), ("Content-Length", "10")]).await;
    client.send("half").await;
    let response = client.response("POST").await;
    response.is_own(408, 310_408, r#"{"error":"request timeout"}"#);
    assert!(response.took < Duration::from_secs(3), "{:?}", response.took);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_so_is_one_that_has_had_its_requests() {
    let env = limits().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let mut idle = env.client().await;
    let mut busy = env.client().await;
    for _ in 0..2 {
        idle.call("GET", "/", &[("Host", &host)], "").await.passed(200);
    }
    for _ in 0..3 {
        busy.call("GET", "/", &[("Host", &host)], "").await.passed(200);
    }
    let begin = Instant::now();
    assert!(busy.ended().await);
    assert!(begin.elapsed() < Duration::from_millis(600), "{:?}", begin.elapsed());
    assert!(idle.ended().await);
    assert!((700..3_000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_slow_application_is_not_taken_for_a_slow_head() {
    let env = limits().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
        for _ in 0..4 {
            // Longer in all than any of the short limits, each pause shorter than the silence limit.
            tokio::time::sleep(Duration::from_millis(500)).await;
            exchange.chunk("tick").await?;
        }
        exchange.end().await
    })
    .await;
    let response = env.get(&env.sandbox(&origin).await, "/").await;
    assert_eq!((response.passed(200).text().as_str(), response.clean), ("ticktickticktick", true));
}

#[tokio::test]
async fn an_address_over_its_rate_is_refused_and_malformed_requests_count() {
    let env = own(json!({ "limits": { "requests_per_ip": 1, "requests_per_ip_burst": 4 } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    // Two that name no sandbox, and one whose head Pingora itself cannot parse.
    for _ in 0..2 {
        let mut client = env.client().await;
        client.call("GET", "/", &[("Host", "nobody")], "").await.is_own(
            400,
            310_400,
            r#"{"error":"bad request"}"#,
        );
    }
    let mut client = env.client().await;
    client.send("GET / HTTP/1.1\r\nno field\r\n\r\n").await;
    client.response("GET").await;
    env.get(&sandbox, "/").await.passed(200);
    // The bucket gains one a second, which may happen in between once or twice.
    let mut last = None;
    for _ in 0..4 {
        last = Some(env.get(&sandbox, "/").await);
    }
    last.expect("a response").is_own(429, 310_429, r#"{"error":"too many requests"}"#);
}

#[tokio::test]
async fn streams_that_use_up_the_open_files_leave_some_to_new_clients_and_to_the_other_listeners() {
    const STREAMS: usize = 100;
    let tls = with_open_files(400).await;
    let env = &tls.env;
    let silent = Origin::scripted(|mut exchange: Exchange| async move {
        exchange.gone().await;
        Err(std::io::ErrorKind::ConnectionAborted.into())
    })
    .await;
    let (host, echo) = (env.sandbox(&silent).await.host(), Origin::echo().await);
    let other = env.sandbox(&echo).await;
    // Each stream takes an upstream socket, so that four connections want more than there are.
    let mut clients = Vec::new();
    let mut refused = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = tls.h2().await;
        for _ in 0..STREAMS {
            let asked = client.ask(&host, "/", &[]).await;
            refused.spawn(asked.outcome());
        }
        clients.push(client);
    }
    let first = within("a stream that is refused", refused.join_next()).await.unwrap().unwrap().unwrap();
    first.is_own(500, 310_501, r#"{"error":"internal error"}"#);
    eventually("as many streams as there are files for", || async {
        let metrics = env.proxy.metrics().await;
        let refused = metrics.sum("cube_proxy_answers_total", &[("reason", "out_of_descriptors")]);
        (refused + silent.count() as f64 >= (4 * STREAMS) as f64).then_some(())
    })
    .await;
    for _ in 0..50 {
        assert_eq!(env.proxy.admin("GET", "/healthz", "").await.status, 200);
        env.get(&other, "/").await.is_own(500, 310_501, r#"{"error":"internal error"}"#);
    }
    clients.into_iter().for_each(cube_testkit::H2Client::abort);
    eventually("room for upstream connections", || async {
        (env.get(&other, "/").await.status == 200).then_some(())
    })
    .await;
}
