//! The resolver: lookups from memory, and what a reading means for what was known before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use cube_metadata::{MetadataStore, SandboxRecord, SnapshotObserver, StoreError, StoreEvent};
use cube_route::SandboxId;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

use crate::cache::RouteCache;
use crate::clock::Clock;
use crate::entry::{Entry, Generation, Inspection, Lookup, Revision};
use crate::flight::{Ask, Flights, Joined, Reading, answered};
use crate::life::{Bounds, Life, Trust, Use, View};
use crate::metrics::{Metrics, Outcome};
use crate::{ResolverError, Revocation, Settings};

/// Background reads at a time.
pub(crate) const BACKGROUND: usize = 64;
/// While the store fails, background reads begin this far apart, whatever the number of sandboxes.
const FAILING_PAUSE: Duration = Duration::from_millis(100);
/// Serving stale is logged this seldom.
const STALE_LOG: Duration = Duration::from_secs(60);
/// Revocations a slow receiver may be behind.
const REVOCATIONS: usize = 8192;

/// The route cache (metadata.md "Cache").
pub struct Resolver {
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) observer: Arc<dyn SnapshotObserver>,
    pub(crate) clock: Clock,
    pub(crate) cache: RouteCache,
    pub(crate) flights: Flights,
    pub(crate) metrics: Metrics,
    /// Whether [`Resolver::run`] follows the store's events: without it nothing is trusted.
    pub(crate) following: AtomicBool,
    /// Moves on when pushes were missed; see [`Trust`].
    pub(crate) round: AtomicU64,
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
            flights: Flights::default(),
            following: AtomicBool::new(false),
            round: AtomicU64::new(0),
            background: Arc::new(Semaphore::new(BACKGROUND)),
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
            let verdict = entry.life.judge(view, || self.bounds());
            match verdict {
                Use::Fresh => self.metrics.count(Outcome::Hit),
                Use::Read => return None,
                Use::Refresh => self.serve_past_its_time(&entry, view, Outcome::Refresh),
                Use::Stale => self.serve_past_its_time(&entry, view, Outcome::Stale),
            }
            return Some(Lookup::Found(entry));
        }
        let life = self.cache.unknown(id)?;
        match life.judge(view, || self.negative_bounds()) {
            // While the store cannot answer, an unknown id is answered as such (310500).
            _ if view.failing => return None,
            Use::Fresh => {}
            Use::Refresh => self.refresh(&life, view, || SandboxId::parse(id).ok()),
            Use::Stale | Use::Read => return None,
        }
        self.metrics.count(Outcome::Negative);
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
        let answer = match self.join(id, Ask::Any) {
            Joined::Known(lookup) => Ok(lookup),
            Joined::Waiting(waiting) => answered(waiting).await,
        };
        if answer.is_err()
            && let Some(entry) = self.cache.found(id.as_str())
            && entry.life.serves_on_error(self.clock.now(), self.bounds())
        {
            self.metrics.count(Outcome::Stale);
            self.tell_of_stale();
            return Ok(Lookup::Found(entry));
        }
        self.metrics.count(Outcome::Miss);
        answer
    }

    /// The same from a read that begins after this call. What is in the cache stays in force until
    /// the read is done, so a store that fails takes nothing away.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    pub async fn lookup_fresh(self: &Arc<Self>, id: &SandboxId) -> Result<Lookup, StoreError> {
        self.metrics.count(Outcome::Miss);
        match self.join(id, Ask::Fresh) {
            Joined::Known(lookup) => Ok(lookup),
            Joined::Waiting(waiting) => answered(waiting).await,
        }
    }

    /// Forgets the route (`/admin/backend_cache/delete`); whether one was known. The next request
    /// reads the record and gets a new generation.
    pub fn forget(&self, id: &SandboxId) -> bool {
        let known = self.flights.spoil(id, || {
            self.cache.remove_unknown(id.as_str());
            let known = self.cache.sever(id.as_str());
            self.observer.outdated(id);
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

    /// Applies new settings. Entries keep the life they drew.
    pub fn update(&self, settings: Settings) {
        self.cache.resize(settings.capacity);
        self.settings.store(Arc::new(settings));
        self.count_entries();
    }

    /// The entry of a sandbox as it is, for operators. No use of it, and nothing is read.
    #[must_use]
    pub fn inspect(&self, id: &str) -> Option<Inspection> {
        let entry = self.cache.last(id)?;
        let view = self.view();
        Some(Inspection {
            age: view.now.saturating_duration_since(entry.life.read_at()),
            tracked: entry.life.tracked(view.trust),
            must_be_read: entry.life.judge(view, || self.bounds()) == Use::Read,
            entry,
        })
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
    pub(crate) fn trust(&self) -> Trust {
        let following = self.following.load(Ordering::Acquire);
        Trust {
            session: if following { self.store.tracking() } else { None },
            round: self.round.load(Ordering::Acquire),
        }
    }

    #[inline]
    fn view(&self) -> View {
        View { now: self.clock.now(), trust: self.trust(), failing: self.store.failing() }
    }

    fn bounds(&self) -> Bounds {
        let settings = self.settings.load();
        Bounds { untracked: settings.untracked_ttl, overtime: settings.stale_if_error }
    }

    fn negative_bounds(&self) -> Bounds {
        let settings = self.settings.load();
        Bounds { untracked: settings.negative_ttl, overtime: settings.stale_if_error }
    }

    /// What was settled between a caller's look at the cache and its turn to begin a read.
    pub(crate) fn settled(&self, id: &SandboxId) -> Option<Lookup> {
        let view = self.view();
        if let Some(entry) = self.cache.found(id.as_str()) {
            let fresh = entry.life.judge(view, || self.bounds()) == Use::Fresh;
            return fresh.then_some(Lookup::Found(entry));
        }
        let life = self.cache.unknown(id.as_str())?;
        let fresh = !view.failing && life.judge(view, || self.negative_bounds()) == Use::Fresh;
        fresh.then_some(Lookup::Unknown)
    }

    /// Takes over what was read; called while no other read of the sandbox can land. `spoiled`:
    /// the key changed since the read began, so that it is kept for comparison only.
    pub(crate) fn keep(
        &self,
        id: &SandboxId,
        record: Option<SandboxRecord>,
        reading: Reading,
        spoiled: bool,
    ) -> Lookup {
        let settings = self.settings.load();
        let tracked = reading.trust.session.is_some();
        let last = self.cache.last(id.as_str());
        let Some(record) = record else {
            self.outdate(id, last.as_deref());
            if last.is_some() || reading.interested {
                self.revoke(id, Generation::next());
            }
            if spoiled {
                self.cache.remove(id.as_str());
            } else {
                let ttl = if tracked { settings.draw_ttl() } else { settings.negative_ttl };
                self.cache.put_unknown(id, Life::new(reading.read_at, ttl, reading.trust));
            }
            self.count_entries();
            return Lookup::Unknown;
        };
        tell_of_oddities(id, &record, last.as_deref());
        let kept = last.as_ref().filter(|last| last.same_life(&record)).map(|last| last.generation);
        let generation = kept.unwrap_or_else(Generation::next);
        if last.as_ref().is_some_and(|last| !last.same_sandbox(&record)) {
            self.revoke(id, generation);
        }
        let same = last.as_ref().filter(|last| kept.is_some() && last.record == record);
        let revision = same.map(|last| last.revision).unwrap_or_else(|| {
            self.outdate(id, last.as_deref());
            Revision::next()
        });
        let readings = last.map(|last| Arc::clone(&last.readings)).unwrap_or_default();
        let ttl = if tracked { settings.draw_ttl() } else { settings.untracked_ttl };
        let life = Life::new(reading.read_at, ttl, reading.trust);
        if spoiled {
            life.end();
        }
        let entry = Arc::new(Entry {
            id: id.clone(),
            record,
            generation,
            revision,
            life,
            readings,
            severed: AtomicBool::new(false),
        });
        self.cache.put(Arc::clone(&entry));
        self.count_entries();
        Lookup::Found(entry)
    }

    /// The reading that was in force, if any, says something else than what was just read.
    fn outdate(&self, id: &SandboxId, last: Option<&Entry>) {
        if let Some(last) = last {
            last.life.end();
        }
        self.observer.outdated(id);
    }

    fn revoke(&self, id: &SandboxId, before: Generation) {
        // No receiver: nobody streams.
        let _ = self.revocations.send(Revocation { id: id.clone(), before });
    }

    pub(crate) fn count_entries(&self) {
        self.metrics.entries.set(i64::try_from(self.cache.len()).unwrap_or(i64::MAX));
    }

    #[cold]
    fn serve_past_its_time(self: &Arc<Self>, entry: &Entry, view: View, outcome: Outcome) {
        self.metrics.count(outcome);
        if outcome == Outcome::Stale {
            self.tell_of_stale();
        }
        self.refresh(&entry.life, view, || Some(entry.id.clone()));
    }

    /// Reads again in the background what is past its time, unless that was tried a moment ago,
    /// or enough is being read.
    fn refresh(self: &Arc<Self>, life: &Life, view: View, id: impl FnOnce() -> Option<SandboxId>) {
        let turn = || !view.failing || claim(&self.probed_at, view.now, FAILING_PAUSE);
        if life.claim_refresh(view.now, turn)
            && let Ok(permit) = Arc::clone(&self.background).try_acquire_owned()
            && let Some(id) = id()
        {
            self.read_in_background(&id, permit);
        }
    }

    /// Reads `id` again, keeping `permit` until it is done. An error shows in what is served; the
    /// store counts and logs it.
    pub(crate) fn read_in_background(self: &Arc<Self>, id: &SandboxId, permit: OwnedSemaphorePermit) {
        if let Joined::Waiting(waiting) = self.join(id, Ask::Read) {
            tokio::spawn(async move {
                let _ = answered(waiting).await;
                drop(permit);
            });
        }
    }

    fn tell_of_stale(&self) {
        if claim(&self.stale_logged_at, self.clock.now(), STALE_LOG) {
            tracing::warn!("the store cannot answer: routes past their time are served");
        }
    }
}

/// Whether `pause` has passed since the last time this said so.
fn claim(last: &Mutex<Option<Instant>>, now: Instant, pause: Duration) -> bool {
    let Some(mut last) = last.try_lock() else { return false };
    if last.is_some_and(|last| now < last + pause) {
        return false;
    }
    *last = Some(now);
    true
}

/// One line a record: a new reading that is odd in the same ways says nothing.
fn tell_of_oddities(id: &SandboxId, record: &SandboxRecord, last: Option<&Entry>) {
    let known = |warning| last.is_some_and(|last| last.record.warnings().any(|known| known == warning));
    for warning in record.warnings() {
        if !known(warning) {
            tracing::warn!(sandbox = %id, "odd record: {warning}");
        }
    }
}
