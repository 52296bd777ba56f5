//! Where held requests wait for a sandbox: how many may wait, and how they learn of a change.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cube_route::SandboxId;
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// All held requests. Nothing is kept for a sandbox that nobody waits for.
pub(crate) struct HoldQueue {
    max: AtomicUsize,
    max_per_sandbox: AtomicUsize,
    /// Requests held now; read without the lock where nobody waits, which is nearly always.
    taken: AtomicUsize,
    waiters: Mutex<HashMap<SandboxId, SandboxWaiters, ahash::RandomState>>,
    gauge: IntGauge,
}

struct SandboxWaiters {
    taken: usize,
    changed: Arc<Notify>,
}

/// The slot of one held request; freed when dropped, also when the client leaves.
pub(crate) struct HeldSlot {
    hold_queue: Arc<HoldQueue>,
    id: SandboxId,
    changed: Arc<Notify>,
}

impl HoldQueue {
    pub(crate) fn new(max: usize, max_per_sandbox: usize, gauge: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicUsize::new(max),
            max_per_sandbox: AtomicUsize::new(max_per_sandbox),
            taken: AtomicUsize::new(0),
            waiters: Mutex::default(),
            gauge,
        })
    }

    /// Sets other bounds; requests that are held stay held.
    pub(crate) fn resize(&self, max: usize, max_per_sandbox: usize) {
        self.max.store(max, Ordering::Relaxed);
        self.max_per_sandbox.store(max_per_sandbox, Ordering::Relaxed);
    }

    /// A slot for a request to `id`; none when the bound of the sandbox or of all is reached.
    pub(crate) fn enter(self: &Arc<Self>, id: &SandboxId) -> Option<HeldSlot> {
        let each = self.max_per_sandbox.load(Ordering::Relaxed);
        let mut waiters = self.waiters.lock();
        if self.taken.load(Ordering::Relaxed) >= self.max.load(Ordering::Relaxed) {
            return None;
        }
        let changed = match waiters.get_mut(id) {
            Some(waiting) if waiting.taken >= each => return None,
            Some(waiting) => {
                waiting.taken += 1;
                Arc::clone(&waiting.changed)
            }
            None if each == 0 => return None,
            None => {
                let changed = Arc::new(Notify::new());
                waiters.insert(id.clone(), SandboxWaiters { taken: 1, changed: Arc::clone(&changed) });
                changed
            }
        };
        self.taken.fetch_add(1, Ordering::Release);
        drop(waiters);
        self.gauge.inc();
        Some(HeldSlot { hold_queue: Arc::clone(self), id: id.clone(), changed })
    }

    /// Wakes everybody who waits for `id`. The change must be visible before the call: a waiter
    /// takes its slot before it looks at the state, so either it sees the change or it is woken.
    pub(crate) fn notify(&self, id: &SandboxId) {
        if self.taken.load(Ordering::Acquire) == 0 {
            return;
        }
        let changed = self.waiters.lock().get(id).map(|waiting| Arc::clone(&waiting.changed));
        if let Some(changed) = changed {
            changed.notify_waiters();
        }
    }

    /// Whether somebody waits for `id`.
    pub(crate) fn has_waiters(&self, id: &SandboxId) -> bool {
        self.taken.load(Ordering::Acquire) > 0 && self.waiters.lock().contains_key(id)
    }

    /// Requests held now.
    pub(crate) fn len(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl HeldSlot {
    /// Resolves at the next change after this call: call it, look at the state, then wait.
    pub(crate) fn changed(&self) -> Pin<Box<Notified<'_>>> {
        let mut changed = Box::pin(self.changed.notified());
        changed.as_mut().enable();
        changed
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        let mut waiters = self.hold_queue.waiters.lock();
        if let Some(waiting) = waiters.get_mut(&self.id) {
            waiting.taken -= 1;
            if waiting.taken == 0 {
                waiters.remove(&self.id);
            }
        }
        self.hold_queue.taken.fetch_sub(1, Ordering::Release);
        drop(waiters);
        self.hold_queue.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold_queue(max: usize, each: usize) -> Arc<HoldQueue> {
        HoldQueue::new(max, each, IntGauge::new("held", "held").unwrap())
    }

    fn id(text: &str) -> SandboxId {
        SandboxId::parse(text).unwrap()
    }

    #[test]
    fn a_sandbox_has_no_more_places_than_its_bound() {
        let hold_queue = hold_queue(10, 2);
        let first = hold_queue.enter(&id("a")).unwrap();
        let _second = hold_queue.enter(&id("a")).unwrap();
        assert!(hold_queue.enter(&id("a")).is_none());
        assert!(hold_queue.enter(&id("b")).is_some());
        drop(first);
        assert!(hold_queue.enter(&id("a")).is_some());
    }

    #[test]
    fn all_sandboxes_have_no_more_places_than_the_bound_of_all() {
        let hold_queue = hold_queue(2, 2);
        let _first = hold_queue.enter(&id("a")).unwrap();
        let second = hold_queue.enter(&id("b")).unwrap();
        assert!(hold_queue.enter(&id("c")).is_none());
        drop(second);
        assert!(hold_queue.enter(&id("c")).is_some());
    }

    #[test]
    fn other_bounds_hold_for_who_comes_next() {
        let hold_queue = hold_queue(1, 1);
        let _first = hold_queue.enter(&id("a")).unwrap();
        hold_queue.resize(2, 2);
        let _second = hold_queue.enter(&id("a")).unwrap();
        hold_queue.resize(9, 1);
        assert!(hold_queue.enter(&id("a")).is_none());
        assert!(hold_queue.enter(&id("b")).is_some());
    }

    #[test]
    fn a_bound_of_none_holds_nobody() {
        assert!(hold_queue(10, 0).enter(&id("a")).is_none());
        assert!(hold_queue(0, 10).enter(&id("a")).is_none());
    }

    #[test]
    fn nothing_is_kept_for_a_sandbox_nobody_waits_for() {
        let hold_queue = hold_queue(10, 10);
        let held = [hold_queue.enter(&id("a")).unwrap(), hold_queue.enter(&id("a")).unwrap()];
        assert!(hold_queue.has_waiters(&id("a")));
        assert_eq!((hold_queue.len(), hold_queue.gauge.get()), (2, 2));
        drop(held);
        assert!(!hold_queue.has_waiters(&id("a")));
        assert!(hold_queue.waiters.lock().is_empty());
        assert_eq!((hold_queue.len(), hold_queue.gauge.get()), (0, 0));
    }

    #[tokio::test]
    async fn a_change_between_looking_and_waiting_is_not_lost() {
        let hold_queue = hold_queue(10, 10);
        let slot = hold_queue.enter(&id("a")).unwrap();
        let changed = slot.changed();
        hold_queue.notify(&id("a"));
        changed.await;
    }
}
