//! Health of one Redis server. While it is away, lookups fail at once instead of each waiting for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::StoreError;

/// A server that stays away is logged this often.
const LOG_EVERY: Duration = Duration::from_secs(30);
/// Another reason than before is logged no more often than this.
const LOG_ANOTHER: Duration = Duration::from_secs(2);

/// Whether the last attempts to ask one server failed. While they did, callers get the error at once
/// and only the node's own heartbeat goes on asking.
pub(crate) struct Health {
    server: String,
    failing: AtomicBool,
    error: watch::Sender<Option<StoreError>>,
    logged: Mutex<Option<Instant>>,
    refusal_logged: Mutex<Option<Instant>>,
}

impl Health {
    pub(crate) fn new(server: String) -> Self {
        Self {
            server,
            failing: AtomicBool::new(false),
            error: watch::Sender::new(None),
            logged: Mutex::new(None),
            refusal_logged: Mutex::new(None),
        }
    }

    /// The server, as `host:port`.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    /// The error of the last attempt while the server fails.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if !self.failing() {
            return Ok(());
        }
        self.error.borrow().clone().map_or(Ok(()), Err)
    }

    /// Waits until the server fails.
    pub(crate) async fn wait_for_failure(&self) -> StoreError {
        let mut error = self.error.subscribe();
        match error.wait_for(Option::is_some).await {
            Ok(error) => error.clone().unwrap_or(StoreError::Timeout),
            Err(_) => StoreError::Timeout,
        }
    }

    /// Notes a failed attempt; whether the server was healthy until now.
    pub(crate) fn mark_failing(&self, error: &StoreError) -> bool {
        let another = self.error.borrow().as_ref() != Some(error);
        let mut logged = self.logged.lock();
        if logged.is_none_or(|at| at.elapsed() >= if another { LOG_ANOTHER } else { LOG_EVERY }) {
            *logged = Some(Instant::now());
            let what = match error {
                StoreError::Refused(_) => "Redis refuses lookups",
                _ => "Redis does not answer",
            };
            tracing::warn!(server = %self.server, %error, "{what}; trying on");
        }
        drop(logged);
        self.error.send_replace(Some(error.clone()));
        !self.failing.swap(true, Ordering::AcqRel)
    }

    /// The server refuses a command that no lookup needs: nothing but that command suffers.
    pub(crate) fn refused(&self, error: &StoreError) {
        let mut logged = self.refusal_logged.lock();
        if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            tracing::warn!(server = %self.server, %error, "Redis refuses a command; lookups go on");
        }
    }

    pub(crate) fn mark_healthy(&self) {
        if self.failing() {
            // The error first: who finds the server good must not find its old error.
            self.error.send_replace(None);
            self.failing.store(false, Ordering::Release);
            *self.logged.lock() = None;
            tracing::info!(server = %self.server, "Redis answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_wakes_who_waits_and_is_repeated_until_healed() {
        let health = Health::new("a:1".to_owned());
        assert_eq!(health.check(), Ok(()));
        let (error, ()) = tokio::join!(health.wait_for_failure(), async {
            assert!(health.mark_failing(&StoreError::Timeout))
        });
        assert_eq!(error, StoreError::Timeout);
        assert!(health.failing());
        assert!(!health.mark_failing(&StoreError::Timeout));
        assert_eq!(health.check(), Err(StoreError::Timeout));
        health.mark_healthy();
        assert_eq!((health.failing(), health.check()), (false, Ok(())));
    }
}
