//! Follows the store's invalidations: they end entries, and an entry that is in use is read again at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cube_metadata::StoreEvent;
use cube_route::SandboxId;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::Resolver;
use crate::cache::RouteCache;
use crate::resolver::MAX_BACKGROUND_READS;
use crate::single_flight::{JoinedRead, ReadDemand, wait_for_result};

/// Entries a sweep looks at before it yields to other tasks.
const SWEEP_STEP: usize = 1024;
/// A read that somebody streams on, and that failed, is tried again after this.
const RETRY_INTERVAL: Duration =
    if cfg!(test) { Duration::from_millis(1) } else { Duration::from_millis(250) };

/// The most sandboxes that wait to be read. As many as the table of states holds by default: what
/// is beyond would push others out of it.
const MAX_QUEUED: usize = if cfg!(test) { 1000 } else { 1_000_000 };

/// Sandboxes that are read again because they changed while in use, or because their state changed.
#[derive(Default)]
struct RereadQueue {
    /// Waiting to be read, the longest first: a sandbox that changes again meanwhile is read once.
    queue: VecDeque<SandboxId>,
    /// The sandboxes in `queue`.
    queued: HashSet<SandboxId, ahash::RandomState>,
    /// Changes that found no room in the queue.
    dropped: u64,
    /// Each returns whether the store could be read.
    reads: JoinSet<bool>,
    /// The sandbox that each task of `reads` reads.
    tasks: HashMap<Id, SandboxId>,
    /// The same ones, each with whether it changed again meanwhile: a sandbox that keeps changing takes
    /// one read, not all.
    reading: HashMap<SandboxId, bool, ahash::RandomState>,
    /// Each finds what must be read after everything was invalidated.
    sweeps: JoinSet<Vec<SandboxId>>,
    /// Reads that failed and are to be tried again.
    failed: HashSet<SandboxId>,
}

impl RereadQueue {
    fn enqueue(&mut self, id: SandboxId) {
        if let Some(changed) = self.reading.get_mut(&id) {
            *changed = true;
        } else if !self.queued.contains(&id) {
            self.push(id);
        }
    }

    /// Where there is no room for it, its entry has ended all the same: whoever asks for it next
    /// reads it.
    fn push(&mut self, id: SandboxId) {
        if self.queued.len() < MAX_QUEUED {
            self.queued.insert(id.clone());
            self.queue.push_back(id);
            return;
        }
        self.dropped += 1;
        // Must not become a flood of log lines: the first, then each power of two.
        if self.dropped.is_power_of_two() {
            let count = self.dropped;
            tracing::warn!(count, sandbox = %id, "too many sandboxes changed at once: one is not read before it is asked for");
        }
    }

    fn spawn(&mut self, id: SandboxId, read: impl Future<Output = bool> + Send + 'static) {
        self.reading.insert(id.clone(), false);
        self.tasks.insert(self.reads.spawn(read).id(), id);
    }

    /// A read has ended. One that panicked is tried again, as one that failed.
    fn ended(&mut self, read: Result<(Id, bool), JoinError>) {
        let (task, succeeded) = read.unwrap_or_else(|error| (error.id(), false));
        let Some(id) = self.tasks.remove(&task) else { return };
        if self.reading.remove(&id) == Some(true) {
            self.enqueue(id);
        } else if !succeeded {
            self.failed.insert(id);
        }
    }

    /// Starts queued reads, as many as may run at a time.
    fn start_reads(&mut self, resolver: &Arc<Resolver>) {
        while self.reads.len() < MAX_BACKGROUND_READS
            && let Some(id) = self.queue.pop_front()
        {
            self.queued.remove(&id);
            self.spawn(id.clone(), Arc::clone(resolver).read_when_permitted(id));
        }
    }
}

impl Resolver {
    /// Follows what the store pushes, until the store is gone. To be spawned once; while it does
    /// not run nothing is taken for coherent.
    pub async fn run(self: Arc<Self>) {
        let Some(mut events) = self.events.lock().take() else {
            tracing::error!("the route cache follows the store already");
            return;
        };
        let _following = FollowingGuard::begin(&self);
        let mut work = RereadQueue::default();
        let mut retry = interval(RETRY_INTERVAL);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(StoreEvent::RecordChanged(id)) => {
                        if self.changed(&id, false) {
                            work.enqueue(id);
                        }
                    }
                    // Nobody may ask for the sandbox before the state runs out.
                    Ok(StoreEvent::StateChanged(id)) => {
                        self.changed(&id, true);
                        work.enqueue(id);
                    }
                    Ok(StoreEvent::InvalidateAll) | Err(RecvError::Lagged(_)) => {
                        self.invalidate_all();
                        // A newer sweep finds everything that an older one has not.
                        work.sweeps.abort_all();
                        work.sweeps.spawn(Arc::clone(&self).sweep());
                    }
                    Ok(StoreEvent::TrackingLost | StoreEvent::FaultyNodes) => {}
                    Err(RecvError::Closed) => return,
                },
                Some(found) = work.sweeps.join_next() => {
                    found.unwrap_or_default().into_iter().for_each(|id| work.enqueue(id));
                }
                Some(read) = work.reads.join_next_with_id() => work.ended(read),
                _ = retry.tick(), if !work.failed.is_empty() => self.retry(&mut work),
            }
            work.start_reads(&self);
        }
    }

    /// A key of the sandbox was written, removed or ran out (`state`: the one of its lifecycle
    /// state): what is known is not served again, and a read under way is not kept. Whether
    /// somebody streams or waits, so that it must be read without anybody asking.
    fn changed(&self, id: &SandboxId, state: bool) -> bool {
        self.metrics.invalidations.inc();
        let in_use = self.in_flight.invalidate_during(id, || {
            self.cache.remove_unknown(id.as_str());
            let last = self.cache.last(id.as_str());
            if let Some(entry) = &last {
                entry.freshness.invalidate();
            }
            self.observer.record_invalidated(id);
            if state {
                self.observer.state_changed(id);
            }
            last.is_some_and(|entry| RouteCache::in_use(&entry))
        });
        in_use || self.observer.interested(id)
    }

    /// Everything that was read may be outdated.
    fn invalidate_all(&self) {
        self.metrics.invalidations.inc();
        self.resync.fetch_add(1, Ordering::AcqRel);
    }

    /// What somebody streams from or waits for: a record that was removed while nothing was pushed
    /// ends its streams without anybody asking for it.
    async fn sweep(self: Arc<Self>) -> Vec<SandboxId> {
        let current = self.tracking_epoch();
        let mut wanted = Vec::new();
        for (at, entry) in self.cache.each().enumerate() {
            if at % SWEEP_STEP == SWEEP_STEP - 1 {
                tokio::task::yield_now().await;
            }
            let used = RouteCache::in_use(&entry) || self.observer.interested(&entry.id);
            if used && !entry.freshness.tracked(current) {
                wanted.push(entry.id.clone());
            }
        }
        wanted
    }

    /// Reads `id` as soon as another background read may run; whether the store could be read.
    async fn read_when_permitted(self: Arc<Self>, id: SandboxId) -> bool {
        // The semaphore is never closed.
        let _permit = Arc::clone(&self.background).acquire_owned().await.ok();
        match self.join(&id, ReadDemand::Read) {
            JoinedRead::Known(_) => true,
            JoinedRead::Waiting(waiting) => wait_for_result(waiting).await.is_ok(),
        }
    }

    /// Tries again what failed and is still wanted; one alone while the store is known to fail.
    fn retry(self: &Arc<Self>, work: &mut RereadQueue) {
        let used = |id: &SandboxId| {
            self.cache.last(id.as_str()).is_some_and(|entry| RouteCache::in_use(&entry))
                || self.observer.interested(id)
        };
        work.failed.retain(used);
        let most = if self.store.failing() { 1 } else { usize::MAX };
        let ids: Vec<_> = work.failed.iter().take(most).cloned().collect();
        for id in ids {
            work.failed.remove(&id);
            work.enqueue(id);
        }
    }
}

struct FollowingGuard<'a>(&'a Resolver);

impl<'a> FollowingGuard<'a> {
    fn begin(resolver: &'a Resolver) -> Self {
        resolver.following.store(true, Ordering::Release);
        Self(resolver)
    }
}

impl Drop for FollowingGuard<'_> {
    fn drop(&mut self) {
        self.0.following.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> SandboxId {
        SandboxId::parse(&format!("sandbox{number}")).unwrap()
    }

    #[tokio::test]
    async fn a_read_that_panics_is_tried_again_and_gives_its_place_back() {
        let mut work = RereadQueue::default();
        work.spawn(id(1), async { panic!("a read that panics") });
        let read = work.reads.join_next_with_id().await.unwrap();
        work.ended(read);
        assert!(work.reading.is_empty() && work.tasks.is_empty());
        assert!(work.failed.contains(&id(1)));
        // And one that changed meanwhile is wanted at once.
        work.spawn(id(2), async { panic!("a read that panics") });
        work.enqueue(id(2));
        let read = work.reads.join_next_with_id().await.unwrap();
        work.ended(read);
        assert_eq!(work.queue, [id(2)]);
    }

    #[test]
    fn what_finds_no_room_in_the_queue_is_counted_once_it_is_full() {
        let mut work = RereadQueue::default();
        (0..MAX_QUEUED).for_each(|number| work.enqueue(id(number)));
        work.enqueue(id(0));
        assert_eq!((work.queue.len(), work.dropped), (MAX_QUEUED, 0));
        work.enqueue(id(MAX_QUEUED));
        assert_eq!((work.queue.len(), work.dropped), (MAX_QUEUED, 1));
    }
}
