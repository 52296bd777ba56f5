//! The resolver: lookups from the cache, and how a new reading changes what was known before.

mod reading;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use cube_metadata::{MetadataStore, SnapshotObserver, StoreError, StoreEvent};
use cube_route::SandboxId;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{Semaphore, broadcast};

use crate::cache::RouteCache;
use crate::clock::Clock;
use crate::freshness::{EntryFreshness, FreshnessBounds, ServeDecision, StoreView, TrackingEpoch};
use crate::metrics::{LookupOutcome, Metrics};
use crate::route_entry::{Inspection, Lookup};
use crate::single_flight::{JoinedRead, ReadDemand, ReadsInFlight, wait_for_result};
use crate::{ResolverError, Revocation, RouteEntry, Settings};

/// Background reads at a time.
pub(crate) const MAX_BACKGROUND_READS: usize = 64;
/// Revocations a slow receiver may be behind.
const REVOCATIONS: usize = 8192;

/// The route cache (metadata.md "Cache").
pub struct Resolver {
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) observer: Arc<dyn SnapshotObserver>,
    pub(crate) clock: Clock,
    pub(crate) cache: RouteCache,
    pub(crate) in_flight: ReadsInFlight,
    pub(crate) metrics: Metrics,
    /// Whether [`Resolver::run`] follows the store's events: without it nothing is trusted.
    pub(crate) following: AtomicBool,
    /// Counted up when pushes were missed; see [`TrackingEpoch`].
    pub(crate) resync: AtomicU64,
    /// Subscribed before anything is read, until `run` takes it.
    pub(crate) events: Mutex<Option<broadcast::Receiver<StoreEvent>>>,
    pub(crate) background: Arc<Semaphore>,
    settings: ArcSwap<Settings>,
    revocations: broadcast::Sender<Revocation>,
    probed_at: Mutex<Option<Instant>>,
    stale_logged_at: Mutex<Option<Instant>>,
}

impl Resolver {
    /// An empty cache over `store`. Every snapshot that is read is shown to `observer` before
    /// those who wait for it go on. [`Resolver::run`] must be spawned.
    ///
    /// # Errors
    /// [`ResolverError`] when the metrics exist already.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        observer: Arc<dyn SnapshotObserver>,
        settings: Settings,
        registry: &Registry,
    ) -> Result<Arc<Self>, ResolverError> {
        Self::with_clock(store, observer, settings, registry, Clock::default())
    }

    pub(crate) fn with_clock(
        store: Arc<dyn MetadataStore>,
        observer: Arc<dyn SnapshotObserver>,
        settings: Settings,
        registry: &Registry,
        clock: Clock,
    ) -> Result<Arc<Self>, ResolverError> {
        Ok(Arc::new(Self {
            events: Mutex::new(Some(store.subscribe())),
            cache: RouteCache::new(settings.capacity)?,
            metrics: Metrics::new(registry)?,
            in_flight: ReadsInFlight::default(),
            following: AtomicBool::new(false),
            resync: AtomicU64::new(0),
            background: Arc::new(Semaphore::new(MAX_BACKGROUND_READS)),
            settings: ArcSwap::from_pointee(settings),
            revocations: broadcast::Sender::new(REVOCATIONS),
            probed_at: Mutex::new(None),
            stale_logged_at: Mutex::new(None),
            store,
            observer,
            clock,
        }))
    }

    /// What is known about `id` (in lower case, as [`SandboxId`] holds it) without asking the
    /// store; `None`: go through [`Resolver::lookup`]. Well under a microsecond: no allocation, no
    /// wait. Must be called within a Tokio runtime, where a background read may begin.
    #[must_use]
    pub fn cached(self: &Arc<Self>, id: &str) -> Option<Lookup> {
        let view = self.view();
        if let Some(entry) = self.cache.found(id) {
            let verdict = entry.freshness.decide(view, || self.bounds());
            match verdict {
                ServeDecision::Fresh => self.metrics.count(LookupOutcome::Hit),
                ServeDecision::Read => return None,
                ServeDecision::Refresh => self.serve_expired(&entry, view, LookupOutcome::Refresh),
                ServeDecision::Stale => self.serve_expired(&entry, view, LookupOutcome::Stale),
            }
            return Some(Lookup::Found(entry));
        }
        let freshness = self.cache.unknown(id)?;
        match freshness.decide(view, || self.negative_bounds()) {
            // While the store fails, a request for an unknown id gets the store's error (310500), not "there is
            // no such sandbox".
            _ if view.failing => return None,
            ServeDecision::Fresh => {}
            ServeDecision::Refresh => self.refresh(&freshness, view, || SandboxId::parse(id).ok()),
            ServeDecision::Stale | ServeDecision::Read => return None,
        }
        self.metrics.count(LookupOutcome::Negative);
        Some(Lookup::Unknown)
    }

    /// What is known about `id`, from the store if need be. Any number of callers make one read,
    /// which goes on when they leave.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer and nothing may be served in its place.
    pub async fn lookup(self: &Arc<Self>, id: &SandboxId) -> Result<Lookup, StoreError> {
        if let Some(lookup) = self.cached(id.as_str()) {
            return Ok(lookup);
        }
        let result = match self.join(id, ReadDemand::Any) {
            JoinedRead::Known(lookup) => Ok(lookup),
            JoinedRead::Waiting(waiting) => wait_for_result(waiting).await,
        };
        if result.is_err()
            && let Some(entry) = self.cache.found(id.as_str())
            && entry.freshness.serves_on_error(self.clock.now(), self.bounds())
        {
            self.metrics.count(LookupOutcome::Stale);
            self.log_stale();
            return Ok(Lookup::Found(entry));
        }
        self.metrics.count(LookupOutcome::Miss);
        result
    }

    /// The same from a read that begins after this call. What is in the cache stays in force until
    /// the read is done, so a store that fails takes nothing away.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    pub async fn lookup_fresh(self: &Arc<Self>, id: &SandboxId) -> Result<Lookup, StoreError> {
        self.metrics.count(LookupOutcome::Miss);
        match self.join(id, ReadDemand::Fresh) {
            JoinedRead::Known(lookup) => Ok(lookup),
            JoinedRead::Waiting(waiting) => wait_for_result(waiting).await,
        }
    }

    /// Has a refusal at `id` cost what an id without a sandbox costs, so that nobody can tell the two apart by
    /// time, nor by what happens while the store hangs: the first is confirmed by a read, those that follow are
    /// served from memory for as long as "there is no such sandbox" would be. Whether a read was made now, after
    /// which the request is to be judged again.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    pub async fn confirm_refusal(self: &Arc<Self>, id: &SandboxId) -> Result<bool, StoreError> {
        let view = self.view();
        if let Some(confirmed) = self.cache.refused(id.as_str()).filter(|_| !view.failing) {
            match confirmed.decide(view, || self.negative_bounds()) {
                ServeDecision::Fresh => return Ok(false),
                ServeDecision::Refresh => {
                    self.refresh(&confirmed, view, || Some(id.clone()));
                    return Ok(false);
                }
                ServeDecision::Stale | ServeDecision::Read => {}
            }
        }
        self.lookup_fresh(id).await?;
        self.note_refusal(id, view);
        Ok(true)
    }

    /// Notes that a refusal at `id` rests on a read that was made for it.
    pub fn refused_after_read(self: &Arc<Self>, id: &SandboxId) {
        self.note_refusal(id, self.view());
    }

    fn note_refusal(&self, id: &SandboxId, view: StoreView) {
        let settings = self.settings.load();
        let tracked = view.tracking_epoch.session.is_some();
        let ttl = if tracked { settings.draw_ttl() } else { settings.negative_ttl };
        self.cache.put_refused(id, EntryFreshness::new(view.now, ttl, view.tracking_epoch));
    }

    /// Forgets the route (`/admin/backend_cache/delete`); whether one was known. The next request
    /// reads the record and gets a new generation.
    pub fn forget(&self, id: &SandboxId) -> bool {
        let known = self.in_flight.invalidate_during(id, || {
            self.cache.remove_unknown(id.as_str());
            let known = self.cache.invalidate_generation(id.as_str());
            self.observer.record_invalidated(id);
            known
        });
        self.count_entries();
        known
    }

    /// The sandbox takes a new generation (resume, kill); its record is read again before it is
    /// served.
    pub fn advance(&self, id: &SandboxId) {
        self.forget(id);
    }

    /// Revocations from now on. A receiver that lags (`RecvError::Lagged`) has missed some, and
    /// compares what it streams with [`Resolver::inspect`].
    #[must_use]
    pub fn revocations(&self) -> broadcast::Receiver<Revocation> {
        self.revocations.subscribe()
    }

    /// Applies new settings. Entries keep the time to live that they drew.
    pub fn update(&self, settings: Settings) {
        self.cache.resize(settings.capacity);
        self.settings.store(Arc::new(settings));
        self.count_entries();
    }

    /// The entry of a sandbox as it is, for operators: looking does not count as use, and reads nothing from
    /// the store.
    #[must_use]
    pub fn inspect(&self, id: &str) -> Option<Inspection> {
        let entry = self.cache.last(id)?;
        let view = self.view();
        Some(Inspection {
            age: view.now.saturating_duration_since(entry.freshness.read_at()),
            tracked: entry.freshness.tracked(view.tracking_epoch),
            must_be_read: entry.freshness.decide(view, || self.bounds()) == ServeDecision::Read,
            entry,
        })
    }

    /// Whether `entry`, which was just served, is past its time: the store cannot answer.
    #[must_use]
    pub fn is_stale(&self, entry: &RouteEntry) -> bool {
        let decision = entry.freshness.decide(self.view(), || self.bounds());
        matches!(decision, ServeDecision::Stale | ServeDecision::Read) && !entry.freshness.is_invalidated()
    }

    /// Sandboxes in the cache.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether the cache holds no sandbox.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn tracking_epoch(&self) -> TrackingEpoch {
        let following = self.following.load(Ordering::Acquire);
        TrackingEpoch {
            session: if following { self.store.tracking() } else { None },
            resync: self.resync.load(Ordering::Acquire),
        }
    }

    #[inline]
    fn view(&self) -> StoreView {
        StoreView {
            now: self.clock.now(),
            tracking_epoch: self.tracking_epoch(),
            failing: self.store.failing(),
        }
    }

    fn bounds(&self) -> FreshnessBounds {
        let settings = self.settings.load();
        FreshnessBounds { untracked: settings.untracked_ttl, stale_window: settings.stale_if_error }
    }

    fn negative_bounds(&self) -> FreshnessBounds {
        let settings = self.settings.load();
        FreshnessBounds { untracked: settings.negative_ttl, stale_window: settings.stale_if_error }
    }
}
