//! Many routes, many askers, many strangers: what the store is asked, and what memory holds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::{Client, Env, Origin, RedisServer, Relay, Sandbox, eventually, unique_id};
use tokio::task::JoinSet;

use crate::store::cached;
use crate::support::{builder, own};

const ROUTES: usize = 10_000;
/// Changes that go to the store in one go.
const BATCH: usize = 250;
/// From a change on, an old backend may get requests for so long.
const FOLLOWED: Duration = Duration::from_secs(1);

fn hset(sandbox: &Sandbox, fields: &[(&str, &str)]) -> Vec<String> {
    let mut words = vec!["HSET".to_owned(), sandbox.key()];
    words.extend(fields.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]));
    words
}

/// Asks for each of these, one after the other, on one connection.
async fn walk(client: &mut Client, sandboxes: &[Sandbox], order: impl IntoIterator<Item = usize>) {
    for at in order {
        let host = sandboxes[at].host();
        let answer = client.call("GET", &format!("/{at}"), &[("Host", &host)], "").await;
        answer.passed(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_changed_routes_none_leads_to_its_old_backend_a_second_later() {
    let env = own(json!({ "limits": { "keepalive_requests": 10_000_000 } })).await;
    let ok = cube_testkit::scripts::reply(200, &[], "ok");
    let (old, new) = (Origin::named("old").serve(ok).await, Origin::replying(200, &[], "ok").await);
    let prefix = unique_id("r");
    let sandboxes: Vec<Sandbox> = (0..ROUTES).map(|n| Sandbox::named(&format!("{prefix}-{n}"))).collect();
    let (old_port, new_port) = (old.port().to_string(), new.port().to_string());
    for batch in sandboxes.chunks(1000) {
        let fields = [("HostIP", "127.0.0.1"), ("CreatedAt", "1"), ("8080", old_port.as_str())];
        let records: Vec<_> = batch.iter().map(|sandbox| hset(sandbox, &fields)).collect();
        env.redis.pipeline(&records).await;
    }
    let (mut one, mut two) = (env.client().await, env.client().await);
    // Every route is in the cache, and its push has been seen.
    for _ in 0..2 {
        let halves = (0..ROUTES / 2, ROUTES / 2..ROUTES);
        tokio::join!(walk(&mut one, &sandboxes, halves.0), walk(&mut two, &sandboxes, halves.1));
        let entries = env.proxy.metrics().await.sum("cube_proxy_cache_entries", &[]);
        assert_eq!(entries, f64::from(u32::try_from(ROUTES).unwrap()));
        if old.count() >= ROUTES {
            break;
        }
    }
    assert_eq!((old.count(), new.count()), (ROUTES, 0));

    let changed = std::sync::Mutex::new(HashMap::new());
    let write = async {
        for (at, batch) in sandboxes.chunks(BATCH).enumerate() {
            let changes: Vec<_> = batch.iter().map(|sandbox| hset(sandbox, &[("8080", &new_port)])).collect();
            env.redis.pipeline(&changes).await;
            let now = Instant::now();
            changed.lock().unwrap().extend((at * BATCH..at * BATCH + batch.len()).map(|n| (n, now)));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // Each client goes round and round the routes, from another place, in another direction.
    let done = std::sync::atomic::AtomicBool::new(false);
    let load = async |client: &mut Client, step: usize| {
        let mut at = step;
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            at = (at + step) % ROUTES;
            walk(client, &sandboxes, [at]).await;
        }
    };
    let change = async {
        write.await;
        tokio::time::sleep(FOLLOWED).await;
        done.store(true, std::sync::atomic::Ordering::SeqCst);
    };
    tokio::join!(change, load(&mut one, 7), load(&mut two, ROUTES - 7));
    let before_the_last_round = new.count();
    let halves = (0..ROUTES / 2, ROUTES / 2..ROUTES);
    tokio::join!(walk(&mut one, &sandboxes, halves.0), walk(&mut two, &sandboxes, halves.1));
    assert_eq!(new.count() - before_the_last_round, ROUTES, "all lead to the new backend");

    let changed = changed.into_inner().unwrap();
    let mut latest = Duration::ZERO;
    let mut asked = 0;
    for request in old.received() {
        let at: usize = request.target[1..].parse().unwrap();
        let after = request.at.saturating_duration_since(changed[&at]);
        asked += usize::from(request.at > changed[&at]);
        latest = latest.max(after);
    }
    assert!(latest <= FOLLOWED, "{asked} requests at an old backend, the last {latest:?} after its change");
    println!(
        "{before_the_last_round} requests at new backends under way; {asked} at an old one, at most {latest:?} late"
    );
}

/// A proxy that reaches its Redis through a relay.
async fn relayed() -> (Env, Relay) {
    let redis = RedisServer::start().await;
    let relay = Relay::to(&redis).await;
    let proxy = builder(&json!({ "store": { "redis": { "url": relay.url() } } })).start().await;
    (Env { proxy, redis }, relay)
}

#[tokio::test]
async fn a_thousand_concurrent_requests_for_a_cold_sandbox_are_one_lookup() {
    const ASKERS: usize = 1000;
    let (env, relay) = relayed().await;
    let origin = Origin::replying(200, &[], "ok").await;
    // A first reading of another sandbox, so that the push of this one has been seen.
    let sandbox = env.sandbox(&origin).await;
    cached(&env, &env.sandbox(&origin).await).await;
    let mut clients = Vec::new();
    for _ in 0..ASKERS {
        clients.push(env.client().await);
    }
    let mut monitor = env.redis.monitor().await;
    relay.slow(Duration::from_millis(500));
    let mut asking = JoinSet::new();
    for mut client in clients {
        let host = sandbox.host();
        asking.spawn(async move { client.call("GET", "/", &[("Host", &host)], "").await });
    }
    while let Some(answer) = asking.join_next().await {
        answer.unwrap().passed(200);
    }
    let key = format!("\"HGETALL\" \"{}\"", sandbox.key());
    let lines = monitor.lines().await;
    assert_eq!(lines.iter().filter(|line| line.contains(&key)).count(), 1, "lookups");
    assert_eq!(
        origin.received().iter().filter(|r| r.headers.get("host") == Some(&sandbox.host())).count(),
        ASKERS
    );
}

/// Asks for ids that nobody has, many at a time; every answer must say so.
async fn strangers(env: &Env, prefix: &str, ids: std::ops::Range<usize>) {
    const ASKERS: usize = 32;
    let mut asking = JoinSet::new();
    let share = ids.len().div_ceil(ASKERS);
    for first in ids.clone().step_by(share) {
        let mut client = env.client().await;
        let (prefix, last) = (prefix.to_owned(), (first + share).min(ids.end));
        asking.spawn(async move {
            for n in first..last {
                let request = format!("GET / HTTP/1.1\r\nHost: 8080-{prefix}{n}.cube.test\r\n\r\n");
                client.send(request).await;
                let head = client.wire().head().await.unwrap().unwrap();
                assert!(head.starts_with(b"HTTP/1.1 404 "), "{}", String::from_utf8_lossy(&head));
                client.wire().exactly("{\"error\":\"not found\"}\n".len()).await.unwrap();
            }
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_strangers_cost_one_lookup_each_little_memory_and_no_warm_route() {
    const STRANGERS: usize = 100_000;
    /// Reads of the proxy's own accord: its beat, the key that is read again.
    const OWN: u64 = 500;
    let env = own(json!({ "limits": { "keepalive_requests": 10_000_000 } })).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let mut warm = Vec::new();
    for _ in 0..20 {
        let sandbox = env.sandbox(&origin).await;
        cached(&env, &sandbox).await;
        warm.push(sandbox);
    }
    let prefix = unique_id("x");
    strangers(&env, &prefix, 0..1000).await;
    let (memory, asked) = (env.proxy.rss(), env.redis.calls("hgetall").await);
    strangers(&env, &prefix, 1000..STRANGERS).await;
    let grown = env.proxy.rss().saturating_sub(memory);
    let lookups = env.redis.calls("hgetall").await - asked;
    // Three keys an id.
    let most = 3 * (STRANGERS as u64 - 1000) + OWN;
    assert!(lookups <= most, "{lookups} HGETALL, at most {most}");
    assert!(grown < 64 << 20, "{grown} bytes more");

    // Asked for again, they are answered from memory, and so are the warm ones.
    let (before, misses) = (env.redis.calls("hgetall").await, misses(&env).await);
    strangers(&env, &prefix, STRANGERS - 10_000..STRANGERS).await;
    for sandbox in &warm {
        env.get(sandbox, "/").await.passed(200);
    }
    assert_eq!(self::misses(&env).await, misses, "lookups that waited for Redis");
    assert!(env.redis.calls("hgetall").await - before <= OWN);
    println!("{lookups} HGETALL and {} KiB for {STRANGERS} strangers", grown >> 10);
}

async fn misses(env: &Env) -> f64 {
    env.proxy.metrics().await.sum("cube_proxy_cache_lookups_total", &[("outcome", "miss")])
}

#[tokio::test]
async fn the_cache_keeps_no_more_sandboxes_than_it_may() {
    let env = own(json!({ "cache": { "capacity": 50 } })).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let often = env.sandbox(&origin).await;
    cached(&env, &often).await;
    for _ in 0..200 {
        env.get(&env.sandbox(&origin).await, "/").await.passed(200);
        env.get(&often, "/").await.passed(200);
    }
    eventually("the bound to hold", || async {
        let entries = env.proxy.metrics().await.sum("cube_proxy_cache_entries", &[]);
        (entries <= 50.0).then_some(())
    })
    .await;
    let before = misses(&env).await;
    env.get(&often, "/").await.passed(200);
    assert_eq!(misses(&env).await, before, "what is used most stays");
}
