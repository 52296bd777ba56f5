//! The upstream connection of an upgrade request.
//!
//! Pingora puts "the request's body has ended" and "the upstream has answered 101" into two
//! queues of one task, and takes the end of the body for the end of the tunnel when it comes out
//! second: a tunnel whose upstream is quick dies as soon as it is open. So an upgrade request
//! gets a connection that lets nothing be read before the end of the body has been taken.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::task::AtomicWaker;
use pingora::connectors::l4::Connect;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora::{Error, ErrorType, OrErr, Result};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};

use crate::limits::descriptors::Descriptors;

/// How often a read is put off once the end of the body is in its queue. Pingora looks at both
/// queues each time; once is enough, unless the task has used up its budget.
const PUT_OFF: u8 = 3;

/// Whether Pingora has been handed the end of the request's body.
#[derive(Default)]
pub(crate) struct BodyEnd {
    handed: AtomicBool,
    reader: AtomicWaker,
}

impl BodyEnd {
    /// The end of the body is about to be put into its queue.
    pub(crate) fn hand(&self) {
        self.handed.store(true, Ordering::Release);
        self.reader.wake();
    }
}

impl fmt::Debug for BodyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BodyEnd").field(&self.handed).finish()
    }
}

/// Connects for an upgrade request.
#[derive(Debug)]
pub(crate) struct UpgradeConnector {
    pub(crate) timeout: Duration,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(crate) body_end: Arc<BodyEnd>,
}

#[async_trait]
impl Connect for UpgradeConnector {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let Some(address) = address.as_inet() else {
            return Err(Error::new(ErrorType::ConnectError));
        };
        let opened = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let opened = opened.or_err(ErrorType::SocketError, "a socket for an upgrade")?;
        self.descriptors.check_upstream(&opened)?;
        match tokio::time::timeout(self.timeout, opened.connect(*address)).await {
            Ok(Ok(tcp)) => {
                let socket = PatientSocket { tcp, body_end: self.body_end.clone(), left: PUT_OFF };
                Ok(VirtualSocketStream::new(Box::new(socket)).into())
            }
            Ok(Err(error)) => {
                let kind = match error.kind() {
                    io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                    io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                        ErrorType::ConnectNoRoute
                    }
                    io::ErrorKind::TimedOut => ErrorType::ConnectTimedout,
                    // No port is free, or a rule of this machine forbids it.
                    io::ErrorKind::AddrNotAvailable
                    | io::ErrorKind::AddrInUse
                    | io::ErrorKind::PermissionDenied => ErrorType::InternalError,
                    _ => ErrorType::ConnectError,
                };
                Err(Error::because(kind, "connecting for an upgrade", error))
            }
            Err(_) => Err(Error::new(ErrorType::ConnectTimedout)),
        }
    }
}

/// A socket that is not read before the end of the request's body was taken.
#[derive(Debug)]
struct PatientSocket {
    tcp: TcpStream,
    body_end: Arc<BodyEnd>,
    /// How often reading is still put off.
    left: u8,
}

impl AsyncRead for PatientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left > 0 {
            self.body_end.reader.register(cx.waker());
            if self.body_end.handed.load(Ordering::Acquire) {
                self.left -= 1;
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for PatientSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

impl VirtualSocket for PatientSocket {
    fn set_socket_option(&self, option: VirtualSockOpt) -> io::Result<()> {
        match option {
            VirtualSockOpt::NoDelay => self.tcp.set_nodelay(true),
            VirtualSockOpt::KeepAlive(keepalive) => {
                sockopt::set_socket_keepalive(&self.tcp, true)?;
                sockopt::set_tcp_keepidle(&self.tcp, keepalive.idle)?;
                sockopt::set_tcp_keepintvl(&self.tcp, keepalive.interval)?;
                let probes = u32::try_from(keepalive.count).unwrap_or(u32::MAX);
                sockopt::set_tcp_keepcnt(&self.tcp, probes).map_err(io::Error::from)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn connector(body_end: Arc<BodyEnd>) -> UpgradeConnector {
        let descriptors = Descriptors::of_this_process();
        UpgradeConnector { timeout: Duration::from_secs(5), body_end, descriptors }
    }

    #[tokio::test]
    async fn nothing_is_read_before_the_end_of_the_body_was_handed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let body_end = Arc::new(BodyEnd::default());
        let connector = connector(body_end.clone());
        let address = SocketAddr::Inet(listener.local_addr().unwrap());
        let (connected, accepted) = tokio::join!(connector.connect(&address), listener.accept());
        let (mut near, mut far) = (connected.unwrap(), accepted.unwrap().0);
        far.write_all(b"early").await.unwrap();
        let mut bytes = [0; 5];
        {
            let mut read = std::pin::pin!(near.read_exact(&mut bytes));
            let waits = tokio::time::timeout(Duration::from_millis(50), &mut read).await;
            assert!(waits.is_err(), "read before its time");
            body_end.hand();
            read.await.unwrap();
        }
        assert_eq!(&bytes, b"early");
    }

    #[tokio::test]
    async fn a_closed_port_is_a_refused_connect() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let connector = connector(Arc::new(BodyEnd::default()));
        let error = connector.connect(&SocketAddr::Inet(port)).await.unwrap_err();
        assert_eq!(error.etype(), &ErrorType::ConnectRefused);
    }
}
