//! For the tests of the crates above (feature `testing`): a store that does what the test says.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use cube_route::SandboxId;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use crate::{MetadataStore, SandboxRecord, Snapshot, StoreError, StoreEvent, TrackingSession};

/// Events that a subscriber may be behind before it has missed some.
pub const BACKLOG: usize = 32;

/// A store whose records, faulty nodes, errors and pushes the test decides, and which counts what it is
/// asked for. It begins empty, with a channel that pushes.
#[derive(Debug)]
pub struct ScriptedStore {
    /// The fields of each record.
    pub records: Mutex<HashMap<SandboxId, Vec<(String, String)>>>,
    /// While true, results of lookups are ready but not handed over.
    pub held: watch::Sender<bool>,
    /// Lookups that are under way, and the most that ever were at once.
    pub reads_now: AtomicUsize,
    /// See [`ScriptedStore::reads_now`].
    pub most_reads_at_once: AtomicUsize,
    reads: Mutex<HashMap<SandboxId, usize>>,
    completed: Mutex<HashMap<SandboxId, usize>>,
    /// Whether lookups fail.
    pub error: AtomicBool,
    /// What [`MetadataStore::failing`] says until the next lookup.
    pub failing: AtomicBool,
    /// The faulty set. `None`: it cannot be read.
    pub faulty: Mutex<Option<HashSet<IpAddr>>>,
    faulty_reads: AtomicUsize,
    /// What was asked of the registry, a line a call.
    pub registry: Mutex<Vec<String>>,
    /// So many further announcements to the registry fail.
    pub registry_failures: AtomicUsize,
    /// Pushes to all subscribers.
    pub events: broadcast::Sender<StoreEvent>,
    /// 0: nothing is pushed.
    session: AtomicU64,
    last_session: AtomicU64,
}

impl Default for ScriptedStore {
    fn default() -> Self {
        Self {
            records: Mutex::default(),
            held: watch::Sender::new(false),
            reads_now: AtomicUsize::new(0),
            most_reads_at_once: AtomicUsize::new(0),
            reads: Mutex::default(),
            completed: Mutex::default(),
            error: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            faulty: Mutex::new(Some(HashSet::new())),
            faulty_reads: AtomicUsize::new(0),
            registry: Mutex::default(),
            registry_failures: AtomicUsize::new(0),
            events: broadcast::Sender::new(BACKLOG),
            session: AtomicU64::new(1),
            last_session: AtomicU64::new(1),
        }
    }
}

impl ScriptedStore {
    /// How often that record was asked for.
    pub fn reads_of(&self, id: &SandboxId) -> usize {
        self.reads.lock().get(id).copied().unwrap_or(0)
    }

    /// How many of these lookups had a result that was no error.
    pub fn completed_reads_of(&self, id: &SandboxId) -> usize {
        self.completed.lock().get(id).copied().unwrap_or(0)
    }

    /// How often the faulty set was asked for.
    pub fn faulty_reads(&self) -> usize {
        self.faulty_reads.load(Ordering::SeqCst)
    }

    /// Makes these the faulty nodes; nothing is pushed.
    pub fn set_faulty(&self, nodes: impl IntoIterator<Item = IpAddr>) {
        *self.faulty.lock() = Some(nodes.into_iter().collect());
    }

    /// From now on nothing is pushed; no event says so.
    pub fn end_session(&self) {
        self.session.store(0, Ordering::SeqCst);
    }

    /// Changes are pushed again, in a new session; no event says so.
    pub fn begin_session(&self) {
        let session = self.last_session.fetch_add(1, Ordering::SeqCst) + 1;
        self.session.store(session, Ordering::SeqCst);
    }
}

#[async_trait]
impl MetadataStore for ScriptedStore {
    async fn fetch(&self, id: &SandboxId) -> Result<Snapshot, StoreError> {
        let now = self.reads_now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_reads_at_once.fetch_max(now, Ordering::SeqCst);
        *self.reads.lock().entry(id.clone()).or_default() += 1;
        let fields = self.records.lock().get(id).cloned();
        let error = self.error.load(Ordering::SeqCst);
        let mut held = self.held.subscribe();
        let _ = held.wait_for(|held| !held).await;
        self.reads_now.fetch_sub(1, Ordering::SeqCst);
        self.failing.store(error, Ordering::SeqCst);
        if error {
            return Err(StoreError::Timeout);
        }
        *self.completed.lock().entry(id.clone()).or_default() += 1;
        let record = fields.map(|fields| {
            SandboxRecord::parse(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())), 0)
        });
        Ok(Snapshot { record, state: None })
    }

    async fn faulty_nodes(&self) -> Result<HashSet<IpAddr>, StoreError> {
        self.faulty_reads.fetch_add(1, Ordering::SeqCst);
        self.faulty.lock().clone().ok_or(StoreError::Timeout)
    }

    fn subscribe(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }

    fn tracking(&self) -> Option<TrackingSession> {
        TrackingSession::new(self.session.load(Ordering::SeqCst))
    }

    fn failing(&self) -> bool {
        self.failing.load(Ordering::SeqCst)
    }

    fn has_responded(&self) -> bool {
        true
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StoreError> {
        Ok(self.records.lock().keys().cloned().collect())
    }

    async fn get(&self, id: &SandboxId) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        Ok(self.records.lock().get(id).map(|fields| fields.iter().cloned().collect()))
    }

    async fn put(&self, id: &SandboxId, fields: &BTreeMap<String, String>) -> Result<(), StoreError> {
        let fields = fields.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        self.records.lock().insert(id.clone(), fields);
        Ok(())
    }

    async fn delete(&self, id: &SandboxId) -> Result<bool, StoreError> {
        Ok(self.records.lock().remove(id).is_some())
    }

    async fn announce(&self, proxy_id: &str, row: &str, now_ms: u64) -> Result<(), StoreError> {
        let failing = self
            .registry_failures
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if failing.is_ok() {
            return Err(StoreError::Timeout);
        }
        let unix = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis());
        assert!(u128::from(now_ms).abs_diff(unix) < 60_000, "{now_ms} is no time of now");
        self.registry.lock().push(format!("announce {proxy_id} {row}"));
        Ok(())
    }

    async fn withdraw(&self, proxy_id: &str) -> Result<(), StoreError> {
        self.registry.lock().push(format!("withdraw {proxy_id}"));
        Ok(())
    }
}
