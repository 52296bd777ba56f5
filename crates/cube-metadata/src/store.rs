//! The store as the rest of the proxy sees it.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::num::NonZeroU64;

use async_trait::async_trait;
use cube_route::SandboxId;
use tokio::sync::broadcast;

use crate::{SandboxRecord, Status};

/// Why the store could not be read or written. Never used for "there is no such sandbox".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No connection, or it broke while the command was under way.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// No reply within the bound (metadata.md: 1 s a command, 2 tries, 2.5 s in all).
    #[error("the store did not answer in time")]
    Timeout,
    /// As [`StoreError::Timeout`], with the name of the server.
    #[error("the store did not answer in time: {0}")]
    TimeoutAt(String),
    /// The server replied with an error (`LOADING`, `NOAUTH`, `WRONGTYPE`, ...).
    #[error("the store answered with an error: {0}")]
    Refused(String),
    /// What is asked for does not hold: settings, a file that cannot be read or written.
    #[error("{0}")]
    Invalid(String),
}

impl StoreError {
    /// The same, naming the server that it is about. What the error begins with stays, since that is
    /// the code of a server's error.
    pub(crate) fn at(self, server: &str) -> Self {
        match self {
            Self::Unreachable(told) => Self::Unreachable(format!("{server}: {told}")),
            Self::Timeout => Self::TimeoutAt(server.to_owned()),
            Self::Refused(told) => Self::Refused(format!("{told} ({server})")),
            other => other,
        }
    }
}

/// The number of a tracking session: a time during which the store pushed every change. What was read in
/// a session that is over, or while there was none, may have changed without notice.
pub type TrackingSession = NonZeroU64;

/// What one read of a sandbox found in the store.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The record under the first key that is not empty; `None`: there is no such sandbox.
    pub record: Option<SandboxRecord>,
    /// The lifecycle state string, where it is followed and set.
    pub state: Option<Status>,
}

/// A change in the store, pushed. Every subscriber sees them in order; one that lags behind
/// (`RecvError::Lagged`) must act as on [`StoreEvent::InvalidateAll`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    /// A key of this sandbox's record was written, removed or ran out.
    RecordChanged(SandboxId),
    /// The key of this sandbox's lifecycle state was written (the same word again is a write too),
    /// removed or ran out.
    StateChanged(SandboxId),
    /// The set of faulty nodes changed.
    FaultyNodes,
    /// Everything read before may be wrong: the channel came back, lost messages, or the store
    /// was emptied. [`MetadataStore::tracking`] already says the new session.
    InvalidateAll,
    /// The channel went down: changes are not pushed until a `InvalidateAll` says it is back.
    TrackingLost,
}

/// A store of sandbox records.
#[async_trait]
pub trait MetadataStore: Send + Sync + 'static {
    /// Reads record and lifecycle state of one sandbox, all its keys in one round trip.
    ///
    /// # Errors
    /// Any [`StoreError`]; an error on a key is an error even where a key of lower precedence could be read.
    async fn fetch(&self, id: &SandboxId) -> Result<Snapshot, StoreError>;

    /// The node addresses that must not be dialled. Members that are no address are left out.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn faulty_nodes(&self) -> Result<HashSet<IpAddr>, StoreError>;

    /// Subscribes to changes from now on.
    fn subscribe(&self) -> broadcast::Receiver<StoreEvent>;

    /// The session of the invalidation channel, or `None` while changes are not pushed. One
    /// atomic load: asked on every request.
    fn tracking(&self) -> Option<TrackingSession>;

    /// Whether the last attempts to ask failed, so that a caller with something to serve need
    /// not wait for another. One atomic load.
    fn failing(&self) -> bool;

    /// Whether a lookup has succeeded at least once, which readiness waits for.
    fn has_responded(&self) -> bool;

    /// Ids of all records, for operators; may be long.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn list(&self) -> Result<Vec<SandboxId>, StoreError>;

    /// The raw fields of a record as stored, for operators.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn get(&self, id: &SandboxId) -> Result<Option<BTreeMap<String, String>>, StoreError>;

    /// Writes fields of a record under the first prefix, keeping those not named.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn put(&self, id: &SandboxId, fields: &BTreeMap<String, String>) -> Result<(), StoreError>;

    /// Removes the record under every prefix; whether there was one.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn delete(&self, id: &SandboxId) -> Result<bool, StoreError>;

    /// What stands before the id in the key of a record whose [`SandboxRecord::prefix`] is this; `None`
    /// where records have no such keys.
    fn key_prefix(&self, prefix: u8) -> Option<&str> {
        let _ = prefix;
        None
    }

    /// Tries what a running proxy asks of the store, writing nothing: lookups, pushes where they are
    /// configured and, with `registry`, the right to write the registry row. Every fault that was found;
    /// bounded as a few lookups are.
    async fn dry_run(&self, registry: bool) -> Vec<StoreError> {
        let _ = registry;
        Vec::new()
    }

    /// Writes this replica's registry row and heartbeat in one round trip (lifecycle.md). A store
    /// without a registry does nothing.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn announce(&self, proxy_id: &str, row: &str, now_ms: u64) -> Result<(), StoreError> {
        let _ = (proxy_id, row, now_ms);
        Ok(())
    }

    /// Removes the registry row and the heartbeat.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn withdraw(&self, proxy_id: &str) -> Result<(), StoreError> {
        let _ = proxy_id;
        Ok(())
    }
}

/// Sees every snapshot that is read, so that the lifecycle state in it becomes known (lifecycle.md).
pub trait SnapshotObserver: Send + Sync + 'static {
    /// `snapshot` has just been read for `id`.
    fn observed(&self, id: &SandboxId, snapshot: &Snapshot);

    /// The observer's count of events, taken before a read begins and handed back with its result.
    fn mark(&self) -> u64 {
        0
    }

    /// As [`SnapshotObserver::observed`], for a read that began at `began`: what the observer
    /// learned since then is newer than the snapshot.
    fn observed_since(&self, id: &SandboxId, snapshot: &Snapshot, began: u64) {
        let _ = began;
        self.observed(id, snapshot);
    }

    /// The key of this sandbox's lifecycle state was written, removed or ran out. A read of the
    /// sandbox that begins after this call follows, and [`SnapshotObserver::interested`] is asked
    /// whether it is still wanted where the store fails. Called under a lock: must not wait.
    fn state_changed(&self, id: &SandboxId) {
        let _ = id;
    }

    /// What was known of this sandbox's record until now does not hold any more, or may not: a key
    /// of it changed, it reads otherwise than before, is gone, was forgotten on purpose, or is read
    /// without anything to compare it with. Called before anybody gets the new reading, under a
    /// lock: must not wait.
    fn record_invalidated(&self, id: &SandboxId) {
        let _ = id;
    }

    /// Whether somebody waits on or streams from this sandbox, so that a change is worth reading
    /// before the next request asks.
    fn interested(&self, id: &SandboxId) -> bool;
}
