//! Waking a sandbox (lifecycle.md, "Resume"): one call, shared, and what becomes of those who wait.

use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::tokio_tungstenite::tungstenite::Error;
use cube_testkit::{
    By, Client, Exchange, Gate, Origin, Response, Resume, Sandbox, WebSocket, eventually, refused_port,
    scripts, unique_id,
};

use crate::support::{Waking, own, waking, waking_with};

const TOKEN: &str = "e2b-traffic-access-token";
const UNAVAILABLE: &str = r#"{"error":"service unavailable"}"#;

/// The 310503 of a sandbox that sleeps on.
#[track_caller]
pub(crate) fn sleeps_on(response: &Response) {
    response.is_own(503, 310_503, UNAVAILABLE);
    assert_eq!(response.headers.all("retry-after"), ["5"]);
}

/// An application with a page, a WebSocket, an event stream and an upload.
async fn application(exchange: Exchange) -> std::io::Result<Exchange> {
    match exchange.request.target.as_str() {
        "/ws" => scripts::websocket(exchange).await,
        "/events" => {
            let gate = Gate::new();
            gate.open();
            scripts::drip(scripts::Framing::Chunked, "text/event-stream", &["data: 1\n\n"], &gate)(exchange)
                .await
        }
        "/upload" => {
            let mut exchange = exchange;
            let length = exchange.drain().await?;
            exchange.reply(200, &[], length.to_string()).await
        }
        _ => scripts::echo(exchange).await,
    }
}

/// An address of the old life and one of the new, same port.
async fn two_lives() -> (Origin, Origin) {
    loop {
        let old = Origin::named("old").serve(application).await;
        // Free on the one address does not say free on the other.
        if tokio::net::TcpListener::bind(("127.0.0.2", old.port())).await.is_ok() {
            let new = Origin::named("new").on("127.0.0.2").port(old.port()).serve(application).await;
            return (old, new);
        }
    }
}

#[tokio::test]
async fn two_hundred_requests_of_all_kinds_share_one_call_and_reach_the_new_address() {
    let env = waking().await;
    let (old, new) = two_lives().await;
    let sandbox = env.sandbox(&old).local().await;
    env.get(&sandbox, "/").await.passed(200);
    let (before, gate) = (old.count(), Gate::new());
    env.manager.plan(&sandbox, Resume::When(gate.clone(), 200));
    env.push(&sandbox, "paused").await;

    let mut tasks = tokio::task::JoinSet::new();
    let begin = |tasks: &mut tokio::task::JoinSet<u16>, n: usize| {
        let (address, host) = (env.proxy.http(), sandbox.host());
        tasks.spawn(async move {
            let id = if n == 0 { "x&sandbox_id=other".to_owned() } else { format!("r{n}") };
            let headers = [("Host", host.as_str()), ("X-Cube-Request-Id", id.as_str())];
            if n % 10 == 1 {
                let socket = WebSocket::open(address, "/ws", &headers).await;
                assert_eq!(socket.expect("a 101").say("hello").await, "hello");
                return 101;
            }
            let mut client = Client::connect(address).await;
            let (method, target, body) = match n % 10 {
                2 => ("GET", "/events", Vec::new()),
                3 if n < 30 => ("POST", "/upload", vec![7; 10 << 20]),
                4 => ("POST", "/page", b"posted".to_vec()),
                _ => ("GET", "/page", Vec::new()),
            };
            let length = body.len().to_string();
            let mut headers = headers.to_vec();
            if method == "POST" {
                headers.push(("Content-Length", &length));
            }
            client.request(method, target, &headers).await;
            // Nobody reads it while the request is held, so this waits with it.
            let _ = client.wire().send(&body).await;
            let response = client.response(method).await;
            match target {
                "/events" => assert_eq!(response.passed(200).text(), "data: 1\n\n"),
                "/upload" => assert_eq!(response.passed(200).text(), length),
                _ => assert_eq!(response.passed(200).seen().origin, "new"),
            }
            response.status
        });
    };
    begin(&mut tasks, 0);
    env.manager.wait_for(&sandbox, 1).await;
    for n in 1..200 {
        begin(&mut tasks, n);
    }
    eventually("all to be held", || async {
        (env.proxy.metrics().await.sum("cube_proxy_held_requests", &[]) >= 200.0).then_some(())
    })
    .await;
    assert!(tasks.try_join_next().is_none(), "answered before the resume ended");
    assert_eq!((old.count() - before, new.count()), (0, 0));

    env.write(&sandbox, &[("SandboxIP", "127.0.0.2")]).await;
    gate.open();
    let responses = tasks.join_all().await;
    assert_eq!(responses.iter().filter(|status| **status == 101).count(), 20);
    assert_eq!(responses.iter().filter(|status| **status == 200).count(), 180);
    assert_eq!((old.count() - before, new.count()), (0, 200));
    let calls = env.manager.calls(&sandbox);
    assert_eq!(calls.len(), 1);
    let target = format!("/internal/resume?sandbox_id={}&request_id=x%26sandbox_id%3Dother", sandbox.id);
    assert_eq!((calls[0].method.as_str(), &calls[0].target), ("POST", &target));
    assert_eq!(calls[0].headers.all("content-length"), ["0"]);
}

#[tokio::test]
async fn a_resumed_life_gets_no_connection_of_the_one_before() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let first = env.get(&sandbox, "/").await.seen().connection;
    assert_eq!(env.get(&sandbox, "/").await.seen().connection, first);
    env.push(&sandbox, "paused").await;
    assert_ne!(env.get(&sandbox, "/").await.seen().connection, first);
    assert_eq!(env.manager.calls(&sandbox).len(), 1);
}

#[tokio::test]
async fn each_failure_has_its_response_and_no_further_call_follows_it_at_once() {
    let env = waking().await;
    let origin = Origin::echo().await;
    for (plan, retcode) in
        [(Resume::Status(429), 310_429), (Resume::Status(500), 310_503), (Resume::Silence, 310_503)]
    {
        let sandbox = env.sandbox(&origin).await;
        let silent = matches!(plan, Resume::Silence);
        env.manager.plan(&sandbox, plan);
        env.push(&sandbox, "paused").await;
        let response = env.get(&sandbox, "/").await;
        if silent {
            assert!((1.4..5.0).contains(&response.took.as_secs_f64()), "{:?}", response.took);
        }
        let refused = |response: &Response| match retcode {
            310_429 => {
                response.is_own(429, 310_429, r#"{"error":"too many requests"}"#);
            }
            _ => sleeps_on(response),
        };
        refused(&response);
        let failed = Instant::now();
        let mut client = env.client().await;
        // All at once: on a busy machine a hundred round trips may take longer than the second.
        client.send(format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.host()).repeat(100)).await;
        for _ in 0..100 {
            refused(&client.response("GET").await);
        }
        assert!(failed.elapsed() < Duration::from_millis(950), "too slow to tell: {:?}", failed.elapsed());
        assert_eq!(env.manager.calls(&sandbox).len(), 1);
        // The failure is forgotten, and the next one asks again.
        env.manager.plan(&sandbox, Resume::Status(200));
        eventually("another call", || async { (env.get(&sandbox, "/").await.status == 200).then_some(()) })
            .await;
        assert_eq!(env.manager.calls(&sandbox).len(), 2);
    }
    assert_eq!(origin.count(), 3);
}

#[tokio::test]
async fn a_manager_that_is_away_is_a_failed_resume() {
    let url = format!("http://127.0.0.1:{}", refused_port());
    let env = own(json!({ "resume": { "url": url } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.push(&sandbox, "paused").await;
    for _ in 0..3 {
        let response = env.get(&sandbox, "/").await;
        sleeps_on(&response);
        assert_eq!(env.proxy.log_line(&response.request_id()).await.field("reason"), "resume_failed");
    }
    assert_eq!(origin.count(), 0);
    let metrics = env.proxy.metrics().await;
    assert_eq!(metrics.sum("cube_proxy_resumes_total", &[("outcome", "failed")]), 1.0);
}

#[tokio::test]
async fn a_manager_that_says_yes_is_believed_over_a_record_that_still_says_paused() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).field("Status", "paused").await;
    let state = format!("cube:v1:shared:sandbox:lifecycle:state:{}", sandbox.id);
    env.redis.command(&["SET", &state, "paused"]).await;
    for _ in 0..3 {
        env.get(&sandbox, "/").await.passed(200);
    }
    assert_eq!(env.manager.calls(&sandbox).len(), 1);
    // Written once more with the same word: nothing new was said.
    env.write(&sandbox, &[("Status", "paused"), ("8081", "40000")]).await;
    env.get(&sandbox, "/").await.passed(200);
    assert_eq!(env.manager.calls(&sandbox).len(), 1);
}

#[tokio::test]
async fn a_sandbox_that_somebody_else_wakes_is_joined() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.push(&sandbox, "resuming").await;
    env.get(&sandbox, "/").await.passed(200);
    assert_eq!(env.manager.calls(&sandbox).len(), 1);
}

#[tokio::test]
async fn what_may_not_be_woken_is_not() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let body = json!({ "sandbox_id": sandbox.id, "auto_resume": false }).to_string();
    assert_eq!(env.proxy.admin("POST", "/admin/meta/upsert", &body).await.status, 200);
    env.push(&sandbox, "paused").await;
    sleeps_on(&env.get(&sandbox, "/").await);
    assert_eq!(env.manager.calls(&sandbox).len(), 0);
}

#[tokio::test]
async fn a_preflight_wakes_nothing_and_holds_nothing() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let ask = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT")];
    for state in ["paused", "pausing", "resuming", "killed"] {
        env.push(&sandbox, state).await;
        let response = env.call(By::Host, &sandbox, "OPTIONS", "/", &ask, "").await;
        let retcode = if state == "killed" { 310_410 } else { 310_503 };
        assert_eq!((response.status, response.retcode()), (204, Some(retcode)), "{}", response.brief());
        assert!(response.took < Duration::from_millis(300), "{state}: held for {:?}", response.took);
        assert_eq!(response.headers.get("access-control-allow-methods"), Some("PUT"));
    }
    assert_eq!((env.manager.calls(&sandbox).len(), origin.count()), (0, 0));
}

/// A sandbox whose resume is under way.
async fn waking_up(env: &Waking, origin: &Origin) -> (Sandbox, Gate) {
    let sandbox = env.sandbox(origin).await;
    let gate = Gate::new();
    env.manager.plan(&sandbox, Resume::When(gate.clone(), 200));
    env.push(&sandbox, "paused").await;
    (sandbox, gate)
}

#[tokio::test]
async fn who_leaves_frees_the_place_within_a_second_and_the_resume_goes_on() {
    let env = waking_with(json!({ "resume": { "timeout": "20s" } })).await;
    let origin = Origin::echo().await;
    let (sandbox, gate) = waking_up(&env, &origin).await;
    let host = sandbox.host();
    let mut clients = Vec::new();
    for n in 0..20 {
        let mut client = env.client().await;
        match n % 3 {
            0 => client.request("GET", "/", &[("Host", &host)]).await,
            // What it has sent of its body stays unread.
            1 => {
                client.request("POST", "/", &[("Host", &host), ("Content-Length", "100000")]).await;
                client.send("abc").await;
            }
            // A next request waits behind the one that is held.
            _ => {
                let one = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
                client.send(format!("{one}{one}")).await;
            }
        }
        clients.push(client);
    }
    let h2 = env.tls.h2().await;
    let stream = h2.open("GET", &host, "/", &[]).await;
    env.wait_for_held(21).await;
    let left = Instant::now();
    drop(clients);
    stream.reset();
    env.wait_for_held(0).await;
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    eventually("all to be counted", || async {
        let counted = env.proxy.metrics().await.sum("cube_proxy_answers_total", &[("retcode", "310499")]);
        (counted == 21.0).then_some(())
    })
    .await;
    assert_eq!(env.proxy.metrics().await.sum("cube_proxy_held_requests", &[]), 0.0);
    assert_eq!(origin.count(), 0);

    gate.open();
    eventually("the resume to end", || async {
        let metrics = env.proxy.metrics().await;
        (metrics.sum("cube_proxy_resumes_total", &[("outcome", "resumed")]) == 1.0).then_some(())
    })
    .await;
    env.get(&sandbox, "/").await.passed(200);
    assert_eq!((env.manager.calls(&sandbox).len(), origin.count()), (1, 1));
}

#[tokio::test]
async fn a_token_that_changed_while_a_request_was_held_is_asked_for() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token-1").await;
    let gate = Gate::new();
    env.manager.plan(&sandbox, Resume::When(gate.clone(), 200));
    env.push(&sandbox, "paused").await;
    let (held, ()) = tokio::join!(env.get_with(&sandbox, "/", &[(TOKEN, "example-token-1")]), async {
        env.manager.wait_for(&sandbox, 1).await;
        env.write(&sandbox, &[("TrafficAccessToken", "example-token-2")]).await;
        gate.open();
    });
    held.is_not_found();
    assert_eq!(env.proxy.log_line(&held.request_id()).await.field("reason"), "token_wrong");
    assert_eq!(origin.count(), 0);
    env.get_with(&sandbox, "/", &[(TOKEN, "example-token-2")]).await.passed(200);
}

#[tokio::test]
async fn a_kill_that_is_pushed_while_requests_are_held_ends_each_with_its_response() {
    let env = waking_with(json!({ "resume": { "timeout": "20s" } })).await;
    let origin = Origin::echo().await;
    let (sandbox, gate) = waking_up(&env, &origin).await;
    let mut held = Vec::new();
    for _ in 0..50 {
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        held.push(client);
    }
    env.wait_for_held(50).await;
    let pushed = Instant::now();
    env.push(&sandbox, "killed").await;
    for client in &mut held {
        client.response("GET").await.is_own(410, 310_410, r#"{"error":"gone"}"#);
    }
    assert!(pushed.elapsed() < Duration::from_secs(1), "{:?}", pushed.elapsed());
    // The manager's late yes does not bring it back.
    gate.open();
    eventually("the resume to end", || async {
        let metrics = env.proxy.metrics().await;
        (metrics.sum("cube_proxy_resumes_total", &[("outcome", "resumed")]) == 1.0).then_some(())
    })
    .await;
    env.get(&sandbox, "/").await.is_own(410, 310_410, r#"{"error":"gone"}"#);
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn without_the_token_nobody_is_woken_stamped_or_told_apart() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token").await;
    let unknown = env.nobody();
    let id = unique_id("r");
    let upgrade = [("Upgrade", "websocket"), ("Connection", "Upgrade")];
    let preflight = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT")];
    for state in ["running", "pausing", "paused", "resuming", "killing", "killed"] {
        env.push(&sandbox, state).await;
        for (method, more) in [
            ("GET", &[][..]),
            ("GET", &[(TOKEN, "example-wrong")]),
            ("GET", &upgrade),
            ("OPTIONS", &preflight),
        ] {
            let mut headers = vec![("X-Cube-Request-Id", id.as_str())];
            headers.extend_from_slice(more);
            let refused = env.call(By::Host, &sandbox, method, "/", &headers, "").await;
            let missing = env.call(By::Host, &unknown, method, "/", &headers, "").await;
            assert_eq!(refused.identity(), missing.identity(), "{state} {method} {more:?}");
            assert!(refused.took < Duration::from_millis(300), "{state}: held for {:?}", refused.took);
        }
    }
    assert!(matches!(env.websocket(By::Path, &sandbox, "/", &[]).await.err(), Some(Error::Http(_))));
    assert_eq!((env.manager.calls(&sandbox).len(), origin.count()), (0, 0));
    assert_eq!(env.last_active(&sandbox).await, None);
    env.push(&sandbox, "paused").await;
    env.get_with(&sandbox, "/", &[(TOKEN, "example-token")]).await.passed(200);
    assert_eq!(env.manager.calls(&sandbox).len(), 1);
    assert!(env.last_active(&sandbox).await.is_some());
}

#[tokio::test]
async fn a_connect_timeout_of_a_sandbox_that_wakes_by_itself_triggers_one_resume() {
    let env = waking().await;
    let hole = cube_testkit::BlackHole::open("127.0.0.1").await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox_at(hole.address()).await;
    let body = json!({ "sandbox_id": sandbox.id, "auto_resume": true }).to_string();
    assert_eq!(env.proxy.admin("POST", "/admin/meta/upsert", &body).await.status, 200);
    let gate = Gate::new();
    env.manager.plan(&sandbox, Resume::When(gate.clone(), 200));
    let (response, ()) = tokio::join!(env.get(&sandbox, "/"), async {
        env.manager.wait_for(&sandbox, 1).await;
        env.write(&sandbox, &[("8080", &origin.port().to_string())]).await;
        gate.open();
    });
    response.passed(200);
    // It hangs again, and was woken a moment ago.
    env.write(&sandbox, &[("8080", &hole.address().port().to_string()), ("CreatedAt", "7")]).await;
    eventually("a time-out", || async { (env.get(&sandbox, "/").await.status == 504).then_some(()) }).await;
    assert_eq!(env.manager.calls(&sandbox).len(), 1);
    // One that nobody said this of is not woken.
    let other = env.sandbox_at(hole.address()).await;
    env.get(&other, "/").await.is_gateway_timeout();
    assert_eq!(env.manager.calls(&other).len(), 0);
}
