//! One HTTP/2 connection: a task for each of its streams.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::Connection;
use parking_lot::Mutex;
use pingora::apps::HttpServerApp;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{self, H2Accept, HttpSession};
use pingora::protocols::{Digest, Stream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::conn::LAST_WORDS;
use super::rst_stream_limit::{FrameWatch, StreamNumbers};
use super::stream::ClientStream;
use super::transport::Transport;
use super::unsent::UnsentFrames;
use super::{Conn, ConnectionSettings, DOWNSTREAM, Downstream, Driver, Kill, ListenerProtocol};
use crate::drain::Stage;

/// Requests that Pingora refuses before the connection is given up, as in its own loop.
const MALFORMED_MOST: usize = 32;
/// A whole body may be under way while the peer's acknowledgement is: the protocol's 64 KiB
/// would make one upload wait for a round trip each 64 KiB.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// What is kept of a response for a client whose windows would take more and who does not read: a stream each.
/// The library's own bound, 400 KiB, is 40 MiB for one connection.
const STREAM_UNSENT: usize = 64 << 10;
/// How long a client must have had no stream before it is told that the connection ends: undici 7
/// fails what it sends before it has read that. No round number, as are the pauses of many clients.
const QUIET: Duration = Duration::from_millis(2700);
/// The same where the process waits for its end.
const MOMENT: Duration = Duration::from_millis(250);
/// The same for a client that has had a tenth more requests than a connection carries, and never rested
/// for so long. No round number either.
const PAUSE: Duration = Duration::from_millis(270);
/// How long a client that was told with streams open, and has none any more, has to close.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a client that was told in a quiet moment has to close. One that does not read while it is
/// idle (httpx) sends its next request first: what it sends is taken and dropped, so that it comes to
/// read that the request is to be sent elsewhere.
const LINGER: Duration = Duration::from_secs(10);
/// How often it is looked whether the client's side takes what is left to be delivered.
const TICK: Duration = Duration::from_millis(100);

/// Counts the streams in flight and says when there are none.
#[derive(Default)]
struct Streams {
    active: AtomicUsize,
    idle: Notify,
    kills: Mutex<Vec<Arc<Kill>>>,
    numbers: Arc<StreamNumbers>,
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
    numbers: &StreamNumbers,
) -> pingora::Result<Option<H2Accept>> {
    let mut accepting = std::pin::pin!(HttpSession::from_h2_conn(h2, digest));
    std::future::poll_fn(|cx| {
        numbers.turn();
        accepting.as_mut().poll(cx)
    })
    .await
}

/// How far the end of a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloseProgress {
    Open,
    /// The client was told, with streams open, that no further request is welcome.
    Leaving,
    /// The connection is being closed, whatever is open.
    Closing,
}

/// What the loop of a connection does next.
#[expect(clippy::large_enum_variant, reason = "most of them are requests, and each is moved once")]
enum LoopEvent {
    Take(pingora::Result<Option<H2Accept>>),
    Leave,
    Close(Reason),
    Return,
}

/// Returns when the client has had no stream for `quiet`, and has received everything.
async fn rested(conn: &Conn, wire: &UnsentFrames, quiet: Duration) {
    wire.idle_for(quiet).await;
    delivered(conn).await;
}

/// Returns when the client's side has acknowledged everything that is written by now. What is written
/// meanwhile does not count: a client that sends PING all the time is always owed an acknowledgement.
async fn delivered(conn: &Conn) {
    let all = conn.bytes_to_acknowledge();
    while conn.bytes_acknowledged() < all {
        sleep(TICK).await;
    }
}

/// Returns when no request is being served and the client has taken nothing of what is left of
/// their responses for `silence`. (While one is being served, Pingora has that limit.)
async fn stuck(conn: &Conn, streams: &Streams, wire: &UnsentFrames, silence: Duration) {
    let every = (silence / 4).clamp(TICK, Duration::from_secs(60));
    let (mut seen, mut since) = (None, Instant::now());
    loop {
        sleep(every).await;
        let left = if streams.none() { conn.undelivered() } else { None };
        let left = left.or_else(|| (streams.none() && !wire.is_idle()).then_some(0));
        let now = left.map(|left| (left, wire.written()));
        if now.is_none() || now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() >= silence {
            return;
        }
    }
}

impl<A: HttpServerApp + Send + Sync + 'static> Driver<A> {
    pub(super) async fn serve_h2(
        &self,
        io: Transport,
        conn: Arc<Conn>,
        settings: &ConnectionSettings,
        deadline: Instant,
    ) {
        // From Pingora's defaults, which are bounded; the protocol library's are not.
        let mut options = server::default_h2_options();
        options
            .max_concurrent_streams(settings.limits.h2_streams)
            .max_header_list_size(u32::try_from(settings.limits.head.saturating_mul(2)).unwrap_or(u32::MAX))
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(STREAM_UNSENT);
        let (streams, wire) = (Arc::new(Streams::default()), Arc::new(UnsentFrames::default()));
        let watch = FrameWatch::new(streams.numbers.clone());
        let stream =
            ClientStream::of_frames(io, conn.clone(), settings.limits.header_timeout, watch, wire.clone());
        let shaken = tokio::select! {
            shaken = timeout_at(deadline, server::handshake(Box::new(stream), Some(options))) => shaken,
            () = self.soon_over() => return,
        };
        let Ok(Ok(h2)) = shaken else { return };
        let lingers = self.serve_streams(h2, &conn, settings, &streams, &wire).await;
        // The connection is gone. Streams notice by themselves, but for those that are stuck in
        // writing upstream.
        let _ = timeout(LAST_WORDS, streams.idle()).await;
        streams.end();
        tokio::select! {
            () = conn.discard(lingers) => {}
            () = self.soon_over() => {}
        }
    }

    /// Returns when what is idle no longer holds up the end of the process.
    async fn soon_over(&self) {
        self.drain.reached(Stage::Emptying).await;
        sleep(LAST_WORDS).await;
    }

    /// Returns when the client is to be told that the connection ends (GOAWAY).
    ///
    /// In a quiet moment the connection is closed, naming the last stream that was taken: that is
    /// what clients get by with best. undici 8, httpx and browsers send a request elsewhere that has
    /// crossed that word, and httpx does not survive a PING behind it, which would be part of a
    /// graceful shutdown. With streams open nothing else is left than the graceful one.
    async fn time_to_leave(
        &self,
        conn: &Conn,
        settings: &ConnectionSettings,
        wire: &UnsentFrames,
    ) -> LoopEvent {
        tokio::select! {
            biased;
            turn = self.drained(conn, wire) => turn,
            () = worn(conn, settings, wire) => LoopEvent::Close(Reason::NO_ERROR),
            () = rested(conn, wire, settings.limits.keepalive_idle) => LoopEvent::Close(Reason::NO_ERROR),
        }
    }

    /// The same for the drain. It waits for a time without a stream, but not for ever. Clients that
    /// speak gRPC need no such care.
    async fn drained(&self, conn: &Conn, wire: &UnsentFrames) -> LoopEvent {
        self.drain.reached(Stage::Closing).await;
        if conn.protocol == ListenerProtocol::Grpc {
            return LoopEvent::Leave;
        }
        let emptying = async {
            self.drain.reached(Stage::Emptying).await;
            rested(conn, wire, MOMENT).await;
        };
        tokio::select! {
            biased;
            () = rested(conn, wire, QUIET) => LoopEvent::Close(Reason::NO_ERROR),
            () = emptying => LoopEvent::Close(Reason::NO_ERROR),
            () = self.drain.reached(Stage::Late) => LoopEvent::Leave,
        }
    }

    /// Returns when a client that was told, and has no stream left, has had its time.
    async fn farewell(&self, conn: &Conn, wire: &UnsentFrames) {
        wire.idle().await;
        delivered(conn).await;
        tokio::select! {
            () = sleep(FAREWELL) => {}
            () = self.soon_over() => {}
        }
    }

    /// Returns when the time of the drain is over and the streams were ended.
    async fn cut(&self, streams: &Streams, wire: &UnsentFrames) {
        self.drain.reached(Stage::Over).await;
        streams.end();
        let _ = timeout(LAST_WORDS, wire.idle()).await;
    }

    /// Serves the requests of a connection until it has ended; how long what its client still sends
    /// is to be taken.
    async fn serve_streams(
        &self,
        mut h2: Connection<Stream, Bytes>,
        conn: &Arc<Conn>,
        settings: &ConnectionSettings,
        streams: &Arc<Streams>,
        wire: &UnsentFrames,
    ) -> Duration {
        let digest = Arc::new(Digest::default());
        let shutdown = self.shutdown_watch();
        let (mut malformed, mut standing, mut lingers) = (0, CloseProgress::Open, Duration::ZERO);
        let mut stuck = std::pin::pin!(stuck(conn, streams, wire, settings.silence_timeout));
        loop {
            let closing = standing == CloseProgress::Closing;
            let leaving = standing == CloseProgress::Leaving;
            let turn = tokio::select! {
                biased;
                () = streams.numbers.flooded(), if !closing => {
                    tracing::debug!(peer = %conn.peer, "HTTP/2 connection given up after too many resets");
                    LoopEvent::Close(Reason::ENHANCE_YOUR_CALM)
                }
                () = wire.until(|| wire.is_head_late()), if !closing => {
                    conn.refusal(408);
                    LoopEvent::Close(Reason::ENHANCE_YOUR_CALM)
                }
                // Before all that looks for a quiet moment: a request may have come in.
                accepted = accept(&mut h2, digest.clone(), &streams.numbers) => LoopEvent::Take(accepted),
                turn = self.time_to_leave(conn, settings, wire), if standing == CloseProgress::Open => turn,
                () = self.cut(streams, wire), if leaving => LoopEvent::Close(Reason::NO_ERROR),
                () = self.farewell(conn, wire), if leaving => LoopEvent::Close(Reason::NO_ERROR),
                () = &mut stuck, if !closing => LoopEvent::Close(Reason::NO_ERROR),
                () = sleep(LAST_WORDS), if closing => LoopEvent::Return,
            };
            match turn {
                LoopEvent::Leave => {
                    h2.graceful_shutdown();
                    standing = CloseProgress::Leaving;
                }
                LoopEvent::Close(reason) => {
                    h2.abrupt_shutdown(reason);
                    let quiet = standing == CloseProgress::Open && wire.is_idle();
                    lingers = if quiet { LINGER } else { LAST_WORDS };
                    standing = CloseProgress::Closing;
                }
                LoopEvent::Take(Ok(Some(H2Accept::Session(session)))) => {
                    let (kill, left) = (Arc::new(Kill::default()), Arc::new(Kill::default()));
                    let number = streams.numbers.take(left.clone());
                    let downstream = Downstream { conn: conn.clone(), kill: Some(kill.clone()) };
                    let (app, shutdown, guard) =
                        (self.app.clone(), shutdown.clone(), streams.enter(kill.clone()));
                    let session = ServerSession::new_http2(session);
                    let exchange = self
                        .exchange
                        .clone()
                        .filter(|own| own.takes_stream(session.req_header(), &downstream));
                    let serve = async move {
                        match exchange {
                            Some(exchange) => exchange.serve_stream(session).await,
                            None => drop(app.process_new_http(session, &shutdown).await),
                        }
                    };
                    tokio::spawn(DOWNSTREAM.scope(downstream, async move {
                        tokio::select! {
                            () = serve => {}
                            () = kill.killed() => {}
                            // Pingora notices by itself, but where it is stuck.
                            () = async { left.killed().await; sleep(LAST_WORDS).await; } => {}
                        }
                        drop((guard, number));
                    }));
                }
                LoopEvent::Take(Ok(Some(H2Accept::Rejected))) => {
                    conn.refusal(400);
                    malformed += 1;
                    if malformed >= MALFORMED_MOST {
                        tracing::debug!("HTTP/2 connection given up after {malformed} malformed requests");
                        return lingers;
                    }
                }
                LoopEvent::Take(Ok(None) | Err(_)) | LoopEvent::Return => return lingers,
            }
        }
    }
}

/// Returns when the connection has carried its number of requests and its client is to be told.
async fn worn(conn: &Conn, settings: &ConnectionSettings, wire: &UnsentFrames) {
    let most = settings.limits.keepalive_requests;
    wire.until(|| conn.requests() >= most).await;
    wire.idle().await;
    let quiet = if conn.requests() < most.saturating_add(most / 10) { QUIET } else { PAUSE };
    rested(conn, wire, quiet).await;
}
