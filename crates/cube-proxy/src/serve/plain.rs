//! The listeners beside the data plane: admin, metrics, health. Plain HTTP/1.1 through the
//! engine's own server, a task a connection.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cube_edge::{Desk, Gateway};
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::{GetSocketDigest, SocketDigest};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::error::StartError;

/// Connections open at one time; more wait in the socket's queue.
const CONNECTIONS: usize = 1024;
/// How long accepting pauses after an error, which is most likely a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// How long after a hand-over the first request of a connection is waited for: one that was accepted
/// just before it is about to bring one.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// One such listener, bound and not yet served.
pub(super) struct PlainListener(Pin<Box<dyn Future<Output = ()> + Send>>);

impl PlainListener {
    /// Binds `address` for `app`, unless `inherited` is its socket already; `option` is the
    /// listener's name in the configuration. A handle of the socket comes along.
    ///
    /// # Errors
    /// [`StartError::Bind`] when the system refuses it.
    pub(super) fn bind<A: HttpServerApp + Send + Sync + 'static>(
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
            // It was bound by another runtime than the one that serves it.
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

async fn accept<A: HttpServerApp + Send + Sync + 'static>(
    option: &'static str,
    listener: TcpListener,
    app: Arc<A>,
    gateway: Arc<Gateway>,
) {
    let handed_over = gateway.drain().watch_hand_over();
    // For the engine it is the time to shut down: no connection is kept for another request. Those
    // that are open stay until their next one.
    let shutdown = handed_over.clone();
    let mut successor = handed_over;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let next = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = async { let _ = successor.wait_for(|over| *over).await; } => return,
        };
        let Ok(place) = place else { return };
        match accepted {
            Ok((tcp, peer)) => {
                let (app, shutdown, gateway) = (app.clone(), shutdown.clone(), gateway.clone());
                tokio::spawn(async move {
                    serve_connection(tcp, peer, &app, &shutdown, gateway.desk()).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(listener = option, %error, "accepting pauses");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve_connection<A: HttpServerApp + Send + Sync + 'static>(
    tcp: TcpStream,
    peer: SocketAddr,
    app: &Arc<A>,
    shutdown: &watch::Receiver<bool>,
    desk: &Desk,
) {
    let mut fresh = Some(desk.under_way());
    let digest = SocketDigest::from_raw_fd(tcp.as_raw_fd());
    // Just made, so there is nothing in it yet.
    let _ = digest.peer_addr.set(Some(peer.into()));
    let mut stream = Stream::from(tcp);
    stream.set_socket_digest(digest);
    let mut session = ServerSession::new_http1(Box::new(stream));
    loop {
        let mut serve = app.process_new_http(session, shutdown);
        let served = tokio::select! {
            served = &mut serve => served,
            () = late(shutdown.clone()), if fresh.is_some() => {
                drop(fresh.take());
                serve.await
            }
        };
        fresh = None;
        let Some((stream, settings)) = served.map(pingora_core::apps::ReusedHttpStream::consume) else {
            return;
        };
        session = ServerSession::new_http1(stream);
        if let Some(settings) = settings {
            settings.apply_to_session(&mut session);
        }
    }
}

/// Returns when a successor has served for as long as a first request is waited for.
async fn late(mut handed_over: watch::Receiver<bool>) {
    if handed_over.wait_for(|over| *over).await.is_err() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(FIRST_REQUEST).await;
}
