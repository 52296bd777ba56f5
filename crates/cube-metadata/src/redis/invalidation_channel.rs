//! The invalidation channel: what Redis pushes, as events to subscribers, and whether the pushes of all
//! servers are complete (a tracking session).

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::broadcast;

use crate::{StoreEvent, TrackingSession};

/// Events kept for a subscriber that lags; one that lags further must act as on [`StoreEvent::InvalidateAll`].
const EVENTS: usize = 32 * 1024;

/// Up while every server that holds records pushes its changes.
pub(crate) struct InvalidationChannel {
    servers: Mutex<TrackedServers>,
    /// The session, 0 while down. Written under the lock of `servers`.
    session: AtomicU64,
    events: broadcast::Sender<StoreEvent>,
    gauge: IntGauge,
}

#[derive(Default)]
struct TrackedServers {
    /// Sessions so far: a number is never used again.
    sessions: u64,
    wanted: HashSet<u64>,
    pushing: HashSet<u64>,
}

impl InvalidationChannel {
    pub(crate) fn new(gauge: IntGauge) -> Self {
        Self {
            servers: Mutex::default(),
            session: AtomicU64::new(0),
            events: broadcast::channel(EVENTS).0,
            gauge,
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }

    pub(crate) fn session(&self) -> Option<TrackingSession> {
        NonZeroU64::new(self.session.load(Ordering::Acquire))
    }

    /// Sends an event to all subscribers; having none is not an error.
    pub(crate) fn publish(&self, event: StoreEvent) {
        let _ = self.events.send(event);
    }

    /// Sets the servers that records come from.
    pub(crate) fn set_servers(&self, servers: impl IntoIterator<Item = u64>) {
        let mut guard = self.servers.lock();
        let wanted: HashSet<u64> = servers.into_iter().collect();
        if wanted == guard.wanted {
            return;
        }
        guard.pushing.retain(|server| wanted.contains(server));
        guard.wanted = wanted;
        // Some keys are answered by another server now: what was read before is not covered.
        self.close(&guard);
        self.open_if_complete(&mut guard);
    }

    /// `server` pushes from now on: what was read from it before may have changed unseen.
    pub(crate) fn server_up(&self, server: u64) {
        let mut guard = self.servers.lock();
        guard.pushing.insert(server);
        self.open_if_complete(&mut guard);
    }

    /// `server` does not push any more.
    pub(crate) fn server_down(&self, server: u64) {
        let mut guard = self.servers.lock();
        guard.pushing.remove(&server);
        if guard.wanted.contains(&server) {
            self.close(&guard);
        }
    }

    /// Pushes may have been missed although the channel is up: begins a new session.
    pub(crate) fn invalidate_all(&self) {
        let mut guard = self.servers.lock();
        if self.session().is_some() {
            self.open_if_complete(&mut guard);
        }
    }

    fn open_if_complete(&self, servers: &mut TrackedServers) {
        if servers.wanted.is_empty() || !servers.wanted.is_subset(&servers.pushing) {
            return;
        }
        servers.sessions += 1;
        self.session.store(servers.sessions, Ordering::Release);
        self.gauge.set(1);
        self.publish(StoreEvent::InvalidateAll);
    }

    fn close(&self, _held: &TrackedServers) {
        if self.session.swap(0, Ordering::AcqRel) != 0 {
            self.gauge.set(0);
            self.publish(StoreEvent::TrackingLost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> (InvalidationChannel, broadcast::Receiver<StoreEvent>) {
        let channel = InvalidationChannel::new(IntGauge::new("tracked", "tracked").unwrap());
        let events = channel.subscribe();
        (channel, events)
    }

    fn seen(events: &mut broadcast::Receiver<StoreEvent>) -> Vec<StoreEvent> {
        std::iter::from_fn(|| events.try_recv().ok()).collect()
    }

    #[test]
    fn a_session_begins_when_the_last_server_pushes_and_ends_with_the_first_that_does_not() {
        let (channel, mut events) = channel();
        channel.server_up(1);
        assert_eq!(channel.session(), None, "nobody knows the servers yet");
        channel.set_servers([1, 2]);
        assert_eq!(channel.session(), None);
        channel.server_up(2);
        let first = channel.session().unwrap();
        assert_eq!(seen(&mut events), [StoreEvent::InvalidateAll]);
        channel.server_down(1);
        channel.server_down(2);
        assert_eq!(channel.session(), None);
        assert_eq!(seen(&mut events), [StoreEvent::TrackingLost]);
        channel.server_up(2);
        channel.server_up(1);
        assert!(channel.session().unwrap() > first);
        assert_eq!(seen(&mut events), [StoreEvent::InvalidateAll]);
    }

    #[test]
    fn distrust_is_a_new_session_and_nothing_while_down() {
        let (channel, mut events) = channel();
        channel.set_servers([1]);
        channel.invalidate_all();
        assert_eq!(seen(&mut events), []);
        channel.server_up(1);
        let first = channel.session().unwrap();
        channel.invalidate_all();
        assert!(channel.session().unwrap() > first);
        channel.server_up(1);
        assert_eq!(
            seen(&mut events),
            [StoreEvent::InvalidateAll, StoreEvent::InvalidateAll, StoreEvent::InvalidateAll]
        );
    }

    #[test]
    fn other_servers_are_another_session() {
        let (channel, mut events) = channel();
        channel.set_servers([1, 2]);
        channel.server_up(1);
        channel.server_up(2);
        seen(&mut events);
        channel.set_servers([1, 2]);
        assert_eq!(seen(&mut events), []);
        channel.set_servers([1, 3]);
        assert_eq!(seen(&mut events), [StoreEvent::TrackingLost]);
        channel.server_down(2);
        channel.server_up(3);
        assert_eq!(seen(&mut events), [StoreEvent::InvalidateAll]);
        channel.set_servers([1]);
        assert_eq!(seen(&mut events), [StoreEvent::TrackingLost, StoreEvent::InvalidateAll]);
    }
}
