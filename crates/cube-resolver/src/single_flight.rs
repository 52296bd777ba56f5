//! Single flight: one read of a sandbox at a time, whoever asks.
//!
//! A read runs as its own task, so that a caller who leaves does not end it for the others. A
//! caller who may not use the read under way (the sandbox was changed since it began, or he asks
//! for a fresh one) waits for the next round of the same task: results arrive in the order in
//! which they were read, and however many ask, the store sees one read a sandbox.

use std::collections::HashMap;
use std::sync::Arc;

use cube_metadata::{Snapshot, StoreError};
use cube_route::SandboxId;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::freshness::TrackingEpoch;
use crate::resolver::Resolver;
use crate::route_entry::Lookup;

pub(crate) type LookupResult = Result<Lookup, StoreError>;
type Waiters = watch::Sender<Option<LookupResult>>;

/// A read under way or about to begin.
struct ReadInFlight {
    /// The callers that wait for its result.
    waiters: Waiters,
    /// The tracking epoch in which it began; none until it begins.
    begun: Option<TrackingEpoch>,
    /// The sandbox changed since it began: its result is not served to those who come now.
    invalidated: bool,
    /// The callers that wait for the read after it.
    next: Option<Waiters>,
}

/// Which read a caller accepts the result of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadDemand {
    /// The cache, if it was filled meanwhile; else a read that is under way and not invalidated.
    Any,
    /// A read that is under way and not invalidated.
    Read,
    /// A read that has not begun yet.
    Fresh,
}

/// What a caller of [`Resolver::join`] gets: the result, or where it will come.
pub(crate) enum JoinedRead {
    /// The lookup's result was in the cache by now.
    Known(Lookup),
    /// The sandbox is being read; the result will come here.
    Waiting(watch::Receiver<Option<LookupResult>>),
}

/// All reads that are under way, one for each sandbox.
#[derive(Default)]
pub(crate) struct ReadsInFlight(Mutex<HashMap<SandboxId, ReadInFlight, ahash::RandomState>>);

impl ReadsInFlight {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Runs `change` while no read can complete, and invalidates the read of `id` that is under way: its
    /// result is kept for comparison and not served to those who ask from now on.
    pub(crate) fn invalidate_during<T>(&self, id: &SandboxId, change: impl FnOnce() -> T) -> T {
        let mut in_flight = self.0.lock();
        if let Some(read) = in_flight.get_mut(id) {
            read.invalidated = read.begun.is_some();
        }
        change()
    }
}

impl Resolver {
    /// Joins the read of `id` that is under way, or begins one.
    pub(crate) fn join(self: &Arc<Self>, id: &SandboxId, demand: ReadDemand) -> JoinedRead {
        let mut in_flight = self.in_flight.0.lock();
        if demand == ReadDemand::Any
            && let Some(lookup) = self.cached_fresh(id)
        {
            return JoinedRead::Known(lookup);
        }
        let Some(read) = in_flight.get_mut(id) else {
            let (waiters, waiting) = watch::channel(None);
            in_flight
                .insert(id.clone(), ReadInFlight { waiters, begun: None, invalidated: false, next: None });
            tokio::spawn(Arc::clone(self).run_read(id.clone()));
            return JoinedRead::Waiting(waiting);
        };
        let joinable = match read.begun {
            None => true,
            Some(tracking_epoch) => {
                demand != ReadDemand::Fresh && !read.invalidated && self.is_current(tracking_epoch)
            }
        };
        let waiters =
            if joinable { &read.waiters } else { read.next.get_or_insert_with(|| Waiters::new(None)) };
        JoinedRead::Waiting(waiters.subscribe())
    }

    /// Whether what was read in `epoch` may be given to somebody who asks now. While nothing is
    /// pushed a read under way is as young as anything can be.
    fn is_current(&self, tracking_epoch: TrackingEpoch) -> bool {
        let current = self.tracking_epoch();
        current.session.is_none() || tracking_epoch == current
    }

    /// Reads `id` until nobody waits for another round.
    async fn run_read(self: Arc<Self>, id: SandboxId) {
        // A panic on the way (of a store, of an observer) must not leave a read behind that never completes:
        // those who wait get an error, the next caller begins anew.
        let mut guard = AbandonGuard { resolver: &self, id: &id, completed: false };
        loop {
            let tracking_epoch = self.tracking_epoch();
            let read_at = self.clock.now();
            if let Some(read) = self.in_flight.0.lock().get_mut(&id) {
                read.begun = Some(tracking_epoch);
                read.invalidated = false;
            }
            let mark = self.observer.mark();
            let result = self.store.fetch(&id).await;
            if let Ok(snapshot) = &result {
                self.observer.observed_since(&id, snapshot, mark);
            }
            let interested = self.observer.interested(&id);
            if !self.complete_read(&id, result, ReadContext { tracking_epoch, read_at, interested }) {
                guard.completed = true;
                return;
            }
        }
    }

    /// Stores what was read and tells those who wait; whether another round is wanted.
    fn complete_read(
        &self,
        id: &SandboxId,
        result: Result<Snapshot, StoreError>,
        reading: ReadContext,
    ) -> bool {
        let mut in_flight = self.in_flight.0.lock();
        let Some(mut read) = in_flight.remove(id) else { return false };
        let good = result.is_ok();
        let result = result.map(|snapshot| self.store_read(id, snapshot.record, reading, read.invalidated));
        // Somebody was waiting for this sandbox, or streams from it: what replaced the reading
        // must become known without anybody asking.
        if read.next.is_none() && read.invalidated && good && reading.interested {
            read.next = Some(Waiters::new(None));
        }
        let again = read.next.is_some();
        if let Some(next) = read.next {
            in_flight.insert(
                id.clone(),
                ReadInFlight { waiters: next, begun: None, invalidated: false, next: None },
            );
        }
        drop(in_flight);
        read.waiters.send_replace(Some(result));
        again
    }
}

/// When and in which tracking epoch a read was made, and whether anybody waits for changes of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadContext {
    pub(crate) tracking_epoch: TrackingEpoch,
    pub(crate) read_at: std::time::Instant,
    pub(crate) interested: bool,
}

struct AbandonGuard<'a> {
    resolver: &'a Resolver,
    id: &'a SandboxId,
    completed: bool,
}

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        if !self.completed {
            self.resolver.in_flight.0.lock().remove(self.id);
        }
    }
}

/// Waits until the read is done.
pub(crate) async fn wait_for_result(mut waiting: watch::Receiver<Option<LookupResult>>) -> LookupResult {
    match waiting.wait_for(Option::is_some).await {
        Ok(result) => result.clone().unwrap_or_else(|| Err(abandoned())),
        Err(_) => Err(abandoned()),
    }
}

fn abandoned() -> StoreError {
    StoreError::Unreachable("the read was given up".into())
}
