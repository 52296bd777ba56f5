//! Waiting for a condition, always with a bound.

use std::future::Future;
use std::time::{Duration, Instant};

/// The most a single step of a test may take before the test fails.
pub const LIMIT: Duration = Duration::from_secs(10);

/// How long to wait before a condition is looked at again.
const STEP: Duration = Duration::from_millis(10);

/// The value of `work`, or a panic that says `what` did not happen within [`LIMIT`].
#[track_caller]
pub fn within<F: Future>(what: &str, work: F) -> impl Future<Output = F::Output> {
    let place = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(LIMIT, work).await {
            Ok(value) => value,
            Err(_) => panic!("{what}: nothing within {LIMIT:?} (asked at {place})"),
        }
    }
}

/// Looks at `condition` until it gives a value, or panics with `what` after [`LIMIT`].
#[track_caller]
pub fn eventually<T, F, Fut>(what: &str, mut condition: F) -> impl Future<Output = T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let place = std::panic::Location::caller();
    async move {
        let begin = Instant::now();
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            assert!(begin.elapsed() < LIMIT, "{what}: not within {LIMIT:?} (waited for at {place})");
            tokio::time::sleep(STEP).await;
        }
    }
}

/// Panics with `what` when `condition` becomes true within `time`: for things that must not
/// happen, where no event says that they will not.
#[track_caller]
pub fn never<F>(what: &str, time: Duration, mut condition: F) -> impl Future<Output = ()>
where
    F: FnMut() -> bool,
{
    let place = std::panic::Location::caller();
    async move {
        let begin = Instant::now();
        while begin.elapsed() < time {
            assert!(!condition(), "{what}: it did happen (watched at {place})");
            tokio::time::sleep(STEP).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_that_comes_true_gives_its_value() {
        let mut rounds = 0;
        let seen = eventually("three rounds", || {
            rounds += 1;
            let now = rounds;
            async move { (now == 3).then_some(now) }
        });
        assert_eq!(seen.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "the moon: it did happen")]
    async fn what_must_not_happen_is_named_when_it_does() {
        never("the moon", Duration::from_secs(5), || true).await;
    }
}
