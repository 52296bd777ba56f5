//! States and the gate (lifecycle.md): verdicts, bounds, the sources of a state.

use std::time::{Duration, Instant};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{Env, Gate, Manager, Origin, Reply, Response, Resume, Sandbox, eventually};
use tokio::sync::OnceCell;

use crate::resume::sleeps_on;
use crate::support::{builder, own, waking_with};

const WAIT: Duration = Duration::from_millis(400);

/// Nobody to wake a sandbox; a change is waited for 400 ms.
async fn asleep() -> &'static Env {
    static ENV: OnceCell<Env> = OnceCell::const_new();
    ENV.get_or_init(|| own(json!({ "lifecycle": { "pause_wait": "400ms" } }))).await
}

#[track_caller]
fn is_gone(response: &Response) {
    response.is_own(410, 310_410, r#"{"error":"gone"}"#);
}

#[track_caller]
fn still_changes(response: &Response) {
    response.is_own(503, 310_503, r#"{"error":"service unavailable"}"#);
    assert_eq!(response.headers.all("retry-after"), ["2"]);
    assert!(response.took >= WAIT, "held for {:?} only", response.took);
}

#[tokio::test]
async fn each_state_has_its_verdict() {
    let env = asleep().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for state in ["paused", "running", "killing", "running", "killed", "running", "pausing", "resuming"] {
        env.push(&sandbox, state).await;
        let before = origin.count();
        let response = env.get(&sandbox, "/").await;
        match state {
            "running" => {
                response.passed(200);
            }
            "paused" => sleeps_on(&response),
            "pausing" | "resuming" => still_changes(&response),
            _ => is_gone(&response),
        }
        assert_eq!(origin.count() - before, usize::from(state == "running"), "{state}");
    }
}

#[tokio::test]
async fn a_change_that_ends_lets_the_held_request_go_on() {
    let env = asleep().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for (from, to) in
        [("pausing", "running"), ("resuming", "running"), ("pausing", "paused"), ("pausing", "killed")]
    {
        env.push(&sandbox, from).await;
        let (response, ()) = tokio::join!(env.get(&sandbox, "/"), async {
            one_is_held(env).await;
            env.push(&sandbox, to).await;
        });
        match to {
            "running" => {
                response.passed(200);
            }
            "paused" => sleeps_on(&response),
            _ => is_gone(&response),
        }
        assert!(response.took < WAIT, "{from} {to}: {:?}", response.took);
    }
}

/// Waits until some request is held; that it is another test's harms nothing.
async fn one_is_held(env: &Env) {
    eventually("a held request", || async {
        (env.proxy.metrics().await.sum("cube_proxy_held_requests", &[]) >= 1.0).then_some(())
    })
    .await;
}

/// The key of a sandbox's state string.
fn state_key(sandbox: &Sandbox) -> String {
    format!("cube:v1:shared:sandbox:lifecycle:state:{}", sandbox.id)
}

/// Sets the state string of a sandbox and waits until the proxy knows it, without a request.
async fn set_state(env: &Env, sandbox: &Sandbox, state: &str) {
    env.redis.command(&["SET", &state_key(sandbox), state, "PX", "60000"]).await;
    eventually("the state to be known", || async {
        (state_of(env, sandbox).await.as_deref() == Some(state)).then_some(())
    })
    .await;
}

/// The state in force, as the admin API shows it; asking reads nothing.
async fn state_of(env: &Env, sandbox: &Sandbox) -> Option<String> {
    let response = env.proxy.admin("GET", &format!("/admin/routes/{}", sandbox.id), "").await;
    let route: Value = cube_testkit::serde_json::from_slice(&response.body).ok()?;
    route["state"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_state_that_ran_out_before_anybody_asked_is_known_all_the_same() {
    let env = asleep().await;
    let origin = Origin::echo().await;
    // One that was served before, and one that nobody has asked for yet.
    for served in [true, false] {
        for state in ["paused", "killed", "pausing", "resuming"] {
            let sandbox = env.sandbox(&origin).await;
            if served {
                env.get(&sandbox, "/").await.passed(200);
            }
            set_state(env, &sandbox, state).await;
            env.redis.command(&["PEXPIRE", &state_key(&sandbox), "1"]).await;
            let stays = state == "paused" || state == "killed";
            if stays {
                // The key is gone as soon as it is looked for.
                eventually("the string to run out", || async {
                    let there = env.redis.command(&["EXISTS", &state_key(&sandbox)]).await;
                    matches!(there, Reply::Number(0)).then_some(())
                })
                .await;
            } else {
                eventually("the change to be forgotten", || async {
                    state_of(env, &sandbox).await.is_none().then_some(())
                })
                .await;
            }
            let response = env.get(&sandbox, "/").await;
            match state {
                "paused" => sleeps_on(&response),
                "killed" => is_gone(&response),
                _ => drop(response.passed(200)),
            }
        }
    }
}

#[tokio::test]
async fn the_same_word_set_again_after_a_push_is_an_event() {
    let env = asleep().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for _ in 0..3 {
        set_state(env, &sandbox, "paused").await;
        sleeps_on(&env.get(&sandbox, "/").await);
        env.push(&sandbox, "running").await;
        env.get(&sandbox, "/").await.passed(200);
    }
}

#[tokio::test]
async fn the_request_beyond_a_bound_is_refused_at_once() {
    let bounds = json!({
        "lifecycle": { "max_held_per_sandbox": 3, "max_held": 5 },
        "resume": { "timeout": "20s" },
    });
    let env = waking_with(bounds).await;
    let origin = Origin::echo().await;
    let mut held = Vec::new();
    let mut sandboxes = Vec::new();
    // Three of one sandbox and two of another: both bounds are reached.
    for most in [3, 2] {
        let sandbox = env.sandbox(&origin).await;
        let gate = Gate::new();
        env.manager.plan(&sandbox, Resume::When(gate.clone(), 200));
        env.push(&sandbox, "paused").await;
        for _ in 0..most {
            let mut client = env.client().await;
            client.request("GET", "/", &[("Host", &sandbox.host())]).await;
            held.push(client);
        }
        env.wait_for_held(held.len() as u64).await;
        let over = env.get(&sandbox, "/").await;
        sleeps_on(&over);
        assert!(over.took < Duration::from_millis(500), "held for {:?}", over.took);
        sandboxes.push((sandbox, gate));
    }
    // A place that is given back is there for the next.
    drop(held.pop());
    env.wait_for_held(4).await;
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandboxes[1].0.host())]).await;
    held.push(client);
    env.wait_for_held(5).await;
    for (sandbox, gate) in &sandboxes {
        assert_eq!(env.manager.calls(sandbox).len(), 1);
        gate.open();
    }
    for mut client in held {
        client.response("GET").await.passed(200);
    }
    env.wait_for_held(0).await;
}

/// A held request costs a waiter. The figure is printed; the bound is what a debug build keeps.
#[tokio::test]
async fn a_held_request_costs_little_memory() {
    const COUNT: u64 = 800;
    let env = waking_with(json!({ "resume": { "timeout": "30s" } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let gate = Gate::new();
    env.manager.plan(&sandbox, Resume::When(gate.clone(), 200));
    env.get(&sandbox, "/").await.passed(200);
    env.push(&sandbox, "paused").await;
    let before = env.proxy.rss();
    let mut held = Vec::new();
    for _ in 0..COUNT {
        let mut client = env.client().await;
        client.request("GET", "/", &[("Host", &sandbox.host())]).await;
        held.push(client);
    }
    env.wait_for_held(COUNT).await;
    let each = env.proxy.rss().saturating_sub(before) / COUNT;
    println!("memory of a held request, its connection included: {each} bytes");
    assert!(each < 64 * 1024, "{each} bytes");
    gate.open();
    for mut client in held {
        client.response("GET").await.passed(200);
    }
}

#[tokio::test]
async fn a_state_that_flaps_under_load_fails_nothing_before_its_full_hold() {
    let env = waking_with(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let until = Instant::now() + Duration::from_secs(4);
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (address, host) = (env.proxy.http(), sandbox.host());
        load.spawn(async move {
            let (mut passed, mut held) = (0, 0);
            while Instant::now() < until {
                let mut client = cube_testkit::Client::connect(address).await;
                let response = client.call("GET", "/", &[("Host", &host)], "").await;
                match response.status {
                    200 => passed += 1,
                    _ => {
                        assert_eq!(response.retcode(), Some(310_503), "{}", response.brief());
                        assert!(
                            response.took >= WAIT,
                            "held for {:?} only: {}",
                            response.took,
                            response.brief()
                        );
                        held += 1;
                    }
                }
            }
            (passed, held)
        });
    }
    while Instant::now() < until {
        for state in ["running", "pausing", "running", "paused"] {
            env.push(&sandbox, state).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    env.push(&sandbox, "running").await;
    let (mut passed, mut refused) = (0, 0);
    for (one, other) in load.join_all().await {
        (passed, refused) = (passed + one, refused + other);
    }
    println!("while the state flapped: {passed} passed, {refused} refused after their hold");
    assert!(passed > 50, "{passed} passed");
    env.get(&sandbox, "/").await.passed(200);
}

/// Another proxy on the same store.
async fn neighbour(env: &Env, manager: Option<&Manager>) -> cube_testkit::Proxy {
    let mut config = json!({
        "store": { "kind": "redis", "redis": { "url": env.redis.url() } },
        "lifecycle": { "pause_wait": "400ms" },
    });
    if let Some(manager) = manager {
        config["resume"] = json!({ "url": manager.url() });
    }
    builder(&config).start().await
}

#[tokio::test]
async fn a_replica_that_was_not_told_knows_from_the_store() {
    let env = asleep().await;
    let manager = Manager::start();
    let (plain, waker) = (neighbour(env, None).await, neighbour(env, Some(&manager)).await);
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let ask = async |proxy: &cube_testkit::Proxy| {
        let mut client = cube_testkit::Client::connect(proxy.http()).await;
        client.call("GET", "/", &[("Host", &host)], "").await
    };
    for proxy in [&env.proxy, &plain, &waker] {
        ask(proxy).await.passed(200);
    }
    // What the manager does: the store is written, one replica is told.
    let key = format!("cube:v1:shared:sandbox:lifecycle:state:{}", sandbox.id);
    let tell = async |state: &str| {
        env.redis.command(&["SET", &key, state]).await;
        env.push(&sandbox, state).await;
    };
    tell("paused").await;
    eventually("the replica to know", || async { (ask(&plain).await.status == 503).then_some(()) }).await;
    sleeps_on(&ask(&plain).await);
    sleeps_on(&ask(&env.proxy).await);
    ask(&waker).await.passed(200);
    assert_eq!(manager.calls(&sandbox).len(), 1);

    tell("running").await;
    eventually("the replica to know", || async { (ask(&plain).await.status == 200).then_some(()) }).await;
    tell("pausing").await;
    eventually("the replica to know", || async {
        (ask(&plain).await.headers.get("retry-after") == Some("2")).then_some(())
    })
    .await;
    tell("killed").await;
    for proxy in [&env.proxy, &plain, &waker] {
        eventually("the replica to know", || async { (ask(proxy).await.status == 410).then_some(()) }).await;
    }
    // The string expires; killed stays.
    env.redis.del(&key).await;
    env.write(&sandbox, &[("8081", "40000")]).await;
    eventually("the record to be read again", || async {
        is_gone(&ask(&plain).await);
        let route = plain.admin("GET", &format!("/admin/routes/{}", sandbox.id), "").await;
        route.text().contains("8081").then_some(())
    })
    .await;
    is_gone(&ask(&plain).await);
}

#[tokio::test]
async fn a_record_that_is_read_again_undoes_no_push() {
    let env = asleep().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).field("Status", "paused").await;
    sleeps_on(&env.get(&sandbox, "/").await);
    env.push(&sandbox, "running").await;
    env.write(&sandbox, &[("8081", "40000")]).await;
    for _ in 0..20 {
        env.get(&sandbox, "/").await.passed(200);
    }
    // A Status that changed is news.
    env.write(&sandbox, &[("Status", "killed")]).await;
    eventually("the change to count", || async {
        (env.get(&sandbox, "/").await.status == 410).then_some(())
    })
    .await;
    let other: Sandbox = env.sandbox(&origin).field("Status", "hibernated").await;
    env.get(&other, "/").await.passed(200);
}
