//! The registry row of a replica (lifecycle.md, "Registry").

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{Env, Gate, Origin, RedisServer, Reply, eventually, scripts, unique_id};

use crate::support::{builder, own};

const ROWS: &str = "cube:v1:shared:cube_proxy:registry";
const BEATS: &str = "cube:v1:shared:cube_proxy:heartbeat";
const INTERVAL: Duration = Duration::from_secs(1);

struct Registered {
    env: Env,
    name: String,
}

impl Registered {
    async fn start() -> Self {
        let name = unique_id("proxy-");
        let registry = json!({
            "registry": {
                "enabled": true, "proxy_id": name, "interval": "1s",
                "admin_url": "http://127.0.0.1:8082", "resume_url": "http://127.0.0.1:8083",
            },
            "drain": { "delay": "100ms" },
        });
        Self { env: own(registry).await, name }
    }

    async fn row(&self) -> Option<Value> {
        match self.env.redis.command(&["HGET", ROWS, &self.name]).await {
            Reply::Text(row) => Some(serde_json::from_slice(&row).expect("JSON")),
            _ => None,
        }
    }

    async fn beat(&self) -> Option<u64> {
        match self.env.redis.command(&["ZSCORE", BEATS, &self.name]).await {
            Reply::Text(score) => Some(String::from_utf8(score).unwrap().parse().expect("unix milliseconds")),
            _ => None,
        }
    }

    /// Waits until both are there; how long that took.
    async fn both(&self) -> Duration {
        let begun = Instant::now();
        eventually("row and heartbeat", || async {
            (self.row().await.is_some() && self.beat().await.is_some()).then_some(())
        })
        .await;
        begun.elapsed()
    }
}

#[tokio::test]
async fn a_row_that_somebody_removed_is_back_within_an_interval() {
    let registered = Registered::start().await;
    registered.both().await;
    let row = registered.row().await.unwrap();
    let mut keys: Vec<&String> = row.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["admin_url", "node_ip", "proxy_id", "resume_url", "started_at", "version"]);
    assert_eq!(
        (row["proxy_id"].as_str(), row["node_ip"].as_str()),
        (Some(registered.name.as_str()), Some("127.0.0.9"))
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let beat = u128::from(registered.beat().await.unwrap());
    assert!(now.abs_diff(beat) < 5_000, "{beat} is not now ({now})");

    registered.env.redis.command(&["HDEL", ROWS, &registered.name]).await;
    // Some slack for a busy machine.
    let bound = INTERVAL + Duration::from_millis(500);
    let took = registered.both().await;
    assert!(took < bound, "row: {took:?}");
    registered.env.redis.del(BEATS).await;
    let took = registered.both().await;
    assert!(took < bound, "heartbeat: {took:?}");
    // Restarted empty.
    registered.env.redis.restart().await;
    let took = registered.both().await;
    println!("row and heartbeat are back {took:?} after Redis");
    assert!(took < bound, "after a restart: {took:?}");
    assert!(
        registered
            .env
            .proxy
            .admin("GET", "/admin/healthz", "")
            .await
            .text()
            .contains("heartbeat_last_pushed_ms")
    );
}

#[tokio::test]
async fn the_row_goes_with_the_last_stream_and_not_before() {
    let registered = Registered::start().await;
    registered.both().await;
    let env = &registered.env;
    let gate = Gate::new();
    let drip = scripts::drip(scripts::Framing::Chunked, "text/plain", &["1", "2", "3"], &gate);
    let origin = Origin::scripted(drip).await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host())]).await;
    gate.open();
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.next_chunk().await, b"1");
    env.proxy.terminate();
    eventually("the listener to close", || async {
        tokio::net::TcpStream::connect(env.proxy.http()).await.is_err().then_some(())
    })
    .await;
    // Well into the drain its row is kept, and its beat goes on.
    let seen = registered.beat().await.expect("a heartbeat");
    gate.open();
    assert_eq!(client.next_chunk().await, b"2");
    eventually("another beat", || async { (registered.beat().await? > seen).then_some(()) }).await;
    assert!(registered.row().await.is_some());
    gate.open();
    assert_eq!(client.next_chunk().await, b"3");
    assert!(client.next_chunk().await.is_empty());
    drop(client);
    assert!(env.proxy.ended().await.success());
    assert_eq!((registered.row().await, registered.beat().await), (None, None));
}

/// The proxy's user may read and not write: that is what the log says, and nothing else ails.
#[tokio::test]
async fn a_row_that_may_not_be_written_is_no_outage() {
    let redis = RedisServer::start().await;
    let user = ["ACL", "SETUSER", "cube", "on", ">example-password", "~*", "&*", "+@all", "-hset"];
    redis.command(&user).await;
    let config = json!({
        "store": { "redis": {
            "url": redis.url(), "username": "cube", "password": "example-password",
        } },
        "registry": { "enabled": true, "proxy_id": unique_id("proxy-"), "interval": "1s" },
    });
    let proxy = builder(&config).start().await;
    let line = proxy.output_line(&["registry row cannot be written"]).await;
    assert!(line.contains("NOPERM") && line.contains("HSET"), "{line}");
    let env = Env { proxy, redis };
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let begun = Instant::now();
    while begun.elapsed() < 2 * INTERVAL {
        env.get(&sandbox, "/").await.passed(200);
    }
    let output = env.proxy.output();
    assert!(!output.contains("does not answer") && !output.contains("refuses lookups"), "{output}");
}
