//! A kill ends what runs to the sandbox (lifecycle.md, "Kill"): within a second, never as a clean
//! end, and nothing of a neighbour's.

use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::{
    BlackHole, By, Client, Env, Exchange, Gate, Origin, Response, Sandbox, eventually, never, scripts,
    unique_id, within,
};

use crate::support::{cube, tls, waking_with};

const SECOND: Duration = Duration::from_secs(1);

type Doing = std::pin::Pin<Box<dyn Future<Output = std::io::Result<Exchange>> + Send>>;

/// The beginning of a response that never comes to its end; the connection stays until the other
/// side ends it.
fn endless(framing: scripts::Framing) -> impl Fn(Exchange) -> Doing + Send + Sync + 'static {
    move |mut exchange| {
        Box::pin(async move {
            exchange.body().await?;
            let (field, bytes) = match framing {
                scripts::Framing::Chunked => (("Transfer-Encoding", "chunked"), "4\r\none\n\r\n"),
                scripts::Framing::Length => (("Content-Length", "1000"), "one\n"),
                scripts::Framing::Close => (("Connection", "close"), "one\n"),
            };
            exchange.start(200, &[field, ("Content-Type", "text/event-stream")]).await?;
            exchange.send(bytes).await?;
            exchange.gone().await;
            exchange.close().await
        })
    }
}

/// Pushes the state, and looks at what comes of it; that must be there within a second.
async fn end<T>(env: &Env, sandbox: &Sandbox, state: &str, seen: impl Future<Output = T>) -> T {
    let at = Instant::now();
    env.push(sandbox, state).await;
    let seen = seen.await;
    assert!(at.elapsed() < SECOND, "{state}: {:?}", at.elapsed());
    seen
}

/// The upstream side ends as well.
async fn ends_upstream(origin: &Origin) {
    eventually("the upstream connection to end", || async { (origin.open_connections() == 0).then_some(()) })
        .await;
}

#[track_caller]
fn is_gone(response: &Response) {
    response.is_own(410, 310_410, r#"{"error":"gone"}"#);
}

#[tokio::test]
async fn a_stream_of_any_framing_is_cut_and_not_ended() {
    let env = cube().await;
    for framing in [scripts::Framing::Chunked, scripts::Framing::Length, scripts::Framing::Close] {
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let origin = Origin::scripted(endless(framing)).await;
            let sandbox = env.sandbox(&origin).await;
            let mut client = env.client().await;
            client.send(format!("GET / {version}\r\nHost: {}\r\n\r\n", sandbox.host())).await;
            let head = client.head().await;
            assert_eq!(head.status, 200);
            let id = head.request_id();
            let response = end(env, &sandbox, "killed", client.body(head, "GET")).await;
            assert!(!response.clean, "{framing:?} {version}: {}", response.brief());
            // The kill may overtake the first piece; nothing else comes through.
            assert!("one\n".starts_with(&response.text()), "{framing:?} {version}: {}", response.brief());
            ends_upstream(&origin).await;
            let line = env.proxy.log_line(&id).await;
            assert_eq!((line.field("retcode"), line.field("reason")), ("310200", "killed"));
        }
    }
}

#[tokio::test]
async fn under_tls_a_cut_is_no_clean_end_either() {
    let tls = tls().await;
    let env = &tls.env;
    for (framing, version) in [
        (scripts::Framing::Chunked, "HTTP/1.1"),
        (scripts::Framing::Length, "HTTP/1.1"),
        (scripts::Framing::Close, "HTTP/1.1"),
        (scripts::Framing::Chunked, "HTTP/1.0"),
        (scripts::Framing::Close, "HTTP/1.0"),
    ] {
        let origin = Origin::scripted(endless(framing)).await;
        let sandbox = env.sandbox(&origin).await;
        let mut client = tls.h1().await;
        client.send(format!("GET / {version}\r\nHost: {}\r\n\r\n", sandbox.host())).await;
        let head = client.head().await;
        let response = end(env, &sandbox, "killed", client.body(head, "GET")).await;
        assert!(!response.clean, "{framing:?} {version}: {}", response.brief());
        // The kill may overtake the first piece; nothing else comes through.
        assert!("one\n".starts_with(&response.text()), "{framing:?} {version}: {}", response.brief());
        ends_upstream(&origin).await;
    }
}

#[tokio::test]
async fn requests_that_are_held_or_still_connecting_are_ended_too() {
    let slow = json!({
        "upstream": { "connect_timeout": "9s" },
        "lifecycle": { "pause_wait": "9s" },
    });
    let waking = waking_with(slow).await;
    let env = &waking.tls.env;
    let hole = BlackHole::open("127.0.0.1").await;
    let h2 = waking.tls.h2().await;
    for (state, address) in [("running", hole.address()), ("pausing", hole.address())] {
        let sandbox = env.sandbox_at(address).await;
        env.push(&sandbox, state).await;
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        let stream = h2.open("GET", &sandbox.host(), "/", &[]).await;
        if state == "pausing" {
            env.wait_for_held(2).await;
        } else {
            eventually("both to be under way", || async {
                let metrics = env.proxy.metrics().await;
                (metrics.sum("cube_proxy_inflight_requests", &[]) >= 2.0).then_some(())
            })
            .await;
        }
        let (one, other) =
            end(env, &sandbox, "killed", async { tokio::join!(client.try_head(), stream.outcome()) }).await;
        // While it connects nothing can be said to it.
        match one {
            Ok(Some(head)) => is_gone(&client.body(head, "GET").await),
            Ok(None) | Err(_) => assert_eq!(state, "running"),
        }
        match other {
            Ok(response) => is_gone(&response),
            Err(error) => assert!(error.is_reset(), "{error:?}"),
        }
    }
    eventually("both to be counted", || async {
        let metrics = env.proxy.metrics().await;
        (metrics.sum("cube_proxy_answers_total", &[("retcode", "310410"), ("reason", "killed")]) == 4.0)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_request_that_waits_for_its_response_is_told() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::hang).await;
    for (state, head) in [
        ("killed", "GET / HTTP/1.1\r\n"),
        ("killing", "GET / HTTP/1.1\r\n"),
        ("killed", "GET / HTTP/1.0\r\n"),
        // Uploads that have begun, and will never end.
        ("killed", "POST / HTTP/1.1\r\nContent-Length: 100000\r\n"),
        ("killed", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"),
    ] {
        let sandbox = env.sandbox(&origin).await;
        let before = origin.count();
        let mut client = env.client().await;
        client.send(format!("{head}Host: {}\r\n\r\n", sandbox.host())).await;
        origin.wait_for(before + 1).await;
        let response = end(env, &sandbox, state, client.response("GET")).await;
        is_gone(&response);
        assert!(client.ended().await, "the connection goes on");
        ends_upstream(&origin).await;
        let line = env.proxy.log_line(&response.request_id()).await;
        assert_eq!((line.field("retcode"), line.field("reason")), ("310410", "killed"));
    }
}

#[tokio::test]
async fn a_websocket_ends_without_a_close_frame() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::websocket).await;
    let (sandbox, neighbour) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let mut socket = env.websocket(By::Host, &sandbox, "/", &[]).await.expect("a 101");
    let mut other = env.websocket(By::Host, &neighbour, "/", &[]).await.expect("a 101");
    assert_eq!((socket.say("x").await, other.say("x").await), ("x".to_owned(), "x".to_owned()));
    let seen = end(env, &sandbox, "killed", socket.next()).await;
    assert!(seen.as_ref().is_none_or(Result::is_err), "{seen:?}");
    eventually("the upstream side to end", || async { (origin.open_connections() == 1).then_some(()) }).await;
    assert_eq!(other.say("still here").await, "still here");
}

#[tokio::test]
async fn streams_of_http2_are_reset_and_their_neighbours_go_on() {
    let tls = tls().await;
    let env = &tls.env;
    let origin = Origin::scripted(endless(scripts::Framing::Chunked)).await;
    let silent = Origin::scripted(scripts::hang).await;
    let gate = Gate::new();
    let script = scripts::drip(scripts::Framing::Chunked, "text/plain", &["one\n", "two\n"], &gate);
    let patient = Origin::scripted(script).await;
    let (sandbox, waiting_for) = (env.sandbox(&origin).await, env.sandbox(&silent).await);
    let neighbour = env.sandbox(&patient).await;
    let h2 = tls.h2().await;
    let id = unique_id("r");
    let mut stream = h2.open("GET", &sandbox.host(), "/", &[("x-cube-request-id", &id)]).await;
    let mut other = h2.open("GET", &neighbour.host(), "/", &[]).await;
    stream.data("", true).await.unwrap();
    other.data("", true).await.unwrap();
    let waiting = h2.open("POST", &waiting_for.host(), "/", &[]).await;
    origin.wait_for(1).await;
    silent.wait_for(1).await;
    patient.wait_for(1).await;
    // Reset before the head was read, or after.
    match end(env, &sandbox, "killed", stream.outcome()).await {
        Ok(response) => assert!(!response.clean, "{}", response.brief()),
        Err(error) => assert!(error.is_reset(), "{error:?}"),
    }
    ends_upstream(&origin).await;
    assert_eq!(env.proxy.log_line(&id).await.field("reason"), "killed");
    // Without a response yet: told, or reset.
    match end(env, &waiting_for, "killed", waiting.outcome()).await {
        Ok(response) => is_gone(&response),
        Err(error) => assert!(error.is_reset(), "{error:?}"),
    }
    ends_upstream(&silent).await;
    gate.open();
    gate.open();
    let other = other.response().await;
    assert_eq!((other.text().as_str(), other.clean), ("one\ntwo\n", true));
}

#[tokio::test]
async fn a_download_that_nobody_reads_is_ended_too() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        exchange.start(200, &[("Content-Length", "1000000000")]).await?;
        loop {
            exchange.send(vec![7; 64 * 1024]).await?;
        }
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host())]).await;
    let head = client.head().await;
    // Long enough for every buffer on the way to be full.
    never("the download to end", Duration::from_millis(500), || origin.open_connections() == 0).await;
    end(env, &sandbox, "killed", ends_upstream(&origin)).await;
    assert!(!within("the end", client.body(head, "GET")).await.clean);
}

#[tokio::test]
async fn an_upload_that_nobody_reads_is_ended_too() {
    let env = cube().await;
    let gate = Gate::new();
    let wait = gate.clone();
    // It takes the head and then nothing, until the kill is over.
    let origin = Origin::scripted(move |mut exchange: Exchange| {
        let wait = wait.clone();
        async move {
            wait.pass().await;
            exchange.gone().await;
            exchange.close().await
        }
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let (address, host) = (env.proxy.http(), sandbox.host());
    let upload = tokio::spawn(async move {
        let mut client = Client::connect(address).await;
        client.request("POST", "/", &[("Host", &host), ("Content-Length", "100000000")]).await;
        let _ = client.wire().send(vec![7; 100_000_000]).await;
        client.try_head().await
    });
    origin.wait_for(1).await;
    never("the upload to end", Duration::from_millis(500), || upload.is_finished()).await;
    let seen = end(env, &sandbox, "killed", upload).await.unwrap();
    // The response may be lost with what was still on its way.
    if let Ok(Some(head)) = seen {
        assert_eq!(head.retcode(), Some(310_410));
    }
    gate.open();
    ends_upstream(&origin).await;
}

#[tokio::test]
async fn idle_connections_of_a_killed_life_are_not_used_again() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let (sandbox, neighbour) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let first = env.get(&sandbox, "/").await.seen().connection;
    let other = env.get(&neighbour, "/").await.seen().connection;
    env.push(&sandbox, "killed").await;
    is_gone(&env.get(&sandbox, "/").await);
    env.push(&sandbox, "running").await;
    let second = env.get(&sandbox, "/").await.seen().connection;
    assert!(second != first && second != other, "{first} {other} {second}");
    assert_eq!(env.get(&neighbour, "/").await.seen().connection, other);
}

#[tokio::test]
async fn deleting_its_metadata_ends_what_runs_to_it() {
    let env = cube().await;
    let origin = Origin::scripted(endless(scripts::Framing::Chunked)).await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host())]).await;
    let head = client.head().await;
    let at = Instant::now();
    let body = json!({ "sandbox_id": sandbox.id }).to_string();
    let response = env.proxy.admin("POST", "/admin/meta/delete", &body).await;
    assert_eq!(response.text(), r#"{"ok":true,"backend_cache_deleted":1}"#);
    assert!(!client.body(head, "GET").await.clean);
    assert!(at.elapsed() < SECOND, "{:?}", at.elapsed());
}

#[tokio::test]
async fn a_kill_that_is_told_through_the_store_ends_streams_too() {
    let env = cube().await;
    for by in ["state", "status"] {
        let origin = Origin::scripted(endless(scripts::Framing::Chunked)).await;
        let sandbox = env.sandbox(&origin).await;
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        let head = client.head().await;
        let at = Instant::now();
        if by == "state" {
            let key = format!("cube:v1:shared:sandbox:lifecycle:state:{}", sandbox.id);
            env.redis.command(&["SET", &key, "killed"]).await;
        } else {
            env.write(&sandbox, &[("Status", "killing")]).await;
        }
        assert!(!client.body(head, "GET").await.clean, "{by}");
        assert!(at.elapsed() < SECOND, "{by}: {:?}", at.elapsed());
        is_gone(&env.get(&sandbox, "/").await);
    }
}

#[tokio::test]
async fn a_client_that_sends_its_next_request_early_is_told_once() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::hang).await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    let one = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.host());
    client.send(format!("{one}{one}")).await;
    origin.wait_for(1).await;
    let response = end(env, &sandbox, "killed", client.response("GET")).await;
    is_gone(&response);
    // The second was never read; the connection ends.
    match client.try_head().await {
        Ok(None) | Err(_) => {}
        Ok(Some(second)) => is_gone(&client.body(second, "GET").await),
    }
    assert_eq!(origin.count(), 1);
}
