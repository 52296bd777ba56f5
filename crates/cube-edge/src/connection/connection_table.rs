//! The open client connections: their bounds, and what a drain does to the idle ones.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ahash::AHashMap;
use cube_sharded::Sharded;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::conn::{Conn, ConnectionPhase};

const SHARDS: usize = 16;

/// A part of the open connections, by number.
type ConnShard = Mutex<AHashMap<u64, Arc<Conn>>>;
/// A part of the counts by address.
type AddressShard = Mutex<AHashMap<IpAddr, usize>>;

/// Why a connection is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// `limits.connections`
    Full,
    /// `limits.connections_per_ip`
    Address,
    /// The limit of open files.
    Descriptors,
    /// No header of the PROXY protocol where there has to be one.
    ProxyProtocol,
}

/// Which connections are ended. HTTP/2 ones end by themselves but at the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionGroup {
    /// HTTP/1.1 connections that wait for their first or next request.
    Idle,
    /// And those in the middle of a request's head.
    WithoutRequest,
    /// All.
    All,
}

/// All open client connections of the data listeners.
pub(crate) struct ConnectionTable {
    open: AtomicUsize,
    next: AtomicU64,
    shards: Sharded<ConnShard, SHARDS>,
    addresses: Sharded<AddressShard, SHARDS>,
    empty: Notify,
}

impl ConnectionTable {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            open: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            shards: Sharded::default(),
            addresses: Sharded::default(),
            empty: Notify::new(),
        })
    }

    /// A slot for a connection, given back when it is dropped.
    pub(crate) fn admit(self: &Arc<Self>, most: usize) -> Result<ConnectionSlot, Refused> {
        if self.open.fetch_add(1, Ordering::AcqRel) >= most {
            self.leave();
            return Err(Refused::Full);
        }
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(ConnectionSlot { table: self.clone(), key, address: None })
    }

    /// Connections open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Ends these connections.
    pub(crate) fn shut(&self, which: ConnectionGroup) {
        for shard in &self.shards {
            for conn in shard.lock().values() {
                match (which, conn.phase()) {
                    (ConnectionGroup::All, _) => conn.shut(),
                    (_, ConnectionPhase::Idle | ConnectionPhase::Fresh)
                    | (ConnectionGroup::WithoutRequest, ConnectionPhase::Head) => conn.end_idle(),
                    _ => {}
                }
            }
        }
    }

    /// Ends requests whose clients have left unnoticed, and connections found idle more than `idle`
    /// times in a row.
    pub(crate) fn sweep(&self, idle: u32) {
        for shard in &self.shards {
            for conn in shard.lock().values() {
                conn.sweep(idle);
            }
        }
    }

    /// Returns when no connection is open.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.empty.notified();
            if self.open() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn leave(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.empty.notify_waiters();
        }
    }
}

/// One connection's place in the table.
pub(crate) struct ConnectionSlot {
    table: Arc<ConnectionTable>,
    key: u64,
    address: Option<IpAddr>,
}

impl ConnectionSlot {
    /// Counts the connection among those from `address`. `most` 0: no bound.
    pub(crate) fn count_for(&mut self, address: IpAddr, most: usize) -> Result<(), Refused> {
        if most > 0 {
            let mut addresses = self.table.addresses.of(&address).lock();
            let count = addresses.entry(address).or_insert(0);
            if *count >= most {
                return Err(Refused::Address);
            }
            *count += 1;
            self.address = Some(address);
        }
        Ok(())
    }

    /// Makes the connection known, so that a drain reaches it.
    pub(crate) fn hold(&self, conn: &Arc<Conn>) {
        self.table.shards.of(&self.key).lock().insert(self.key, conn.clone());
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.table.shards.of(&self.key).lock().remove(&self.key);
        if let Some(address) = self.address {
            let mut addresses = self.table.addresses.of(&address).lock();
            if let Some(count) = addresses.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    addresses.remove(&address);
                }
            }
        }
        self.table.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    #[test]
    fn the_bound_on_all_connections_is_given_back_with_the_place() {
        let table = ConnectionTable::new();
        let first = table.admit(2).unwrap();
        let _second = table.admit(2).unwrap();
        assert_eq!(table.admit(2).err(), Some(Refused::Full));
        assert_eq!(table.open(), 2);
        drop(first);
        assert!(table.admit(2).is_ok());
    }

    #[test]
    fn the_bound_by_address_concerns_that_address_alone() {
        let table = ConnectionTable::new();
        let count = |address| table.admit(9).and_then(|mut slot| slot.count_for(address, 1).map(|()| slot));
        let first = count(HOME).unwrap();
        assert_eq!(count(HOME).err(), Some(Refused::Address));
        assert!(count(OTHER).is_ok());
        assert_eq!(table.open(), 1, "what was refused holds no place");
        drop(first);
        assert!(count(HOME).is_ok());
    }

    #[tokio::test]
    async fn an_emptied_table_says_so() {
        let table = ConnectionTable::new();
        let slot = table.admit(1).unwrap();
        let waiter = tokio::spawn({
            let table = table.clone();
            async move { table.emptied().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(slot);
        waiter.await.unwrap();
    }
}
