//! The client's bytes of an HTTP/2 connection on their way to and from Pingora: held back behind the head of a
//! request until that one has been taken, due in time, and changed where a stream is given up.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::ReadBuf;
use tokio::time::Sleep;

use super::rst_stream_code::{FramesOut, SentFrame};
use super::rst_stream_limit::FrameWatch;
use super::transport::Transport;
use super::unsent::{OpenStreams, UnsentFrames};

/// What is kept of an HTTP/2 connection's frames.
pub(super) struct Frames {
    watch: FrameWatch,
    /// Read, and not handed on yet: what came with the head of a request that is still to be taken.
    ahead: BytesMut,
    /// The frames that leave.
    out: FramesOut,
    open: OpenStreams,
    wire: Arc<UnsentFrames>,
    /// The head that is coming in, and when it is due.
    head: Option<(u32, Pin<Box<Sleep>>)>,
    header_timeout: Duration,
}

impl Frames {
    /// What the frames say is told to `wire`.
    pub(super) fn new(watch: FrameWatch, wire: Arc<UnsentFrames>, header_timeout: Duration) -> Self {
        Self {
            watch,
            ahead: BytesMut::new(),
            out: FramesOut::default(),
            open: OpenStreams::new(wire.clone()),
            wire,
            head: None,
            header_timeout,
        }
    }

    /// What was written is with the socket.
    pub(super) fn flushed(&self) {
        self.wire.flushed();
    }

    /// What is to be written in place of `data`; `None`: what it is.
    pub(super) fn in_place_of(&self, data: &[u8]) -> Option<Vec<u8>> {
        self.out.in_place_of(data)
    }

    /// Notes that these bytes were written: which streams they end or reset.
    pub(super) fn left(&mut self, bytes: &[u8]) {
        self.wire.wrote(bytes.len());
        let open = &mut self.open;
        self.out.written(bytes, |said| match said {
            SentFrame::End(stream) => open.response_ended(stream),
            SentFrame::Reset(stream) => open.reset(stream),
        });
    }

    /// There is nothing more to read for now. Ready when the head that is coming in is overdue.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(coming) = self.watch.within_head() else {
            self.head = None;
            return Poll::Pending;
        };
        if self.head.as_ref().is_none_or(|(head, _)| *head != coming.which) {
            self.head = Some((coming.which, Box::pin(tokio::time::sleep(self.header_timeout))));
        }
        match &mut self.head {
            Some((_, timer)) if coming.certain => timer.as_mut().poll(cx),
            // Too little has come to tell whether it is the head of a request. Its time runs all the same, and
            // is looked at once that is known.
            _ => Poll::Pending,
        }
    }

    /// Reads up to the end of the next head of a request, and nothing while that one waits to be
    /// taken.
    pub(super) fn poll_read(
        &mut self,
        io: &mut Transport,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.watch.waits() {
            // Pingora makes a request of it in this turn of the connection's task, or has refused it: so
            // another turn is due.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !self.ahead.is_empty() {
            let most = self.ahead.len().min(buf.remaining());
            let count = self.watch.follow(self.ahead.get(..most).unwrap_or_default(), &mut self.open);
            buf.put_slice(&self.ahead.split_to(count));
            if self.ahead.is_empty() {
                self.ahead = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let Poll::Ready(read) = io.poll_read(cx, buf) else {
            if self.poll_head(cx).is_ready() {
                self.wire.say_head_late();
            }
            return Poll::Pending;
        };
        read?;
        let came = buf.filled().get(before..).unwrap_or_default();
        let count = self.watch.follow(came, &mut self.open);
        if let Some(rest) = came.get(count..).filter(|rest| !rest.is_empty()) {
            self.ahead.extend_from_slice(rest);
            buf.set_filled(before + count);
        }
        Poll::Ready(Ok(()))
    }
}
