//! One server that holds records: its connection, its health, and the changes it pushes.
//!
//! Reads and pushes share one connection. What is read therefore always comes from the very
//! server that pushes, also while a fail-over leaves two servers that both answer.

mod commands;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::{ClientLike, EventInterface, TrackingInterface};
use fred::types::Value;
use fred::types::client::Invalidation;
use fred::types::config::Server;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::broadcast::Receiver;
use tokio::task::JoinSet;

use crate::StoreError;
use crate::redis::canary::Canary;
use crate::redis::health::Health;
use crate::redis::invalidation_channel::InvalidationChannel;
use crate::redis::keys::Keys;

/// What all servers of one store have in common.
pub(crate) struct StoreContext {
    pub(crate) keys: Keys,
    pub(crate) channel: InvalidationChannel,
    pub(crate) has_responded: AtomicBool,
    pub(crate) tracking: bool,
    pub(crate) command_timeout: Duration,
}

pub(crate) struct Node {
    number: u64,
    server: String,
    client: Client,
    shared: Arc<StoreContext>,
    health: Health,
    /// Connections so far, counted up when one is lost and when one is made.
    epoch: AtomicU64,
    /// The epoch in which pushes were asked for, 0 while they are not. Changed under this lock
    /// together with the channel.
    pushing: Mutex<u64>,
    pushes: AtomicU64,
    canary: Canary,
    wake: Notify,
    /// Behind Sentinels: only a master is good.
    master_only: bool,
}

/// How many connections and pushes there had been when a read began.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PushMark {
    epoch: u64,
    pushes: u64,
}

/// A node with the tasks that serve it; they end when this is dropped.
pub(crate) struct RunningNode {
    pub(crate) node: Arc<Node>,
    _tasks: JoinSet<()>,
}

/// The events that fred publishes about one client.
struct ClientEvents {
    pushes: Receiver<Invalidation>,
    connections: Receiver<Server>,
    errors: Receiver<(Error, Option<Server>)>,
}

impl RunningNode {
    /// Connects in the background. `number` is the node's own in the channel.
    pub(crate) fn start(
        number: u64,
        server: String,
        client: Client,
        master_only: bool,
        shared: Arc<StoreContext>,
    ) -> Self {
        let node = Arc::new(Node {
            number,
            health: Health::new(server.clone()),
            server,
            client,
            shared,
            epoch: AtomicU64::new(1),
            pushing: Mutex::new(0),
            pushes: AtomicU64::new(0),
            canary: Canary::default(),
            wake: Notify::new(),
            master_only,
        });
        let mut tasks = JoinSet::new();
        // Before anything is connected, so that nothing is missed.
        let events = ClientEvents {
            pushes: node.client.invalidation_rx(),
            connections: node.client.reconnect_rx(),
            errors: node.client.error_rx(),
        };
        tasks.spawn(node.clone().listen(events));
        tasks.spawn(node.clone().connect());
        tasks.spawn(node.clone().watch());
        Self { node, _tasks: tasks }
    }
}

impl Node {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn failing(&self) -> bool {
        self.health.failing()
    }

    pub(crate) fn mark(&self) -> PushMark {
        PushMark { epoch: self.epoch.load(Ordering::Acquire), pushes: self.pushes.load(Ordering::Acquire) }
    }

    /// A record that was read, and when: some such keys are read again now and then.
    pub(crate) fn seen(&self, key: &str, value: &Value, mark: PushMark) {
        if self.canary.read() && *self.pushing.lock() == mark.epoch && self.mark() == mark {
            self.canary.set(key, value);
        }
    }

    /// What `error` of a command comes from: without a connection a command waits for one in vain,
    /// and why there is none says more than that the time ran out.
    fn cause(&self, error: StoreError) -> StoreError {
        match (&error, self.health.check()) {
            (StoreError::Timeout, Err(known @ StoreError::Unreachable(_))) if !self.client.is_connected() => {
                known
            }
            _ => error,
        }
    }

    /// Marks the server as failing and wakes its heartbeat, which then tries it sooner.
    fn fail(&self, error: &StoreError) {
        if self.health.mark_failing(error) {
            self.wake.notify_one();
        }
    }
}
