//! The listeners beside the data plane: admin, metrics, health. Plain HTTP/1.1 through the
//! engine's own server, a task a connection.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

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

/// One such listener, bound and not yet served.
pub(super) struct PlainListener(Pin<Box<dyn Future<Output = ()> + Send>>);

impl PlainListener {
    /// Binds `address` for `app`; `option` is the listener's name in the configuration.
    ///
    /// # Errors
    /// [`StartError::Bind`] when the system refuses it.
    pub(super) fn bind<A: HttpServerApp + Send + Sync + 'static>(
        option: &'static str,
        address: SocketAddr,
        app: A,
    ) -> Result<Self, StartError> {
        let listener = cube_edge::listen_plain(address).map_err(|error| StartError::Bind {
            option,
            address,
            reason: error.to_string(),
        })?;
        Ok(Self(Box::pin(async move {
            // It was bound by another runtime than the one that serves it.
            match TcpListener::from_std(listener) {
                Ok(listener) => accept(option, listener, Arc::new(app)).await,
                Err(error) => tracing::error!(listener = option, %error, "cannot serve"),
            }
        })))
    }

    /// Serves until the runtime ends.
    pub(super) async fn serve(self) {
        self.0.await;
    }
}

async fn accept<A: HttpServerApp + Send + Sync + 'static>(
    option: &'static str,
    listener: TcpListener,
    app: Arc<A>,
) {
    // A dropped sender would tell the engine to shut down.
    let (_running, shutdown) = watch::channel(false);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((tcp, peer)) => {
                let (app, shutdown) = (app.clone(), shutdown.clone());
                tokio::spawn(async move {
                    serve_connection(tcp, peer, &app, &shutdown).await;
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
) {
    let digest = SocketDigest::from_raw_fd(tcp.as_raw_fd());
    // Just made, so there is nothing in it yet.
    let _ = digest.peer_addr.set(Some(peer.into()));
    let mut stream = Stream::from(tcp);
    stream.set_socket_digest(digest);
    let mut session = ServerSession::new_http1(Box::new(stream));
    loop {
        let served = app.process_new_http(session, shutdown).await;
        let Some((stream, settings)) = served.map(pingora_core::apps::ReusedHttpStream::consume) else {
            return;
        };
        session = ServerSession::new_http1(stream);
        if let Some(settings) = settings {
            settings.apply_to_session(&mut session);
        }
    }
}
