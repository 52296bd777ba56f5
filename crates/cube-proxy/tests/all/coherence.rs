//! A change in the store holds from its push on (metadata.md, "Cache").

use std::time::{Duration, Instant};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{By, Origin, RedisCluster, Relay, Sandbox, Sentinels, eventually, scripts};

use crate::store_fixture::{Store, StoreFixture, right_within, who};
use crate::support::builder;

/// From the response to a write until the first request that must follow it.
const PUSHED: Duration = Duration::from_millis(200);
/// From a loss that nothing announces until everything is right again.
const NOTICED: Duration = Duration::from_secs(5);

async fn is_followed(fixture: &StoreFixture, sandbox: &Sandbox, what: &str, wanted: Option<&str>) {
    let changed = Instant::now();
    let asks = async || {
        let response = fixture.env.get(sandbox, "/").await;
        // One that was under way when its record went is cut.
        response.clean && who(&response).as_deref() == wanted
    };
    right_within(what, changed, PUSHED, asks).await;
    fixture.warm(sandbox).await;
    assert_eq!(who(&fixture.env.get(sandbox, "/").await).as_deref(), wanted, "{what}");
}

async fn every_change_is_followed(fixture: &StoreFixture, sandboxes: usize) {
    let one = Origin::named("one").on("127.0.0.61").echo().await;
    let _two = Origin::named("two").on("127.0.0.62").port(one.port()).echo().await;
    let three = Origin::named("three").on("127.0.0.61").echo().await;
    for _ in 0..sandboxes {
        let sandbox = fixture.sandbox(&one).await;
        let key = sandbox.key();
        // The same slot of a Cluster.
        let aside = format!("aside:{{{key}}}");
        is_followed(fixture, &sandbox, "a new record", Some("one")).await;
        fixture.write(&sandbox, &[("HostIP", "127.0.0.62")]).await;
        is_followed(fixture, &sandbox, "HostIP", Some("two")).await;
        fixture.write(&sandbox, &[("HostIP", "127.0.0.61"), ("8080", &three.port().to_string())]).await;
        is_followed(fixture, &sandbox, "the port", Some("three")).await;
        fixture.command(&["HDEL", &key, "8080"]).await;
        is_followed(fixture, &sandbox, "a field that went", None).await;
        fixture.write(&sandbox, &[("8080", one.port().to_string())]).await;
        is_followed(fixture, &sandbox, "a field that came back", Some("one")).await;
        fixture.command(&["RENAME", &key, &aside]).await;
        is_followed(fixture, &sandbox, "RENAME away", None).await;
        fixture.command(&["RENAME", &aside, &key]).await;
        is_followed(fixture, &sandbox, "RENAME back", Some("one")).await;
        fixture.command(&["COPY", &key, &aside]).await;
        fixture.command(&["DEL", &key]).await;
        is_followed(fixture, &sandbox, "DEL", None).await;
        fixture.command(&["RENAME", &aside, &key]).await;
        is_followed(fixture, &sandbox, "RENAME onto an id that was unknown", Some("one")).await;
        // Redis itself finds that the time is up: nobody touches the key meanwhile.
        let before = fixture.expired().await;
        fixture.command(&["PEXPIRE", &key, "50"]).await;
        eventually("the key to run out", || async { (fixture.expired().await > before).then_some(()) }).await;
        is_followed(fixture, &sandbox, "EXPIRE", None).await;
    }
}

#[tokio::test]
async fn every_change_of_a_record_is_followed_at_once() {
    every_change_is_followed(&StoreFixture::over(Store::Single, &json!({})).await, 2).await;
}

#[tokio::test]
async fn every_change_of_a_record_in_a_cluster_is_followed_at_once() {
    let cluster = RedisCluster::start(0).await;
    every_change_is_followed(&StoreFixture::over(Store::Cluster(cluster), &json!({})).await, 8).await;
}

#[tokio::test]
async fn every_change_of_a_record_behind_sentinels_is_followed_at_once() {
    let sentinels = Sentinels::start(1).await;
    every_change_is_followed(&StoreFixture::over(Store::Sentinels(sentinels), &json!({})).await, 2).await;
}

/// `PROXY_UNDER_TEST=target/release/cube-proxy cargo test -p cube-proxy --test all -- --ignored
/// --nocapture how_long_a_change_takes`
#[tokio::test]
#[ignore = "measures"]
async fn how_long_a_change_takes() {
    const CHANGES: usize = 1000;
    let fixture = StoreFixture::over(Store::Single, &json!({})).await;
    let backends = [Origin::echo().await, Origin::echo().await];
    let sandbox = fixture.sandbox(&backends[0]).await;
    fixture.warm(&sandbox).await;
    let host = sandbox.host();
    let mut client = fixture.env.client().await;
    let mut took = Vec::new();
    for n in 1..=CHANGES {
        fixture.write(&sandbox, &[("8080", backends[n % 2].port().to_string())]).await;
        let changed = Instant::now();
        let before = backends[n % 2].count();
        let mut asked = changed;
        loop {
            client.call("GET", "/", &[("Host", &host)], "").await.passed(200);
            if backends[n % 2].count() > before {
                break;
            }
            asked = Instant::now();
        }
        took.push(asked - changed);
    }
    took.sort();
    let at = |part: usize| took[(CHANGES - 1) * part / 100];
    println!(
        "from the answer to HSET until the first request that follows: median {:?}, 99 of 100 {:?}, longest {:?}",
        at(50),
        at(99),
        at(100)
    );
}

/// Warm sandboxes of a fixture, each with what it leads to.
struct Warm {
    origin: Origin,
    sandboxes: Vec<Sandbox>,
}

impl Warm {
    async fn up(fixture: &StoreFixture, count: usize) -> Self {
        let origin = Origin::named("old").echo().await;
        let mut sandboxes = Vec::new();
        for _ in 0..count {
            let sandbox = fixture.sandbox(&origin).await;
            fixture.warm(&sandbox).await;
            sandboxes.push(sandbox);
        }
        Self { origin, sandboxes }
    }

    async fn all(&self, fixture: &StoreFixture, wanted: Option<&str>) -> bool {
        for sandbox in &self.sandboxes {
            if who(&fixture.env.get(sandbox, "/").await).as_deref() != wanted {
                return false;
            }
        }
        true
    }
}

#[tokio::test]
async fn after_a_flushall_nothing_is_left_within_five_seconds() {
    let fixture = StoreFixture::over(Store::Single, &json!({})).await;
    let warm = Warm::up(&fixture, 3).await;
    fixture.command(&["FLUSHALL"]).await;
    let all_gone = async || warm.all(&fixture, None).await;
    right_within("FLUSHALL", Instant::now(), NOTICED, all_gone).await;
}

#[tokio::test]
async fn a_flushall_is_noticed_although_the_keys_read_last_had_changed_before() {
    let fixture = StoreFixture::over(Store::Single, &json!({})).await;
    let warm = Warm::up(&fixture, 2).await;
    // What was read first and last is gone, which was announced; one sandbox is left in the cache.
    for n in [0, 1] {
        let between = Warm::up(&fixture, 1).await;
        fixture.command(&["DEL", &between.sandboxes[0].key()]).await;
        if n == 0 {
            fixture.command(&["DEL", &warm.sandboxes[0].key()]).await;
        }
    }
    assert_eq!(who(&fixture.env.get(&warm.sandboxes[1], "/").await).as_deref(), Some("old"));
    fixture.command(&["FLUSHALL"]).await;
    let gone = async || warm.all(&fixture, None).await;
    right_within("FLUSHALL", Instant::now(), NOTICED, gone).await;
}

#[tokio::test]
async fn after_the_loss_of_the_tracking_connection_changes_are_seen_within_five_seconds() {
    let fixture = StoreFixture::over(Store::Single, &json!({})).await;
    let warm = Warm::up(&fixture, 3).await;
    let new = Origin::named("new").echo().await;
    assert!(fixture.env.redis.kill_tracking().await > 0);
    let begun = Instant::now();
    for sandbox in &warm.sandboxes {
        fixture.write(sandbox, &[("8080", new.port().to_string())]).await;
    }
    let moved = async || warm.all(&fixture, Some("new")).await;
    right_within("a lost tracking connection", begun, NOTICED, moved).await;
    // And pushes work again.
    eventually("changes to be pushed again", || async {
        (fixture.metric("cube_proxy_cache_tracked", &[]).await == 1.0).then_some(())
    })
    .await;
    fixture.warm(&warm.sandboxes[0]).await;
    fixture.write(&warm.sandboxes[0], &[("8080", warm.origin.port().to_string())]).await;
    is_followed(&fixture, &warm.sandboxes[0], "a change after it", Some("old")).await;
}

#[tokio::test]
async fn the_loss_of_the_tracking_connection_alone_ends_no_stream_and_no_pooled_connection() {
    let fixture = StoreFixture::over(Store::Single, &json!({})).await;
    let origin = Origin::echo().await;
    let (sandbox, env) = (fixture.sandbox(&origin).await, &fixture.env);
    fixture.warm(&sandbox).await;
    let talking = Origin::scripted(scripts::websocket).await;
    let mut socket = env.websocket(By::Host, &fixture.sandbox(&talking).await, "/", &[]).await.unwrap();
    assert_eq!(socket.say("before").await, "before");
    let generation = async || {
        let response = env.proxy.admin("GET", &format!("/admin/routes/{}", sandbox.id), "").await;
        let route: Value = cube_testkit::serde_json::from_slice(&response.body).unwrap();
        route["generation"].as_u64().unwrap()
    };
    let before = generation().await;
    for _ in 0..3 {
        assert_eq!(fixture.env.redis.kill_tracking().await, 1);
        eventually("pushes anew", || async {
            env.get(&sandbox, "/").await.passed(200);
            (fixture.env.redis.command(&["CLIENT", "LIST"]).await.text().contains("flags=t")).then_some(())
        })
        .await;
        fixture.warm(&sandbox).await;
        assert_eq!(generation().await, before);
        assert_eq!(socket.say("after").await, "after");
    }
}

#[tokio::test]
async fn what_nobody_announced_ends_the_streams_of_the_sandboxes_that_are_gone() {
    let fixture = StoreFixture::over(Store::Single, &json!({})).await;
    let talking = Origin::scripted(scripts::websocket).await;
    for flush in [true, false] {
        let sandbox = fixture.sandbox(&talking).await;
        let mut socket = fixture.env.websocket(By::Host, &sandbox, "/", &[]).await.unwrap();
        assert_eq!(socket.say("hello").await, "hello");
        let begun = Instant::now();
        if flush {
            fixture.command(&["FLUSHALL"]).await;
        } else {
            fixture.env.redis.kill_tracking().await;
            fixture.command(&["DEL", &sandbox.key()]).await;
        }
        let last = socket.next().await;
        assert!(!matches!(&last, Some(Ok(_))), "{last:?}");
        assert!(begun.elapsed() < NOTICED + Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_partition_that_resets_nothing_is_noticed_within_five_seconds() {
    let redis = cube_testkit::RedisServer::start().await;
    let relay = Relay::to(&redis).await;
    let proxy = builder(&json!({ "store": { "redis": { "url": relay.url() } } })).start().await;
    let fixture = StoreFixture { env: cube_testkit::Env { proxy, redis }, store: Store::Single };
    let warm = Warm::up(&fixture, 3).await;
    let new = Origin::named("new").echo().await;
    relay.silence();
    let begun = Instant::now();
    for sandbox in &warm.sandboxes {
        fixture.write(sandbox, &[("8080", new.port().to_string())]).await;
    }
    let moved = async || warm.all(&fixture, Some("new")).await;
    right_within("a silent partition", begun, NOTICED, moved).await;
}

#[tokio::test]
async fn operators_see_how_a_route_is_held_and_never_its_token() {
    let fixture = StoreFixture::over(Store::Single, &json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = fixture.env.sandbox(&origin).token("example-token-unseen").await;
    let path = format!("/admin/routes/{}", sandbox.id);
    let route = async || {
        let response = fixture.env.proxy.admin("GET", &path, "").await;
        assert!(!response.text().contains("unseen"), "{}", response.text());
        let route: Value = cube_testkit::serde_json::from_slice(&response.body).unwrap();
        (response.status, route)
    };
    // The push of the record's own writing may come after the first reading.
    let held = eventually("a route that is held", || async {
        let (status, route) = route().await;
        assert_eq!(status, 200);
        fixture
            .env
            .get_with(&sandbox, "/", &[("cube-traffic-access-token", "example-token-unseen")])
            .await
            .passed(200);
        (route["must_be_read"] == false && route["tracked"] == true).then_some(route)
    })
    .await;
    assert_eq!(held["record"]["host_ip"], "127.0.0.1");
    assert_eq!(held["record"]["ports"]["8080"], origin.port().to_string());
    assert_eq!(held["record"]["access"], "token");
    assert_eq!((&held["state"], &held["breaker"]), (&json!(null), &json!("closed")));
    let before = held["generation"].as_u64().unwrap();
    fixture.write(&sandbox, &[("CreatedAt", "7"), ("Status", "running")]).await;
    eventually("the next life", || async {
        fixture.env.get_with(&sandbox, "/", &[("cube-traffic-access-token", "example-token-unseen")]).await;
        let (_, route) = route().await;
        (route["generation"].as_u64().unwrap() > before && route["record"]["created_at"] == "7").then_some(())
    })
    .await;
    fixture.command(&["DEL", &sandbox.key()]).await;
    eventually("the route to be gone", || async {
        fixture.env.get(&sandbox, "/").await.is_not_found();
        (route().await.0 == 404).then_some(())
    })
    .await;
    assert_eq!(fixture.env.proxy.admin("GET", "/admin/routes/not.an.id", "").await.status, 400);
}
