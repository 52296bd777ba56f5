//! Places of held requests: how many there may be, and how a change reaches them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cube_route::SandboxId;
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// All places. Nothing is kept for a sandbox that nobody waits for.
pub(crate) struct Places {
    max: AtomicUsize,
    max_per_sandbox: AtomicUsize,
    /// Taken places; read without the lock where nobody waits, which is nearly always.
    taken: AtomicUsize,
    seats: Mutex<HashMap<SandboxId, Seat, ahash::RandomState>>,
    gauge: IntGauge,
}

struct Seat {
    taken: usize,
    changed: Arc<Notify>,
}

/// One taken place; given back when dropped, so a client that leaves frees it.
pub(crate) struct Place {
    places: Arc<Places>,
    id: SandboxId,
    changed: Arc<Notify>,
}

impl Places {
    pub(crate) fn new(max: usize, max_per_sandbox: usize, gauge: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicUsize::new(max),
            max_per_sandbox: AtomicUsize::new(max_per_sandbox),
            taken: AtomicUsize::new(0),
            seats: Mutex::default(),
            gauge,
        })
    }

    /// Other bounds; places that are taken stay taken.
    pub(crate) fn resize(&self, max: usize, max_per_sandbox: usize) {
        self.max.store(max, Ordering::Relaxed);
        self.max_per_sandbox.store(max_per_sandbox, Ordering::Relaxed);
    }

    /// A place for `id`; none when the bound of the sandbox or of all is reached.
    pub(crate) fn take(self: &Arc<Self>, id: &SandboxId) -> Option<Place> {
        let each = self.max_per_sandbox.load(Ordering::Relaxed);
        let mut seats = self.seats.lock();
        if self.taken.load(Ordering::Relaxed) >= self.max.load(Ordering::Relaxed) {
            return None;
        }
        let changed = match seats.get_mut(id) {
            Some(seat) if seat.taken >= each => return None,
            Some(seat) => {
                seat.taken += 1;
                Arc::clone(&seat.changed)
            }
            None if each == 0 => return None,
            None => {
                let changed = Arc::new(Notify::new());
                seats.insert(id.clone(), Seat { taken: 1, changed: Arc::clone(&changed) });
                changed
            }
        };
        self.taken.fetch_add(1, Ordering::Release);
        drop(seats);
        self.gauge.inc();
        Some(Place { places: Arc::clone(self), id: id.clone(), changed })
    }

    /// Wakes everybody who waits for `id`. The change must be visible before the call: a waiter
    /// takes its place before it looks, so either it sees the change or it is woken.
    pub(crate) fn wake(&self, id: &SandboxId) {
        if self.taken.load(Ordering::Acquire) == 0 {
            return;
        }
        let changed = self.seats.lock().get(id).map(|seat| Arc::clone(&seat.changed));
        if let Some(changed) = changed {
            changed.notify_waiters();
        }
    }

    /// Whether somebody waits for `id`.
    pub(crate) fn waited_for(&self, id: &SandboxId) -> bool {
        self.taken.load(Ordering::Acquire) > 0 && self.seats.lock().contains_key(id)
    }

    /// Places taken now.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Place {
    /// Listens from the call on; look at the state after it, then wait.
    pub(crate) fn changed(&self) -> Pin<Box<Notified<'_>>> {
        let mut changed = Box::pin(self.changed.notified());
        changed.as_mut().enable();
        changed
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seats = self.places.seats.lock();
        if let Some(seat) = seats.get_mut(&self.id) {
            seat.taken -= 1;
            if seat.taken == 0 {
                seats.remove(&self.id);
            }
        }
        self.places.taken.fetch_sub(1, Ordering::Release);
        drop(seats);
        self.places.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(max: usize, each: usize) -> Arc<Places> {
        Places::new(max, each, IntGauge::new("held", "held").unwrap())
    }

    fn id(text: &str) -> SandboxId {
        SandboxId::parse(text).unwrap()
    }

    #[test]
    fn a_sandbox_has_no_more_places_than_its_bound() {
        let places = places(10, 2);
        let first = places.take(&id("a")).unwrap();
        let _second = places.take(&id("a")).unwrap();
        assert!(places.take(&id("a")).is_none());
        assert!(places.take(&id("b")).is_some());
        drop(first);
        assert!(places.take(&id("a")).is_some());
    }

    #[test]
    fn all_sandboxes_have_no_more_places_than_the_bound_of_all() {
        let places = places(2, 2);
        let _first = places.take(&id("a")).unwrap();
        let second = places.take(&id("b")).unwrap();
        assert!(places.take(&id("c")).is_none());
        drop(second);
        assert!(places.take(&id("c")).is_some());
    }

    #[test]
    fn other_bounds_hold_for_who_comes_next() {
        let places = places(1, 1);
        let _first = places.take(&id("a")).unwrap();
        places.resize(2, 2);
        let _second = places.take(&id("a")).unwrap();
        places.resize(9, 1);
        assert!(places.take(&id("a")).is_none());
        assert!(places.take(&id("b")).is_some());
    }

    #[test]
    fn a_bound_of_none_holds_nobody() {
        assert!(places(10, 0).take(&id("a")).is_none());
        assert!(places(0, 10).take(&id("a")).is_none());
    }

    #[test]
    fn nothing_is_kept_for_a_sandbox_nobody_waits_for() {
        let places = places(10, 10);
        let held = [places.take(&id("a")).unwrap(), places.take(&id("a")).unwrap()];
        assert!(places.waited_for(&id("a")));
        assert_eq!((places.taken(), places.gauge.get()), (2, 2));
        drop(held);
        assert!(!places.waited_for(&id("a")));
        assert!(places.seats.lock().is_empty());
        assert_eq!((places.taken(), places.gauge.get()), (0, 0));
    }

    #[tokio::test]
    async fn a_change_between_looking_and_waiting_is_not_lost() {
        let places = places(10, 10);
        let place = places.take(&id("a")).unwrap();
        let changed = place.changed();
        places.wake(&id("a"));
        changed.await;
    }
}
