//! One server that holds records: its connection, its health, and the changes it pushes.
//!
//! Reads and pushes share one connection. What is read therefore always comes from the very
//! server that pushes, also while a fail-over leaves two servers that both answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::{ClientLike, EventInterface, TrackingInterface};
use fred::types::client::Invalidation;
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Value};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;

use crate::redis::canary::{Canary, CanaryCheck};
use crate::redis::command::{Command, Replies, queue};
use crate::redis::error::{is_about_the_key, store_error};
use crate::redis::health::Health;
use crate::redis::invalidation_channel::InvalidationChannel;
use crate::redis::keys::{KeyOwner, Keys};
use crate::redis::reconnect::keep_connected;
use crate::{StoreError, StoreEvent};

/// How often the connection is checked (metadata.md).
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How often a failing server is tried.
const FAILING_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);
/// Heartbeats without a reply after which the connection counts as dead.
const MAX_MISSED_HEARTBEATS: u32 = 2;
/// How often a canary key is read again.
const CANARY_EVERY: Duration = Duration::from_secs(2);
/// An invalidation may come this much later than the reply that shows the change.
const CANARY_GRACE: Duration = Duration::from_millis(100);
/// Between the two attempts of a lookup.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

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

    /// Sends all commands in one go and waits for all replies: two tries, all bounded
    /// (metadata.md). An error in the list is the server's reply to that command.
    pub(crate) async fn execute(&self, commands: &[Command]) -> Result<Replies, StoreError> {
        self.health.check()?;
        let bound = self.shared.command_timeout.mul_f32(2.5);
        let outcome = tokio::select! {
            biased;
            outcome = self.attempt_twice(commands) => outcome,
            error = self.health.wait_for_failure() => return Err(error),
            () = tokio::time::sleep(bound) => Err(StoreError::Timeout),
        };
        let outcome = outcome.map_err(|error| self.cause(error));
        match &outcome {
            Err(error) => self.fail(error),
            Ok(replies) => {
                let refused = |lookups: bool| {
                    let mut both = replies.iter().zip(commands);
                    both.find_map(|(reply, command)| {
                        let error = reply.as_ref().err().filter(|error| !is_about_the_key(error))?;
                        (!lookups || command.is_lookup_command()).then_some(error)
                    })
                };
                // A user who may read and not write is refused the one and not the other: only what
                // lookups are made of tells whether the server is good for them.
                if let Some(error) = refused(true) {
                    self.fail(error);
                } else if let Some(error) = refused(false) {
                    self.health.refused(error);
                } else if self.shared.keys.is_lookup(commands) {
                    self.shared.has_responded.store(true, Ordering::Release);
                }
            }
        }
        outcome
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

    async fn attempt_twice(&self, commands: &[Command]) -> Result<Replies, StoreError> {
        match self.attempt(commands).await {
            Ok(replies) => Ok(replies),
            Err(_) => {
                tokio::time::sleep(RETRY_PAUSE).await;
                self.attempt(commands).await
            }
        }
    }

    /// Sends the commands once.
    pub(crate) async fn attempt(&self, commands: &[Command]) -> Result<Replies, StoreError> {
        let pipeline = self.client.pipeline();
        for command in commands {
            queue(&pipeline, command.verb, command.arguments.clone()).await.map_err(|e| store_error(&e))?;
        }
        let replies = pipeline.try_all::<Value>().await;
        let replies: Replies = replies
            .into_iter()
            .zip(commands)
            .map(|(reply, command)| with_command_name(reply, command))
            .collect();
        // The pipeline failed as a whole, or the connection broke in the middle: that must not
        // look like the server's reply to a command.
        let broken = |error: &&StoreError| matches!(error, StoreError::Unreachable(_) | StoreError::Timeout);
        if let Some(error) = replies.iter().filter_map(|reply| reply.as_ref().err()).find(broken) {
            return Err(error.clone());
        }
        if replies.len() == commands.len() {
            return Ok(replies);
        }
        let error = replies.into_iter().find_map(Result::err);
        Err(error.unwrap_or_else(|| StoreError::Unreachable("the server sent too few replies".to_owned())))
    }

    /// One command for a slot that is being migrated to this server; sent once, after ASKING.
    pub(crate) async fn attempt_asking(&self, command: &Command) -> Result<Value, StoreError> {
        let commands = [Command { verb: "ASKING", arguments: Vec::new() }, command.clone()];
        let mut replies = self.attempt(&commands).await?;
        replies.pop().unwrap_or_else(|| Err(StoreError::Unreachable("no reply".to_owned())))
    }

    /// As [`Node::run_keyless`], and ends at once with what is wrong while the server fails.
    pub(crate) async fn run_keyless_while_healthy(
        &self,
        verb: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, StoreError> {
        self.health.check()?;
        tokio::select! {
            biased;
            reply = self.run_keyless(verb, arguments) => reply,
            error = self.health.wait_for_failure() => Err(error),
        }
    }

    /// A command that has no key.
    pub(crate) async fn run_keyless(
        &self,
        verb: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, StoreError> {
        let command = CustomCommand::new_static(verb, ClusterHash::FirstKey, false);
        self.client.custom(command, arguments).await.map_err(|error| store_error(&error))
    }

    async fn connect(self: Arc<Self>) {
        keep_connected(&self.client, |error| {
            self.connection_lost();
            self.fail(&error);
        })
        .await;
    }

    /// Handles fred's events. Nothing here waits, so pushes are never held up.
    async fn listen(self: Arc<Self>, events: ClientEvents) {
        let ClientEvents { mut pushes, mut connections, mut errors } = events;
        loop {
            tokio::select! {
                biased;
                push = pushes.recv() => match push {
                    Ok(push) => self.pushed(&push),
                    Err(RecvError::Lagged(_)) => {
                        tracing::warn!(server = %self.server, "changes were pushed faster than they could be read");
                        self.canary.clear();
                        self.shared.channel.invalidate_all();
                    }
                    Err(RecvError::Closed) => pushes = self.client.invalidation_rx(),
                },
                connection = connections.recv() => match connection {
                    Err(RecvError::Closed) => connections = self.client.reconnect_rx(),
                    _ => {
                        self.connection_lost();
                        self.wake.notify_one();
                    }
                },
                error = errors.recv() => match error {
                    // A connection that broke may be back in a moment; one that cannot be made is a failure.
                    Ok((_, Some(_))) => self.connection_lost(),
                    Ok((error, None)) => {
                        self.connection_lost();
                        self.fail(&store_error(&error));
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => errors = self.client.error_rx(),
                },
            }
        }
    }

    fn pushed(&self, push: &Invalidation) {
        self.pushes.fetch_add(1, Ordering::AcqRel);
        for key in &push.keys {
            self.canary.changed(key.as_bytes());
            match self.shared.keys.owner(key.as_bytes()) {
                Some(KeyOwner::Record(id)) => self.shared.channel.publish(StoreEvent::RecordChanged(id)),
                Some(KeyOwner::State(id)) => self.shared.channel.publish(StoreEvent::StateChanged(id)),
                Some(KeyOwner::FaultyNodes) => self.shared.channel.publish(StoreEvent::FaultyNodes),
                None => {}
            }
        }
    }

    /// The connection is gone, or another one: pushes have to be asked for again.
    fn connection_lost(&self) {
        let mut pushing = self.pushing.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        *pushing = 0;
        self.canary.clear();
        self.shared.channel.server_down(self.number);
    }

    /// Asks for pushes, watches whether the connection answers, reads a known key again.
    async fn watch(self: Arc<Self>) {
        let mut missed = 0;
        let mut canary_at = Instant::now();
        loop {
            match self.heartbeat().await {
                Ok(()) => {
                    missed = 0;
                    self.health.mark_healthy();
                    let silent = self.shared.tracking && *self.pushing.lock() == 0;
                    if silent && let Err(error) = self.start_tracking().await {
                        tracing::warn!(server = %self.server, %error, "Redis does not push changes; trying on");
                    }
                }
                Err(error) => {
                    missed += 1;
                    self.fail(&self.cause(error.clone()));
                    if missed >= MAX_MISSED_HEARTBEATS && matches!(error, StoreError::Timeout) {
                        missed = 0;
                        self.reconnect().await;
                    }
                }
            }
            if canary_at.elapsed() >= CANARY_EVERY {
                canary_at = Instant::now();
                self.check_canary().await;
            }
            let pause = if self.failing() { FAILING_HEARTBEAT_INTERVAL } else { HEARTBEAT_INTERVAL };
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Checks that the server responds. Until the server has proved that lookups work, and while it fails, that is
    /// a lookup (of an id that cannot be), since a server may answer pings and nothing else.
    async fn heartbeat(&self) -> Result<(), StoreError> {
        let mut commands = Vec::new();
        if self.master_only {
            commands.push(Command { verb: "ROLE", arguments: Vec::new() });
        }
        if self.shared.has_responded.load(Ordering::Acquire) && !self.failing() {
            commands.push(Command { verb: "PING", arguments: Vec::new() });
        } else {
            commands.extend(self.shared.keys.records("").map(|key| Command::new("HGETALL", key)));
            // A user may have the right to the one command and not to the other.
            commands.extend(self.shared.keys.state("").map(|key| Command::new("GET", key)));
        }
        let replies = self.attempt(&commands).await?;
        if let Some(error) = replies.iter().filter_map(|a| a.as_ref().err()).find(|e| !is_about_the_key(e)) {
            return Err(error.clone());
        }
        // Under Sentinel a server may stop being the master without closing its connections.
        if let (true, Some(Ok(Value::Array(role)))) = (self.master_only, replies.first())
            && role.first().and_then(Value::as_str).is_none_or(|role| role != "master")
        {
            self.connection_lost();
            return Err(StoreError::Refused("NOTMASTER the server is not the master".to_owned()));
        }
        self.shared.has_responded.store(true, Ordering::Release);
        Ok(())
    }

    async fn start_tracking(&self) -> Result<(), StoreError> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let mut on: Vec<Value> = vec!["TRACKING".into(), "ON".into(), "BCAST".into()];
        for prefix in self.shared.keys.tracked() {
            on.extend([Value::from("PREFIX"), prefix.into()]);
        }
        // Off first: Redis refuses prefixes that this connection has asked for already.
        let pipeline = self.client.pipeline();
        for arguments in [vec!["TRACKING".into(), "OFF".into()], on] {
            queue(&pipeline, "CLIENT", arguments).await.map_err(|error| store_error(&error))?;
        }
        pipeline.all::<Value>().await.map_err(|error| store_error(&error))?;
        let mut pushing = self.pushing.lock();
        if self.epoch.load(Ordering::Acquire) == epoch {
            *pushing = epoch;
            self.canary.clear();
            self.shared.channel.server_up(self.number);
        } else {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Drops the connection and makes another. fred would wait for a dead one until it is written to and then
    /// only if nothing else is, and our heartbeats are.
    async fn reconnect(&self) {
        self.connection_lost();
        if self.client.is_connected() {
            // The order is given with the first poll; its outcome comes as an event.
            let _ = tokio::time::timeout(Duration::from_millis(1), self.client.force_reconnection()).await;
        }
    }

    /// FLUSHALL and lost messages leave no other trace than a key that changed unannounced.
    async fn check_canary(&self) {
        let key = match self.canary.next() {
            CanaryCheck::Key(key) => key,
            CanaryCheck::Nothing => return,
            CanaryCheck::Blind => {
                tracing::debug!(server = %self.server, "every key that was watched has changed; all are read again");
                self.canary.clear();
                self.shared.channel.invalidate_all();
                return;
            }
        };
        let Ok(replies) = self.attempt(&[Command::new("HGETALL", key.as_str())]).await else { return };
        let Some(Ok(value)) = replies.first() else { return };
        if self.canary.still_holds(&key, value) {
            return;
        }
        tokio::time::sleep(CANARY_GRACE).await;
        if self.canary.still_holds(&key, value) {
            return;
        }
        tracing::warn!(server = %self.server, "a record changed and no push said so; everything is read again");
        self.canary.clear();
        self.shared.channel.invalidate_all();
    }
}

/// The reply to a command; an error of the server's names the command that it refused.
fn with_command_name(reply: Result<Value, Error>, command: &Command) -> Result<Value, StoreError> {
    reply.map_err(|error| match store_error(&error) {
        StoreError::Refused(told) => StoreError::Refused(format!("{told} ({})", command.verb)),
        error => error,
    })
}
