//! The servers that hold records, and which of them to ask for a key.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;
use fred::util::redis_keyslot;
use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::StoreError;
use crate::redis::client::Connector;
use crate::redis::command::Command;
use crate::redis::discovery::{DiscoveryPeers, SLOTS, SlotRange};
use crate::redis::error::code;
use crate::redis::health::Health;
use crate::redis::node::{Node, PushMark, RunningNode, StoreContext};
use crate::redis::settings::Layout;

/// Between two questions to Sentinels or Cluster which servers hold the records.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(1);
/// The same while a server fails.
const FAILING_DISCOVERY_INTERVAL: Duration = Duration::from_millis(200);
/// How long a command that was redirected (MOVED) to an unknown server waits for the next slot map.
const REDIRECT_WAIT: Duration = Duration::from_millis(500);

/// The reply to one command, and the server that gave it.
pub(crate) struct Reply {
    pub(crate) value: Result<Value, StoreError>,
    pub(crate) from: Option<(Arc<Node>, PushMark)>,
}

pub(crate) struct Servers {
    map: Arc<watch::Sender<Arc<SlotMap>>>,
    /// Whether Sentinels or Cluster can be asked; always healthy with a single server.
    discovery: Arc<Health>,
    rediscover: Arc<Notify>,
    command_timeout: Duration,
    _task: JoinSet<()>,
}

/// Who owns which slots. Without a Cluster one server owns them all.
#[derive(Default)]
struct SlotMap {
    ranges: Vec<SlotRange>,
    /// The owner of each range; a server with several ranges is there several times.
    owners: Vec<Arc<RunningNode>>,
}

impl SlotMap {
    fn owner(&self, key: &[u8]) -> Option<&Arc<Node>> {
        let slot = redis_keyslot(key);
        let at = self.ranges.iter().position(|range| (range.first..=range.last).contains(&slot))?;
        self.owners.get(at).map(|running| &running.node)
    }

    fn server(&self, name: &str) -> Option<&Arc<Node>> {
        self.owners.iter().map(|running| &running.node).find(|node| node.server() == name)
    }

    fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Every server once.
    fn nodes(&self) -> Vec<Arc<Node>> {
        let mut nodes: Vec<Arc<Node>> = self.owners.iter().map(|running| running.node.clone()).collect();
        nodes.sort_by_key(|node| node.number());
        nodes.dedup_by_key(|node| node.number());
        nodes
    }
}

impl Servers {
    /// Begins to connect; the connections are made in the background.
    pub(crate) fn start(connector: Connector, shared: Arc<StoreContext>) -> Self {
        let target = connector.target();
        let told =
            target.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",");
        let layout = target.layout.clone();
        let servers = Self {
            map: Arc::new(watch::Sender::new(Arc::default())),
            discovery: Arc::new(Health::new(told)),
            rediscover: Arc::new(Notify::new()),
            command_timeout: shared.command_timeout,
            _task: JoinSet::new(),
        };
        let mut topology = Topology { map: servers.map.clone(), connector, shared, nodes: 0 };
        if layout == Layout::Single {
            let hosts = topology.connector.target().hosts.iter().take(1);
            let ranges = hosts.map(|(host, port)| SlotRange {
                first: 0,
                last: SLOTS - 1,
                host: host.clone(),
                port: *port,
            });
            topology.apply(ranges.collect());
            return servers;
        }
        let mut servers = servers;
        servers._task.spawn(follow_topology(topology, servers.discovery.clone(), servers.rediscover.clone()));
        servers
    }

    /// Whether nobody can be asked. With some servers of a Cluster away the others still are.
    pub(crate) fn failing(&self) -> bool {
        let map = self.map.borrow();
        if map.is_empty() {
            self.discovery.failing()
        } else {
            map.owners.iter().all(|owner| owner.node.failing())
        }
    }

    /// Every server that holds records.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<Node>>, StoreError> {
        Ok(self.current().await?.nodes())
    }

    /// Sends each command to the owner of its key, all at the same time; replies in their order.
    pub(crate) async fn run(&self, commands: &[Command]) -> Vec<Reply> {
        let map = match self.current().await {
            Ok(map) => map,
            Err(error) => return commands.iter().map(|_| Reply::failed(error.clone())).collect(),
        };
        let mut groups: Vec<(&Arc<Node>, Vec<usize>)> = Vec::new();
        let mut replies: Vec<Reply> = Vec::with_capacity(commands.len());
        for (at, command) in commands.iter().enumerate() {
            replies.push(Reply::failed(StoreError::Unreachable(
                "no server owns the slot of the key".to_owned(),
            )));
            let Some(owner) = map.owner(command.key()) else { continue };
            match groups.iter_mut().find(|(node, _)| Arc::ptr_eq(node, owner)) {
                Some((_, members)) => members.push(at),
                None => groups.push((owner, vec![at])),
            }
        }
        let outcomes = join_all(groups.into_iter().map(|(node, members)| async move {
            let own: Vec<Command> = members.iter().filter_map(|at| commands.get(*at).cloned()).collect();
            let mark = node.mark();
            (node, mark, node.execute(&own).await, members)
        }))
        .await;
        for (node, mark, outcome, members) in outcomes {
            let from = Some((node.clone(), mark));
            let values: Vec<Result<Value, StoreError>> = match outcome {
                Ok(values) => values,
                Err(error) => members.iter().map(|_| Err(error.clone())).collect(),
            };
            for (at, value) in members.into_iter().zip(values) {
                if let Some(reply) = replies.get_mut(at) {
                    *reply = Reply { value, from: from.clone() };
                }
            }
        }
        for (command, reply) in commands.iter().zip(&mut replies) {
            if let Err(error) = &reply.value
                && let Some(better) = self.redirected(command, error, &map).await
            {
                *reply = better;
            }
        }
        replies.into_iter().map(Reply::named).collect()
    }

    /// What the server says that a redirection leads to; `None` when `error` is none.
    async fn redirected(&self, command: &Command, error: &StoreError, map: &SlotMap) -> Option<Reply> {
        let StoreError::Refused(told) = error else { return None };
        let server = told.split(' ').nth(2).unwrap_or_default();
        match code(error)? {
            "ASK" => {
                // The slot is being migrated: only this command goes to the new owner.
                let value = map.server(server)?.attempt_asking(command).await;
                Some(Reply { value, from: None })
            }
            "MOVED" => {
                let mut maps = self.map.subscribe();
                self.rediscover.notify_one();
                let owner = match map.server(server) {
                    Some(node) => node.clone(),
                    None => {
                        let moved = |fresh: &Arc<SlotMap>| fresh.server(server).is_some();
                        let fresh =
                            tokio::time::timeout(REDIRECT_WAIT, maps.wait_for(moved)).await.ok()?.ok()?;
                        fresh.server(server)?.clone()
                    }
                };
                let mark = owner.mark();
                let value = match owner.execute(std::slice::from_ref(command)).await {
                    Ok(mut values) => values.pop()?,
                    Err(error) => Err(error),
                };
                Some(Reply { value, from: Some((owner, mark)) })
            }
            _ => None,
        }
    }

    /// The map; at the start it may take a moment until there is one.
    async fn current(&self) -> Result<Arc<SlotMap>, StoreError> {
        let map = self.map.borrow().clone();
        if !map.is_empty() {
            return Ok(map);
        }
        self.wait_for_map().await.map_err(|error| error.at(self.discovery.server()))
    }

    async fn wait_for_map(&self) -> Result<Arc<SlotMap>, StoreError> {
        self.discovery.check()?;
        let mut maps = self.map.subscribe();
        tokio::select! {
            map = maps.wait_for(|map| !map.is_empty()) => map.map(|map| map.clone()).map_err(|_| StoreError::Timeout),
            error = self.discovery.wait_for_failure() => Err(error),
            () = tokio::time::sleep(self.command_timeout) => Err(StoreError::Timeout),
        }
    }
}

impl Reply {
    fn failed(error: StoreError) -> Self {
        Self { value: Err(error), from: None }
    }

    /// With the server's name in the error.
    fn named(self) -> Self {
        match (self.value, self.from) {
            (Err(error), Some((node, mark))) => {
                Self { value: Err(error.at(node.server())), from: Some((node, mark)) }
            }
            (value, from) => Self { value, from },
        }
    }
}

/// Keeps the slot map: connects to the servers that discovery names and drops the others.
struct Topology {
    map: Arc<watch::Sender<Arc<SlotMap>>>,
    connector: Connector,
    shared: Arc<StoreContext>,
    /// Nodes made so far: the number of the last one.
    nodes: u64,
}

impl Topology {
    /// Makes these ranges the slot map; servers that stay keep their connections.
    fn apply(&mut self, ranges: Vec<SlotRange>) {
        let old = self.map.borrow().clone();
        if old.ranges == ranges {
            return;
        }
        let mut owners: Vec<Arc<RunningNode>> = Vec::with_capacity(ranges.len());
        for range in &ranges {
            let server = format!("{}:{}", range.host, range.port);
            let known = owners.iter().chain(&old.owners).find(|running| running.node.server() == server);
            let owner = known.cloned().unwrap_or_else(|| Arc::new(self.connect(server, range)));
            owners.push(owner);
        }
        let map = Arc::new(SlotMap { ranges, owners });
        let numbers: Vec<u64> = map.nodes().iter().map(|node| node.number()).collect();
        self.map.send_replace(map);
        self.shared.channel.set_servers(numbers);
    }

    fn connect(&mut self, server: String, range: &SlotRange) -> RunningNode {
        self.nodes += 1;
        tracing::info!(%server, "records come from this Redis server");
        let client = self.connector.server(&range.host, range.port);
        let master_only = matches!(self.connector.target().layout, Layout::Sentinel(_));
        RunningNode::start(self.nodes, server, client, master_only, self.shared.clone())
    }
}

/// Asks Sentinels or Cluster periodically which servers hold the records, and follows the result.
async fn follow_topology(mut topology: Topology, discovery: Arc<Health>, rediscover: Arc<Notify>) {
    let discovery_peers = DiscoveryPeers::start(&topology.connector);
    loop {
        let known = topology.map.borrow().nodes();
        match discovery_peers.ask(&known).await {
            Ok(ranges) => {
                discovery.mark_healthy();
                topology.apply(ranges);
            }
            Err(error) => drop(discovery.mark_failing(&error)),
        }
        let quiet = {
            let map = topology.map.borrow();
            !discovery.failing() && map.owners.iter().all(|owner| !owner.node.failing())
        };
        tokio::select! {
            () = rediscover.notified() => {}
            () = tokio::time::sleep(if quiet { DISCOVERY_INTERVAL } else { FAILING_DISCOVERY_INTERVAL }) => {}
        }
    }
}
