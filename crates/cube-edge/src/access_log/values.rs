//! What a line of the access log says beside the texts of its request.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use cube_otlp::TraceId;
use cube_route::Port;

use crate::error_response::Reason;
use crate::retcode::Retcode;

/// What one line says beside its texts and its attempts.
#[derive(Debug, Clone)]
pub struct LineValues {
    /// When the request ended.
    pub time: SystemTime,
    /// The local address, without port.
    pub server_addr: Option<IpAddr>,
    /// `HTTP/1.0`, `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: Option<&'static str>,
    /// The status on the wire; `None` where no response began.
    pub status: Option<u16>,
    /// Bytes of the response body.
    pub body_bytes_sent: u64,
    /// From the first byte of the head to the end.
    pub took: Duration,
    /// The number of this request on its connection, from 1.
    pub connection_requests: u64,
    /// The return code, unmasked.
    pub retcode: Retcode,
    /// The container port that the request names.
    pub port: Option<Port>,
    /// Why the request ended as it did.
    pub reason: Reason,
    /// The trace that it belongs to, where it is traced.
    pub trace: Option<TraceId>,
}

/// One attempt at an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamTry {
    /// The address dialled.
    pub address: SocketAddr,
    /// The status it responded with, if it did.
    pub status: Option<u16>,
    /// From dialling (or taking a pooled connection) to the end of its response.
    pub took: Option<Duration>,
}
