//! The listeners beside the data plane: admin, metrics, health. Plain HTTP/1.1 through
//! Pingora's own server, a task a connection.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cube_edge::{AdminForwarding, Gateway, OperatorApp, read_head};
use pingora::protocols::l4::stream::Stream as L4Stream;
use pingora::protocols::{GetSocketDigest, SocketDigest, Stream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::internal_connections::{InternalConnection, InternalConnections};
use crate::error::StartError;

/// Connections open at one time (operations.md, Listeners).
const CONNECTIONS: usize = 1024;
/// How many of them one address may have.
const SHARE: usize = CONNECTIONS / 2;
/// How long the first byte of a connection is waited for.
const FIRST_BYTE: Duration = Duration::from_secs(5);
/// How long a connection that had a request waits for another one: scrapes are seldom further apart.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// How long accepting pauses after an error, which is most likely a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// How long after a hand-over the first request of a connection is waited for: one that was accepted
/// just before it is about to bring one.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// One such listener, bound and not yet served.
pub(super) struct InternalListener(Pin<Box<dyn Future<Output = ()> + Send>>);

impl InternalListener {
    /// Binds `address` for `app`, unless `inherited` is its socket already; `option` is the
    /// listener's name in the configuration. A handle of the socket comes along.
    ///
    /// # Errors
    /// [`StartError::Bind`] when the system refuses it.
    pub(super) fn bind<A: OperatorApp>(
        option: &'static str,
        address: SocketAddr,
        inherited: Option<std::net::TcpListener>,
        app: A,
        gateway: Arc<Gateway>,
    ) -> Result<(Self, OwnedFd), StartError> {
        let open = || {
            let listener = match inherited {
                Some(listener) => listener,
                None => cube_edge::listen_plain(address)?,
            };
            listener.set_nonblocking(true)?;
            let handle = listener.as_fd().try_clone_to_owned()?;
            Ok((listener, handle))
        };
        let (listener, handle) = open().map_err(|error: std::io::Error| StartError::Bind {
            option,
            address,
            reason: error.to_string(),
        })?;
        let serving = Self(Box::pin(async move {
            // The socket was bound by another runtime than the one that serves it, so that it is registered
            // anew.
            match TcpListener::from_std(listener) {
                Ok(listener) => accept(option, listener, Arc::new(app), gateway).await,
                Err(error) => tracing::error!(listener = option, %error, "cannot serve"),
            }
        }));
        Ok((serving, handle))
    }

    /// Serves until the runtime ends, or until a successor of this process does.
    pub(super) async fn serve(self) {
        self.0.await;
    }
}

async fn accept<A: OperatorApp>(
    option: &'static str,
    listener: TcpListener,
    app: Arc<A>,
    gateway: Arc<Gateway>,
) {
    let handed_over = gateway.drain().watch_hand_over();
    // The time to shut down: no connection is kept for another request. Those that are open stay
    // until their next one.
    let shutdown = handed_over.clone();
    let mut successor = handed_over;
    let places = InternalConnections::new(CONNECTIONS, SHARE);
    loop {
        let next = async {
            places.room().await;
            listener.accept().await
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            () = async { let _ = successor.wait_for(|over| *over).await; } => return,
        };
        match accepted {
            Ok((tcp, peer)) => {
                let Some(connection_slot) = places.admit(peer.ip().to_canonical()) else {
                    tracing::debug!(listener = option, %peer, "closed: too many requests at once");
                    continue;
                };
                let (app, shutdown, gateway) = (app.clone(), shutdown.clone(), gateway.clone());
                tokio::spawn(async move {
                    serve_connection(
                        connection(tcp, peer),
                        connection_slot,
                        &*app,
                        &shutdown,
                        gateway.admin_forwarding(),
                    )
                    .await;
                });
            }
            Err(error) => {
                tracing::warn!(listener = option, %error, "accepting pauses");
                // Its descriptor is of more use to whoever waits.
                places.evict();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The accepted connection for Pingora, which asks it for its peer.
fn connection(tcp: TcpStream, peer: SocketAddr) -> Stream {
    let digest = SocketDigest::from_raw_fd(tcp.as_raw_fd());
    // Just made, so there is nothing in it yet.
    let _ = digest.peer_addr.set(Some(peer.into()));
    let mut stream = L4Stream::from(tcp);
    stream.set_socket_digest(digest);
    Box::new(stream)
}

async fn serve_connection<A: OperatorApp>(
    stream: Stream,
    mut connection_slot: InternalConnection,
    app: &A,
    shutdown: &watch::Receiver<bool>,
    forwarding: &AdminForwarding,
) {
    let fresh = forwarding.under_way();
    let mut kept = {
        let first = exchange(stream, FIRST_BYTE, &mut connection_slot, app, shutdown);
        tokio::pin!(first);
        tokio::select! {
            kept = &mut first => {
                drop(fresh);
                kept
            }
            () = late(shutdown.clone()) => {
                drop(fresh);
                first.await
            }
        }
    };
    while let Some(stream) = kept {
        connection_slot.keep();
        kept = exchange(stream, KEEPALIVE, &mut connection_slot, app, shutdown).await;
    }
}

/// Waits for a request, for at most `wait`, and responds to it. The connection, where it is kept.
async fn exchange<A: OperatorApp>(
    mut stream: Stream,
    wait: Duration,
    connection_slot: &mut InternalConnection,
    app: &A,
    shutdown: &watch::Receiver<bool>,
) -> Option<Stream> {
    let head = async {
        // Looks at the first byte and leaves it there: from it on, the time of the head counts.
        timeout(wait, stream.try_peek(&mut [0])).await.ok()?.ok()?;
        read_head(stream, shutdown).await
    };
    let request = tokio::select! {
        request = head => request?,
        () = connection_slot.evicted() => return None,
    };
    if connection_slot.begin() { app.respond(request, shutdown).await } else { None }
}

/// Returns when a successor has served for as long as a first request is waited for.
async fn late(mut handed_over: watch::Receiver<bool>) {
    if handed_over.wait_for(|over| *over).await.is_err() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(FIRST_REQUEST).await;
}
