//! Finds out from Sentinels or from the Cluster which servers hold the records.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::StoreError;
use crate::redis::client::Connector;
use crate::redis::error::store_error;
use crate::redis::node::Node;
use crate::redis::reconnect::keep_connected;
use crate::redis::settings::Layout;

/// The hash slots of a Cluster.
pub(crate) const SLOTS: u16 = 16384;

/// Who answers this much later than the first has no vote: one that is dead would hold up the look
/// for its successor.
const VOTE_GRACE: Duration = Duration::from_millis(200);

/// A range of hash slots and the server that owns it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    /// A v6 address is in brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The Sentinels or seeds of the settings, kept connected.
pub(crate) struct DiscoveryPeers {
    layout: Layout,
    clients: Vec<(String, Client)>,
    _tasks: JoinSet<()>,
}

impl DiscoveryPeers {
    pub(crate) fn start(connector: &Connector) -> Self {
        let target = connector.target();
        let mut tasks = JoinSet::new();
        let mut clients = Vec::new();
        for (host, port) in &target.hosts {
            let client = match target.layout {
                Layout::Sentinel(_) => connector.sentinel(host, *port),
                Layout::Single | Layout::Cluster => connector.server(host, *port),
            };
            let kept = client.clone();
            // Why a peer is away comes out when it is asked.
            tasks.spawn(async move { keep_connected(&kept, drop).await });
            clients.push((host.clone(), client));
        }
        Self { layout: target.layout.clone(), clients, _tasks: tasks }
    }

    /// Asks everybody at once and takes what most say. In a Cluster the `known` servers are asked
    /// too: all that the settings name may be gone some day.
    pub(crate) async fn ask(&self, known: &[Arc<Node>]) -> Result<Vec<SlotRange>, StoreError> {
        let known = if self.layout == Layout::Cluster { known } else { &[] };
        let (verb, arguments) = self.discovery_command();
        let peers = self.clients.iter().map(|(host, client)| {
            let command = CustomCommand::new_static(verb, ClusterHash::FirstKey, false);
            let reply = client.custom::<Value, Value>(command, arguments.clone());
            async move { (host.as_str(), reply.await.map_err(|error| store_error(&error))) }.left_future()
        });
        let nodes = known.iter().map(|node| {
            let reply = node.run_keyless(verb, arguments.clone());
            let host = node.server().rsplit_once(':').map_or(node.server(), |(host, _)| host);
            async move { (host, reply.await) }.right_future()
        });
        let mut asked: FuturesUnordered<_> = peers.chain(nodes).collect();
        let mut votes: HashMap<Vec<SlotRange>, usize> = HashMap::new();
        let mut failure = StoreError::Timeout;
        let mut until = None;
        loop {
            let next = match until {
                None => asked.next().await,
                Some(until) => timeout_at(until, asked.next()).await.ok().flatten(),
            };
            let Some((host, reply)) = next else { break };
            match reply.and_then(|reply| self.read(host, &reply)) {
                Ok(ranges) => {
                    *votes.entry(ranges).or_default() += 1;
                    until.get_or_insert_with(|| Instant::now() + VOTE_GRACE);
                }
                Err(error) => failure = error,
            }
        }
        votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(ranges, _)| ranges).ok_or(failure)
    }

    fn discovery_command(&self) -> (&'static str, Vec<Value>) {
        match &self.layout {
            Layout::Sentinel(service) => {
                ("SENTINEL", vec!["get-master-addr-by-name".into(), service.as_str().into()])
            }
            Layout::Single | Layout::Cluster => ("CLUSTER", vec!["SLOTS".into()]),
        }
    }

    fn read(&self, host: &str, reply: &Value) -> Result<Vec<SlotRange>, StoreError> {
        let ranges = match self.layout {
            Layout::Sentinel(_) => master(reply).map(|range| vec![range]),
            Layout::Single | Layout::Cluster => slots(reply, host),
        };
        ranges.ok_or_else(|| StoreError::Unreachable(format!("{host} does not know who holds the records")))
    }
}

/// Brackets around a v6 address.
fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}

/// Reads the reply to SENTINEL get-master-addr-by-name.
fn master(reply: &Value) -> Option<SlotRange> {
    let Value::Array(reply) = reply else { return None };
    let [host, port] = reply.as_slice() else { return None };
    Some(SlotRange {
        first: 0,
        last: SLOTS - 1,
        host: bracketed(&host.as_str()?),
        port: port.as_str()?.parse().ok()?,
    })
}

/// Reads the reply to CLUSTER SLOTS. A server that does not know its own address leaves it out.
fn slots(reply: &Value, asked: &str) -> Option<Vec<SlotRange>> {
    let Value::Array(rows) = reply else { return None };
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Array(row) = row else { return None };
        let [first, last, Value::Array(primary), ..] = row.as_slice() else { return None };
        let [host, port, ..] = primary.as_slice() else { return None };
        let host = host.as_str().filter(|host| !host.is_empty() && host != "?");
        ranges.push(SlotRange {
            first: u16::try_from(first.as_i64()?).ok()?,
            last: u16::try_from(last.as_i64()?).ok()?,
            host: bracketed(host.as_deref().unwrap_or(asked)),
            port: u16::try_from(port.as_i64()?).ok()?,
        });
    }
    // The order of the rows means nothing, and votes are compared.
    ranges.sort();
    (!ranges.is_empty()).then_some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(values: Vec<Value>) -> Value {
        Value::Array(values)
    }

    #[test]
    fn the_reply_of_a_sentinel_is_one_server_with_all_slots() {
        let reply = array(vec!["::1".into(), "6379".into()]);
        let range = master(&reply).unwrap();
        assert_eq!((range.host.as_str(), range.port, range.first, range.last), ("[::1]", 6379, 0, 16383));
        for bad in [Value::Null, array(vec![]), array(vec!["a".into(), "x".into()]), "a".into()] {
            assert_eq!(master(&bad), None);
        }
    }

    #[test]
    fn the_slots_of_a_cluster_are_read_and_rubbish_is_refused() {
        let row = |first: i64, last: i64, host: Value, port: i64| {
            array(vec![first.into(), last.into(), array(vec![host, port.into(), "id".into()])])
        };
        let reply = array(vec![row(100, 16383, "10.0.0.2".into(), 7001), row(0, 99, Value::Null, 7000)]);
        let ranges = slots(&reply, "seed").unwrap();
        let told: Vec<_> = ranges.iter().map(|s| (s.first, s.last, s.host.as_str(), s.port)).collect();
        assert_eq!(told, [(0, 99, "seed", 7000), (100, 16383, "10.0.0.2", 7001)]);
        for bad in [
            Value::Null,
            array(vec![]),
            array(vec!["x".into()]),
            array(vec![row(-1, 5, "a".into(), 1)]),
            array(vec![row(0, 5, "a".into(), 70000)]),
            array(vec![array(vec![0.into(), 1.into()])]),
        ] {
            assert_eq!(slots(&bad, "seed"), None, "{bad:?}");
        }
    }
}
