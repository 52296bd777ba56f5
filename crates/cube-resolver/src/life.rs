//! How long something that was read may be served: the rules of metadata.md "Cache", as one pure
//! function of the time and of what is known about the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cube_metadata::TrackingSession;
use parking_lot::Mutex;

/// Under which promise something was read. What was read under the promise that still holds is
/// coherent: a change would have been pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trust {
    /// The session of the push channel; none: nothing is pushed.
    pub(crate) session: Option<TrackingSession>,
    /// Moves on when this process has missed pushes although the session is the same.
    pub(crate) round: u64,
}

/// What is known about the store now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) now: Instant,
    pub(crate) trust: Trust,
    pub(crate) failing: bool,
}

/// What a request may do with something that was read earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Serve it.
    Fresh,
    /// Serve it and read it again in the background.
    Refresh,
    /// The same, past its time, since the store cannot answer.
    Stale,
    /// Read it again first.
    Read,
}

/// The bounds that apply to one kind of entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Life while changes are not pushed.
    pub(crate) untracked: Duration,
    /// How long past its time it may be served at all.
    pub(crate) overtime: Duration,
}

/// After a background read of an entry began, the next one of the same entry waits this long.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);

/// The life of one reading.
#[derive(Debug)]
pub(crate) struct Life {
    read_at: Instant,
    expires: Instant,
    trust: Trust,
    /// Known to be wrong, or forgotten on purpose: never served again.
    gone: AtomicBool,
    refreshed_at: Mutex<Option<Instant>>,
}

impl Life {
    /// A life of `ttl` for what a read that began at `read_at` under `trust` brought.
    pub(crate) fn new(read_at: Instant, ttl: Duration, trust: Trust) -> Self {
        Self {
            read_at,
            expires: read_at + ttl,
            trust,
            gone: AtomicBool::new(false),
            refreshed_at: Mutex::new(None),
        }
    }

    pub(crate) fn read_at(&self) -> Instant {
        self.read_at
    }

    pub(crate) fn tracked(&self, current: Trust) -> bool {
        current.session.is_some() && self.trust == current
    }

    /// Marks it as never to be served again; whether it was served until now.
    pub(crate) fn end(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// In its time and trusted, or young enough while nothing is pushed.
    #[inline]
    fn fresh(&self, view: View, untracked: impl FnOnce() -> Duration) -> bool {
        match view.trust.session {
            Some(_) => self.trust == view.trust && view.now < self.expires,
            None => view.now < self.expires && view.now < self.read_at + untracked(),
        }
    }

    /// What a request may do with it.
    #[inline]
    pub(crate) fn judge(&self, view: View, bounds: impl Fn() -> Bounds) -> Use {
        if self.is_over() {
            return Use::Read;
        }
        if self.fresh(view, || bounds().untracked) {
            return Use::Fresh;
        }
        if !self.in_overtime(view.now, bounds().overtime) {
            return Use::Read;
        }
        if view.failing {
            return Use::Stale;
        }
        if self.tracked(view.trust) { Use::Refresh } else { Use::Read }
    }

    /// Whether it may be served although the store did not answer.
    pub(crate) fn serves_on_error(&self, now: Instant, bounds: Bounds) -> bool {
        !self.is_over() && self.in_overtime(now, bounds.overtime)
    }

    fn in_overtime(&self, now: Instant, overtime: Duration) -> bool {
        now < self.expires + overtime
    }

    /// Whether a background read may begin now, `turn` permitting; at most one caller in a while
    /// is told so.
    pub(crate) fn claim_refresh(&self, now: Instant, turn: impl FnOnce() -> bool) -> bool {
        let Some(mut last) = self.refreshed_at.try_lock() else { return false };
        if last.is_some_and(|last| now < last + REFRESH_PAUSE) || !turn() {
            return false;
        }
        *last = Some(now);
        true
    }
}
