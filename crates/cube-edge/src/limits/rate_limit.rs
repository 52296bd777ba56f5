//! `limits.requests_per_ip`: a token bucket for each client address (connections.md, Limits).

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ahash::RandomState;
use arc_swap::ArcSwapOption;
use governor::clock::MonotonicClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};

use super::settings::RequestRate;

/// How often addresses whose bucket is full again are forgotten, which bounds the memory by the
/// addresses of that time.
const FORGET: Duration = Duration::from_secs(10);

type Limiter = RateLimiter<IpAddr, DashMapStateStore<IpAddr, RandomState>, MonotonicClock>;

/// Counts requests by address, in this process alone. Nothing is kept until a limit is configured.
#[derive(Default)]
pub(crate) struct RateLimit(ArcSwapOption<(RequestRate, Arc<Limiter>)>);

impl RateLimit {
    /// Takes one request of `address` out of its bucket; whether there was one left. A rate that
    /// differs from the last call's begins with full buckets. To be called within a runtime.
    pub(crate) fn allows(&self, address: IpAddr, rate: RequestRate) -> bool {
        let current = self.0.load();
        if let Some(current) = &*current
            && current.0 == rate
        {
            return current.1.check_key(&address).is_ok();
        }
        let limiter = Arc::new(limiter(rate));
        tokio::spawn(forget_idle(Arc::downgrade(&limiter)));
        let allowed = limiter.check_key(&address).is_ok();
        self.0.store(Some(Arc::new((rate, limiter))));
        allowed
    }
}

fn limiter(rate: RequestRate) -> Limiter {
    let quota = Quota::per_second(rate.per_second).allow_burst(rate.burst);
    RateLimiter::new(quota, DashMapStateStore::with_hasher(RandomState::new()), MonotonicClock)
}

async fn forget_idle(limiter: Weak<Limiter>) {
    loop {
        tokio::time::sleep(FORGET).await;
        let Some(limiter) = limiter.upgrade() else { return };
        limiter.retain_recent();
        limiter.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

    #[tokio::test]
    async fn an_address_has_its_burst_and_others_have_theirs() {
        let limit = RateLimit::default();
        let rate = RequestRate::new(1, 3).unwrap();
        let allowed = (0..5).filter(|_| limit.allows(HOME, rate)).count();
        // A fourth where this took a second.
        assert!((3..=4).contains(&allowed), "{allowed}");
        assert!(limit.allows(OTHER, rate));
    }

    #[tokio::test]
    async fn another_rate_holds_from_the_next_request_on() {
        let limit = RateLimit::default();
        let (narrow, wide) = (RequestRate::new(1, 1).unwrap(), RequestRate::new(1, 2).unwrap());
        assert!(limit.allows(HOME, narrow));
        assert!(limit.allows(HOME, wide));
        assert!(limit.allows(HOME, wide));
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_went_away_are_forgotten() {
        let limit = RateLimit::default();
        assert!(limit.allows(HOME, RequestRate::new(u32::MAX, 1).unwrap()));
        let limiter = limit.0.load_full().unwrap().1.clone();
        assert_eq!(limiter.len(), 1);
        tokio::time::sleep(FORGET * 2).await;
        assert!(limiter.is_empty());
    }

    #[test]
    fn zero_is_no_limit() {
        assert_eq!(RequestRate::new(0, 5), None);
    }
}
