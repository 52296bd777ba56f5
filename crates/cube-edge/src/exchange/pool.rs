//! Idle connections to sandboxes (connections.md, Upstream pool).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::net::TcpStream;

/// Which requests may have a connection: the group of [`crate::proxy::pool_key::PoolKey`], and where it leads.
pub(super) type Key = (u64, SocketAddr);

struct Idle {
    tcp: TcpStream,
    until: Instant,
    /// The connection's number in the order of all that came in.
    number: u64,
}

impl Idle {
    /// Whether nothing has come since it was put here: neither its end nor a byte that nobody asked
    /// for, which would be taken for the next response's.
    fn is_quiet(&self) -> bool {
        let mut byte = [0u8; 1];
        matches!(self.tcp.try_read(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

#[derive(Default)]
struct Kept {
    by_key: AHashMap<Key, VecDeque<Idle>>,
    /// Keys in the order their connections came in; some of them are gone since.
    order: VecDeque<(u64, Key)>,
    count: usize,
    next: u64,
}

impl Kept {
    /// Drops the connection that has been here longest.
    fn drop_oldest(&mut self) {
        while let Some((number, key)) = self.order.pop_front() {
            let Some(idle) = self.by_key.get_mut(&key) else { continue };
            // The oldest of a key is at its front.
            if idle.front().is_none_or(|oldest| oldest.number != number) {
                continue;
            }
            idle.pop_front();
            if idle.is_empty() {
                self.by_key.remove(&key);
            }
            self.count -= 1;
            return;
        }
    }

    /// The order holds no more than twice what is there.
    fn tidy(&mut self) {
        if self.order.len() <= 2 * self.count + 64 {
            return;
        }
        let by_key = &self.by_key;
        self.order.retain(|(number, key)| {
            by_key.get(key).is_some_and(|idle| idle.iter().any(|one| one.number == *number))
        });
    }
}

/// The pool of one process.
pub(super) struct Pool {
    kept: Mutex<Kept>,
    /// The most connections in it.
    size: usize,
}

impl Pool {
    pub(super) fn new(size: usize) -> Self {
        Self { kept: Mutex::default(), size }
    }

    /// The connection that was used last and is still good.
    pub(super) fn take(&self, key: &Key) -> Option<TcpStream> {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        loop {
            let idle = kept.by_key.get_mut(key)?;
            let one = idle.pop_back()?;
            if idle.is_empty() {
                kept.by_key.remove(key);
            }
            kept.count -= 1;
            kept.tidy();
            if now < one.until && one.is_quiet() {
                return Some(one.tcp);
            }
        }
    }

    /// Keeps a connection for so long.
    pub(super) fn put(&self, key: Key, tcp: TcpStream, time: Duration) {
        if time.is_zero() || self.size == 0 {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.count >= self.size {
            kept.drop_oldest();
        }
        let number = kept.next;
        kept.next += 1;
        kept.count += 1;
        kept.by_key.entry(key).or_default().push_back(Idle { tcp, until: Instant::now() + time, number });
        kept.order.push_back((number, key));
    }

    /// Drops what is over its time, has ended, or has said something.
    pub(super) fn sweep(&self, now: Instant) {
        let mut dropped = Vec::new();
        let mut kept = self.kept.lock();
        kept.by_key.retain(|_, idle| {
            let mut at = 0;
            while let Some(one) = idle.get(at) {
                if now < one.until && one.is_quiet() {
                    at += 1;
                } else {
                    dropped.extend(idle.remove(at));
                }
            }
            !idle.is_empty()
        });
        kept.count -= dropped.len();
        kept.tidy();
        // Closed outside the lock.
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    struct World {
        listener: TcpListener,
        address: SocketAddr,
    }

    impl World {
        async fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            Self { listener, address }
        }

        async fn pair(&self) -> (TcpStream, TcpStream) {
            let (near, far) = tokio::join!(TcpStream::connect(self.address), self.listener.accept());
            (near.unwrap(), far.unwrap().0)
        }
    }

    #[tokio::test]
    async fn a_connection_is_found_under_its_own_key_alone() {
        let world = World::new().await;
        let pool = Pool::new(10);
        let (near, _far) = world.pair().await;
        let port = near.local_addr().unwrap();
        pool.put((1, world.address), near, LONG);
        assert!(pool.take(&(2, world.address)).is_none());
        assert_eq!(pool.take(&(1, world.address)).unwrap().local_addr().unwrap(), port);
        assert!(pool.take(&(1, world.address)).is_none(), "taken once");
    }

    #[tokio::test]
    async fn what_has_ended_or_said_something_is_not_given_out() {
        let world = World::new().await;
        let pool = Pool::new(10);
        let (near, mut far) = world.pair().await;
        far.write_all(b"x").await.unwrap();
        near.readable().await.unwrap();
        pool.put((1, world.address), near, LONG);
        assert!(pool.take(&(1, world.address)).is_none());
        let (near, far) = world.pair().await;
        drop(far);
        near.readable().await.unwrap();
        pool.put((1, world.address), near, LONG);
        pool.sweep(Instant::now());
        assert_eq!(pool.kept.lock().count, 0);
    }

    #[tokio::test]
    async fn the_oldest_goes_where_there_is_no_room_and_each_has_its_time() {
        let world = World::new().await;
        let pool = Pool::new(2);
        let mut far = Vec::new();
        for key in 1..=3 {
            let (near, there) = world.pair().await;
            far.push(there);
            pool.put((key, world.address), near, LONG);
        }
        assert!(pool.take(&(1, world.address)).is_none());
        assert!(pool.take(&(2, world.address)).is_some());
        pool.sweep(Instant::now() + LONG);
        assert!(pool.take(&(3, world.address)).is_none());
        assert_eq!(pool.kept.lock().count, 0);
    }

    #[tokio::test]
    async fn the_order_does_not_grow_with_use() {
        let world = World::new().await;
        let pool = Pool::new(2);
        let (mut near, _far) = world.pair().await;
        for _ in 0..1000 {
            pool.put((1, world.address), near, LONG);
            near = pool.take(&(1, world.address)).unwrap();
        }
        assert!(pool.kept.lock().order.len() < 100);
    }
}
