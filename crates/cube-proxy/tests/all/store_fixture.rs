//! The proxy over a store in any of its shapes, and how a change is seen to be followed.

use std::time::{Duration, Instant};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{Env, Origin, RedisCluster, RedisServer, Reply, Response, Sandbox, Sentinels, eventually};

use crate::support::builder;

/// Who holds the records.
pub(crate) enum Store {
    /// The server of [`Env`].
    Single,
    /// A Cluster.
    Cluster(RedisCluster),
    /// The primary that Sentinels name.
    Sentinels(Sentinels),
}

/// A proxy and its store.
pub(crate) struct StoreFixture {
    pub(crate) env: Env,
    pub(crate) store: Store,
}

impl StoreFixture {
    /// A proxy over a store that runs.
    pub(crate) async fn over(store: Store, overrides: &Value) -> Self {
        let redis = match store {
            Store::Single => RedisServer::start().await,
            Store::Cluster(_) | Store::Sentinels(_) => RedisServer::unstarted(),
        };
        let url = match &store {
            Store::Single => redis.url(),
            Store::Cluster(cluster) => cluster.url(),
            Store::Sentinels(sentinels) => sentinels.url(),
        };
        let proxy = builder(&json!({ "store": { "redis": { "url": url } } })).config(overrides);
        let fixture = Self { env: Env { proxy: proxy.start().await, redis }, store };
        eventually("changes to be pushed", || async {
            (fixture.metric("cube_proxy_cache_tracked", &[]).await == 1.0).then_some(())
        })
        .await;
        fixture
    }

    /// One command where its key is at home.
    pub(crate) async fn command(&self, words: &[&str]) -> Reply {
        match &self.store {
            Store::Single => self.env.redis.command(words).await,
            Store::Cluster(cluster) => cluster.command(words).await,
            Store::Sentinels(sentinels) => sentinels.primary().await.command(words).await,
        }
    }

    /// `HSET`.
    pub(crate) async fn write<N: AsRef<str>, V: AsRef<str>>(&self, sandbox: &Sandbox, fields: &[(N, V)]) {
        let key = sandbox.key();
        let mut words = vec!["HSET", key.as_str()];
        words.extend(fields.iter().flat_map(|(name, value)| [name.as_ref(), value.as_ref()]));
        self.command(&words).await;
    }

    /// A sandbox whose application is `origin`.
    pub(crate) async fn sandbox(&self, origin: &Origin) -> Sandbox {
        let (sandbox, fields) = self.env.sandbox(origin).described();
        self.write(&sandbox, &fields).await;
        sandbox
    }

    /// Keys that ran out so far, on all servers.
    pub(crate) async fn expired(&self) -> u64 {
        let servers = match &self.store {
            Store::Single => std::slice::from_ref(&self.env.redis),
            Store::Cluster(cluster) => &cluster.nodes,
            Store::Sentinels(sentinels) => &sentinels.servers,
        };
        let mut sum = 0;
        for server in servers {
            sum += server.info("stats", "expired_keys", None).await;
        }
        sum
    }

    /// A sample of `/metrics`.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.env.proxy.metrics().await.sum(name, labels)
    }

    /// Asks until the response came out of the cache: the push of the last change may spoil the
    /// first reading.
    pub(crate) async fn warm(&self, sandbox: &Sandbox) {
        let from_memory = || async {
            let metrics = self.env.proxy.metrics().await;
            let of = |outcome| metrics.sum("cube_proxy_cache_lookups_total", &[("outcome", outcome)]);
            of("hit") + of("negative")
        };
        eventually("a response out of the cache", || async {
            let before = from_memory().await;
            self.env.get(sandbox, "/").await;
            (from_memory().await > before).then_some(())
        })
        .await;
    }
}

/// Which application answered; `None`: the proxy said that there is no such sandbox. A request that
/// was under way when the life of its sandbox ended ends with it, which is nobody's response. Every
/// other response fails the test.
#[track_caller]
pub(crate) fn who(response: &Response) -> Option<String> {
    match response.retcode() {
        Some(310_507) => {
            response.is_not_found();
            None
        }
        Some(310_410) => {
            response.is_own(410, 310_410, r#"{"error":"gone"}"#);
            Some(String::new())
        }
        _ => Some(response.seen().origin),
    }
}

/// Asks until `right`. A wrong response to a question that was asked later than `bound` after
/// `since` fails the test. Gives how long after `since` the first right response was asked for.
#[track_caller]
pub(crate) fn right_within(
    what: &str,
    since: Instant,
    bound: Duration,
    mut right: impl AsyncFnMut() -> bool,
) -> impl Future<Output = Duration> {
    let place = std::panic::Location::caller();
    async move {
        loop {
            let asked = Instant::now();
            if right().await {
                return asked - since;
            }
            let after = asked - since;
            assert!(after < bound, "{what}: not right {after:?} after the change (asked at {place})");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
