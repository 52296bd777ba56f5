//! The store is away, hangs, refuses, or holds something broken (metadata.md).

use cube_testkit::serde_json::json;
use cube_testkit::{By, Client, Env, Origin, Proxy, RedisServer, Sandbox, eventually};

use crate::support::{builder, own};

const UNAVAILABLE: &str = r#"{"error":"service unavailable"}"#;

/// A proxy whose Redis is at `redis`, started or not.
fn beside(redis: &RedisServer, more: cube_testkit::serde_json::Value) -> Proxy {
    let store = json!({ "store": { "redis": { "url": redis.url() } } });
    builder(&store).config(&more).launch()
}

/// Asks until a response came out of the cache: the push that follows the writing of a record may
/// overtake the first lookup, and then nothing of it is kept.
pub(crate) async fn cached(env: &Env, sandbox: &Sandbox) {
    cached_with(env, sandbox, &[]).await;
}

async fn cached_with(env: &Env, sandbox: &Sandbox, headers: &[(&str, &str)]) {
    let hits = || async {
        let metrics = env.proxy.metrics().await;
        metrics.sum("cube_proxy_cache_lookups_total", &[("outcome", "hit")])
    };
    eventually("a cached route", || async {
        let before = hits().await;
        env.get_with(sandbox, "/", headers).await.passed(200);
        (hits().await > before).then_some(())
    })
    .await;
}

async fn status_of(proxy: &Proxy, path: &str) -> u16 {
    eventually("the admin listener", || proxy.probe(path)).await
}

#[tokio::test]
async fn without_redis_at_start_the_proxy_is_unready_and_heals() {
    let redis = RedisServer::unstarted();
    let proxy = beside(&redis, json!({}));
    assert_eq!(status_of(&proxy, "/healthz").await, 200);
    assert_eq!(status_of(&proxy, "/readyz").await, 503);
    proxy.output_line(&["redis"]).await;
    let env = Env { proxy, redis };
    env.get(&env.nobody(), "/").await.is_own(503, 310_500, UNAVAILABLE);
    env.redis.restart().await;
    env.proxy.ready().await;
    let origin = Origin::echo().await;
    env.get(&env.sandbox(&origin).await, "/").await.passed(200);
}

#[tokio::test]
async fn a_wrong_password_is_a_clear_line_and_never_printed() {
    let redis = RedisServer::with_password("example-right-password").await;
    let wrong = json!({ "store": { "redis": { "password": "example-wrong-password" } } });
    let proxy = beside(&redis, wrong);
    let line = eventually("a line about the password", || async {
        let output = proxy.output().to_lowercase();
        output.lines().find(|line| line.contains("password") || line.contains("auth")).map(str::to_owned)
    })
    .await;
    assert!(line.contains("redis") || line.contains("store"), "{line}");
    assert_eq!(status_of(&proxy, "/readyz").await, 503);
    let env = Env { proxy, redis };
    env.get(&env.nobody(), "/").await.is_own(503, 310_500, UNAVAILABLE);
    assert!(env.proxy.lives());
    assert!(!env.proxy.output().contains("example-"), "a password in the output");
}

#[tokio::test]
async fn the_right_password_opens_the_store() {
    let redis = RedisServer::with_password("example-password").await;
    let proxy = beside(&redis, json!({ "store": { "redis": { "password": "example-password" } } }));
    proxy.ready().await;
    let env = Env { proxy, redis };
    let origin = Origin::echo().await;
    env.get(&env.sandbox(&origin).await, "/").await.passed(200);
    assert!(!env.proxy.output().contains("example-password"));
}

#[tokio::test]
async fn while_redis_is_gone_what_is_cached_is_served_and_changes_are_followed_afterwards() {
    let env = own(json!({ "cache": { "untracked_ttl": "300ms" } })).await;
    let (one, two) = (Origin::named("one").echo().await, Origin::named("two").echo().await);
    let sandbox = env.sandbox(&one).await;
    cached(&env, &sandbox).await;
    env.redis.stop();
    env.get(&env.nobody(), "/").await.is_own(503, 310_500, UNAVAILABLE);
    for _ in 0..3 {
        assert_eq!(env.get(&sandbox, "/").await.seen().origin, "one");
    }
    env.redis.restart().await;
    let moved = [("HostIP", "127.0.0.1"), ("8080", &two.port().to_string())];
    env.write(&sandbox, &moved).await;
    eventually("the change to be followed", || async {
        let response = env.get(&sandbox, "/").await;
        (response.status == 200 && response.seen().origin == "two").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_hangs_costs_an_unknown_sandbox_two_and_a_half_seconds_and_a_cached_one_nothing() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    cached(&env, &sandbox).await;
    env.redis.pause();
    let response = env.get(&env.nobody(), "/").await;
    response.is_own(503, 310_500, UNAVAILABLE);
    assert!(response.took.as_millis() < 3_200, "{:?}", response.took);
    env.get(&sandbox, "/").await.passed(200);
    env.redis.resume();
    let late = env.sandbox(&origin).await;
    eventually("new records to be found", || async {
        (env.get(&late, "/").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_changed_record_is_followed_and_a_deleted_one_is_gone() {
    let env = crate::support::cube().await;
    let (one, two) = (Origin::named("one").echo().await, Origin::named("two").echo().await);
    let sandbox = env.sandbox(&one).await;
    assert_eq!(env.get(&sandbox, "/").await.seen().origin, "one");
    env.write(&sandbox, &[("8080", &two.port().to_string())]).await;
    eventually("the new mapping", || async {
        (env.get(&sandbox, "/").await.seen().origin == "two").then_some(())
    })
    .await;
    env.redis.del(&sandbox.key()).await;
    eventually("the record to be gone", || async {
        (env.get(&sandbox, "/").await.status == 404).then_some(())
    })
    .await;
    env.get(&sandbox, "/").await.is_not_found();
}

// ----------------------------------------------------------------------------- the embedded store

async fn get(proxy: &Proxy, sandbox: &Sandbox) -> cube_testkit::Response {
    Client::connect(proxy.http()).await.call("GET", "/", &[("Host", &sandbox.host())], "").await
}

/// Writes the file in one step, so that nobody reads half of it.
fn replace(file: &std::path::Path, text: &str) {
    let fresh = file.with_extension("fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, file).unwrap();
}

#[tokio::test]
async fn a_file_that_breaks_in_the_middle_is_reported_and_the_last_good_one_stays() {
    let origin = Origin::echo().await;
    let sandbox = Sandbox::named("filed");
    let builder = builder(&json!({}));
    let file = builder.directory().join("sandboxes.yaml");
    let good = format!("sandboxes:\n  filed:\n    HostIP: 127.0.0.1\n    \"8080\": \"{}\"\n", origin.port());
    replace(&file, &good);
    let proxy = builder.config(&json!({ "store": { "kind": "file", "file": file } })).start().await;
    get(&proxy, &sandbox).await.passed(200);

    replace(&file, &format!("{good}  other:\n    HostIP: [127.0.0.1\n  third: }}\n"));
    let line = proxy.output_line(&["sandboxes.yaml", "line"]).await;
    assert!(line.contains("column"), "{line}");
    get(&proxy, &sandbox).await.passed(200);

    replace(&file, &good.replace("filed", "renamed"));
    eventually("the mended file", || async {
        (get(&proxy, &Sandbox::named("renamed")).await.status == 200).then_some(())
    })
    .await;
    get(&proxy, &sandbox).await.is_not_found();
    assert!(proxy.lives());
}

#[tokio::test]
async fn the_embedded_store_speaks_every_form() {
    let origin = Origin::echo().await;
    let builder = builder(&json!({}));
    let file = builder.directory().join("sandboxes.yaml");
    let record = format!("HostIP: 127.0.0.1, \"8080\": \"{}\"", origin.port());
    replace(
        &file,
        &format!(
            "sandboxes:\n  open: {{ {record} }}\n  shut: {{ {record}, AllowPublicTraffic: \"false\", \
             TrafficAccessToken: example-token }}\n"
        ),
    );
    let proxy = builder.config(&json!({ "store": { "kind": "file", "file": file } })).start().await;
    let env = Env { proxy, redis: RedisServer::unstarted() };
    let (open, shut) = (Sandbox::named("open"), Sandbox::named("shut"));
    for by in By::ALL {
        env.call(by, &open, "GET", "/", &[], "").await.passed(200);
        env.call(by, &shut, "GET", "/", &[], "").await.is_not_found();
        let token = [("cube-traffic-access-token", "example-token")];
        env.call(by, &shut, "GET", "/", &token, "").await.passed(200);
    }
}

#[tokio::test]
async fn in_the_first_moment_of_a_hang_a_refused_token_and_an_unknown_sandbox_look_alike() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token").await;
    let token = [("e2b-traffic-access-token", "example-token")];
    cached_with(&env, &sandbox, &token).await;
    env.redis.pause();
    let (nobody, wrong) = (env.nobody(), [("e2b-traffic-access-token", "example-wrong")]);
    let (refused, unknown) =
        tokio::join!(env.get_with(&sandbox, "/", &wrong), env.get_with(&nobody, "/", &wrong));
    env.redis.resume();
    assert_eq!(refused.identity(), unknown.identity());
    refused.is_own(503, 310_500, UNAVAILABLE);
}

#[tokio::test]
async fn a_refused_token_costs_the_store_what_an_unknown_sandbox_costs() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let (sandbox, nobody) = (env.sandbox(&origin).token("example-token").await, env.nobody());
    let token = [("e2b-traffic-access-token", "example-token")];
    cached_with(&env, &sandbox, &token).await;
    let reads = |sandbox: Sandbox| {
        let env = &env;
        async move {
            let before = env.redis.calls("hgetall").await;
            for _ in 0..5 {
                env.get(&sandbox, "/").await.is_not_found();
            }
            env.redis.calls("hgetall").await - before
        }
    };
    let unknown = reads(nobody).await;
    assert!(unknown > 0);
    let refused = reads(sandbox.clone()).await;
    // An unknown id is looked for under every prefix; what is under the first ends the look.
    assert!(
        (1..=unknown).contains(&refused),
        "{refused} reads for a refused token, {unknown} for an unknown id"
    );
    assert_eq!(reads(sandbox).await, 0, "the second time");
    assert_eq!(origin.count(), origin.received().len());
}
