//! The connection to a sandbox.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use pingora::protocols::l4::ext::TcpKeepalive;
use pingora::upstreams::peer::{HttpPeer, Peer};
use pingora::{Error, ErrorType, OrErr, Result};
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};

use super::out::Out;
use super::pool::{Key, Pool};
use crate::connection::{Ahead, poll_fill, poll_out};

/// A connection while a request has it.
pub(super) struct Upstream {
    pub(super) tcp: TcpStream,
    pub(super) key: Key,
    /// It has served another request before.
    pub(super) reused: bool,
    /// What has come in and was not handed on.
    pub(super) ahead: Ahead,
    pub(super) out: Out,
}

impl Upstream {
    /// A connection for `peer`: a kept one where there is one, else a new one.
    pub(super) async fn get(pool: &Pool, peer: &HttpPeer) -> Result<Self> {
        let Some(address) = peer.address().as_inet().copied() else {
            return Err(Error::new(ErrorType::ConnectError));
        };
        let key = (peer.group_key, address);
        let kept = pool.take(&key);
        let reused = kept.is_some();
        let tcp = match kept {
            Some(tcp) => tcp,
            None => connect(peer, address).await?,
        };
        Ok(Self { tcp, key, reused, ahead: Ahead::default(), out: Out::default() })
    }

    /// Reads what there is; 0 at the end.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        poll_fill(&self.tcp, cx, &mut self.ahead)
    }

    /// Writes what is to be written. Ready when nothing is left.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            ready!(poll_out(&self.tcp, cx, &mut self.out))?;
        }
        Poll::Ready(Ok(()))
    }
}

async fn connect(peer: &HttpPeer, address: SocketAddr) -> Result<TcpStream> {
    let opened = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let opened = opened.or_err(ErrorType::SocketError, "a socket for an upstream")?;
    if let Some(check) = peer.upstream_tcp_sock_tweak_hook() {
        check(&opened)?;
    }
    let connected = match peer.connection_timeout() {
        Some(time) => tokio::time::timeout(time, opened.connect(address)).await,
        None => Ok(opened.connect(address).await),
    };
    let tcp = match connected {
        Ok(Ok(tcp)) => tcp,
        Ok(Err(error)) => return Err(Error::because(kind_of(&error), "connecting", error)),
        Err(_) => return Err(Error::new(ErrorType::ConnectTimedout)),
    };
    // Neither is worth a failed request.
    let _ = tcp.set_nodelay(true);
    if let Some(keepalive) = peer.tcp_keepalive() {
        let _ = keep_alive(&tcp, keepalive);
    }
    Ok(tcp)
}

/// What a failed connect is called.
pub(crate) fn kind_of(error: &io::Error) -> ErrorType {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => ErrorType::ConnectNoRoute,
        io::ErrorKind::TimedOut => ErrorType::ConnectTimedout,
        // No port is free, or a rule of this machine forbids it.
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => {
            ErrorType::InternalError
        }
        _ => ErrorType::ConnectError,
    }
}

/// Has the system look whether the other side is still there.
pub(crate) fn keep_alive(tcp: &TcpStream, keepalive: &TcpKeepalive) -> io::Result<()> {
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, keepalive.idle)?;
    sockopt::set_tcp_keepintvl(tcp, keepalive.interval)?;
    let probes = u32::try_from(keepalive.count).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_keepcnt(tcp, probes)?)
}
