//! The clock that stamps of activity are kept in.
//!
//! The system's clock can be set: forward by hours and back again. A stamp that was taken from it
//! would then lie in the future, and stay there. So stamps are kept in a clock that only runs
//! forward, the time since the machine was started, which is the same in every process; they become
//! unix time when they are listed, by where the system's clock stands at that moment.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// How far the two clocks may move against each other before the system's is believed to have been
/// set, milliseconds. Less than a second, which is how fine activity is stamped, and more than a
/// reading of both can be wrong.
const STEP_MS: u64 = 50;
/// A reading during which this much time passed tells too little, microseconds.
const SLOW_US: u64 = 10_000;
const ATTEMPTS: u32 = 5;

/// The two clocks of the system, microseconds.
pub(crate) trait ClockSource: Send + Sync {
    /// Never set, and running while the machine sleeps.
    fn steady_us(&self) -> u64;
    /// Unix time.
    fn unix_us(&self) -> u64;
}

/// The clocks of the operating system.
pub(crate) struct SystemClock;

impl ClockSource for SystemClock {
    fn steady_us(&self) -> u64 {
        // Linux has this clock in every version that runs here.
        let Ok(now) = clock_gettime(ClockId::CLOCK_BOOTTIME) else { return 0 };
        let seconds = u64::try_from(now.tv_sec()).unwrap_or_default();
        let nanos = u64::try_from(now.tv_nsec()).unwrap_or_default();
        seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000)
    }

    fn unix_us(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A moment, and what turns it into unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Milliseconds of the steady clock.
    pub(crate) steady: u64,
    /// Unix milliseconds less those of the steady clock.
    pub(crate) offset: i64,
}

impl Moment {
    /// A moment of the steady clock in unix milliseconds.
    pub(crate) fn unix(self, steady: u64) -> u64 {
        steady.saturating_add_signed(self.offset)
    }

    /// Unix milliseconds as a moment of the steady clock; 0 for what was before it.
    pub(crate) fn steady_of(self, unix: u64) -> u64 {
        steady_of(unix, self.offset)
    }
}

/// See [`Moment::steady_of`]; `offset` may be another process's.
pub(crate) fn steady_of(unix: u64, offset: i64) -> u64 {
    unix.saturating_add_signed(offset.saturating_neg())
}

/// Both clocks of this process.
pub(crate) struct Clock {
    source: Box<dyn ClockSource>,
    /// Added to the steady clock, so that its milliseconds begin with those of unix time, and
    /// turning one into the other loses nothing.
    phase_us: u64,
    offset: AtomicI64,
}

impl Clock {
    pub(crate) fn new(source: Box<dyn ClockSource>) -> Self {
        let (steady, unix) = read(&*source).unwrap_or_else(|| (source.steady_us(), source.unix_us()));
        let phase_us = (unix % 1_000 + 1_000 - steady % 1_000) % 1_000;
        Self { source, phase_us, offset: AtomicI64::new(offset_ms(steady + phase_us, unix)) }
    }

    /// Milliseconds of the steady clock. One read of a clock.
    pub(crate) fn steady(&self) -> u64 {
        self.source.steady_us().saturating_add(self.phase_us) / 1_000
    }

    /// Now, by both clocks. Looks whether the system's clock was set.
    pub(crate) fn now(&self) -> Moment {
        let known = self.offset.load(Ordering::Relaxed);
        if let Some((steady, unix)) = read(&*self.source) {
            let found = offset_ms(steady.saturating_add(self.phase_us), unix);
            if found.abs_diff(known) > STEP_MS {
                self.offset.store(found, Ordering::Relaxed);
                return Moment { steady: self.steady(), offset: found };
            }
        }
        Moment { steady: self.steady(), offset: known }
    }
}

/// Both clocks at one moment; nothing where this thread was kept waiting in between.
fn read(source: &dyn ClockSource) -> Option<(u64, u64)> {
    (0..ATTEMPTS).find_map(|_| {
        let before = source.steady_us();
        let unix = source.unix_us();
        let passed = source.steady_us().saturating_sub(before);
        (passed < SLOW_US).then_some((before + passed / 2, unix))
    })
}

fn offset_ms(steady_us: u64, unix_us: u64) -> i64 {
    let difference = i128::from(unix_us) - i128::from(steady_us);
    // Rounded: the two are whole milliseconds apart, give or take what a reading takes.
    i64::try_from((difference + 500).div_euclid(1_000)).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Clocks that a test sets, milliseconds.
    #[derive(Clone, Default)]
    pub(crate) struct TestClock {
        pub(crate) steady: Arc<AtomicU64>,
        pub(crate) unix: Arc<AtomicU64>,
    }

    impl TestClock {
        pub(crate) fn at(steady: u64, unix: u64) -> Self {
            Self { steady: Arc::new(steady.into()), unix: Arc::new(unix.into()) }
        }

        /// Lets time pass on both clocks.
        pub(crate) fn pass(&self, ms: u64) {
            self.steady.fetch_add(ms, Ordering::Relaxed);
            self.unix.fetch_add(ms, Ordering::Relaxed);
        }

        /// Sets the system's clock, as an operator does.
        pub(crate) fn set_by(&self, ms: i64) {
            let unix = self.unix.load(Ordering::Relaxed);
            self.unix.store(unix.saturating_add_signed(ms), Ordering::Relaxed);
        }

        pub(crate) fn unix(&self) -> u64 {
            self.unix.load(Ordering::Relaxed)
        }
    }

    impl ClockSource for TestClock {
        fn steady_us(&self) -> u64 {
            self.steady.load(Ordering::Relaxed) * 1_000
        }

        fn unix_us(&self) -> u64 {
            self.unix.load(Ordering::Relaxed) * 1_000
        }
    }

    #[test]
    fn unix_time_follows_the_systems_clock_and_the_steady_one_does_not() {
        let test_clock = TestClock::at(5_000, 1_000_000);
        let clock = Clock::new(Box::new(test_clock.clone()));
        let began = clock.now();
        assert_eq!(began.unix(began.steady), 1_000_000);
        test_clock.pass(2_000);
        for by in [5 * 3_600_000, -5 * 3_600_000, -300] {
            test_clock.set_by(by);
            let now = clock.now();
            assert_eq!((now.steady, now.unix(now.steady)), (7_000, test_clock.unix()));
            assert_eq!(now.steady_of(test_clock.unix()), 7_000);
        }
        assert_eq!(clock.now().steady_of(0), 0, "before the machine was started");
    }

    #[test]
    fn the_real_clocks_agree_with_each_other_to_a_few_milliseconds() {
        let clock = Clock::new(Box::new(SystemClock));
        let before = SystemClock.unix_us() / 1_000;
        let now = clock.now();
        let after = SystemClock.unix_us() / 1_000;
        let told = now.unix(now.steady);
        assert!((before.saturating_sub(1)..=after + 1).contains(&told), "{before} {told} {after}");
    }
}
