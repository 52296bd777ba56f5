//! How much of a connection a client may use.

use std::time::Duration;

/// The bounds of client connections (config.md, `limits`).
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// The most open connections; beyond it they are accepted and closed at once.
    pub connections: usize,
    /// The same for one address; 0: none.
    pub connections_per_ip: usize,
    /// How long a request's whole head may take; the TLS handshake is part of the first one's.
    pub header_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub keepalive_idle: Duration,
    /// How long a client may take nothing of a response that is left to be written.
    pub silence_timeout: Duration,
    /// The most requests on one connection.
    pub keepalive_requests: u32,
    /// The most bytes of a head.
    pub head: usize,
    /// The most fields of a head.
    pub headers: usize,
    /// The most bytes of a target.
    pub target: usize,
    /// Streams of one HTTP/2 connection.
    pub h2_streams: u32,
}
