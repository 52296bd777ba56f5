//! Many routes, many askers, many strangers: what the store is asked, and what memory holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::{Client, Env, Origin, RedisServer, Relay, Sandbox, eventually, unique_id};
use tokio::task::JoinSet;

use crate::store::cached;
use crate::support::{builder, own};

const ROUTES: usize = 2_000;
/// How often each route is changed: ten thousand changes in all.
const ROUNDS: usize = 5;
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
        let response = client.call("GET", &format!("/{at}"), &[("Host", &host)], "").await;
        response.passed(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_changes_none_leads_to_an_old_backend_a_second_later() {
    let env = own(json!({ "limits": { "keepalive_requests": 10_000_000 } })).await;
    let mut backends = Vec::new();
    for _ in 0..=ROUNDS {
        backends.push(Origin::replying(200, &[], "ok").await);
    }
    let prefix = unique_id("r");
    let sandboxes: Vec<Sandbox> = (0..ROUTES).map(|n| Sandbox::named(&format!("{prefix}-{n}"))).collect();
    let all_to = async |backend: &Origin| {
        let port = backend.port().to_string();
        let fields = [("HostIP", "127.0.0.1"), ("CreatedAt", "1"), ("8080", port.as_str())];
        let records: Vec<_> = sandboxes.iter().map(|sandbox| hset(sandbox, &fields)).collect();
        env.redis.pipeline(&records).await;
        Instant::now()
    };
    all_to(&backends[0]).await;
    let (mut one, mut two) = (env.client().await, env.client().await);
    let halves = || (0..ROUTES / 2, ROUTES / 2..ROUTES);
    // Every route is in the cache.
    let (first, second) = halves();
    tokio::join!(walk(&mut one, &sandboxes, first), walk(&mut two, &sandboxes, second));
    assert_eq!(env.proxy.metrics().await.sum("cube_proxy_cache_entries", &[]), 2000.0);
    assert_eq!(backends[0].count(), ROUTES);

    let over = AtomicBool::new(false);
    let change = async {
        let mut changed = Vec::new();
        for backend in &backends[1..] {
            changed.push(all_to(backend).await);
            tokio::time::sleep(FOLLOWED + FOLLOWED / 4).await;
        }
        over.store(true, Ordering::SeqCst);
        changed
    };
    // Each client goes round and round the routes, in another order.
    let load = async |client: &mut Client, step: usize| {
        let mut at = step;
        while !over.load(Ordering::SeqCst) {
            at = (at + step) % ROUTES;
            walk(client, &sandboxes, [at]).await;
        }
    };
    let (changed, (), ()) = tokio::join!(change, load(&mut one, 7), load(&mut two, ROUTES - 11));
    let under_way: usize = backends.iter().map(Origin::count).sum::<usize>() - ROUTES;
    let last = &backends[ROUNDS];
    let before = last.count();
    let (first, second) = halves();
    tokio::join!(walk(&mut one, &sandboxes, first), walk(&mut two, &sandboxes, second));
    assert_eq!(last.count() - before, ROUTES, "in the end all lead to the last backend");

    let mut late: Vec<Duration> = Vec::new();
    for (backend, changed) in backends.iter().zip(changed) {
        late.extend(
            backend.received().iter().filter_map(|request| request.at.checked_duration_since(changed)),
        );
    }
    let latest = late.iter().max().copied().unwrap_or_default();
    assert!(latest <= FOLLOWED, "a request at an old backend {latest:?} after its change");
    assert!(under_way > 200, "only {under_way} requests while routes changed");
    println!("{under_way} requests; {} at an old backend, at most {latest:?} after its change", late.len());
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
    while let Some(response) = asking.join_next().await {
        response.unwrap().passed(200);
    }
    let key = format!("\"HGETALL\" \"{}\"", sandbox.key());
    let lines = monitor.lines().await;
    assert_eq!(lines.iter().filter(|line| line.contains(&key)).count(), 1, "lookups");
    assert_eq!(
        origin.received().iter().filter(|r| r.headers.get("host") == Some(&sandbox.host())).count(),
        ASKERS
    );
}

/// Asks for ids that nobody has, many at a time; every response must say so.
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
async fn a_scan_over_ids_that_nobody_has_costs_one_lookup_each_little_memory_and_no_warm_route() {
    /// Reads of the proxy's own accord: the key that is read again.
    const OWN: u64 = 100;
    // A build without optimisations takes more than a minute for as many.
    let count = if std::env::var_os("PROXY_UNDER_TEST").is_some() { 100_000 } else { 15_000 };
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
    strangers(&env, &prefix, 1000..count).await;
    let grown = env.proxy.rss().saturating_sub(memory);
    let lookups = env.redis.calls("hgetall").await - asked;
    // Three keys an id.
    let most = 3 * (count as u64 - 1000) + OWN;
    assert!(lookups <= most, "{lookups} HGETALL, at most {most}");
    assert!(grown < 1000 * count as u64, "{grown} bytes more");

    // Asked for again, they are answered from memory, and so are the warm ones.
    let (before, misses) = (env.redis.calls("hgetall").await, misses(&env).await);
    strangers(&env, &prefix, count - count / 10..count).await;
    for sandbox in &warm {
        env.get(sandbox, "/").await.passed(200);
    }
    assert_eq!(self::misses(&env).await, misses, "lookups that waited for Redis");
    assert!(env.redis.calls("hgetall").await - before <= OWN);
    println!("{lookups} HGETALL and {} KiB for {count} strangers", grown >> 10);
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
