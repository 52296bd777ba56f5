//! A Redis Cluster.

use super::{RedisServer, Reply};
use crate::{eventually, free_port};

/// The hash slots of the three primaries.
const SHARES: [[&str; 2]; 3] = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];

/// Three primaries that own a third of the slots each, and replicas.
pub struct RedisCluster {
    /// The primaries, then the replicas: one of each primary in turn.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts one with so many replicas; a dead primary's replica takes over after a second or two.
    pub async fn start(replicas: usize) -> Self {
        let mut nodes = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..3 + replicas {
            let bus = free_port("127.0.0.1").to_string();
            let arguments = [
                ["--cluster-enabled", "yes"],
                ["--cluster-node-timeout", "1500"],
                ["--cluster-require-full-coverage", "no"],
                ["--cluster-replica-validity-factor", "0"],
                ["--repl-diskless-sync-delay", "0"],
                ["--cluster-port", &bus],
            ];
            nodes.push(RedisServer::with_arguments(arguments.as_flattened()).await);
            buses.push(bus);
        }
        for (at, node) in nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]).await;
            if let Some([first, last]) = SHARES.get(at) {
                node.command(&["CLUSTER", "ADDSLOTSRANGE", first, last]).await;
            }
        }
        for (node, bus) in nodes.iter().zip(&buses).skip(1) {
            let port = node.port().to_string();
            nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]).await;
        }
        let cluster = Self { nodes };
        let known = format!("cluster_known_nodes:{}", cluster.nodes.len());
        cluster.every("CLUSTER", "INFO", &["cluster_state:ok", "cluster_slots_assigned:16384", &known]).await;
        for at in 0..replicas {
            let primary = cluster.nodes[at % 3].command(&["CLUSTER", "MYID"]).await.text();
            cluster.nodes[3 + at].command(&["CLUSTER", "REPLICATE", &primary]).await;
        }
        for replica in &cluster.nodes[3..] {
            eventually("a replica in step", || async {
                let text = replica.command(&["INFO", "replication"]).await.text();
                text.contains("master_link_status:up").then_some(())
            })
            .await;
        }
        cluster
    }

    /// `redis-cluster://` with two of its nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let [one, two] = [self.nodes[0].port(), self.nodes[1].port()];
        format!("redis-cluster://127.0.0.1:{one}?node=127.0.0.1:{two}")
    }

    /// One command, which must succeed, at the node that owns its key now.
    pub async fn command(&self, words: &[&str]) -> Reply {
        eventually(&format!("the Cluster to do {words:?}"), || self.try_command(words)).await
    }

    /// One command at the node that owns its key; `None` while none takes it.
    pub async fn try_command(&self, words: &[&str]) -> Option<Reply> {
        for node in &self.nodes {
            if let Ok(Ok(reply)) = node.try_command(words).await {
                return Some(reply);
            }
        }
        None
    }

    async fn every(&self, verb: &str, word: &str, lines: &[&str]) {
        eventually("a whole Cluster", || async {
            for node in &self.nodes {
                let text = node.command(&[verb, word]).await.text();
                if !lines.iter().all(|line| text.lines().any(|have| have == *line)) {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }
}
