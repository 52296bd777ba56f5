//! Which sandboxes get the requests, counted only while somebody looks (`GET /admin/top`): to a
//! request nobody looks at, all of this is one load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ahash::AHashMap;
use cube_route::SandboxId;
use parking_lot::Mutex;

/// How long counting goes on after the last look.
const ATTENTION: Duration = Duration::from_secs(90);
/// A rate covers this time at least, twice as much at most, or what lies between two looks.
const WINDOW: Duration = Duration::from_secs(3);
/// Sandboxes counted in one part of the table and one window; those met later are not, so that a
/// look at a million sandboxes stays small.
const MOST: usize = 1024;

/// A sandbox with traffic.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TopSandbox {
    pub(crate) id: SandboxId,
    /// Requests under way.
    pub(crate) under_way: usize,
    /// Requests that began in the window.
    pub(crate) begun: u64,
}

/// What one call of `/admin/top` found.
#[derive(Debug)]
pub(crate) struct TopSandboxes {
    /// What `begun` covers; zero at the first look, which begins the counting.
    pub(crate) window: Duration,
    /// Requests under way, over all sandboxes.
    pub(crate) under_way: usize,
    /// Sandboxes with a request under way.
    pub(crate) sandboxes: usize,
    /// The busiest ones, by requests begun, then by requests under way.
    pub(crate) busiest: Vec<TopSandbox>,
}

/// Requests by sandbox, in one part of the table.
#[derive(Default)]
pub(crate) struct Counts {
    current: AHashMap<SandboxId, u64>,
    previous: AHashMap<SandboxId, u64>,
}

impl Counts {
    pub(crate) fn add(&mut self, id: &SandboxId) {
        if let Some(count) = self.current.get_mut(id) {
            *count += 1;
        } else if self.current.len() < MOST {
            self.current.insert(id.clone(), 1);
        }
    }

    pub(crate) fn turn(&mut self) {
        self.previous = std::mem::take(&mut self.current);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Over the whole window, by sandbox.
    pub(crate) fn begun(&self) -> AHashMap<SandboxId, u64> {
        let mut all = self.current.clone();
        for (id, count) in &self.previous {
            *all.entry(id.clone()).or_default() += count;
        }
        all
    }
}

/// Since when the two windows count.
#[derive(Clone, Copy)]
struct Windows {
    previous: Instant,
    current: Instant,
}

/// What has to be done with the counts before they are used: by a call of `/admin/top`, or by a request when
/// nobody has called it for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowStep {
    /// Forget what was counted.
    Clear,
    /// Begin a new window.
    Next,
    /// Nothing.
    Stay,
}

/// Whether somebody calls `/admin/top` now and then: only then requests are counted by sandbox.
pub(crate) struct Watch {
    counted_since: Instant,
    /// Milliseconds since `origin`; 0: nobody looks.
    until: AtomicU64,
    windows: Mutex<Windows>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let windows = Mutex::new(Windows { previous: now, current: now });
        Self { counted_since: now, until: AtomicU64::new(0), windows }
    }

    /// Whether a request is to be counted; the error says that this was found to be over just now.
    pub(crate) fn counts(&self) -> Result<bool, WindowStep> {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return Ok(false);
        }
        if self.millis(Instant::now()) < until {
            return Ok(true);
        }
        let first = self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if first { Err(WindowStep::Clear) } else { Ok(false) }
    }

    /// Notes a look at `now`: what is to be done with the counts, and the time that they cover then.
    pub(crate) fn look(&self, now: Instant) -> (WindowStep, Duration) {
        let until = self.millis(now + ATTENTION);
        let before = self.until.swap(until, Ordering::Relaxed);
        let mut windows = self.windows.lock();
        if before <= self.millis(now) {
            *windows = Windows { previous: now, current: now };
            return (WindowStep::Clear, Duration::ZERO);
        }
        let turn = now.saturating_duration_since(windows.current) >= WINDOW;
        if turn {
            *windows = Windows { previous: windows.current, current: now };
        }
        let covered = now.saturating_duration_since(windows.previous);
        (if turn { WindowStep::Next } else { WindowStep::Stay }, covered)
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.counted_since).as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SandboxId {
        SandboxId::parse(text).unwrap()
    }

    #[test]
    fn nothing_is_counted_until_somebody_looks_and_not_for_ever_after() {
        let watch = Watch::new();
        assert_eq!(watch.counts(), Ok(false));
        let begin = Instant::now();
        assert_eq!(watch.look(begin), (WindowStep::Clear, Duration::ZERO));
        assert_eq!(watch.counts(), Ok(true));
        watch.until.store(1, Ordering::Relaxed);
        assert_eq!(watch.counts(), Err(WindowStep::Clear));
        assert_eq!(watch.counts(), Ok(false));
    }

    #[test]
    fn a_rate_covers_one_to_two_windows() {
        let watch = Watch::new();
        let begin = Instant::now();
        watch.look(begin);
        let at = |secs| watch.look(begin + Duration::from_secs(secs));
        let secs = Duration::from_secs;
        assert_eq!(at(2), (WindowStep::Stay, secs(2)));
        assert_eq!(at(3), (WindowStep::Next, secs(3)));
        assert_eq!(at(5), (WindowStep::Stay, secs(5)));
        assert_eq!(at(6), (WindowStep::Next, secs(3)));
        assert_eq!(at(60), (WindowStep::Next, secs(54)));
        assert_eq!(at(60 + 91), (WindowStep::Clear, Duration::ZERO));
    }

    #[test]
    fn counts_of_both_windows_add_up_and_are_bounded() {
        let mut counts = Counts::default();
        counts.add(&id("a"));
        counts.turn();
        counts.add(&id("a"));
        counts.add(&id("b"));
        assert_eq!((counts.begun()[&id("a")], counts.begun()[&id("b")]), (2, 1));
        counts.turn();
        assert_eq!(counts.begun()[&id("a")], 1);
        for n in 0..2 * MOST {
            counts.add(&id(&format!("s{n}")));
        }
        assert_eq!(counts.current.len(), MOST);
        counts.clear();
        assert!(counts.begun().is_empty());
    }
}
