//! What a change of the record means for those who are in already (metadata.md, "Revocation",
//! "Generation").

use std::time::{Duration, Instant};

use cube_testkit::scripts::{self, Framing};
use cube_testkit::{By, Client, Env, Exchange, Gate, Origin, Sandbox, never};

use crate::store_fixture::right_within;
use crate::support::{own, tls};

/// From a change until streams of the old life have ended.
const ENDED: Duration = Duration::from_secs(1);
/// From a change until a request is judged by it.
const PUSHED: Duration = Duration::from_millis(200);

/// An application that streams: a piece at once, and no end of its own accord.
async fn streaming(framing: Framing) -> Origin {
    Origin::scripted(move |mut exchange: Exchange| async move {
        let head = match framing {
            Framing::Chunked => ("Transfer-Encoding", "chunked"),
            Framing::Length => ("Content-Length", "1000"),
            Framing::Close => ("Connection", "close"),
        };
        exchange.start(200, &[head]).await?;
        exchange.send(if framing == Framing::Chunked { "5\r\npiece\r\n" } else { "piece" }).await?;
        exchange.gone().await;
        exchange.close().await
    })
    .await
}

/// Opens a stream and reads its first piece.
async fn open(env: &Env, sandbox: &Sandbox, framing: Framing) -> (Client, cube_testkit::Response) {
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host())]).await;
    let head = client.head().await;
    assert_eq!(head.status, 200, "{}", head.brief());
    let chunked = framing == Framing::Chunked || head.headers.has("Transfer-Encoding");
    let piece = if chunked { client.next_chunk().await } else { client.wire().exactly(5).await.unwrap() };
    assert_eq!(piece, b"piece");
    (client, head)
}

/// The ends of a sandbox's life that its record tells.
const ENDS: [(&str, &[(&str, &str)]); 3] =
    [("DEL", &[]), ("CreatedAt", &[("CreatedAt", "77")]), ("SandboxIP", &[("SandboxIP", "127.0.0.78")])];

async fn end(env: &Env, sandbox: &Sandbox, fields: &[(&str, &str)]) -> Instant {
    match fields {
        [] => env.redis.del(&sandbox.key()).await,
        fields => env.write(sandbox, fields).await,
    }
    Instant::now()
}

#[tokio::test]
async fn the_end_of_a_life_ends_its_streams_within_a_second_and_never_cleanly() {
    let env = own(cube_testkit::serde_json::json!({})).await;
    for (what, fields) in ENDS {
        for framing in [Framing::Chunked, Framing::Length, Framing::Close] {
            let origin = streaming(framing).await;
            let sandbox = env.sandbox(&origin).await;
            let (mut client, head) = open(&env, &sandbox, framing).await;
            let changed = end(&env, &sandbox, fields).await;
            let rest = client.body(head, "GET").await;
            let took = changed.elapsed();
            assert!(!rest.clean, "{what}, {framing:?}: {}", rest.brief());
            assert!(took < ENDED, "{what}, {framing:?}: {took:?}");
            cube_testkit::eventually("the upstream connection to end", || async {
                (origin.open_connections() == 0).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn the_end_of_a_life_ends_its_websockets_and_its_requests_that_wait_for_a_response() {
    let env = own(cube_testkit::serde_json::json!({})).await;
    for (what, fields) in ENDS {
        let talking = Origin::scripted(scripts::websocket).await;
        let sandbox = env.sandbox(&talking).await;
        let mut socket = env.websocket(By::Host, &sandbox, "/", &[]).await.expect("a 101");
        assert_eq!(socket.say("hello").await, "hello");
        let changed = end(&env, &sandbox, fields).await;
        let last = socket.next().await;
        assert!(!matches!(&last, Some(Ok(_))), "{what}: {last:?}");
        assert!(changed.elapsed() < ENDED, "{what}: {:?}", changed.elapsed());

        let silent = Origin::scripted(scripts::hang).await;
        let sandbox = env.sandbox(&silent).await;
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        silent.wait_for(1).await;
        let changed = end(&env, &sandbox, fields).await;
        // Nothing of the response had begun: the proxy may still say why.
        let response = client.try_head().await.ok().flatten();
        assert!(response.is_none_or(|response| response.retcode() == Some(310_410)), "{what}");
        assert!(changed.elapsed() < ENDED, "{what}: {:?}", changed.elapsed());
    }
}

#[tokio::test]
async fn the_end_of_a_life_resets_its_http2_streams_and_no_others() {
    let tls = tls().await;
    let env = &tls.env;
    let origin = streaming(Framing::Chunked).await;
    let other = Origin::echo().await;
    let (ending, staying) = (env.sandbox(&origin).await, env.sandbox(&other).await);
    let connection = tls.h2().await;
    let mut request = connection.open("GET", &ending.host(), "/", &[]).await;
    request.data("", true).await.expect("an open stream");
    origin.wait_for(1).await;
    let changed = end(env, &ending, &[]).await;
    let response = request.response().await;
    assert!(!response.clean, "{}", response.brief());
    assert!(changed.elapsed() < ENDED, "{:?}", changed.elapsed());
    connection.get(&staying.host(), "/", &[]).await.passed(200);
}

#[tokio::test]
async fn a_write_that_changes_nothing_keeps_streams_and_pooled_connections() {
    let env = own(cube_testkit::serde_json::json!({})).await;
    let gate = Gate::new();
    let streams = scripts::drip(Framing::Chunked, "text/plain", &["piece", "more", "last"], &gate);
    let streams = std::sync::Arc::new(streams);
    let origin = Origin::scripted(move |exchange: Exchange| {
        let streams = std::sync::Arc::clone(&streams);
        async move {
            if exchange.request.target == "/stream" {
                streams(exchange).await
            } else {
                scripts::echo(exchange).await
            }
        }
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    crate::store::cached(&env, &sandbox).await;
    let mut client = env.client().await;
    client.request("GET", "/stream", &[("Host", &sandbox.host())]).await;
    client.head().await.passed(200);
    gate.open();
    assert_eq!(client.next_chunk().await, b"piece");
    // Some connections that are kept: one is given back only after its response.
    let mut all_at_once = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (mut client, host) = (env.client().await, sandbox.host());
        all_at_once.spawn(async move { client.call("GET", "/", &[("Host", &host)], "").await.status });
    }
    assert_eq!(all_at_once.join_all().await, [200; 6]);
    let before = origin.connections() as u64;
    let invalidations = async || env.proxy.metrics().await.sum("cube_proxy_cache_invalidations_total", &[]);
    for fields in [
        &[("HostIP", "127.0.0.1")][..],
        &[("TrafficAccessToken", "example-token"), ("AllowPublicTraffic", "true")],
        &[("Status", "running"), ("SomethingElse", "x")],
    ] {
        let seen = invalidations().await;
        env.write(&sandbox, fields).await;
        cube_testkit::eventually("the push", || async { (invalidations().await > seen).then_some(()) }).await;
        let used = env.get(&sandbox, "/").await.seen().connection;
        assert!(used <= before, "connection {used}, of {before} before {fields:?}");
    }
    // A stream that is ended is ended within a second.
    let open = origin.open_connections();
    never("the stream to end", ENDED, || origin.open_connections() < open).await;
    gate.open();
    gate.open();
    let mut rest = Vec::new();
    loop {
        // An end that is not clean is no chunk.
        let piece = client.next_chunk().await;
        if piece.is_empty() {
            break;
        }
        rest.extend(piece);
    }
    assert_eq!(rest, b"morelast");
}

#[tokio::test]
async fn a_new_address_on_the_node_takes_new_connections_and_keeps_streams() {
    let env = own(cube_testkit::serde_json::json!({})).await;
    let gate = Gate::new();
    gate.open();
    let drip = scripts::drip(Framing::Chunked, "text/plain", &["piece", "later"], &gate);
    let origin = Origin::scripted(drip).await;
    let elsewhere = Origin::named("elsewhere").echo().await;
    let sandbox = env.sandbox(&origin).await;
    let (mut client, _) = open(&env, &sandbox, Framing::Chunked).await;
    env.write(&sandbox, &[("8080", &elsewhere.port().to_string())]).await;
    let moved = async || env.get(&sandbox, "/").await.text().contains("elsewhere");
    // Until the push comes the streaming application would be asked, and would not end.
    cube_testkit::eventually("the push", || async {
        let admin = env.proxy.admin("GET", &format!("/admin/routes/{}", sandbox.id), "").await;
        (admin.text().contains("\"must_be_read\":true")
            || admin.text().contains(&elsewhere.port().to_string()))
        .then_some(())
    })
    .await;
    assert!(moved().await);
    gate.open();
    assert_eq!(client.next_chunk().await, b"later");
}

#[tokio::test]
async fn a_token_that_changes_or_comes_to_be_needed_holds_from_the_push_on() {
    let env = own(cube_testkit::serde_json::json!({})).await;
    let origin = Origin::echo().await;
    let ask = async |sandbox: &Sandbox, token: &str| {
        env.get_with(sandbox, "/", &[("e2b-traffic-access-token", token)]).await
    };
    let closed = env.sandbox(&origin).token("example-token-1").await;
    for _ in 0..5 {
        ask(&closed, "example-token-1").await.passed(200);
    }
    env.write(&closed, &[("TrafficAccessToken", "example-token-2")]).await;
    let refused = async || ask(&closed, "example-token-1").await.status == 404;
    right_within("a changed token", Instant::now(), PUSHED, refused).await;
    ask(&closed, "example-token-1").await.is_not_found();
    ask(&closed, "example-token-2").await.passed(200);

    let open = env
        .sandbox(&origin)
        .field("AllowPublicTraffic", "true")
        .field("TrafficAccessToken", "example-token")
        .await;
    for _ in 0..5 {
        env.get(&open, "/").await.passed(200);
    }
    env.write(&open, &[("AllowPublicTraffic", "false")]).await;
    let refused = async || env.get(&open, "/").await.status == 404;
    right_within("AllowPublicTraffic false", Instant::now(), PUSHED, refused).await;
    env.get(&open, "/").await.is_not_found();
    ask(&open, "example-token").await.passed(200);
}
