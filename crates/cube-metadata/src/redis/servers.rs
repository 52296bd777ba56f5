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
use crate::redis::discover::{Peers, SLOTS, Share};
use crate::redis::error::code;
use crate::redis::health::Health;
use crate::redis::node::{Mark, Node, Running, Shared};
use crate::redis::settings::Layout;

/// How often Sentinels or Cluster are asked who holds the records.
const LOOK: Duration = Duration::from_secs(1);
/// The same while a server fails.
const LOOK_FAILING: Duration = Duration::from_millis(200);
/// How long a command that was sent to the wrong server waits for the new map.
const NEW_MAP: Duration = Duration::from_millis(500);

/// The answer to one command, and who gave it.
pub(crate) struct Answer {
    pub(crate) value: Result<Value, StoreError>,
    pub(crate) from: Option<(Arc<Node>, Mark)>,
}

pub(crate) struct Servers {
    map: Arc<watch::Sender<Arc<Map>>>,
    /// Whether Sentinels or Cluster answer; never fails with a single server.
    discovery: Arc<Health>,
    look_again: Arc<Notify>,
    command_timeout: Duration,
    _task: JoinSet<()>,
}

/// Who owns which slots. Without a Cluster one server owns them all.
#[derive(Default)]
struct Map {
    shares: Vec<Share>,
    /// One for each share; a server with several shares is there several times.
    owners: Vec<Arc<Running>>,
}

impl Map {
    fn owner(&self, key: &[u8]) -> Option<&Arc<Node>> {
        let slot = redis_keyslot(key);
        let at = self.shares.iter().position(|share| (share.first..=share.last).contains(&slot))?;
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
    /// Connects in the background.
    pub(crate) fn start(connector: Connector, shared: Arc<Shared>) -> Self {
        let target = connector.target();
        let told =
            target.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",");
        let layout = target.layout.clone();
        let servers = Self {
            map: Arc::new(watch::Sender::new(Arc::default())),
            discovery: Arc::new(Health::new(told)),
            look_again: Arc::new(Notify::new()),
            command_timeout: shared.command_timeout,
            _task: JoinSet::new(),
        };
        let mut atlas = Atlas { map: servers.map.clone(), connector, shared, nodes: 0 };
        if layout == Layout::Single {
            let hosts = atlas.connector.target().hosts.iter().take(1);
            let shares = hosts.map(|(host, port)| Share {
                first: 0,
                last: SLOTS - 1,
                host: host.clone(),
                port: *port,
            });
            atlas.draw(shares.collect());
            return servers;
        }
        let mut servers = servers;
        servers._task.spawn(follow(atlas, servers.discovery.clone(), servers.look_again.clone()));
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

    /// Sends each command to the owner of its key, all at the same time; answers in their order.
    pub(crate) async fn run(&self, commands: &[Command]) -> Vec<Answer> {
        let map = match self.current().await {
            Ok(map) => map,
            Err(error) => return commands.iter().map(|_| Answer::failed(error.clone())).collect(),
        };
        let mut groups: Vec<(&Arc<Node>, Vec<usize>)> = Vec::new();
        let mut answers: Vec<Answer> = Vec::with_capacity(commands.len());
        for (at, command) in commands.iter().enumerate() {
            answers.push(Answer::failed(StoreError::Unreachable(
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
            (node, mark, node.ask(&own).await, members)
        }))
        .await;
        for (node, mark, outcome, members) in outcomes {
            let from = Some((node.clone(), mark));
            let values: Vec<Result<Value, StoreError>> = match outcome {
                Ok(values) => values,
                Err(error) => members.iter().map(|_| Err(error.clone())).collect(),
            };
            for (at, value) in members.into_iter().zip(values) {
                if let Some(answer) = answers.get_mut(at) {
                    *answer = Answer { value, from: from.clone() };
                }
            }
        }
        for (command, answer) in commands.iter().zip(&mut answers) {
            if let Err(error) = &answer.value
                && let Some(better) = self.redirected(command, error, &map).await
            {
                *answer = better;
            }
        }
        answers.into_iter().map(Answer::named).collect()
    }

    /// What the server says that a redirection leads to; `None` when `error` is none.
    async fn redirected(&self, command: &Command, error: &StoreError, map: &Map) -> Option<Answer> {
        let StoreError::Refused(told) = error else { return None };
        let server = told.split(' ').nth(2).unwrap_or_default();
        match code(error)? {
            "ASK" => {
                // A slot on its way: only this key, only now.
                let value = map.server(server)?.once_asking(command).await;
                Some(Answer { value, from: None })
            }
            "MOVED" => {
                let mut maps = self.map.subscribe();
                self.look_again.notify_one();
                let owner = match map.server(server) {
                    Some(node) => node.clone(),
                    None => {
                        let moved = |fresh: &Arc<Map>| fresh.server(server).is_some();
                        let fresh = tokio::time::timeout(NEW_MAP, maps.wait_for(moved)).await.ok()?.ok()?;
                        fresh.server(server)?.clone()
                    }
                };
                let mark = owner.mark();
                let value = match owner.ask(std::slice::from_ref(command)).await {
                    Ok(mut values) => values.pop()?,
                    Err(error) => Err(error),
                };
                Some(Answer { value, from: Some((owner, mark)) })
            }
            _ => None,
        }
    }

    /// The map; at the start it may take a moment until there is one.
    async fn current(&self) -> Result<Arc<Map>, StoreError> {
        let map = self.map.borrow().clone();
        if !map.is_empty() {
            return Ok(map);
        }
        self.wait_for_map().await.map_err(|error| error.at(self.discovery.server()))
    }

    async fn wait_for_map(&self) -> Result<Arc<Map>, StoreError> {
        self.discovery.check()?;
        let mut maps = self.map.subscribe();
        tokio::select! {
            map = maps.wait_for(|map| !map.is_empty()) => map.map(|map| map.clone()).map_err(|_| StoreError::Timeout),
            error = self.discovery.failure() => Err(error),
            () = tokio::time::sleep(self.command_timeout) => Err(StoreError::Timeout),
        }
    }
}

impl Answer {
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

/// Draws the map.
struct Atlas {
    map: Arc<watch::Sender<Arc<Map>>>,
    connector: Connector,
    shared: Arc<Shared>,
    /// Nodes so far; their numbers.
    nodes: u64,
}

impl Atlas {
    /// Puts the shares in force; servers that stay keep their connections.
    fn draw(&mut self, shares: Vec<Share>) {
        let old = self.map.borrow().clone();
        if old.shares == shares {
            return;
        }
        let mut owners: Vec<Arc<Running>> = Vec::with_capacity(shares.len());
        for share in &shares {
            let server = format!("{}:{}", share.host, share.port);
            let known = owners.iter().chain(&old.owners).find(|running| running.node.server() == server);
            let owner = known.cloned().unwrap_or_else(|| Arc::new(self.connect(server, share)));
            owners.push(owner);
        }
        let map = Arc::new(Map { shares, owners });
        let numbers: Vec<u64> = map.nodes().iter().map(|node| node.number()).collect();
        self.map.send_replace(map);
        self.shared.channel.expect(numbers);
    }

    fn connect(&mut self, server: String, share: &Share) -> Running {
        self.nodes += 1;
        tracing::info!(%server, "records come from this Redis server");
        let client = self.connector.server(&share.host, share.port);
        let master_only = matches!(self.connector.target().layout, Layout::Sentinel(_));
        Running::start(self.nodes, server, client, master_only, self.shared.clone())
    }
}

/// Asks again and again who holds the records.
async fn follow(mut atlas: Atlas, discovery: Arc<Health>, look_again: Arc<Notify>) {
    let peers = Peers::start(&atlas.connector);
    loop {
        let known = atlas.map.borrow().nodes();
        match peers.ask(&known).await {
            Ok(shares) => {
                discovery.heal();
                atlas.draw(shares);
            }
            Err(error) => drop(discovery.fail(&error)),
        }
        let quiet = {
            let map = atlas.map.borrow();
            !discovery.failing() && map.owners.iter().all(|owner| !owner.node.failing())
        };
        tokio::select! {
            () = look_again.notified() => {}
            () = tokio::time::sleep(if quiet { LOOK } else { LOOK_FAILING }) => {}
        }
    }
}
