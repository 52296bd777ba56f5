//! When a sandbox was last active (lifecycle.md, "Last active").

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{By, Gate, Origin, refused_port, scripts};

use crate::support::{cube, waking};

/// Between two messages: less than the proxy lets pass between two stamps.
const EVERY: Duration = Duration::from_secs(4);

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

#[tokio::test]
async fn a_stream_or_websocket_that_moves_keeps_its_sandbox_active_and_a_silent_one_does_not() {
    let env = cube().await;
    let gate = Gate::new();
    let drip = scripts::drip(scripts::Framing::Chunked, "text/event-stream", &["1", "2", "3", "4"], &gate);
    let (stream_origin, ws_origin) =
        (Origin::scripted(drip).await, Origin::scripted(scripts::websocket).await);
    let up_origin = Origin::scripted(scripts::hang).await;
    let streamed = env.sandbox(&stream_origin).await;
    let talked = env.sandbox(&ws_origin).await;
    let uploaded = env.sandbox(&up_origin).await;
    let silent = env.sandbox(&up_origin).await;

    let begun = now_ms();
    let open = async |sandbox: &cube_testkit::Sandbox, method: &str| {
        let mut client = env.client().await;
        let host = sandbox.host();
        let chunked: &[(&str, &str)] = if method == "POST" {
            &[("Host", &host), ("Transfer-Encoding", "chunked")]
        } else {
            &[("Host", &host)]
        };
        client.request(method, "/", chunked).await;
        client
    };
    let mut stream = open(&streamed, "GET").await;
    assert_eq!(stream.head().await.status, 200);
    let mut socket = env.websocket(By::Path, &talked, "/", &[]).await.expect("a 101");
    let mut upload = open(&uploaded, "POST").await;
    let _silent = open(&silent, "GET").await;
    up_origin.wait_for(2).await;
    // A message at 0, 4 and 8 s. The last is 8 s after the first stamp.
    for n in 0..3 {
        if n > 0 {
            tokio::time::sleep(EVERY).await;
        }
        gate.open();
        assert_eq!(stream.next_chunk().await, (n + 1).to_string().as_bytes());
        assert_eq!(socket.say("tick").await, "tick");
        upload.chunk("tick").await;
    }
    for sandbox in [&streamed, &talked, &uploaded] {
        let fresh = cube_testkit::eventually("a stamp", || async {
            env.last_active(sandbox).await.filter(|at| *at >= begun + 7_900)
        });
        assert!(fresh.await <= now_ms());
    }
    let at = env.last_active(&silent).await.expect("the head was sent");
    assert!((begun..begun + 3_000).contains(&at), "{} ms after it began", at - begun);

    // Its end counts as activity too.
    let before = now_ms();
    drop(socket);
    cube_testkit::eventually("a stamp at the end", || async {
        // At most one write a second.
        env.last_active(&talked).await.filter(|at| *at + 1_000 >= before)
    })
    .await;
}

#[tokio::test]
async fn what_is_answered_by_the_proxy_stamps_nothing() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let refused: std::net::SocketAddr = ([127, 0, 0, 1], refused_port()).into();
    let killed = env.sandbox(&origin).await;
    env.push(&killed, "killed").await;
    env.get(&killed, "/").await.is_own(410, 310_410, r#"{"error":"gone"}"#);
    let private = env.sandbox(&origin).token("example-token").await;
    env.get(&private, "/").await.is_not_found();
    let closed = env.sandbox_at(refused).await;
    env.get(&closed, "/").await.is_bad_gateway(310_509);
    let unmapped = env.sandbox(&origin).await.at_port(9_999);
    env.get(&unmapped, "/").await.is_not_found();
    let unknown = env.nobody();
    env.get(&unknown, "/").await.is_not_found();
    let paused = env.sandbox(&origin).await;
    env.push(&paused, "paused").await;
    let ask = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT")];
    assert_eq!(env.call(By::Host, &paused, "OPTIONS", "/", &ask, "").await.status, 204);
    for sandbox in [&killed, &private, &closed, &unmapped, &unknown, &paused] {
        assert_eq!(env.last_active(sandbox).await, None);
    }
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn the_listing_is_what_changed_since_and_a_deleted_sandbox_leaves_it() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let (one, two) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let list = async |since: u64| {
        let response = env.proxy.admin("GET", &format!("/admin/last_active?since={since}"), "").await;
        let listed: Value = cube_testkit::serde_json::from_slice(&response.body).unwrap();
        listed
    };
    env.get(&one, "/").await.passed(200);
    let first = list(0).await;
    assert!(first["entries"][&one.id].is_u64(), "{first}");
    env.get(&two, "/").await.passed(200);
    let second = list(first["now"].as_u64().unwrap()).await;
    assert_eq!(second["since"], first["now"]);
    assert!(second["entries"].get(&one.id).is_none() && second["entries"][&two.id].is_u64(), "{second}");
    assert!(second["count"].as_u64().unwrap() >= 2);

    let body = json!({ "sandbox_id": two.id }).to_string();
    let response = env.proxy.admin("POST", "/admin/meta/delete", &body).await;
    assert_eq!(response.text(), r#"{"ok":true,"backend_cache_deleted":1}"#);
    assert_eq!(env.last_active(&two).await, None);
    // Deleted in the store: its activity goes with the record.
    env.redis.del(&one.key()).await;
    cube_testkit::eventually("the record to be gone", || async {
        (env.get(&one, "/").await.status == 404).then_some(())
    })
    .await;
    assert_eq!(env.last_active(&one).await, None);
}
