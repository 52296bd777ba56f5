//! How much of an HTTP/2 connection's streams is still on the wire.
//!
//! The task of a request ends before its response does: the protocol library queues frames, and the
//! client's window may keep them queued. A client may be told that the connection ends (GOAWAY) only
//! after the last frame of the last response, since widely used clients give up whatever they have
//! not received by then. So streams are counted by the frames that came in and went out, not by
//! their tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// What the loop that takes a connection's requests knows of its frames.
#[derive(Default)]
pub(super) struct UnsentFrames {
    open: AtomicUsize,
    /// Something was written that the TLS session may still hold.
    unflushed: AtomicBool,
    written: AtomicU64,
    head_late: AtomicBool,
    changed: Notify,
}

impl UnsentFrames {
    /// Whether no stream is open and every frame is with the socket.
    pub(super) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0 && !self.unflushed.load(Ordering::Acquire)
    }

    /// Returns when the connection is idle.
    pub(super) async fn idle(&self) {
        self.until(|| self.is_idle()).await;
    }

    /// Returns when no stream was open for `quiet`. To be awaited anew for each stream that opens.
    pub(super) async fn idle_for(&self, quiet: Duration) {
        self.idle().await;
        tokio::time::sleep(quiet).await;
    }

    /// Returns when `condition` holds. Whoever changes what it looks at calls [`UnsentFrames::notify`].
    pub(super) async fn until(&self, condition: impl Fn() -> bool) {
        loop {
            // Made before the look: from then on no notice is missed.
            let notice = self.changed.notified();
            if condition() {
                return;
            }
            notice.await;
        }
    }

    /// Has the conditions that are waited for looked at again.
    pub(super) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Bytes that were written so far.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Whether the head of a request has not come in within its time.
    pub(super) fn is_head_late(&self) -> bool {
        self.head_late.load(Ordering::Acquire)
    }

    /// The head of a request was not complete in time.
    pub(super) fn say_head_late(&self) {
        if !self.head_late.swap(true, Ordering::AcqRel) {
            self.notify();
        }
    }

    /// So many bytes have left.
    pub(super) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        self.unflushed.store(true, Ordering::Release);
    }

    /// Everything written so far is with the socket.
    pub(super) fn flushed(&self) {
        if self.unflushed.swap(false, Ordering::AcqRel) && self.is_idle() {
            self.notify();
        }
    }
}

/// One stream by its two halves.
#[derive(Debug, Clone, Copy)]
struct Half {
    stream: u32,
    request_open: bool,
    response_open: bool,
}

/// The streams that are open, for the one that reads and writes the frames.
pub(super) struct OpenStreams {
    streams: Vec<Half>,
    wire: Arc<UnsentFrames>,
}

impl OpenStreams {
    pub(super) fn new(wire: Arc<UnsentFrames>) -> Self {
        Self { streams: Vec::new(), wire }
    }

    /// The whole head of a request has come in; `ends`: it has no body.
    pub(super) fn opened(&mut self, stream: u32, ends: bool) {
        self.streams.push(Half { stream, request_open: !ends, response_open: true });
        self.wire.open.store(self.streams.len(), Ordering::Release);
    }

    /// The last frame of a request has come in.
    pub(super) fn request_ended(&mut self, stream: u32) {
        self.close(stream, |half| half.request_open = false);
    }

    /// The last frame of a response has left.
    pub(super) fn response_ended(&mut self, stream: u32) {
        self.close(stream, |half| half.response_open = false);
    }

    /// The stream was reset, by whichever side.
    pub(super) fn reset(&mut self, stream: u32) {
        self.close(stream, |half| (half.request_open, half.response_open) = (false, false));
    }

    fn close(&mut self, stream: u32, close: impl Fn(&mut Half)) {
        let Some(at) = self.streams.iter().position(|half| half.stream == stream) else { return };
        let Some(half) = self.streams.get_mut(at) else { return };
        close(half);
        if half.request_open || half.response_open {
            return;
        }
        self.streams.swap_remove(at);
        self.wire.open.store(self.streams.len(), Ordering::Release);
        if self.wire.is_idle() {
            self.wire.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams() -> (OpenStreams, Arc<UnsentFrames>) {
        let wire = Arc::new(UnsentFrames::default());
        (OpenStreams::new(wire.clone()), wire)
    }

    #[test]
    fn a_stream_is_open_until_both_sides_have_said_their_end() {
        let (mut streams, wire) = streams();
        streams.opened(1, true);
        streams.opened(3, false);
        streams.response_ended(1);
        streams.response_ended(3);
        assert!(!wire.is_idle());
        streams.request_ended(3);
        assert!(wire.is_idle());
        streams.opened(5, false);
        streams.reset(5);
        assert!(wire.is_idle());
    }

    #[test]
    fn what_is_not_flushed_is_not_written() {
        let (mut streams, wire) = streams();
        streams.opened(1, true);
        wire.wrote(10);
        streams.response_ended(1);
        assert!(!wire.is_idle());
        wire.flushed();
        assert!(wire.is_idle());
    }
}
