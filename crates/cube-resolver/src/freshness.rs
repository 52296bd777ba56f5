//! How long a reading may be served: the rules of metadata.md "Cache", as one pure function of the time
//! and of what is known about the store.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cube_metadata::TrackingSession;

/// The tracking session in which something was read. What was read in the current epoch is coherent: a
/// change of it would have been pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrackingEpoch {
    /// The session of the push channel; none: nothing is pushed.
    pub(crate) session: Option<TrackingSession>,
    /// Counted up when this process missed pushes although the session is the same.
    pub(crate) resync: u64,
}

/// The time, the current tracking epoch, and whether the store fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreView {
    pub(crate) now: Instant,
    pub(crate) tracking_epoch: TrackingEpoch,
    pub(crate) failing: bool,
}

/// What a request may do with something that was read earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServeDecision {
    /// The entry is served as it is.
    Fresh,
    /// Serve it and read it again in the background.
    Refresh,
    /// Serve it although it has expired, since the store fails.
    Stale,
    /// The record is read again before anything is served.
    Read,
}

/// The bounds that apply to one kind of entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreshnessBounds {
    /// Life while changes are not pushed.
    pub(crate) untracked: Duration,
    /// How long past its time it may be served at all.
    pub(crate) stale_window: Duration,
}

/// After a background read of an entry began, the next one of the same entry waits this long.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);

/// How fresh one reading is. There is one for each sandbox in memory, so it is kept small: times are
/// milliseconds since `read_at`, which in 32 bits are some weeks.
#[derive(Debug)]
pub(crate) struct EntryFreshness {
    read_at: Instant,
    tracking_epoch: TrackingEpoch,
    ttl_ms: u32,
    /// When a background read last began, plus one; 0: none has.
    refreshed_ms: AtomicU32,
    /// Known to be outdated, or forgotten on purpose: never served again.
    invalidated: AtomicBool,
}

impl EntryFreshness {
    /// Fresh for `ttl`: the result of a read that began at `read_at` in `tracking_epoch`.
    pub(crate) fn new(read_at: Instant, ttl: Duration, tracking_epoch: TrackingEpoch) -> Self {
        Self {
            read_at,
            tracking_epoch,
            ttl_ms: in_ms(ttl),
            refreshed_ms: AtomicU32::new(0),
            invalidated: AtomicBool::new(false),
        }
    }

    pub(crate) fn read_at(&self) -> Instant {
        self.read_at
    }

    pub(crate) fn tracked(&self, current: TrackingEpoch) -> bool {
        current.session.is_some() && self.tracking_epoch == current
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.into())
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.read_at)
    }

    /// Marks it as never to be served again; whether it could be served until now.
    pub(crate) fn invalidate(&self) -> bool {
        !self.invalidated.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_invalidated(&self) -> bool {
        self.invalidated.load(Ordering::Acquire)
    }

    /// In its time and trusted, or young enough while nothing is pushed.
    #[inline]
    fn fresh(&self, view: StoreView, untracked: impl FnOnce() -> Duration) -> bool {
        match view.tracking_epoch.session {
            Some(_) => self.tracking_epoch == view.tracking_epoch && self.age(view.now) < self.ttl(),
            None => self.age(view.now) < self.ttl().min(untracked()),
        }
    }

    /// Whether a request is served it, and whether it is read again.
    #[inline]
    pub(crate) fn decide(&self, view: StoreView, bounds: impl Fn() -> FreshnessBounds) -> ServeDecision {
        if self.is_invalidated() {
            return ServeDecision::Read;
        }
        if self.fresh(view, || bounds().untracked) {
            return ServeDecision::Fresh;
        }
        if !self.within_stale_window(view.now, bounds().stale_window) {
            return ServeDecision::Read;
        }
        if view.failing {
            return ServeDecision::Stale;
        }
        if self.tracked(view.tracking_epoch) { ServeDecision::Refresh } else { ServeDecision::Read }
    }

    /// Whether it may be served although the store did not answer.
    pub(crate) fn serves_on_error(&self, now: Instant, bounds: FreshnessBounds) -> bool {
        !self.is_invalidated() && self.within_stale_window(now, bounds.stale_window)
    }

    fn within_stale_window(&self, now: Instant, stale_window: Duration) -> bool {
        self.age(now) < self.ttl() + stale_window
    }

    /// Whether a background read may begin now, `turn` permitting; at most one caller in a while
    /// is told so.
    pub(crate) fn claim_refresh(&self, now: Instant, turn: impl FnOnce() -> bool) -> bool {
        let last = self.refreshed_ms.load(Ordering::Acquire);
        let now = in_ms(self.age(now)).saturating_add(1);
        if last != 0 && now.saturating_sub(last) < in_ms(REFRESH_PAUSE) {
            return false;
        }
        // The first one to move the mark on has the refresh, and gives it back where it may not read now.
        let claimed = self.refreshed_ms.compare_exchange(last, now, Ordering::AcqRel, Ordering::Acquire);
        if claimed.is_err() {
            return false;
        }
        let begins = turn();
        if !begins {
            self.refreshed_ms.store(last, Ordering::Release);
        }
        begins
    }
}

fn in_ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
