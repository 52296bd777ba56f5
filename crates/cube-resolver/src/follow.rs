//! Following the store: what it pushes ends entries, and what is in use is read again at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cube_metadata::StoreEvent;
use cube_route::SandboxId;
use tokio::sync::broadcast::error::RecvError;

use crate::Resolver;
use crate::cache::RouteCache;

/// Entries looked at before others get their turn.
const SWEEP_STEP: usize = 1024;

impl Resolver {
    /// Follows what the store pushes, until the store is gone. To be spawned once; while it does
    /// not run nothing is taken for coherent.
    pub async fn run(self: Arc<Self>) {
        let Some(mut events) = self.events.lock().take() else {
            tracing::error!("the route cache follows the store already");
            return;
        };
        let _following = Following::begin(&self);
        let mut sweep: Option<tokio::task::JoinHandle<()>> = None;
        loop {
            match events.recv().await {
                Ok(StoreEvent::Changed(id)) => self.changed(&id),
                Ok(StoreEvent::Distrust) | Err(RecvError::Lagged(_)) => {
                    self.distrust();
                    // A newer sweep sees everything the older one has not reached.
                    if let Some(older) = sweep.take() {
                        older.abort();
                    }
                    sweep = Some(tokio::spawn(Arc::clone(&self).sweep()));
                }
                Ok(StoreEvent::Untracked | StoreEvent::FaultyNodes) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// A key of the sandbox was written, removed or ran out: what is known is not served again,
    /// a read under way is not kept, and where somebody streams or waits it is read at once.
    pub(crate) fn changed(self: &Arc<Self>, id: &SandboxId) {
        self.metrics.invalidations.inc();
        let in_use = self.flights.spoil(id, || {
            self.cache.remove_unknown(id.as_str());
            let Some(entry) = self.cache.last(id.as_str()) else { return false };
            entry.life.end();
            RouteCache::in_use(&entry, self.cache.holds(id.as_str()))
        });
        if in_use || self.observer.interested(id) {
            let (resolver, id) = (Arc::clone(self), id.clone());
            tokio::spawn(async move { resolver.read_in_turn(&id).await });
        }
    }

    /// Everything that was read may be wrong.
    pub(crate) fn distrust(&self) {
        self.metrics.invalidations.inc();
        self.round.fetch_add(1, Ordering::AcqRel);
    }

    /// Reads again what somebody streams from or waits for: a record that was removed while
    /// nothing was pushed ends its streams without anybody asking for it.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let current = self.trust();
        let mut wanted = Vec::new();
        let mut at = 0_usize;
        for (entry, cached) in self.cache.each() {
            at += 1;
            if at % SWEEP_STEP == 0 {
                tokio::task::yield_now().await;
            }
            let used = RouteCache::in_use(&entry, cached) || self.observer.interested(&entry.id);
            if used && !entry.life.tracked(current) {
                wanted.push(entry.id.clone());
            }
        }
        for id in wanted {
            self.read_in_turn(&id).await;
        }
    }

    /// Begins to read `id` as soon as there is a place among the background reads.
    async fn read_in_turn(self: &Arc<Self>, id: &SandboxId) {
        // The semaphore is never closed.
        if let Ok(permit) = Arc::clone(&self.background).acquire_owned().await {
            self.read_in_background(id, permit);
        }
    }
}

struct Following<'a>(&'a Resolver);

impl<'a> Following<'a> {
    fn begin(resolver: &'a Resolver) -> Self {
        resolver.following.store(true, Ordering::Release);
        Self(resolver)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.0.following.store(false, Ordering::Release);
    }
}
