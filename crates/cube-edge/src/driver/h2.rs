//! One HTTP/2 connection: a task for each of its streams.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::Connection;
use parking_lot::Mutex;
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{self, H2Accept, HttpSession};
use pingora_core::protocols::{Digest, Stream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::conn::LAST_WORDS;
use super::frames::{FrameWatch, Numbers};
use super::stream::{ClientStream, Transport};
use super::{Conn, ConnectionLimits, Driver, Kill, ORIGIN, Origin, Speaks};
use crate::drain::Stage;

/// Requests that the engine refuses before the connection is given up, as in its own loop.
const MALFORMED_MOST: usize = 32;
/// A whole body may be under way while the peer's acknowledgement is: the protocol's 64 KiB
/// would make one upload wait for a round trip each 64 KiB.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Counts the streams in flight and says when there are none.
#[derive(Default)]
struct Streams {
    active: AtomicUsize,
    idle: Notify,
    kills: Mutex<Vec<Arc<Kill>>>,
    numbers: Arc<Numbers>,
}

struct StreamGuard(Arc<Streams>, Arc<Kill>);

impl Streams {
    fn enter(self: &Arc<Self>, kill: Arc<Kill>) -> StreamGuard {
        self.active.fetch_add(1, Ordering::AcqRel);
        self.kills.lock().push(kill.clone());
        StreamGuard(self.clone(), kill)
    }

    /// Ends all streams: their connection is gone, which one that is stuck in writing upstream
    /// would not notice.
    fn end(&self) {
        for kill in self.kills.lock().iter() {
            kill.kill();
        }
    }

    fn none(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }

    async fn idle(&self) {
        loop {
            // Made before the look: from then on no notice is missed.
            let notice = self.idle.notified();
            if self.none() {
                return;
            }
            notice.await;
        }
    }

    /// Returns when there has been no stream for `quiet`.
    async fn idle_for(&self, quiet: Duration) {
        self.idle().await;
        tokio::time::sleep(quiet).await;
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.kills.lock().retain(|kill| !Arc::ptr_eq(kill, &self.1));
        if self.0.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// The next request of a connection, which is driven meanwhile.
async fn accept(
    h2: &mut Connection<Stream, Bytes>,
    digest: Arc<Digest>,
    numbers: &Numbers,
) -> pingora_core::Result<Option<H2Accept>> {
    let mut accepting = std::pin::pin!(HttpSession::from_h2_conn(h2, digest));
    std::future::poll_fn(|cx| {
        numbers.turn();
        accepting.as_mut().poll(cx)
    })
    .await
}

impl<A: HttpServerApp + Send + Sync + 'static> Driver<A> {
    pub(super) async fn serve_h2(
        &self,
        io: Transport,
        conn: Arc<Conn>,
        limits: &ConnectionLimits,
        deadline: Instant,
    ) {
        // From the engine's defaults, which are bounded; the protocol library's are not.
        let mut options = server::default_h2_options();
        options
            .max_concurrent_streams(limits.h2_streams)
            .max_header_list_size(u32::try_from(limits.head.saturating_mul(2)).unwrap_or(u32::MAX))
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let streams = Arc::new(Streams::default());
        let stream = ClientStream::of_frames(io, conn.clone(), FrameWatch::new(streams.numbers.clone()));
        let Ok(Ok(h2)) = timeout_at(deadline, server::handshake(Box::new(stream), Some(options))).await
        else {
            return;
        };
        self.serve_streams(h2, &conn, limits, &streams).await;
        // The connection is gone. Streams notice by themselves, but for those that are stuck in
        // writing upstream.
        let _ = tokio::time::timeout(LAST_WORDS, streams.idle()).await;
        streams.end();
    }

    /// Returns when the client is to be told that the connection ends (GOAWAY). That waits for a
    /// moment without streams, but not for ever: a widely used JavaScript client gives up every
    /// stream of a connection that announces its end. Those that speak gRPC do not.
    async fn time_to_leave(&self, conn: &Conn, streams: &Streams) {
        self.drain.reached(Stage::Closing).await;
        if conn.speaks != Speaks::Grpc {
            tokio::select! {
                () = streams.idle() => {}
                () = self.drain.reached(Stage::Late) => {}
            }
        }
    }

    async fn serve_streams(
        &self,
        mut h2: Connection<Stream, Bytes>,
        conn: &Arc<Conn>,
        limits: &ConnectionLimits,
        streams: &Arc<Streams>,
    ) {
        let digest = Arc::new(Digest::default());
        let shutdown = self.shutdown_watch();
        let (mut malformed, mut leaving, mut flooded) = (0, false, false);
        loop {
            let worn = conn.requests() >= limits.keepalive_requests;
            let accepted = tokio::select! {
                biased;
                () = self.time_to_leave(conn, streams), if !leaving => {
                    h2.graceful_shutdown();
                    leaving = true;
                    continue;
                }
                () = streams.numbers.flooded(), if !flooded => {
                    tracing::debug!(peer = %conn.peer, "HTTP/2 connection given up after too many resets");
                    h2.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
                    flooded = true;
                    continue;
                }
                () = tokio::time::sleep(LAST_WORDS), if flooded => return,
                accepted = accept(&mut h2, digest.clone(), &streams.numbers) => accepted,
                () = streams.idle(), if worn && !leaving => {
                    h2.graceful_shutdown();
                    leaving = true;
                    continue;
                }
                () = streams.idle_for(limits.keepalive_idle) => return,
            };
            match accepted {
                Ok(Some(H2Accept::Session(session))) => {
                    let (kill, left) = (Arc::new(Kill::default()), Arc::new(Kill::default()));
                    let number = streams.numbers.take(left.clone());
                    let origin = Origin { conn: conn.clone(), kill: Some(kill.clone()) };
                    let (app, shutdown, guard) =
                        (self.app.clone(), shutdown.clone(), streams.enter(kill.clone()));
                    tokio::spawn(ORIGIN.scope(origin, async move {
                        tokio::select! {
                            _ = app.process_new_http(ServerSession::new_http2(session), &shutdown) => {}
                            () = kill.killed() => {}
                            // The engine notices by itself, but where it is stuck.
                            () = async { left.killed().await; tokio::time::sleep(LAST_WORDS).await; } => {}
                        }
                        drop((guard, number));
                    }));
                }
                Ok(Some(H2Accept::Rejected)) => {
                    conn.refusal(400);
                    malformed += 1;
                    if malformed >= MALFORMED_MOST {
                        tracing::debug!("HTTP/2 connection given up after {malformed} malformed requests");
                        return;
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
    }
}
