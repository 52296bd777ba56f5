//! What the tests of this crate share: a resolver on a scripted store, and a clock that the test moves.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cube_metadata::testing::{BACKLOG, ScriptedStore};
use cube_metadata::{MetadataStore, Snapshot, SnapshotObserver, StoreError, StoreEvent};
use cube_route::SandboxId;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::broadcast;

use crate::clock::Clock;
use crate::metrics::LookupOutcome;
use crate::{Lookup, Resolver, Revocation, RouteEntry, Settings};

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
        let store = Arc::new(ScriptedStore::default());
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
        self.store.end_session();
        self.send(StoreEvent::TrackingLost).await;
    }

    pub(crate) async fn channel_up(&self) {
        self.store.begin_session();
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

    /// A lookup that runs while the test goes on.
    pub(crate) fn lookup_meanwhile(
        &self,
        id: &SandboxId,
    ) -> tokio::task::JoinHandle<Result<Lookup, StoreError>> {
        let (resolver, id) = (Arc::clone(&self.resolver), id.clone());
        tokio::spawn(async move { resolver.lookup(&id).await })
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
