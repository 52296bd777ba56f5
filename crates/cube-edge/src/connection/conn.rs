//! What is known of one client connection while it lives.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::HeaderValue;
use parking_lot::Mutex;
use pingora::protocols::l4::ext::get_tcp_info;
use tokio::net::TcpStream;

use super::body::Framing;
use super::kill::Kill;
use crate::metrics::ListenerClass;

/// How long a request that is ended from outside has for its last words. It has to be over within
/// a second.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long, and how much, a closing connection reads on for a client that is still sending.
pub(super) const LINGER_TIME: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 * 1024 * 1024;
/// How long a client has to read what it was told before its connection is reset.
const BEFORE_RESET: Duration = Duration::from_millis(100);

/// What a data listener speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerProtocol {
    /// Plain HTTP/1.1.
    Http,
    /// TLS, HTTP/2 or HTTP/1.1 by ALPN.
    Https,
    /// Plaintext HTTP/2 with prior knowledge.
    Grpc,
}

impl ListenerProtocol {
    /// The listener's name in the configuration, in metrics and in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ListenerProtocol::Http => "http",
            ListenerProtocol::Https => "https",
            ListenerProtocol::Grpc => "grpc",
        }
    }

    /// The listener in metrics.
    pub(crate) fn class(self) -> ListenerClass {
        match self {
            ListenerProtocol::Http => ListenerClass::Http,
            ListenerProtocol::Https => ListenerClass::Https,
            ListenerProtocol::Grpc => ListenerClass::Grpc,
        }
    }

    /// `http` or `https`, as a client of this listener would write it.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        if matches!(self, ListenerProtocol::Https) { "https" } else { "http" }
    }
}

/// Where an HTTP/1.1 connection is between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnectionPhase {
    /// No byte of the next request has come.
    Idle = 0,
    /// Some bytes have, and the whole head is due within `limits.header_timeout`.
    Head = 1,
    /// The head is in: Pingora and the phases of the proxy have the request.
    Open = 2,
    /// Just accepted: no byte has come, and the first head is due, counted from accept.
    Fresh = 3,
}

/// Answers what Pingora refuses without asking anybody: a head that cannot be parsed, CONNECT,
/// a head that does not come in time.
pub(crate) trait Refuse: Send + Sync {
    /// The bytes of the whole response with that status; counts and logs it.
    fn refuse(&self, conn: &Conn, status: u16) -> Bytes;
}

/// One client connection. Shared by its stream, its requests and the table of connections.
pub(crate) struct Conn {
    /// The client's address as the socket tells it.
    pub(crate) peer: SocketAddr,
    /// The address that was connected to.
    pub(crate) local: SocketAddr,
    /// The listener it came in on.
    pub(crate) protocol: ListenerProtocol,
    /// The socket: to look whether the client has left, and to end the connection from outside.
    pub(crate) tcp: Arc<TcpStream>,
    /// The client's address as text, made when it is first needed: every request says it.
    peer_text: OnceLock<HeaderValue>,
    refuse: Arc<dyn Refuse>,
    phase: AtomicU8,
    requests: AtomicU32,
    request: RequestNotes,
    closing: Closing,
    sweep: Sweep,
    kill: Kill,
    /// Tells the stream of a request that is ended where it does not look at the socket.
    ending: Kill,
}

/// What the stream and the phases tell each other of the request under way.
struct RequestNotes {
    /// The next head that is written goes out with the bytes behind it.
    join_head: AtomicBool,
    /// The next head that is written nominates `Upgrade`.
    nominate_upgrade: AtomicBool,
    /// How its body is framed, [`Framing`] packed.
    framing: AtomicU64,
    /// The bytes of its head, as Pingora was given them.
    head_given: AtomicUsize,
    /// Its body is not framed as its head says.
    misframed: AtomicBool,
    /// Whether there is an odd line.
    has_odd_line: AtomicBool,
    /// Its request line as it came, where Pingora would encode something in it.
    odd_line: Mutex<Vec<u8>>,
}

impl Default for RequestNotes {
    fn default() -> Self {
        Self {
            join_head: AtomicBool::new(false),
            nominate_upgrade: AtomicBool::new(false),
            framing: AtomicU64::new(Framing::UNSAID),
            head_given: AtomicUsize::new(0),
            misframed: AtomicBool::new(false),
            has_odd_line: AtomicBool::new(false),
            odd_line: Mutex::default(),
        }
    }
}

/// How the connection ends.
#[derive(Default)]
struct Closing {
    /// With a reset: what was sent is not whole, and nothing else would show it.
    reset: AtomicBool,
    /// After its client has had a moment to write what it still sends.
    linger: AtomicBool,
    /// Its client has left, and the request under way is to be dropped.
    abandoned: AtomicBool,
}

/// What the sweep over all connections has seen, so many times in a row.
#[derive(Default)]
struct Sweep {
    /// Idle, and after which request.
    idle: AtomicU32,
    idle_after: AtomicU32,
    /// That the client has left.
    left: AtomicU8,
}

impl Conn {
    pub(crate) fn new(
        peer: SocketAddr,
        local: SocketAddr,
        protocol: ListenerProtocol,
        tcp: Arc<TcpStream>,
        refuse: Arc<dyn Refuse>,
    ) -> Self {
        Self {
            peer,
            local,
            protocol,
            tcp,
            peer_text: OnceLock::new(),
            refuse,
            phase: AtomicU8::new(ConnectionPhase::Fresh as u8),
            requests: AtomicU32::new(0),
            request: RequestNotes::default(),
            closing: Closing::default(),
            sweep: Sweep::default(),
            kill: Kill::default(),
            ending: Kill::default(),
        }
    }

    /// The client's address, unmapped, as a header says it.
    pub(crate) fn peer_text(&self) -> &HeaderValue {
        self.peer_text.get_or_init(|| ip_value(self.peer.ip().to_canonical()))
    }

    pub(crate) fn phase(&self) -> ConnectionPhase {
        match self.phase.load(Ordering::Acquire) {
            0 => ConnectionPhase::Idle,
            1 => ConnectionPhase::Head,
            2 => ConnectionPhase::Open,
            _ => ConnectionPhase::Fresh,
        }
    }

    pub(crate) fn set_phase(&self, phase: ConnectionPhase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Counts a request; its number on this connection, from 1.
    pub(crate) fn next_request(&self) -> u32 {
        // Said of the one before.
        self.closing.linger.store(false, Ordering::Relaxed);
        self.request.nominate_upgrade.store(false, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The next response's head waits for the first piece of its body, so that both leave in one
    /// write. Only for a request without a body: there Pingora reads on while it waits for
    /// the upstream, and that read sends a head whose body is late.
    pub(crate) fn join_next_head(&self) {
        self.request.join_head.store(true, Ordering::Relaxed);
    }

    /// The next response's `Connection` names `Upgrade`, beside what Pingora says there.
    pub(crate) fn nominate_upgrade(&self) {
        self.request.nominate_upgrade.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_nominate_upgrade(&self) -> bool {
        self.request.nominate_upgrade.load(Ordering::Relaxed)
            && self.request.nominate_upgrade.swap(false, Ordering::Relaxed)
    }

    /// How the end of the body is told; to be said before any of it is read, and once more when it
    /// becomes a tunnel.
    pub(crate) fn frame_body(&self, framing: Framing) {
        self.request.framing.store(framing.pack(), Ordering::Release);
    }

    /// What was said of it since the last time.
    pub(super) fn take_framing(&self) -> Option<Framing> {
        if self.request.framing.load(Ordering::Acquire) == Framing::UNSAID {
            return None;
        }
        Framing::unpack(self.request.framing.swap(Framing::UNSAID, Ordering::AcqRel))
    }

    /// Pingora has been given a head of that many bytes.
    pub(super) fn note_head_given(&self, bytes: usize) {
        self.request.head_given.store(bytes, Ordering::Relaxed);
    }

    /// The bytes of the head as Pingora was given them: it has to have read just as many.
    pub(crate) fn head_given(&self) -> usize {
        self.request.head_given.load(Ordering::Relaxed)
    }

    /// The body does not follow the grammar of its coding.
    pub(super) fn note_misframed(&self) {
        self.request.misframed.store(true, Ordering::Relaxed);
    }

    /// Whether a read has failed because of that.
    pub(crate) fn is_misframed(&self) -> bool {
        self.request.misframed.load(Ordering::Relaxed)
    }

    pub(crate) fn take_join_head(&self) -> bool {
        self.request.join_head.load(Ordering::Relaxed)
            && self.request.join_head.swap(false, Ordering::Relaxed)
    }

    /// The connection ends with a reset: a close would look like the end of the body.
    pub(crate) fn reset_on_close(&self) {
        self.closing.reset.store(true, Ordering::Relaxed);
    }

    pub(crate) fn resets_on_close(&self) -> bool {
        self.closing.reset.load(Ordering::Relaxed)
    }

    /// The client is still sending what nobody will read: should the connection end with this
    /// request, it lingers.
    pub(crate) fn linger_on_close(&self) {
        self.closing.linger.store(true, Ordering::Relaxed);
    }

    pub(crate) fn refusal(&self, status: u16) -> Bytes {
        self.refuse.refuse(self, status)
    }

    /// Ends the HTTP/1.1 request under way, and the connection with it: the next read ends, so that
    /// Pingora gives the request up and a response that has not begun can still be written. One
    /// that does not read, since a side of it is stuck in writing, is dropped after a moment.
    pub(crate) fn end_request(&self) {
        // Said first: the end of reading may be noticed at once, and how the connection ends hangs on it.
        self.ending.kill();
        self.kill.kill();
        // An error says that the connection is gone already.
        let _ = rustix::net::shutdown(&*self.tcp, rustix::net::Shutdown::Read);
    }

    /// Ready when the request under way is to end, whose next read is its end.
    pub(crate) fn poll_ending(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.ending.poll_killed(cx)
    }

    /// Returns when a request that was ended should be over by now.
    pub(crate) async fn overdue(&self) {
        self.kill.killed().await;
        if !self.closing.abandoned.load(Ordering::Acquire) {
            tokio::time::sleep(LAST_WORDS).await;
        }
    }

    /// What has come in looks like a request line that Pingora rewrites.
    pub(crate) fn note_odd_line(&self, line: Vec<u8>) {
        *self.request.odd_line.lock() = line;
        self.request.has_odd_line.store(true, Ordering::Release);
    }

    /// That line, once.
    pub(crate) fn take_odd_line(&self) -> Option<Vec<u8>> {
        let has = self.request.has_odd_line.load(Ordering::Acquire);
        (has && self.request.has_odd_line.swap(false, Ordering::AcqRel))
            .then(|| std::mem::take(&mut *self.request.odd_line.lock()))
    }

    /// Looks whether the client of a request under way has left, which nobody notices while
    /// Pingora does not read (it is stuck in writing, or has bytes of a next request). Left twice
    /// in a row: Pingora has had its time to notice, and the request is dropped.
    ///
    /// A connection that was found waiting for its next request more than `idle` times in a row is
    /// closed. Counted here, so that no request has a timer for it.
    pub(crate) fn sweep(&self, idle: u32) {
        match self.phase() {
            ConnectionPhase::Open => {}
            ConnectionPhase::Idle => {
                let requests = self.requests();
                let times = match self.sweep.idle_after.swap(requests, Ordering::Relaxed) == requests {
                    true => self.sweep.idle.load(Ordering::Relaxed).saturating_add(1),
                    false => 0,
                };
                self.sweep.idle.store(times, Ordering::Relaxed);
                if times > idle {
                    self.end_idle();
                }
                return;
            }
            ConnectionPhase::Head | ConnectionPhase::Fresh => return,
        }
        let ready = self.tcp.ready(tokio::io::Interest::READABLE).now_or_never();
        let left = match ready {
            Some(Ok(ready)) => ready.is_read_closed(),
            Some(Err(_)) => true,
            None => false,
        };
        if !left {
            self.sweep.left.store(0, Ordering::Relaxed);
        } else if self.sweep.left.fetch_add(1, Ordering::Relaxed) > 0 {
            self.closing.abandoned.store(true, Ordering::Release);
            self.kill.kill();
        }
    }

    /// Closes an HTTP/1.1 connection that ends while its client is still sending: says the end, then
    /// takes for a moment what still comes. Closed at once, a client that is still writing meets a
    /// broken connection before it reads the response, and the kernel's reset may destroy the response.
    pub(super) async fn linger(&self) {
        let lingers = self.closing.linger.load(Ordering::Relaxed) && !self.resets_on_close();
        if !lingers || matches!(self.phase(), ConnectionPhase::Idle | ConnectionPhase::Fresh) {
            return;
        }
        close_patiently(&self.tcp, LINGER_TIME).await;
        if self.kill.is_killed() {
            // What ends a request also ends reading for good, and with it all word of room: a client that
            // is stuck in writing hears of the end by a reset alone, once it could have read the response.
            tokio::time::sleep(BEFORE_RESET).await;
            let _ = rustix::net::sockopt::set_socket_linger(&*self.tcp, Some(Duration::ZERO));
        }
    }

    /// Says the end of the connection, and takes what still comes until the client has closed too, for
    /// so long at most.
    pub(super) async fn discard(&self, time: Duration) {
        close_patiently(&self.tcp, time).await;
    }

    /// How many packets of what was written the client's side has not acknowledged, and bytes that
    /// wait for room at its side; `None` where there is nothing of either, or the connection is gone.
    pub(super) fn undelivered(&self) -> Option<u64> {
        let info = get_tcp_info(self.tcp.as_raw_fd()).ok()?;
        let left = u64::from(info.tcpi_unacked) + u64::from(info.tcpi_notsent_bytes);
        (left > 0).then_some(left)
    }

    /// How many bytes of the connection the client's side has to have acknowledged until everything
    /// that is written by now is there; 0 where the system does not say.
    pub(super) fn bytes_to_acknowledge(&self) -> u64 {
        let Ok(info) = get_tcp_info(self.tcp.as_raw_fd()) else { return 0 };
        info.tcpi_bytes_sent
            .saturating_sub(info.tcpi_bytes_retrans)
            .saturating_add(u64::from(info.tcpi_notsent_bytes))
    }

    /// How many it has acknowledged; all there can be where the connection is gone.
    pub(super) fn bytes_acknowledged(&self) -> u64 {
        get_tcp_info(self.tcp.as_raw_fd()).map_or(u64::MAX, |info| info.tcpi_bytes_acked)
    }

    /// Ends a connection that waits for a request: it reads its end, and says its own. A request
    /// that has come in meanwhile is still read.
    pub(super) fn end_idle(&self) {
        // An error says that the connection is gone already.
        let _ = rustix::net::shutdown(&*self.tcp, rustix::net::Shutdown::Read);
    }

    /// Ends the connection at once, whatever it is doing.
    pub(crate) fn shut(&self) {
        // An error says that the connection is gone already.
        let _ = rustix::net::shutdown(&*self.tcp, rustix::net::Shutdown::Both);
    }
}

/// Says the end of a connection, then takes for so long at most what its client still sends: the reset
/// of one that is closed with something unread may destroy what was said last.
pub(super) async fn close_patiently(tcp: &TcpStream, time: Duration) {
    if rustix::net::shutdown(tcp, rustix::net::Shutdown::Write).is_err() {
        return; // gone already
    }
    let closing = async {
        let mut taken = 0;
        while taken < LINGER_BYTES && tcp.readable().await.is_ok() {
            match discard(tcp) {
                Ok(0) => return,
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = tokio::time::timeout(time, closing).await;
}

/// Not async, so that no connection carries the room for it.
fn discard(tcp: &TcpStream) -> io::Result<usize> {
    tcp.try_read(&mut [0u8; 16 * 1024])
}

/// An address as a header says it.
pub(crate) fn ip_value(ip: IpAddr) -> HeaderValue {
    // The text of an address is always a good value.
    HeaderValue::from_str(&ip.to_string()).unwrap_or_else(|_| HeaderValue::from_static("-"))
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn")
            .field("peer", &self.peer)
            .field("speaks", &self.protocol)
            .finish_non_exhaustive()
    }
}
