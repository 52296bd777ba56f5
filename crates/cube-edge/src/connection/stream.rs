//! The client's byte stream as Pingora sees it.
//!
//! Between the socket (or the TLS session over it) and Pingora it does what Pingora leaves
//! open: requests that are told apart by the grammar before Pingora sees a byte of the next one,
//! the deadline of a request's head, our own response where Pingora would refuse with a bare one,
//! head and body in one write, and the close that shows that a response is not whole (a reset).

mod body;
mod digests;
mod head;
mod write;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora::protocols::Shutdown;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::body::{BodyWatch, Framing};
use super::conn::{Conn, ConnectionPhase};
use super::frames::Frames;
use super::head_watch::{HeadLimits, HeadWatch};
use super::rst_stream_limit::FrameWatch;
use super::transport::{Ahead, Transport};
use super::unsent::UnsentFrames;
use crate::exchange::Out;

/// The stream of one client connection.
pub(crate) struct ClientStream {
    io: Transport,
    conn: Arc<Conn>,
    /// What is to be written before anything else: a head that waits for its body, or a refusal.
    held: BytesMut,
    /// Pingora is writing a refusal of its own, which ours has replaced.
    refusing: bool,
    /// How long a head may take once it has begun, and until when this one may.
    header_timeout: Duration,
    deadline: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether a byte of this head has come.
    begun: bool,
    head: HeadWatch,
    /// The body behind that head.
    body: BodyWatch,
    /// HTTP/1.1: read, and not handed on yet, since it belongs to what comes after the head or the
    /// body under way.
    ahead: Ahead,
    /// What is kept of an HTTP/2 connection's frames; `None` on HTTP/1.1.
    frames: Option<Box<Frames>>,
}

impl ClientStream {
    /// `deadline` is when the head of the first request is due, counted from accept.
    pub(crate) fn new(
        io: Transport,
        conn: Arc<Conn>,
        header_timeout: Duration,
        deadline: Instant,
        limits: HeadLimits,
    ) -> Self {
        Self {
            io,
            conn,
            held: BytesMut::new(),
            refusing: false,
            header_timeout,
            deadline,
            timer: None,
            begun: false,
            head: HeadWatch::new(limits),
            body: BodyWatch::new(Framing::Length(0)),
            ahead: Ahead::default(),
            frames: None,
        }
    }

    /// The stream of an HTTP/2 connection: no heads, frames. What they say is told to `wire`.
    pub(super) fn of_frames(
        io: Transport,
        conn: Arc<Conn>,
        header_timeout: Duration,
        watch: FrameWatch,
        wire: Arc<UnsentFrames>,
    ) -> Self {
        conn.set_phase(ConnectionPhase::Open);
        let mut stream = Self::new(io, conn, header_timeout, Instant::now(), HeadLimits::default());
        stream.frames = Some(Box::new(Frames::new(watch, wire, header_timeout)));
        stream
    }

    /// Gets ready for another request on this connection; whether nothing of it has come yet.
    pub(super) fn next_request(&mut self) -> bool {
        self.timer = None;
        self.begun = false;
        self.head.restart();
        self.body = BodyWatch::new(Framing::Length(0));
        // What is no line is left, to be refused when it is read.
        if let Some(empty) = self.head.empty_lines(&self.ahead.bytes) {
            self.ahead.bytes.advance(empty);
        }
        if self.ahead.bytes.is_empty() {
            self.ahead.give_back();
            self.conn.set_phase(ConnectionPhase::Idle);
            return true;
        }
        // Where that is not the whole head, the rest of it is due.
        self.begun = true;
        self.deadline = Instant::now() + self.header_timeout;
        self.conn.set_phase(ConnectionPhase::Head);
        false
    }

    pub(crate) fn conn(&self) -> &Conn {
        &self.conn
    }

    /// What has come in and was not handed on.
    pub(crate) fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    /// Reads more of it; 0 at the end.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.io.poll_fill(cx, &mut self.ahead)
    }

    /// Writes what is taken of it.
    pub(crate) fn poll_out(&mut self, cx: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>> {
        self.io.poll_out(cx, out)
    }

    /// Ready when what was written is on its way.
    pub(crate) fn poll_flushed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush(cx)
    }

    /// Says the end of the connection.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_shutdown(cx)
    }

    /// When the head of the request that is waited for is due.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits for something to read; false where the connection has ended instead.
    pub(super) async fn waited(&mut self) -> bool {
        poll_fn(|cx| {
            ready!(self.poll_held(cx))?;
            self.io.poll_readable(cx)
        })
        .await
        .unwrap_or(false)
    }

    /// Says the end of an idle connection: over TLS the other side wants to hear it from us.
    pub(super) async fn close(&mut self) {
        // One write of a few bytes, and nobody waits for it.
        let _ = tokio::time::timeout(super::conn::LAST_WORDS, AsyncWriteExt::shutdown(self)).await;
    }

    /// Writes what is held. Ready when nothing is left.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let sent = ready!(self.io.poll_write(cx, &self.held))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.advance(sent);
        }
        self.held = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// The deadline of the head is over. A connection that sent no byte gets no response.
    fn overdue(&mut self, cx: &mut Context<'_>) -> io::Error {
        if self.begun { self.refuse(cx, 408) } else { io::ErrorKind::TimedOut.into() }
    }

    /// Answers in Pingora's place, then fails the read, which makes it drop the connection.
    fn refuse(&mut self, cx: &mut Context<'_>, status: u16) -> io::Error {
        self.held.extend_from_slice(&self.conn.refusal(status));
        // A client that was too slow with its head is not waited for once more.
        if status != 408 {
            self.conn.linger_on_close();
        }
        // One try: the client has read nothing yet, so the response fits the socket's buffer.
        if self.poll_held(cx).is_ready() {
            let _ = self.io.poll_flush(cx);
            let _ = self.io.poll_shutdown(cx);
        }
        io::ErrorKind::TimedOut.into()
    }

    /// Reads what comes next of the client's bytes: what was read ahead, then the socket. `part` says
    /// which of them are handed on; those before are dropped, those behind are kept. How many came; 0
    /// is the end of the connection.
    fn poll_part<E>(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        part: impl FnOnce(&mut Self, &[u8]) -> Result<Range<usize>, E>,
    ) -> Poll<io::Result<Result<usize, E>>> {
        if !self.ahead.bytes.is_empty() {
            let mut ahead = std::mem::take(&mut self.ahead.bytes);
            let came = ahead.len().min(buf.remaining());
            let part = match part(self, ahead.get(..came).unwrap_or_default()) {
                Ok(part) => part,
                Err(error) => return Poll::Ready(Ok(Err(error))),
            };
            let end = part.end;
            buf.put_slice(ahead.get(part).unwrap_or_default());
            ahead.advance(end);
            if !ahead.is_empty() {
                self.ahead.bytes = ahead;
            }
            return Poll::Ready(Ok(Ok(came)));
        }
        let before = buf.filled().len();
        ready!(self.io.poll_read(cx, buf))?;
        let bytes = buf.filled().get(before..).unwrap_or_default();
        let came = bytes.len();
        if came == 0 {
            return Poll::Ready(Ok(Ok(0)));
        }
        let part = match part(self, bytes) {
            Ok(part) => part,
            Err(error) => return Poll::Ready(Ok(Err(error))),
        };
        self.ahead.bytes.extend_from_slice(bytes.get(part.end..).unwrap_or_default());
        let count = part.len();
        if part.start > 0 {
            buf.filled_mut().copy_within(before + part.start..before + part.end, before);
        }
        buf.set_filled(before + count);
        Poll::Ready(Ok(Ok(came)))
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            // Pingora has nothing more to write for now: a head whose body is late leaves.
            if let Poll::Ready(Err(error)) = self.poll_held(cx) {
                return Poll::Ready(Err(error));
            }
            if let Poll::Ready(Err(error)) = self.io.poll_flush(cx) {
                return Poll::Ready(Err(error));
            }
        }
        if self.conn.phase() == ConnectionPhase::Open {
            self.timer = None;
            let Self { io, frames, .. } = &mut *self;
            return match frames {
                Some(frames) => frames.poll_read(io, cx, buf),
                None => self.poll_body(cx, buf),
            };
        }
        self.poll_head(cx, buf)
    }
}

// Pingora closes by `poll_shutdown` and never calls this one.
#[async_trait]
impl Shutdown for ClientStream {
    async fn shutdown(&mut self) {
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if self.conn.resets_on_close() {
            let _ = rustix::net::sockopt::set_socket_linger(&*self.conn.tcp, Some(Duration::ZERO));
        }
    }
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream").field("conn", &self.conn).finish_non_exhaustive()
    }
}
