//! What the tests of this crate share: a store that follows a script, a resolver on it, and a clock that
//! the test moves.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cube_metadata::{
    MetadataStore, SandboxRecord, Snapshot, SnapshotObserver, StoreError, StoreEvent, TrackingSession,
};
use cube_route::SandboxId;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{broadcast, watch};

use crate::clock::Clock;
use crate::metrics::LookupOutcome;
use crate::{Lookup, Resolver, Revocation, RouteEntry, Settings};

pub(crate) type Fields = Vec<(String, String)>;

/// A store whose records, errors and pushes the test decides.
pub(crate) struct ScriptedStore {
    pub(crate) records: Mutex<HashMap<SandboxId, Fields>>,
    reads: Mutex<HashMap<SandboxId, usize>>,
    /// Those of them that completed.
    completed: Mutex<HashMap<SandboxId, usize>>,
    pub(crate) reads_now: AtomicUsize,
    pub(crate) most_reads_at_once: AtomicUsize,
    pub(crate) error: AtomicBool,
    pub(crate) failing: AtomicBool,
    /// 0: nothing is pushed.
    session: AtomicU64,
    last_session: AtomicU64,
    /// While true, results are ready but not handed over.
    pub(crate) held: watch::Sender<bool>,
    events: broadcast::Sender<StoreEvent>,
}

/// Messages a follower may be behind.
const BACKLOG: usize = 32;

impl ScriptedStore {
    fn new() -> Self {
        Self {
            records: Mutex::default(),
            reads: Mutex::default(),
            completed: Mutex::default(),
            reads_now: AtomicUsize::new(0),
            most_reads_at_once: AtomicUsize::new(0),
            error: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            session: AtomicU64::new(1),
            last_session: AtomicU64::new(1),
            held: watch::Sender::new(false),
            events: broadcast::Sender::new(BACKLOG),
        }
    }

    pub(crate) fn completed_reads_of(&self, id: &SandboxId) -> usize {
        self.completed.lock().get(id).copied().unwrap_or(0)
    }

    pub(crate) fn reads_of(&self, id: &SandboxId) -> usize {
        self.reads.lock().get(id).copied().unwrap_or(0)
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
        Ok(HashSet::new())
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
        Ok(Vec::new())
    }

    async fn get(&self, _: &SandboxId) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        Ok(None)
    }

    async fn put(&self, _: &SandboxId, _: &BTreeMap<String, String>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn delete(&self, _: &SandboxId) -> Result<bool, StoreError> {
        Ok(false)
    }
}

/// An observer that records what it sees.
#[derive(Default)]
pub(crate) struct RecordingObserver {
    pub(crate) observed: Mutex<Vec<(SandboxId, bool)>>,
    pub(crate) interests: Mutex<HashSet<SandboxId>>,
    pub(crate) invalidated: Mutex<Vec<SandboxId>>,
    /// State changes that were announced and not read yet.
    pub(crate) states: Mutex<HashSet<SandboxId>>,
}

impl SnapshotObserver for RecordingObserver {
    fn observed(&self, id: &SandboxId, snapshot: &Snapshot) {
        self.observed.lock().push((id.clone(), snapshot.record.is_some()));
        self.states.lock().remove(id);
    }

    fn state_changed(&self, id: &SandboxId) {
        self.states.lock().insert(id.clone());
    }

    fn record_invalidated(&self, id: &SandboxId) {
        self.invalidated.lock().push(id.clone());
    }

    fn interested(&self, id: &SandboxId) -> bool {
        self.interests.lock().contains(id) || self.states.lock().contains(id)
    }
}

/// A resolver that follows a scripted store.
pub(crate) struct Testbed {
    pub(crate) store: Arc<ScriptedStore>,
    pub(crate) observer: Arc<RecordingObserver>,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) revocations: broadcast::Receiver<Revocation>,
    run: tokio::task::JoinHandle<()>,
}

impl Testbed {
    pub(crate) async fn new(settings: Settings) -> Self {
        Self::with_clock(settings, Clock::standing()).await
    }

    pub(crate) async fn with_clock(settings: Settings, clock: Clock) -> Self {
        let store = Arc::new(ScriptedStore::new());
        let observer = Arc::<RecordingObserver>::default();
        let resolver = Resolver::with_clock(
            Arc::clone(&store) as _,
            Arc::clone(&observer) as _,
            settings,
            &Registry::new(),
            clock,
        )
        .unwrap();
        let revocations = resolver.revocations();
        let run = tokio::spawn(Arc::clone(&resolver).run());
        let testbed = Self { store, observer, resolver, revocations, run };
        until(|| testbed.resolver.following.load(Ordering::SeqCst)).await;
        testbed
    }

    /// Writes a record and pushes the change, if anything is pushed.
    pub(crate) async fn write(&self, id: &SandboxId, fields: &[(&str, &str)]) {
        let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        self.store.records.lock().insert(id.clone(), fields);
        self.push(id).await;
    }

    pub(crate) async fn delete(&self, id: &SandboxId) {
        self.store.records.lock().remove(id);
        self.push(id).await;
    }

    pub(crate) async fn push(&self, id: &SandboxId) {
        if self.store.tracking().is_some() {
            self.send(StoreEvent::RecordChanged(id.clone())).await;
        }
    }

    pub(crate) async fn push_state(&self, id: &SandboxId) {
        self.send(StoreEvent::StateChanged(id.clone())).await;
    }

    pub(crate) async fn channel_down(&self) {
        self.store.session.store(0, Ordering::SeqCst);
        self.send(StoreEvent::TrackingLost).await;
    }

    pub(crate) async fn channel_up(&self) {
        let session = self.store.last_session.fetch_add(1, Ordering::SeqCst) + 1;
        self.store.session.store(session, Ordering::SeqCst);
        self.send(StoreEvent::InvalidateAll).await;
    }

    /// More messages than the follower can be behind; the session stays.
    pub(crate) async fn lose_messages(&self) {
        for _ in 0..=2 * BACKLOG {
            let _ = self.store.events.send(StoreEvent::FaultyNodes);
        }
        self.followed().await;
    }

    /// Makes the store fail, and known to fail, or well again.
    pub(crate) fn fail(&self, error: bool) {
        self.store.error.store(error, Ordering::SeqCst);
        self.store.failing.store(error, Ordering::SeqCst);
    }

    pub(crate) fn after(&self, time: Duration) {
        self.resolver.clock.advance(time);
    }

    async fn send(&self, event: StoreEvent) {
        let _ = self.store.events.send(event);
        self.followed().await;
    }

    /// Until the resolver has seen everything that was pushed.
    async fn followed(&self) {
        until(|| self.store.events.is_empty()).await;
        // The last message is taken, not yet acted on.
        tokio::task::yield_now().await;
    }

    /// Until nothing is read any more.
    pub(crate) async fn settled(&self) {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        until(|| self.resolver.in_flight.is_empty()).await;
    }

    pub(crate) fn counted(&self, outcome: LookupOutcome) -> u64 {
        self.resolver.metrics.of(outcome).get()
    }

    /// The sandbox, which must be there.
    pub(crate) async fn found(&self, id: &SandboxId) -> Arc<RouteEntry> {
        match self.resolver.lookup(id).await {
            Ok(Lookup::Found(entry)) => entry,
            other => panic!("not found but {other:?}"),
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.run.abort();
    }
}

/// Waits for a condition that other tasks bring about.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came");
}

pub(crate) fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).unwrap()
}
