//! The bounds themselves, as the configuration declares them.

use std::num::NonZeroU32;
use std::time::Duration;

use cube_settings::{Auto, NonZeroCount, NonZeroSpan, Size, ZeroIsNone};

cube_settings::section! {
    /// What a client may ask for (config.md, `limits`).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Limits in "limits" {
        /// Bytes of a request body; `None`: no limit. Follows from the dialect.
        live body: Auto<Option<u64>> as Option<ZeroIsNone<Size>> = Auto::new(None),
        /// Bytes of a request head.
        live head: usize as Size = 64 << 10,
        /// Headers of a request, Host counted.
        live headers: usize as NonZeroCount = 100,
        /// Bytes of the request target.
        live target: usize as Size = 32 << 10,
        /// How long a request's whole head may take; the TLS handshake is part of the first one's.
        live header_timeout: Duration as NonZeroSpan = Duration::from_secs(10),
        /// How long a connection may wait for its next request.
        live keepalive_idle: Duration as NonZeroSpan = Duration::from_secs(75),
        /// The most requests on one connection.
        live keepalive_requests: u32 as NonZeroCount = 10_000,
        /// The most open connections; beyond it they are accepted and closed at once. Follows from the limit
        /// of open files.
        live connections: Auto<usize> as Option<NonZeroCount> = Auto::new(0),
        /// The same for one address; `None`: no limit.
        live connections_per_ip: Option<u32> as ZeroIsNone<u32> = None,
        /// Concurrent requests for one sandbox; `None`: no limit.
        live requests_per_sandbox: Option<u32> as ZeroIsNone<u32> = None,
        /// Requests a second of one address; `None`: no limit.
        live requests_per_ip: Option<u32> as ZeroIsNone<u32> = None,
        /// Requests at once of an address that made none for a while. Follows from `requests_per_ip`.
        live requests_per_ip_burst: Auto<u32> as Option<NonZeroCount> = Auto::new(0),
        /// Streams of one HTTP/2 connection.
        live h2_streams: u32 as NonZeroCount = 100,
    }
}

impl Limits {
    /// The token bucket of each address; `None`: no limit.
    #[must_use]
    pub fn request_rate(&self) -> Option<RequestRate> {
        RequestRate::new(self.requests_per_ip?, *self.requests_per_ip_burst)
    }
}

/// A token bucket for each address (`limits.requests_per_ip`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    /// Requests a second in the long run.
    pub per_second: NonZeroU32,
    /// Requests at once, of an address that made none for a while.
    pub burst: NonZeroU32,
}

impl RequestRate {
    /// `per_second` requests a second, `burst` of them at once; `None` where either is 0, which is
    /// no limit.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Option<Self> {
        Some(Self { per_second: NonZeroU32::new(per_second)?, burst: NonZeroU32::new(burst)? })
    }
}
