//! A node that cannot be reached is not dialled; a sandbox that cannot be reached harms nobody
//! (lifecycle.md, "Breaker").

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{BlackHole, Env, Origin, RedisServer, Response, Sandbox, eventually, refused_port};
use tokio::task::JoinSet;

use crate::support::own;

const OPEN: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_millis(500);

fn short() -> Value {
    json!({
        "breaker": { "open_min": "1s", "open_max": "2s", "window": "10s" },
        "upstream": { "connect_timeout": "500ms" },
    })
}

fn is_open(response: &Response) -> bool {
    if response.retcode() != Some(340_500) {
        return false;
    }
    response.is_own(500, 340_500, r#"{"error":"backend unavailable"}"#);
    assert!(response.took < CONNECT, "not at once but after {:?}", response.took);
    true
}

/// Whether a connect was tried and timed out.
fn dialled(response: &Response) -> bool {
    assert!(matches!(response.retcode(), Some(310_509 | 340_500)), "{}", response.brief());
    response.took >= CONNECT
}

/// A node of the test's own with so many sandboxes at ports where nothing answers.
struct Node {
    host: IpAddr,
    holes: Vec<BlackHole>,
    sandboxes: Vec<Sandbox>,
}

impl Node {
    async fn dead(env: &Env, host: &str, sandboxes: usize) -> Self {
        let mut node = Self { host: host.parse().unwrap(), holes: Vec::new(), sandboxes: Vec::new() };
        for _ in 0..sandboxes {
            let hole = BlackHole::open(host).await;
            node.sandboxes.push(env.sandbox_at(hole.address()).await);
            node.holes.push(hole);
        }
        node
    }

    /// Opens the breaker: as many different sandboxes as it takes fail to be reached.
    async fn fails(&self, env: &Env) {
        for sandbox in &self.sandboxes[..2] {
            env.get(sandbox, "/").await.is_gateway_timeout();
        }
        // The one that opens it is judged again after its time-out, and then refused.
        assert!(dialled(&env.get(&self.sandboxes[2], "/").await));
        assert!(is_open(&env.get(&self.sandboxes[3], "/").await), "the breaker is not open");
    }

    /// The node is back: something listens on every port.
    async fn returns(self) -> (Vec<Origin>, Vec<Sandbox>) {
        let ports: Vec<u16> = self.holes.iter().map(|hole| hole.address().port()).collect();
        drop(self.holes);
        let mut origins = Vec::new();
        for port in ports {
            let origin = Origin::named("back").on(&self.host.to_string()).port(port);
            origins.push(origin.echo().await);
        }
        (origins, self.sandboxes)
    }
}

/// Asks for all of them at the same time.
async fn all_at_once(env: &Env, sandboxes: &[Sandbox], times: usize) -> Vec<Response> {
    let mut asking = JoinSet::new();
    for sandbox in (0..times).flat_map(|_| sandboxes) {
        let mut client = env.client().await;
        let host = sandbox.host();
        asking.spawn(async move { client.call("GET", "/", &[("Host", &host)], "").await });
    }
    asking.join_all().await
}

#[tokio::test]
async fn a_closed_port_under_heavy_traffic_does_its_neighbours_no_harm() {
    let env = own(short()).await;
    let closed = env.sandbox_at(SocketAddr::from(([127, 0, 0, 71], refused_port()))).await;
    let neighbours = Origin::named("neighbour").on("127.0.0.71").echo().await;
    let mut beside = Vec::new();
    for _ in 0..3 {
        beside.push(env.sandbox(&neighbours).await);
    }
    let over = std::sync::atomic::AtomicBool::new(false);
    let knocking = async {
        let mut knocks = 0;
        while !over.load(std::sync::atomic::Ordering::SeqCst) {
            let responses = all_at_once(&env, std::slice::from_ref(&closed), 20).await;
            knocks += responses.len();
            for response in responses {
                response.is_bad_gateway(310_509);
            }
        }
        knocks
    };
    let living = async {
        for _ in 0..100 {
            for sandbox in &beside {
                env.get(sandbox, "/").await.passed(200);
            }
        }
        over.store(true, std::sync::atomic::Ordering::SeqCst);
    };
    let (knocks, ()) = tokio::join!(knocking, living);
    assert!(knocks >= 200, "only {knocks} requests for the closed port");
    assert_eq!(env.proxy.metrics().await.sum("cube_proxy_breaker_trips_total", &[]), 0.0);
}

#[tokio::test]
async fn a_node_that_cannot_be_reached_fails_at_once_is_probed_by_one_and_heals_when_it_returns() {
    let env = own(short()).await;
    let node = Node::dead(&env, "127.0.0.72", 4).await;
    let other = Origin::named("other").on("127.0.0.73").echo().await;
    let elsewhere = env.sandbox(&other).await;
    node.fails(&env).await;
    let opened = Instant::now();
    assert_eq!(env.proxy.metrics().await.sum("cube_proxy_breaker_open_nodes", &[]), 1.0);

    // While it is open and again when its time is up: of all those who ask at the same time one
    // may knock, the others fail at once.
    let mut probed = 0;
    while opened.elapsed() < 4 * OPEN {
        let responses = all_at_once(&env, &node.sandboxes, 5).await;
        let (probes, refused): (Vec<_>, Vec<_>) = responses.iter().partition(|response| dialled(response));
        assert!(probes.len() <= 1, "{} at the same time", probes.len());
        assert!(refused.iter().all(|response| is_open(response)));
        probed += probes.len();
        env.get(&elsewhere, "/").await.passed(200);
    }
    assert!(probed >= 2, "{probed} probes while it was away");

    let (_origins, sandboxes) = node.returns().await;
    let returned = Instant::now();
    // A step is two seconds by now, a tenth more or less.
    let step = Duration::from_millis(2200) + CONNECT;
    loop {
        let asked = Instant::now();
        let response = env.get(&sandboxes[0], "/").await;
        if response.status == 200 {
            break;
        }
        assert!(is_open(&response), "{}", response.brief());
        assert!(asked < returned + step, "not healed {:?} after its return", asked - returned);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for response in all_at_once(&env, &sandboxes, 5).await {
        response.passed(200);
    }
    assert_eq!(env.proxy.metrics().await.sum("cube_proxy_breaker_open_nodes", &[]), 0.0);
}

#[tokio::test]
async fn a_node_that_no_way_leads_to_opens_the_breaker_as_one_that_is_silent_does() {
    let mut overrides = short();
    cube_testkit::merge(&mut overrides, &json!({ "upstream": { "cidrs": ["127.0.0.0/8"] } }));
    let env = own(overrides).await;
    // Linux: the loopback's broadcast address, "network is unreachable".
    let nowhere = SocketAddr::from(([127, 255, 255, 255], 8080));
    let mut sandboxes = Vec::new();
    for _ in 0..4 {
        sandboxes.push(env.sandbox_at(nowhere).await);
    }
    for sandbox in &sandboxes[..2] {
        env.get(sandbox, "/").await.is_bad_gateway(310_509);
    }
    env.get(&sandboxes[2], "/").await;
    assert!(is_open(&env.get(&sandboxes[3], "/").await));
}

#[tokio::test]
async fn an_open_breaker_tells_a_caller_without_the_right_token_nothing() {
    let env = own(short()).await;
    let node = Node::dead(&env, "127.0.0.74", 4).await;
    node.fails(&env).await;
    let private = env.sandbox_at(node.holes[0].address()).token("example-token").await;
    env.get(&private, "/").await.is_not_found();
    let right = [("e2b-traffic-access-token", "example-token")];
    assert!(is_open(&env.get_with(&private, "/", &right).await));
}

#[tokio::test]
async fn the_shared_set_is_followed_and_the_last_known_one_holds_while_redis_is_away() {
    let env = own(json!({ "breaker": { "shared_poll": "200ms" } })).await;
    let origin = Origin::named("node").on("127.0.0.75").echo().await;
    let sandbox = env.sandbox(&origin).await;
    crate::store::cached(&env, &sandbox).await;
    env.redis.command(&["SADD", "faulty_backend_set", "127.0.0.75"]).await;
    let refused = async || is_open(&env.get(&sandbox, "/").await);
    crate::store_fixture::right_within("SADD", Instant::now(), Duration::from_millis(200), refused).await;
    env.redis.stop();
    eventually("the outage to be noticed", || async {
        (env.get(&env.nobody(), "/").await.retcode() == Some(310_500)).then_some(())
    })
    .await;
    for _ in 0..20 {
        assert!(is_open(&env.get(&sandbox, "/").await), "the last known set does not hold");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let healed = RedisServer::start().await;
    let port = origin.port().to_string();
    healed.hset(&sandbox.key(), &[("HostIP", "127.0.0.75"), ("8080", port.as_str())]).await;
    env.redis.restart_with(&healed.dump().await).await;
    eventually("the emptied set to be followed", || async {
        (env.get(&sandbox, "/").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_pushes_the_shared_set_is_polled() {
    let quiet = json!({ "store": { "redis": { "tracking": false } }, "breaker": { "shared_poll": "200ms" } });
    let env = own(quiet).await;
    let origin = Origin::named("node").on("127.0.0.76").echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.get(&sandbox, "/").await.passed(200);
    for (command, open) in [("SADD", true), ("SREM", false)] {
        env.redis.command(&[command, "faulty_backend_set", "127.0.0.76"]).await;
        eventually("the poll", || async { (is_open(&env.get(&sandbox, "/").await) == open).then_some(()) })
            .await;
    }
}
