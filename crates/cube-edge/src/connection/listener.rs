//! A listening socket of the data plane.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Certificates, ListenerProtocol};
use crate::limits::descriptors::is_out_of_descriptors;

const BACKLOG: u32 = 4096;
/// A peer that vanished without a word is found after `KEEP_IDLE + 3 * KEEP_INTERVAL`, long before
/// the silence limit (connections.md, Timeouts).
const KEEP_IDLE: Duration = Duration::from_secs(15);
const KEEP_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_PROBES: u32 = 3;
/// How long accepting pauses when the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("listen.{listener}: cannot listen on {address}: {source}")]
pub struct BindError {
    /// The listener's name in the configuration.
    pub listener: &'static str,
    /// The address that was asked for.
    pub address: SocketAddr,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// An open listening socket, and what is spoken on it.
pub struct Listener {
    socket: TcpListener,
    pub(super) protocol: ListenerProtocol,
    pub(super) certificates: Option<Arc<Certificates>>,
}

impl Listener {
    /// Opens the socket. `certificates` are needed for, and only for, [`ListenerProtocol::Https`]. Must be
    /// called within the runtime that will serve.
    ///
    /// # Errors
    /// [`BindError`] when the system refuses the address.
    pub fn bind(
        address: SocketAddr,
        protocol: ListenerProtocol,
        certificates: Option<Arc<Certificates>>,
    ) -> Result<Self, BindError> {
        let open = || -> io::Result<TcpListener> {
            let socket = open_socket(address)?;
            inherited_options(&socket)?;
            socket.listen(BACKLOG)
        };
        let socket = open().map_err(|source| BindError { listener: protocol.name(), address, source })?;
        Ok(Self { socket, protocol, certificates })
    }

    /// Takes a socket that listens on `address` already, handed over by the process before this
    /// one; otherwise as [`Listener::bind`].
    ///
    /// # Errors
    /// [`BindError`] when the socket is not what it should be.
    pub fn adopt(
        socket: std::net::TcpListener,
        address: SocketAddr,
        protocol: ListenerProtocol,
        certificates: Option<Arc<Certificates>>,
    ) -> Result<Self, BindError> {
        let take = || -> io::Result<TcpListener> {
            inherited_options(&socket)?;
            socket.set_nonblocking(true)?;
            TcpListener::from_std(socket)
        };
        let socket = take().map_err(|source| BindError { listener: protocol.name(), address, source })?;
        Ok(Self { socket, protocol, certificates })
    }

    /// Another handle of the socket, for a successor of this process.
    ///
    /// # Errors
    /// What the system says: out of descriptors.
    pub fn handle(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// The address that is listened on.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Hands every accepted connection to `take`, for ever.
    pub(super) async fn accept(&self, take: impl Fn(TcpStream)) {
        loop {
            match self.socket.accept().await {
                Ok((tcp, _)) => take(tcp),
                Err(error) if is_out_of_descriptors(&error) => {
                    tracing::warn!(listener = self.protocol.name(), %error, "accepting pauses");
                    tokio::time::sleep(PAUSE).await;
                }
                // The client was gone before it was accepted.
                Err(error) => tracing::debug!(listener = self.protocol.name(), %error, "accept failed"),
            }
        }
    }
}

/// A socket bound to `address`, shared with a successor of this process by `SO_REUSEPORT`.
fn open_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Options that every accepted connection inherits, so that accepting costs no further system call.
fn inherited_options(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEP_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEP_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(&socket, KEEP_PROBES)?)
}

/// A bound and listening socket for a listener beside the data plane. Must be called within a
/// runtime; the socket then belongs to none.
///
/// # Errors
/// What the system says when it refuses the address.
pub fn listen_plain(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = open_socket(address)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    socket.listen(BACKLOG)?.into_std()
}
