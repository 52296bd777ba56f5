//! Whether this process should be given requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cube_metadata::MetadataStore;

use crate::drain::{Drain, Stage};

/// What `/readyz` says (operations.md): listeners open, the store has answered once, no drain.
/// A store that fails later, or a flood of connections, changes nothing: it would take replica
/// after replica out.
pub struct Readiness {
    listening: AtomicBool,
    store: Arc<dyn MetadataStore>,
    drain: Arc<Drain>,
}

impl Readiness {
    /// Not ready until [`Readiness::listening`] was called.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>, drain: Arc<Drain>) -> Self {
        Self { listening: AtomicBool::new(false), store, drain }
    }

    /// Says that all listeners are open.
    pub fn listening(&self) {
        self.listening.store(true, Ordering::Release);
    }

    /// Nothing when ready, else why not.
    #[must_use]
    pub fn unready(&self) -> Option<&'static str> {
        if self.drain.handed_over() && self.drain.stage() < Stage::Emptying {
            // Probes on connections from before an upgrade: the replica is ready, its successor
            // serves.
            return None;
        }
        if self.drain.stage() > Stage::Serving {
            return Some("draining");
        }
        if !self.listening.load(Ordering::Acquire) {
            return Some("the listeners are not open yet");
        }
        (!self.store.has_responded()).then_some("the store has not answered yet")
    }
}
