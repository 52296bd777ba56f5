//! How one request is ended from outside.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

/// Ends one request from outside. One task at a time waits for it.
#[derive(Default)]
pub(crate) struct Kill {
    killed: AtomicBool,
    waiter: AtomicWaker,
}

impl Kill {
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.waiter.wake();
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    pub(crate) fn poll_killed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waiter.register(cx.waker());
        // Looked at after the registration: from then on no kill is missed.
        if self.is_killed() { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(crate) async fn killed(&self) {
        poll_fn(|cx| self.poll_killed(cx)).await;
    }
}
