//! What becomes of what was read, and reading again in the background what is past its time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use cube_metadata::SandboxRecord;
use cube_route::SandboxId;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use super::Resolver;
use crate::Revocation;
use crate::freshness::{EntryFreshness, ServeDecision, StoreView};
use crate::metrics::LookupOutcome;
use crate::route_entry::{Generation, Lookup, Revision, RouteEntry};
use crate::single_flight::{JoinedRead, ReadContext, ReadDemand, wait_for_result};

/// While the store fails, background reads begin this far apart, whatever the number of sandboxes.
const FAILING_PAUSE: Duration = Duration::from_millis(100);
/// Serving stale is logged this seldom.
const STALE_LOG: Duration = Duration::from_secs(60);
impl Resolver {
    /// What came into the cache between a caller's look at it and its turn to begin a read.
    pub(crate) fn cached_fresh(&self, id: &SandboxId) -> Option<Lookup> {
        let view = self.view();
        if let Some(entry) = self.cache.found(id.as_str()) {
            let fresh = entry.freshness.decide(view, || self.bounds()) == ServeDecision::Fresh;
            return fresh.then_some(Lookup::Found(entry));
        }
        let freshness = self.cache.unknown(id.as_str())?;
        let fresh =
            !view.failing && freshness.decide(view, || self.negative_bounds()) == ServeDecision::Fresh;
        fresh.then_some(Lookup::Unknown)
    }

    /// Stores what was read; called while no other read of the sandbox can complete. `invalidated`: the
    /// key changed since the read began, so that the result is kept for comparison only.
    pub(crate) fn store_read(
        &self,
        id: &SandboxId,
        record: Option<SandboxRecord>,
        reading: ReadContext,
        invalidated: bool,
    ) -> Lookup {
        let settings = self.settings.load();
        let tracked = reading.tracking_epoch.session.is_some();
        let last = self.cache.last(id.as_str());
        let Some(record) = record else {
            self.invalidate_previous(id, last.as_deref());
            if last.is_some() || reading.interested {
                self.revoke(id, Generation::next());
            }
            if invalidated {
                self.cache.remove(id.as_str());
            } else {
                let ttl = if tracked { settings.draw_ttl() } else { settings.negative_ttl };
                self.cache.put_unknown(id, EntryFreshness::new(reading.read_at, ttl, reading.tracking_epoch));
            }
            self.count_entries();
            return Lookup::Unknown;
        };
        log_record_warnings(id, &record, last.as_deref());
        let kept = last.as_ref().filter(|last| last.same_generation(&record)).map(|last| last.generation);
        let generation = kept.unwrap_or_else(Generation::next);
        if last.as_ref().is_some_and(|last| !last.same_sandbox(&record)) {
            self.revoke(id, generation);
        }
        let same = last.as_ref().filter(|last| kept.is_some() && last.record == record);
        let revision = same.map(|last| last.revision).unwrap_or_else(|| {
            self.invalidate_previous(id, last.as_deref());
            Revision::next()
        });
        let readings = last.map(|last| Arc::clone(&last.readings)).unwrap_or_default();
        let ttl = if tracked { settings.draw_ttl() } else { settings.untracked_ttl };
        let freshness = EntryFreshness::new(reading.read_at, ttl, reading.tracking_epoch);
        if invalidated {
            freshness.invalidate();
        }
        let entry = Arc::new(RouteEntry {
            id: id.clone(),
            record,
            generation,
            revision,
            freshness,
            readings,
            generation_ended: AtomicBool::new(false),
        });
        self.cache.put(Arc::clone(&entry));
        self.count_entries();
        Lookup::Found(entry)
    }

    /// Invalidates the reading before, if any: what was just read differs from it.
    pub(super) fn invalidate_previous(&self, id: &SandboxId, last: Option<&RouteEntry>) {
        if let Some(last) = last {
            last.freshness.invalidate();
        }
        self.observer.record_invalidated(id);
    }

    pub(super) fn revoke(&self, id: &SandboxId, before: Generation) {
        // No receiver: nobody streams.
        let _ = self.revocations.send(Revocation { id: id.clone(), before });
    }

    pub(crate) fn count_entries(&self) {
        self.metrics.entries.set(i64::try_from(self.cache.len()).unwrap_or(i64::MAX));
    }

    #[cold]
    pub(super) fn serve_expired(
        self: &Arc<Self>,
        entry: &RouteEntry,
        view: StoreView,
        outcome: LookupOutcome,
    ) {
        self.metrics.count(outcome);
        if outcome == LookupOutcome::Stale {
            self.log_stale();
        }
        self.refresh(&entry.freshness, view, || Some(entry.id.clone()));
    }

    /// Reads again in the background what is past its time, unless that was tried a moment ago,
    /// or enough is being read.
    pub(super) fn refresh(
        self: &Arc<Self>,
        freshness: &EntryFreshness,
        view: StoreView,
        id: impl FnOnce() -> Option<SandboxId>,
    ) {
        let turn = || !view.failing || at_most_every(&self.probed_at, view.now, FAILING_PAUSE);
        if freshness.claim_refresh(view.now, turn)
            && let Ok(permit) = Arc::clone(&self.background).try_acquire_owned()
            && let Some(id) = id()
        {
            self.read_in_background(&id, permit);
        }
    }

    /// Reads `id` again, keeping `permit` until it is done. An error shows in what is served; the
    /// store counts and logs it.
    pub(crate) fn read_in_background(self: &Arc<Self>, id: &SandboxId, permit: OwnedSemaphorePermit) {
        if let JoinedRead::Waiting(waiting) = self.join(id, ReadDemand::Read) {
            tokio::spawn(async move {
                let _ = wait_for_result(waiting).await;
                drop(permit);
            });
        }
    }

    pub(super) fn log_stale(&self) {
        if at_most_every(&self.stale_logged_at, self.clock.now(), STALE_LOG) {
            tracing::warn!("the store cannot answer: routes past their time are served");
        }
    }
}

/// Whether `pause` has passed since this last returned true.
fn at_most_every(last: &Mutex<Option<Instant>>, now: Instant, pause: Duration) -> bool {
    let Some(mut last) = last.try_lock() else { return false };
    if last.is_some_and(|last| now < last + pause) {
        return false;
    }
    *last = Some(now);
    true
}

/// Logs each warning once a record: a new reading with the same warnings logs nothing.
fn log_record_warnings(id: &SandboxId, record: &SandboxRecord, last: Option<&RouteEntry>) {
    let known = |warning| last.is_some_and(|last| last.record.warnings().any(|known| known == warning));
    for warning in record.warnings() {
        if !known(warning) {
            tracing::warn!(sandbox = %id, "odd record: {warning}");
        }
    }
}
