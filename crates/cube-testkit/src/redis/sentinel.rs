//! A primary, its replicas and the Sentinels that watch them.

use super::{RedisServer, Reply};
use crate::eventually;

/// The name that the Sentinels know the primary by.
const SERVICE: &str = "mymaster";

/// One primary, replicas, three Sentinels of which two must agree.
pub struct Sentinels {
    /// The primary that was, then the replicas.
    pub servers: Vec<RedisServer>,
    /// Those who watch.
    pub sentinels: Vec<RedisServer>,
}

impl Sentinels {
    /// Starts one with so many replicas; a dead primary is replaced after a second or two.
    pub async fn start(replicas: usize) -> Self {
        let fast = ["--repl-diskless-sync-delay", "0"];
        let primary = RedisServer::with_arguments(&fast).await;
        let port = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..replicas {
            let of = ["--replicaof", "127.0.0.1", &port];
            servers.push(RedisServer::with_arguments(&[fast.as_slice(), of.as_slice()].concat()).await);
        }
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let mut sentinel = RedisServer::unstarted();
            sentinel.configuration = Some(format!(
                "sentinel monitor {SERVICE} 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds {SERVICE} 1000\n\
                 sentinel failover-timeout {SERVICE} 2000\n"
            ));
            sentinel.arguments.push("--sentinel".to_owned());
            sentinel.restart().await;
            sentinels.push(sentinel);
        }
        let all = Self { servers, sentinels };
        for sentinel in &all.sentinels {
            eventually("the Sentinels to know each other and the replicas", || async {
                let seen =
                    [sentinel_list(sentinel, "replicas").await, sentinel_list(sentinel, "sentinels").await];
                (seen == [replicas, 2]).then_some(())
            })
            .await;
        }
        all
    }

    /// `redis-sentinel://` with all three.
    #[must_use]
    pub fn url(&self) -> String {
        let [one, two, three] = [0, 1, 2].map(|at: usize| self.sentinels[at].port());
        format!(
            "redis-sentinel://127.0.0.1:{one}/0?sentinelServiceName={SERVICE}\
             &node=127.0.0.1:{two}&node=127.0.0.1:{three}"
        )
    }

    /// The server that says it is the primary, the one that was a replica first.
    pub async fn primary(&self) -> &RedisServer {
        eventually("a primary", || self.try_primary()).await
    }

    /// The same; `None` while no server says so.
    pub async fn try_primary(&self) -> Option<&RedisServer> {
        for server in self.servers.iter().rev() {
            if let Ok(Ok(Reply::List(role))) = server.try_command(&["ROLE"]).await
                && role.first() == Some(&Reply::Text(b"master".to_vec()))
            {
                return Some(server);
            }
        }
        None
    }
}

/// How many of a kind a Sentinel knows.
async fn sentinel_list(sentinel: &RedisServer, kind: &str) -> usize {
    match sentinel.command(&["SENTINEL", kind, SERVICE]).await {
        Reply::List(list) => list.len(),
        _ => 0,
    }
}
