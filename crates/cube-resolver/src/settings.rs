//! What the operator decides about the cache, and what can be wrong with it.

use std::time::Duration;

use cube_settings::{NonZeroCount, NonZeroSpan, Span};

cube_settings::section! {
    /// The `cache` section of config.md.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Settings in "cache" {
        /// The shortest time to live of an entry that was read while changes are pushed.
        live ttl_min: Duration as NonZeroSpan = Duration::from_secs(500),
        /// The longest; each entry draws its own, so that those filled together do not end together.
        live ttl_max: Duration as Span = Duration::from_secs(700),
        /// The time to live of an entry while changes are not pushed, from when it was read.
        live untracked_ttl: Duration as Span = Duration::from_secs(2),
        /// The same for "there is no such sandbox".
        live negative_ttl: Duration as Span = Duration::from_secs(1),
        /// How long past its time an entry still serves while the store cannot answer.
        live stale_if_error: Duration as Span = Duration::from_secs(600),
        /// The most sandboxes kept; those least used go first.
        live capacity: usize as NonZeroCount = 1_000_000,
    }
}

impl Settings {
    /// A time to live for an entry that is read while changes are pushed.
    pub(crate) fn draw_ttl(&self) -> Duration {
        let spread = self.ttl_max.saturating_sub(self.ttl_min);
        let spread = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX);
        self.ttl_min + Duration::from_nanos(fastrand::u64(0..=spread))
    }
}

/// Why no resolver could be made.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    /// A metric of that name exists in the registry.
    #[error("cannot register the metrics of the route cache: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The bounds of the cache do not hold.
    #[error("cannot make the route cache: {0}")]
    Cache(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_drawn_between_the_two_bounds() {
        let settings = Settings::default();
        let lives: Vec<_> = (0..200).map(|_| settings.draw_ttl()).collect();
        assert!(lives.iter().all(|life| (settings.ttl_min..=settings.ttl_max).contains(life)));
        assert!(lives.iter().any(|life| *life != lives[0]));
    }

    #[test]
    fn equal_or_crossed_bounds_are_the_lower_one() {
        let ten = Duration::from_secs(10);
        for ttl_max in [ten, Duration::from_secs(1)] {
            assert_eq!(Settings { ttl_min: ten, ttl_max, ..Settings::default() }.draw_ttl(), ten);
        }
    }
}
