//! Which connections of an operators' listener are open, and which of them go when room is needed.
//!
//! Whoever reaches such a listener may open connections before anything is known of them. One that
//! waits for a request, or is in the middle of its head, is silent: it holds nothing that anybody
//! waits for, so it can be ended for one that is new.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// In this order silent connections are ended; of one rank the one goes first that is silent longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Kept after a request: its client opens another without harm.
    Kept,
    /// No request has come yet.
    New,
}

type SilentKey = (Rank, u64);

struct Silent {
    address: IpAddr,
    evicted: Arc<Notify>,
}

#[derive(Default)]
struct Open {
    count: usize,
    next: u64,
    by_address: HashMap<IpAddr, usize>,
    silent: BTreeMap<SilentKey, Silent>,
}

impl Open {
    fn of(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    fn leave(&mut self, address: IpAddr) {
        self.count -= 1;
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Ends the first silent connection, of `address` alone where one is given. `false`: there is none.
    fn evict(&mut self, address: Option<IpAddr>) -> bool {
        let mut of_it = self.silent.iter().filter(|(_, silent)| address.is_none_or(|a| a == silent.address));
        let Some(key) = of_it.next().map(|(key, _)| *key) else { return false };
        if let Some(silent) = self.silent.remove(&key) {
            self.leave(silent.address);
            // Stored for the connection where it does not wait at this moment.
            silent.evicted.notify_one();
        }
        true
    }

    fn hush(&mut self, rank: Rank, address: IpAddr, evicted: &Arc<Notify>) -> SilentKey {
        let key = (rank, self.next);
        self.next += 1;
        self.silent.insert(key, Silent { address, evicted: evicted.clone() });
        key
    }
}

/// The open connections of one listener.
pub(super) struct InternalConnections {
    most: usize,
    share: usize,
    open: Mutex<Open>,
    changed: Notify,
}

impl InternalConnections {
    /// For `most` connections, `share` of them of one address.
    pub(super) fn new(most: usize, share: usize) -> Arc<Self> {
        Arc::new(Self { most, share, open: Mutex::default(), changed: Notify::new() })
    }

    /// Returns when another connection can be taken: there is a free connection_slot, or a silent connection.
    pub(super) async fn room(&self) {
        loop {
            // Made before the look: from then on no notice is missed.
            let changed = self.changed.notified();
            {
                let open = self.open.lock();
                if open.count < self.most || !open.silent.is_empty() {
                    return;
                }
            }
            changed.await;
        }
    }

    /// A connection_slot for a new connection, for which a silent one is ended where that is needed. `None`:
    /// the address has its share, or the listener all it can have, and all of them have a request.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<InternalConnection> {
        let mut open = self.open.lock();
        if open.of(address) >= self.share && !open.evict(Some(address)) {
            return None;
        }
        if open.count >= self.most && !open.evict(None) {
            return None;
        }
        open.count += 1;
        *open.by_address.entry(address).or_insert(0) += 1;
        let evicted = Arc::new(Notify::new());
        let silent = Some(open.hush(Rank::New, address, &evicted));
        drop(open);
        Some(InternalConnection { places: self.clone(), address, silent, evicted })
    }

    /// Ends the connection that would go first, where there is a silent one.
    pub(super) fn evict(&self) {
        self.open.lock().evict(None);
    }
}

/// The connection_slot of one connection, given back when it is dropped.
pub(super) struct InternalConnection {
    places: Arc<InternalConnections>,
    address: IpAddr,
    /// None: a request is under way.
    silent: Option<SilentKey>,
    evicted: Arc<Notify>,
}

impl InternalConnection {
    /// Returns when the connection is to end, which it is told once and only while it is silent.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// The head of a request is complete: the connection stays. `false`: it was to end before that.
    #[must_use]
    pub(super) fn begin(&mut self) -> bool {
        let Some(key) = self.silent else { return true };
        if self.places.open.lock().silent.remove(&key).is_none() {
            return false;
        }
        self.silent = None;
        true
    }

    /// The response is out, and the connection is kept for another request.
    pub(super) fn keep(&mut self) {
        let mut open = self.places.open.lock();
        self.silent = Some(open.hush(Rank::Kept, self.address, &self.evicted));
        drop(open);
        self.places.changed.notify_waiters();
    }
}

impl Drop for InternalConnection {
    fn drop(&mut self) {
        let mut open = self.places.open.lock();
        // Who was told to end has given its connection_slot away already.
        let held = self.silent.is_none_or(|key| open.silent.remove(&key).is_some());
        if held {
            open.leave(self.address);
        }
        drop(open);
        self.places.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;

    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn ended(connection_slot: &InternalConnection) -> bool {
        connection_slot.evicted().now_or_never().is_some()
    }

    fn count(places: &InternalConnections) -> usize {
        places.open.lock().count
    }

    #[test]
    fn the_oldest_silent_connection_makes_room_and_kept_ones_do_first() {
        let places = InternalConnections::new(3, 3);
        let (oldest, old) = (places.admit(HOME).unwrap(), places.admit(HOME).unwrap());
        let mut kept = places.admit(HOME).unwrap();
        assert!(kept.begin());
        kept.keep();
        let _new = places.admit(OTHER).unwrap();
        assert_eq!((ended(&kept), ended(&oldest), ended(&old)), (true, false, false));
        let _newer = places.admit(OTHER).unwrap();
        assert_eq!((ended(&oldest), ended(&old)), (true, false));
        assert_eq!(count(&places), 3);
        drop((kept, oldest));
        assert_eq!(count(&places), 3, "a connection_slot is given away once");
        drop(old);
        assert_eq!(count(&places), 2);
    }

    #[test]
    fn a_connection_with_a_request_stays_and_one_that_was_ended_has_none() {
        let places = InternalConnections::new(2, 2);
        let (mut busy, mut silent) = (places.admit(HOME).unwrap(), places.admit(HOME).unwrap());
        assert!(busy.begin());
        let mut third = places.admit(OTHER).unwrap();
        assert!(ended(&silent) && !silent.begin() && !ended(&busy));
        assert!(third.begin());
        assert!(places.admit(OTHER).is_none(), "nobody is silent");
        assert!(places.room().now_or_never().is_none());
        busy.keep();
        assert!(places.room().now_or_never().is_some());
    }

    #[test]
    fn an_address_over_its_share_ends_its_own_connections() {
        let places = InternalConnections::new(9, 2);
        let other = places.admit(OTHER).unwrap();
        let (first, mut second) = (places.admit(HOME).unwrap(), places.admit(HOME).unwrap());
        let mut third = places.admit(HOME).unwrap();
        assert_eq!((ended(&other), ended(&first), ended(&second)), (false, true, false));
        assert!(second.begin() && third.begin());
        assert!(places.admit(HOME).is_none());
        assert!(places.admit(OTHER).is_some());
        drop((first, second, third, other));
        assert_eq!(count(&places), 0);
        assert!(places.open.lock().by_address.is_empty());
    }
}
