//! How much of a connection a client may use.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::limits::settings::Limits;

/// The settings of client connections.
#[derive(Debug, Clone)]
pub struct ConnectionSettings {
    /// `limits`.
    pub limits: Limits,
    /// How long a client may take nothing of a response that is left to be written
    /// (`upstream.silence_timeout`).
    pub silence_timeout: Duration,
    /// Peers whose connections begin with a header of the PROXY protocol (`listen.proxy_protocol`).
    pub proxy_protocol: Vec<IpNet>,
}

impl ConnectionSettings {
    /// Whether a connection from this address has to begin with a header of the PROXY protocol.
    pub(super) fn expects_proxy_header(&self, peer: IpAddr) -> bool {
        self.proxy_protocol.iter().any(|net| net.contains(&peer))
    }
}
