//! The socket of a client, or the TLS session over it: reading, also ahead of what is asked for, and writing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::exchange::Out;

/// The socket, shared with `Conn`.
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

/// The bytes of a client, plain or through TLS.
pub(crate) enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Transport {
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
        }
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Transport::Plain(io) => Pin::new(io).poll_write(cx, data),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_write(cx, data),
        }
    }

    /// Reads what there is; 0 at the end.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>, ahead: &mut Ahead) -> Poll<io::Result<usize>> {
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
    pub(super) fn poll_out(&mut self, cx: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>> {
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
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match self {
            Transport::Plain(io) => io.0.poll_read_ready(cx).map_ok(|()| true),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_fill_buf(cx).map_ok(|came| !came.is_empty()),
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(io) => Pin::new(io).poll_flush(cx),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_flush(cx),
        }
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Transport::Tls(io) => Pin::new(io.as_mut()).poll_shutdown(cx),
        }
    }
}
