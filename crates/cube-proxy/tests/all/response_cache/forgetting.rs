//! When stored responses are forgotten, and what is not answered from the store although it is there.

use cube_testkit::{Gate, Sandbox};

use super::*;

/// An application that waits, when `/slow` is asked for, until the gate opens.
async fn slow(gate: &Gate) -> Origin {
    let gate = gate.clone();
    scripted(move |mut exchange| {
        let gate = gate.clone();
        async move {
            if exchange.request.target != "/slow" {
                return exchange.reply(200, &[PUBLIC], "quick").await;
            }
            exchange.start(200, &[PUBLIC, ("Content-Length", "8")]).await?;
            exchange.send("half").await?;
            gate.pass().await;
            exchange.send("rest").await?;
            Ok(exchange)
        }
    })
    .await
}

async fn stored(env: &Env) -> f64 {
    env.proxy.metrics().await.sum("cube_proxy_response_cache_entries", &[])
}

/// Begins a request for `/slow` and waits until half of its response has come.
async fn begun(env: &Env, sandbox: &Sandbox) -> (cube_testkit::Client, Response) {
    let mut client = env.client().await;
    client.request("GET", "/slow", &[("Host", &sandbox.host())]).await;
    let head = client.head().await;
    assert_eq!(verdict(&head), Some("MISS"));
    assert_eq!(client.wire().exactly(4).await.unwrap(), b"half");
    (client, head)
}

#[tokio::test]
async fn any_change_of_the_record_forgets_all_of_its_sandbox_and_frees_its_memory() {
    let env = with(json!({})).await;
    let origin = app(&[PUBLIC]).await;
    let other = settled(&env, env.sandbox(&app(&[PUBLIC]).await).await).await;
    let sandbox = settled(&env, env.sandbox(&origin).await).await;
    let address = origin.port().to_string();
    for change in [
        ("CreatedAt", "77"),
        ("SandboxIP", "127.0.0.78"),
        ("9000", "9000"),
        ("MaskRequestHost", "inner.test"),
        ("AllowPublicTraffic", "true"),
        ("TrafficAccessToken", "example-token"),
        ("Status", "running"),
        // None that the proxy reads, and one that says what it said before.
        ("SomethingElse", "x"),
        ("8080", &address),
    ] {
        settle(&env, &sandbox).await;
        settle(&env, &other).await;
        let target = format!("/{}", change.0);
        let first = env.get(&sandbox, &target).await;
        is_miss(&first);
        is_hit(&env.get(&sandbox, &target).await, &first.text());
        assert!(stored(&env).await >= 3.0);
        env.write(&sandbox, &[change]).await;
        eventually("its answers to be forgotten", || async { (stored(&env).await == 1.0).then_some(()) })
            .await;
        let second = env.get(&sandbox, &target).await;
        is_miss(&second);
        assert_ne!(second.text(), first.text(), "{change:?}");
        // The neighbour's stay.
        assert!(hit(&env.get(&other, WARM).await));
    }
}

#[tokio::test]
async fn a_recreated_sandbox_never_gets_its_predecessors_response() {
    let env = cached().await;
    for _ in 0..5 {
        let (predecessor, successor) = (app(&[PUBLIC]).await, Origin::replying(200, &[PUBLIC], "new").await);
        let sandbox = settled(env, env.sandbox(&predecessor).await).await;
        is_miss(&env.get(&sandbox, "/").await);
        is_hit(&env.get(&sandbox, "/").await, "1");
        env.redis.del(&sandbox.key()).await;
        let again = env.sandbox(&successor).id(&sandbox.id).await;
        crate::store_fixture::right_within(
            "the successor's response",
            std::time::Instant::now(),
            std::time::Duration::from_secs(1),
            async || {
                let response = env.get(&again, "/").await;
                // Under way when the old life ended: nobody's response.
                response.status == 200 && response.text() == "new"
            },
        )
        .await;
        for _ in 0..3 {
            assert_eq!(env.get(&again, "/").await.text(), "new");
        }
    }
}

#[tokio::test]
async fn without_pushes_a_record_that_reads_otherwise_forgets_too() {
    let env = with(json!({
        "store": { "redis": { "tracking": false } },
        "cache": { "untracked_ttl": "100ms" },
    }))
    .await;
    let (_origin, sandbox) = sandbox_of(&env, &[PUBLIC]).await;
    is_miss(&env.get(&sandbox, "/").await);
    // Read again, the same: what is stored stays.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    is_hit(&env.get(&sandbox, "/").await, "1");
    env.write(&sandbox, &[("9000", "9000")]).await;
    eventually("the change to be read", || async {
        let response = env.get(&sandbox, "/").await;
        (response.text() == "2").then_some(())
    })
    .await;
    is_hit(&env.get(&sandbox, "/").await, "2");
}

#[tokio::test]
async fn a_response_that_comes_in_while_the_record_changes_is_not_kept() {
    let env = with(json!({})).await;
    let gate = Gate::new();
    let origin = slow(&gate).await;
    for change in [("MaskRequestHost", "inner.test"), ("9000", "9000"), ("SomethingElse", "x")] {
        let sandbox = settled(&env, env.sandbox(&origin).await).await;
        let (mut client, _) = begun(&env, &sandbox).await;
        env.write(&sandbox, &[change]).await;
        settle(&env, &sandbox).await;
        let before = outdated(&env).await;
        gate.open();
        assert_eq!(client.wire().exactly(4).await.unwrap(), b"rest");
        assert_eq!(outdated(&env).await, before + 1.0, "{change:?}");
        gate.open();
        is_miss(&env.get(&sandbox, "/slow").await);
        assert!(hit(&env.get(&sandbox, "/slow").await));
    }
}

async fn outdated(env: &Env) -> f64 {
    env.proxy.metrics().await.sum("cube_proxy_response_cache_fills_total", &[("outcome", "outdated")])
}

#[tokio::test]
async fn a_paused_a_killed_and_an_unknown_sandbox_are_never_answered_from_it() {
    let env = with(json!({ "lifecycle": { "pause_wait": "100ms" } })).await;
    let (origin, sandbox) = sandbox_of(&env, &[PUBLIC]).await;
    is_miss(&env.get(&sandbox, "/").await);
    for state in ["pausing", "paused"] {
        env.push(&sandbox, state).await;
        let refused = env.get(&sandbox, "/").await;
        assert_eq!((refused.status, verdict(&refused)), (503, None), "{state}");
    }
    env.push(&sandbox, "running").await;
    env.get(&sandbox, "/").await.passed(200);
    assert!(hit(&env.get(&sandbox, "/").await));
    env.push(&sandbox, "killed").await;
    let refused = env.get(&sandbox, "/").await;
    assert_eq!((refused.status, verdict(&refused)), (410, None));
    let (_origin, deleted) = sandbox_of(&env, &[PUBLIC]).await;
    is_miss(&env.get(&deleted, "/").await);
    env.redis.del(&deleted.key()).await;
    eventually("the record to be gone", || async {
        let response = env.get(&deleted, "/").await;
        if response.status == 404 {
            response.is_not_found();
        }
        (response.status == 404).then_some(())
    })
    .await;
    drop(origin);
}

#[tokio::test]
async fn a_kill_forgets_and_keeps_nothing_that_comes_in() {
    let env = with(json!({})).await;
    let gate = Gate::new();
    let origin = slow(&gate).await;
    let sandbox = settled(&env, env.sandbox(&origin).await).await;
    let (mut client, head) = begun(&env, &sandbox).await;
    assert_eq!(stored(&env).await, 1.0);
    env.push(&sandbox, "killed").await;
    let cut = client.body(head, "GET").await;
    assert!(!cut.clean, "{}", cut.brief());
    gate.open();
    eventually("everything to be forgotten", || async { (stored(&env).await == 0.0).then_some(()) }).await;
}

#[tokio::test]
async fn the_admin_api_forgets_a_route_and_what_is_stored() {
    let env = with(json!({})).await;
    let (_origin, sandbox) = sandbox_of(&env, &[PUBLIC]).await;
    for path in ["/admin/backend_cache/delete", "/admin/meta/delete"] {
        env.get(&sandbox, "/").await.passed(200);
        assert!(hit(&env.get(&sandbox, "/").await));
        let body = json!({ "sandbox_id": sandbox.id }).to_string();
        assert_eq!(env.proxy.admin("POST", path, &body).await.status, 200);
        assert_eq!(stored(&env).await, 0.0, "{path}");
        is_miss(&env.get(&sandbox, "/").await);
    }
}

#[tokio::test]
async fn a_refused_token_gets_nothing_that_was_public_before() {
    let env = cached().await;
    let (_origin, sandbox) = sandbox_of(env, &[PUBLIC]).await;
    is_miss(&env.get(&sandbox, "/").await);
    is_hit(&env.get(&sandbox, "/").await, "1");
    env.write(&sandbox, &[("AllowPublicTraffic", "false"), ("TrafficAccessToken", "example-token")]).await;
    crate::store_fixture::right_within(
        "the refusal",
        std::time::Instant::now(),
        std::time::Duration::from_secs(1),
        async || env.get(&sandbox, "/").await.status == 404,
    )
    .await;
    env.get(&sandbox, "/").await.is_not_found();
}
