//! The client's byte stream as Pingora sees it.
//!
//! Between the socket (or the TLS session over it) and Pingora it does what Pingora leaves
//! open: requests that are told apart by the grammar before Pingora sees a byte of the next one,
//! the deadline of a request's head, our own response where Pingora would refuse with a bare one,
//! head and body in one write, and the close that shows that a response is not whole (a reset).

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};
use std::os::fd::AsRawFd;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;

use super::body::{BodyWatch, Framing};
use super::chunk_watch::Malformed;
use super::conn::{Conn, ConnectionPhase};
use super::head_watch::{self, HeadLimits, HeadWatch};
use super::rst_stream_code::{FramesOut, SentFrame};
use super::rst_stream_limit::FrameWatch;
use super::unsent::{OpenStreams, UnsentFrames};
use crate::exchange::Out;

/// The most that is copied to join a response's head and the first piece of its body.
const JOIN: usize = 16 * 1024;

/// The socket, shared with [`Conn`].
pub(crate) struct Socket(pub(crate) Arc<TcpStream>);

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match read_some(&self.0, buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

/// One read. Where it leaves room there was no more to read, and the socket is taken for drained at
/// once: without that the next read would be a system call that only finds nothing. The event to
/// be taken back is the one from before the read, so none that comes meanwhile is lost.
fn read_some(tcp: &TcpStream, buf: &mut ReadBuf<'_>) -> io::Result<()> {
    let mut outcome = Err(io::ErrorKind::WouldBlock.into());
    let drained = tcp.try_io(Interest::READABLE, || {
        let room = buf.remaining();
        let read = tcp.try_read_buf(buf);
        let drained = matches!(read, Ok(count) if count > 0 && count < room);
        outcome = read.map(|_| ());
        if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    // What it says is said by the outcome already.
    let _: io::Result<()> = drained;
    outcome
}

/// The bytes that have come in on one side and were not handed on. What it has room for follows what
/// comes: little at first, twice as much each time a read has filled it, half as much after one that
/// left most of it.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) bytes: BytesMut,
    room: usize,
}

impl Ahead {
    /// Room for one read.
    const LEAST: usize = 4 * 1024;
    /// The most that one read takes.
    const MOST: usize = 64 * 1024;

    /// The buffer of a side that is silent goes.
    pub(crate) fn give_back(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }

    fn make_room(&mut self) {
        if self.bytes.capacity() - self.bytes.len() < self.room / 2 {
            self.bytes.reserve(self.room);
        }
    }

    /// A read has brought so many bytes into so much room.
    fn learn(&mut self, count: usize, room: usize) {
        if count == room {
            self.room = (2 * self.room).min(Self::MOST);
        } else if count < self.room / 4 {
            self.room = (self.room / 2).max(Self::LEAST);
        }
    }
}

impl Default for Ahead {
    fn default() -> Self {
        Self { bytes: BytesMut::new(), room: Self::LEAST }
    }
}

/// Reads what there is; 0 at the end. No room is made before there is something to read.
pub(crate) fn poll_fill(tcp: &TcpStream, cx: &mut Context<'_>, ahead: &mut Ahead) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_read_ready(cx))?;
        match fill_some(tcp, ahead) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return Poll::Ready(other),
        }
    }
}

/// As [`read_some`], for a buffer that grows.
fn fill_some(tcp: &TcpStream, ahead: &mut Ahead) -> io::Result<usize> {
    let mut outcome = Err(io::ErrorKind::WouldBlock.into());
    let drained = tcp.try_io(Interest::READABLE, || {
        ahead.make_room();
        let room = ahead.bytes.capacity() - ahead.bytes.len();
        let read = tcp.try_read_buf(&mut ahead.bytes);
        let drained = matches!(read, Ok(count) if count > 0 && count < room);
        if let Ok(count) = &read {
            ahead.learn(*count, room);
        }
        outcome = read;
        if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    // What it says is said by the outcome already.
    let _: io::Result<()> = drained;
    outcome
}

/// Writes what the socket takes of it.
pub(crate) fn poll_out(tcp: &TcpStream, cx: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>> {
    let mut slices = [io::IoSlice::new(&[]); 3];
    let used = out.slices(&mut slices);
    let sent = loop {
        ready!(tcp.poll_write_ready(cx))?;
        let sent = match slices.get(..used) {
            Some([one]) => tcp.try_write(one),
            Some(slices) => tcp.try_write_vectored(slices),
            None => Ok(0),
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Poll::Ready(Err(error)),
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Ok(sent) => break sent,
        }
    };
    out.left(sent);
    Poll::Ready(Ok(()))
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// All at once what TLS has to say: it tries only once to say why a handshake failed, and that is
    /// the last of several pieces.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(pieces) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write).map_err(io::Error::from))
    }
}

/// What carries the bytes.
pub(crate) enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Transport {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Transport::Plain(io) => Pin::new(io).poll_write(cx, data),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_write(cx, data),
        }
    }

    /// Reads what there is; 0 at the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>, ahead: &mut Ahead) -> Poll<io::Result<usize>> {
        match self {
            Transport::Plain(io) => poll_fill(&io.0, cx, ahead),
            Transport::Tls(io) => {
                let came = ready!(Pin::new(io.as_mut()).poll_fill_buf(cx))?;
                ahead.bytes.extend_from_slice(came);
                let count = came.len();
                Pin::new(io.as_mut()).consume(count);
                Poll::Ready(Ok(count))
            }
        }
    }

    /// Writes what it takes of it.
    fn poll_out(&mut self, cx: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>> {
        if let Transport::Plain(io) = self {
            return poll_out(&io.0, cx, out);
        }
        let mut slices = [io::IoSlice::new(&[]); 3];
        let used = out.slices(&mut slices);
        let sent =
            ready!(self.poll_write(cx, slices.first().filter(|_| used > 0).map_or(&[], |slice| slice)))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        out.left(sent);
        Poll::Ready(Ok(()))
    }

    /// Waits until a read has something to say, which may be nothing after all; false where it is
    /// sure to be the end.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match self {
            Transport::Plain(io) => io.0.poll_read_ready(cx).map_ok(|()| true),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_fill_buf(cx).map_ok(|came| !came.is_empty()),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(io) => Pin::new(io).poll_flush(cx),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_shutdown(cx),
        }
    }
}

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
    /// HTTP/2 only.
    frames: Option<Box<Frames>>,
}

/// A CR before a request that ends no line.
struct BareReturn;

/// What is kept of an HTTP/2 connection's frames.
struct Frames {
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
    /// These bytes have left.
    fn left(&mut self, bytes: &[u8]) {
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
            // Its time runs from its first byte, and is up once it is known to be one.
            _ => Poll::Pending,
        }
    }
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
        stream.frames = Some(Box::new(Frames {
            watch,
            ahead: BytesMut::new(),
            out: FramesOut::default(),
            open: OpenStreams::new(wire.clone()),
            wire,
            head: None,
            header_timeout,
        }));
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

    /// Reads until the whole head of a request is there, and leaves it where it is; how long it is. None
    /// where the connection has ended, or ended with a refusal.
    pub(super) async fn whole_head(&mut self) -> Option<usize> {
        let mut looked = 0;
        poll_fn(|cx| self.poll_whole_head(cx, &mut looked)).await.ok().flatten()
    }

    fn poll_whole_head(
        &mut self,
        cx: &mut Context<'_>,
        looked: &mut usize,
    ) -> Poll<io::Result<Option<usize>>> {
        loop {
            if let Some(length) = self.look(cx, looked)? {
                return Poll::Ready(Ok(Some(length)));
            }
            match self.io.poll_fill(cx, &mut self.ahead) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(None)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_overdue(cx).map(Err),
            }
        }
    }

    /// Looks at what has come in of a head since the last time; its length where it is whole.
    fn look(&mut self, cx: &mut Context<'_>, looked: &mut usize) -> io::Result<Option<usize>> {
        let mut ahead = std::mem::take(&mut self.ahead.bytes);
        let Some(empty) = self.head.empty_lines(ahead.get(*looked..).unwrap_or_default()) else {
            return Err(self.refuse(cx, 400));
        };
        ahead.advance(empty);
        let came = ahead.get(*looked..).unwrap_or_default();
        if came.is_empty() {
            self.ahead.bytes = ahead;
            return Ok(None);
        }
        let phase = self.conn.phase();
        if phase == ConnectionPhase::Idle {
            self.deadline = Instant::now() + self.header_timeout;
        }
        if phase != ConnectionPhase::Head {
            self.conn.set_phase(ConnectionPhase::Head);
        } else if self.begun && Instant::now() >= self.deadline {
            return Err(self.overdue(cx));
        }
        self.begun = true;
        let end = self.head.end_in(came);
        let part = came.get(..end.unwrap_or(came.len())).unwrap_or_default();
        if let Some(line) = self.head.take(part) {
            self.conn.note_odd_line(line);
        }
        *looked += part.len();
        self.ahead.bytes = ahead;
        if let Some(status) = self.head.over() {
            return Err(self.refuse(cx, status));
        }
        Ok(end.map(|_| *looked))
    }

    /// Ready when the head that is coming in is overdue, which has been refused by then.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.conn.phase() == ConnectionPhase::Idle {
            return Poll::Pending;
        }
        let deadline = self.deadline;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(self.overdue(cx))
    }

    /// The bytes of a whole head, still in their place.
    pub(super) fn peek_head(&self, length: usize) -> Bytes {
        Bytes::copy_from_slice(self.ahead.bytes.get(..length).unwrap_or_default())
    }

    /// Takes a whole head away: what follows is its body.
    pub(super) fn take_head(&mut self, length: usize) {
        self.timer = None;
        self.ahead.bytes.advance(length);
        self.conn.note_head_given(length);
    }

    /// A whole head that was looked at is to be read by somebody else.
    pub(super) fn unread_head(&mut self) {
        self.head.restart();
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

    /// Reads up to the end of the next head of a request, and nothing while that one waits to be
    /// taken.
    fn poll_frames(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(frames) = &mut self.frames else { return self.io.poll_read(cx, buf) };
        if frames.watch.waits() {
            // It is taken in this turn of the connection's task or never: another turn is due.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !frames.ahead.is_empty() {
            let most = frames.ahead.len().min(buf.remaining());
            let count = frames.watch.follow(frames.ahead.get(..most).unwrap_or_default(), &mut frames.open);
            buf.put_slice(&frames.ahead.split_to(count));
            if frames.ahead.is_empty() {
                frames.ahead = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let Poll::Ready(read) = self.io.poll_read(cx, buf) else {
            if frames.poll_head(cx).is_ready() {
                frames.wire.say_head_late();
            }
            return Poll::Pending;
        };
        read?;
        let came = buf.filled().get(before..).unwrap_or_default();
        let count = frames.watch.follow(came, &mut frames.open);
        if let Some(rest) = came.get(count..).filter(|rest| !rest.is_empty()) {
            frames.ahead.extend_from_slice(rest);
            buf.set_filled(before + count);
        }
        Poll::Ready(Ok(()))
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

    /// What of these bytes belongs to the head: no empty lines before it, and nothing behind it.
    fn head_part(&mut self, bytes: &[u8]) -> Result<Range<usize>, BareReturn> {
        let start = self.head.empty_lines(bytes).ok_or(BareReturn)?;
        let bytes = bytes.get(start..).unwrap_or_default();
        let end = self.head.end_in(bytes);
        if let Some(end) = end {
            self.conn.note_head_given(self.head.bytes() + end);
        }
        Ok(start..start + end.unwrap_or(bytes.len()))
    }

    /// Reads bytes of the body under way, no more.
    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(framing) = self.conn.take_framing() {
            self.body = BodyWatch::new(framing);
        }
        if self.body.is_over() {
            return self.poll_behind(cx, buf);
        }
        match ready!(self.poll_part(cx, buf, |this, bytes| Ok(0..this.body.follow(bytes)?)))? {
            Ok(_) => Poll::Ready(Ok(())),
            Err(Malformed) => {
                self.conn.note_misframed();
                Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
            }
        }
    }

    /// Behind the end of the body there is only the end of the connection to be told. What comes is the
    /// next request's: it is kept, and no more is read for now; that the client has left meanwhile, the
    /// sweep notices.
    fn poll_behind(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.bytes.is_empty() {
            let came = ready!(self.poll_part(cx, buf, |_, _| Ok::<_, Infallible>(0..0)))?;
            if came == Ok(0) {
                return Poll::Ready(Ok(()));
            }
        }
        self.conn.poll_ending(cx).map(Ok)
    }

    fn poll_head(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = loop {
            break match self.poll_part(cx, buf, Self::head_part) {
                // Empty lines before a request are no beginning of it: they reach Pingora as little
                // as they start a clock.
                Poll::Ready(Ok(Ok(came))) if came > 0 && buf.filled().len() == before => continue,
                Poll::Ready(Ok(Ok(_))) => Poll::Ready(Ok(())),
                Poll::Ready(Ok(Err(BareReturn))) => Poll::Ready(Err(self.refuse(cx, 400))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            };
        };
        match read {
            Poll::Ready(Ok(())) if buf.filled().len() > before => {
                let phase = self.conn.phase();
                if phase == ConnectionPhase::Idle {
                    self.deadline = Instant::now() + self.header_timeout;
                }
                if phase != ConnectionPhase::Head {
                    self.conn.set_phase(ConnectionPhase::Head);
                } else if self.begun && Instant::now() >= self.deadline {
                    return Poll::Ready(Err(self.overdue(cx)));
                }
                self.begun = true;
                if let Some(line) = self.head.take(buf.filled().get(before..).unwrap_or_default()) {
                    self.conn.note_odd_line(line);
                }
                match self.head.over() {
                    Some(status) => Poll::Ready(Err(self.refuse(cx, status))),
                    None => Poll::Ready(Ok(())),
                }
            }
            Poll::Pending => self.poll_overdue(cx).map(Err),
            other => other,
        }
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
            return match self.frames {
                Some(_) => self.poll_frames(cx, buf),
                None => self.poll_body(cx, buf),
            };
        }
        self.poll_head(cx, buf)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let Self { io, frames, .. } = &mut *self;
        if let Some(frames) = frames {
            let changed = frames.out.in_place_of(data);
            let sent = ready!(io.poll_write(cx, changed.as_deref().unwrap_or(data)))?;
            frames.left(data.get(..sent).unwrap_or(data));
            return Poll::Ready(Ok(sent));
        }
        if self.refusing {
            return Poll::Ready(Ok(data.len()));
        }
        if self.conn.phase() != ConnectionPhase::Open {
            // No request came to be, so this is Pingora's own refusal of one: ours says more.
            self.refusing = true;
            let status = data
                .get(9..12)
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| digits.parse().ok())
                .unwrap_or(400);
            let status = if status == 400 { self.head.why_refused() } else { status };
            let response = self.conn.refusal(status);
            self.conn.linger_on_close();
            self.held.extend_from_slice(&response);
            return Poll::Ready(Ok(data.len()));
        }
        if self.conn.take_nominate_upgrade() {
            self.conn.take_join_head();
            self.held.extend_from_slice(&head_watch::nominating_upgrade(data));
            if let Poll::Ready(Err(error)) = self.poll_held(cx) {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(data.len()));
        }
        if self.held.is_empty() {
            if data.len() <= JOIN && self.conn.take_join_head() {
                self.held.extend_from_slice(data);
                return Poll::Ready(Ok(data.len()));
            }
            return self.io.poll_write(cx, data);
        }
        if self.held.len() + data.len() <= JOIN {
            // Written at once below, so that nothing waits for a flush that may not come. What
            // the socket does not take now goes out with the next write, flush or read.
            self.held.extend_from_slice(data);
            if let Poll::Ready(Err(error)) = self.poll_held(cx) {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(data.len()));
        }
        ready!(self.poll_held(cx))?;
        self.io.poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        ready!(self.io.poll_flush(cx))?;
        if let Some(frames) = &self.frames {
            frames.wire.flushed();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        self.io.poll_shutdown(cx)
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

impl UniqueID for ClientStream {
    fn id(&self) -> UniqueIDType {
        self.conn.tcp.as_raw_fd()
    }
}

// What these would tell is in `Conn`; Pingora only passes it through.
impl Ssl for ClientStream {}
impl Peek for ClientStream {}

impl GetTimingDigest for ClientStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for ClientStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for ClientStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream").field("conn", &self.conn).finish_non_exhaustive()
    }
}
