//! `limits.requests_per_ip`: requests a second from one address.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ahash::{AHashMap, RandomState};
use parking_lot::Mutex;

const SHARDS: usize = 16;

/// Counts requests by address in windows of one second. Off (and free) until a limit is asked
/// for. Bounded: what is counted is forgotten with its second.
pub(crate) struct Rate {
    begun: Instant,
    second: AtomicU64,
    shards: Box<[Mutex<AHashMap<IpAddr, u32>>]>,
    hasher: RandomState,
}

impl Rate {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            second: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Counts a request from `address`; whether it is within `limit` a second.
    pub(crate) fn allows(&self, address: IpAddr, limit: u32, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.begun).as_secs();
        if self.second.swap(second, Ordering::Relaxed) != second {
            for shard in &self.shards {
                shard.lock().clear();
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits choose the shard")]
        let at = self.hasher.hash_one(address) as usize % SHARDS;
        let Some(shard) = self.shards.get(at) else { return true };
        let mut counts = shard.lock();
        let count = counts.entry(address).or_insert(0);
        *count = count.saturating_add(1);
        *count <= limit
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_address_gets_its_limit_again_each_second() {
        let rate = Rate::new();
        let (home, other) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::BROADCAST));
        let now = rate.begun;
        assert!(rate.allows(home, 2, now));
        assert!(rate.allows(home, 2, now));
        assert!(!rate.allows(home, 2, now));
        assert!(rate.allows(other, 2, now));
        assert!(rate.allows(home, 2, now + Duration::from_secs(1)));
    }
}
