//! What is known of one client connection while it lives.

mod ending;
mod request_notes;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::body::Framing;
use super::kill::Kill;
use crate::metrics::ListenerClass;

pub(super) use ending::{LAST_WORDS, LINGER_TIME, close_patiently};

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

    /// The listener's value of the label `listener`.
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

    pub(crate) fn refusal(&self, status: u16) -> Bytes {
        self.refuse.refuse(self, status)
    }
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
