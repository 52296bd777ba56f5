//! A gate that a test opens and a script waits at.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::within;

/// Lets through as often as it was opened. Clones are the same gate.
#[derive(Clone)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    /// A closed gate.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "a gate is made on purpose")]
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets one more through.
    pub fn open(&self) {
        self.0.add_permits(1);
    }

    /// Waits until it is this one's turn; panics when it is not opened in time.
    pub async fn pass(&self) {
        within("a gate to open", self.0.acquire()).await.expect("never closed").forget();
    }
}
