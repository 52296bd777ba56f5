//! The tasks of one server: it is kept connected, its pushes are passed on, and whether it still responds and
//! still pushes is looked at.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fred::interfaces::{ClientLike, EventInterface, TrackingInterface};
use fred::types::Value;
use fred::types::client::Invalidation;
use tokio::sync::broadcast::error::RecvError;

use super::{ClientEvents, Node};
use crate::redis::canary::CanaryCheck;
use crate::redis::command::{Command, queue};
use crate::redis::error::{is_about_the_key, store_error};
use crate::redis::keys::KeyOwner;
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
impl Node {
    /// Keeps it connected.
    pub(super) async fn connect(self: Arc<Self>) {
        keep_connected(&self.client, |error| {
            self.connection_lost();
            self.fail(&error);
        })
        .await;
    }

    /// Handles fred's events. Nothing here waits, so pushes are never held up.
    pub(super) async fn listen(self: Arc<Self>, events: ClientEvents) {
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
    pub(super) async fn watch(self: Arc<Self>) {
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
