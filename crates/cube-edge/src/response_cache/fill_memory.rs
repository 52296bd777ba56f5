//! The memory that responses on their way into the cache share.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that responses on their way may take, all together.
pub(crate) struct FillMemory(AtomicUsize);

impl FillMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    /// Takes so many, if there are as many left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes)).is_ok()
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::AcqRel);
    }
}
