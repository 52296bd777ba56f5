//! What the request path is told by the configuration. One value, swapped as a whole on reload; a
//! request keeps the one it began with.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use cube_resolver::AddressGuard;
use cube_route::{ClientHost, Port, Rules};
use cube_settings::{Auto, Count, Described, FileForm, Network, NonZeroSpan, PortRange, Span};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::connection::ConnectionSettings;
use crate::error_response;
use crate::limits::settings::Limits;
use crate::preview::PreviewSettings;
use crate::routing_settings::RoutingSettings;
use crate::tls_trust::TlsTrust;

/// The settings of the edge (config.md; the names are the configuration's).
#[derive(Debug)]
pub struct Settings {
    /// `node_ip`; `None`: the local address of each accepted connection.
    pub node_ip: Option<IpAddr>,
    /// `listen.http`, `listen.https`, `listen.grpc`: where clients connect, for `explain`.
    pub listens: Vec<SocketAddr>,
    /// `listen.proxy_protocol`.
    pub proxy_protocol: Vec<IpNet>,
    /// `routing.domains` and the dialect's client-id suffix.
    pub rules: Rules,
    /// `routing`.
    pub routing: RoutingSettings,
    /// What `routing.control_plane` means.
    pub control_plane: Option<ControlPlaneSettings>,
    /// `previews`.
    pub previews: PreviewSettings,
    /// `errors`.
    pub own_responses: error_response::Settings,
    /// `traffic_token`.
    pub traffic_token: TrafficTokenSettings,
    /// `upstream.cidrs`, `upstream.host_ports` and the proxy's own sockets.
    pub guard: Arc<AddressGuard>,
    /// `lifecycle.pause_wait`: the longest that changes of its state hold a request.
    pub pause_wait: Duration,
    /// `upstream`.
    pub upstream: UpstreamSettings,
    /// `limits`.
    pub limits: Limits,
    /// `tracing.otlp.sample_ratio`.
    pub trace_ratio: f64,
}

/// `routing.control_plane`: where requests to `hosts` go that name no sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPlaneSettings {
    /// Name or address to dial.
    pub host: String,
    /// Port to dial.
    pub port: u16,
    /// Hosts that are its own, in lower case, without port.
    pub hosts: Vec<String>,
    /// Spoken to over TLS, with `host` as server name, by whoever these authorities vouch for;
    /// `None`: plain.
    pub tls: Option<TlsTrust>,
}

cube_settings::choice! {
    /// What drives requests to plain HTTP/1.1 upstreams.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ExchangeChoice {
        /// This proxy's own exchange.
        Own = "own",
        /// Pingora.
        Pingora = "pingora",
    }
}

cube_settings::section! {
    /// The `traffic_token` section of config.md.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TrafficTokenSettings in "traffic_token" {
        /// Container ports where every request counts as authorised. Follows from the dialect.
        live exempt_ports: Auto<Vec<Port>> as Option<Vec<ContainerPort>> = Auto::new(Vec::new()),
    }
}

/// A container port, written as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "u16", into = "u16")]
struct ContainerPort(Port);

impl TryFrom<u16> for ContainerPort {
    type Error = &'static str;

    fn try_from(number: u16) -> Result<Self, Self::Error> {
        Port::new(number).map(Self).ok_or("0 is no port")
    }
}

impl From<ContainerPort> for u16 {
    fn from(port: ContainerPort) -> Self {
        port.0.get()
    }
}

impl Described for ContainerPort {
    fn words() -> String {
        u16::words()
    }
}

impl FileForm<Port> for ContainerPort {
    fn read(self) -> Port {
        self.0
    }

    fn write(value: &Port) -> Self {
        Self(*value)
    }
}

cube_settings::section! {
    /// How a sandbox is dialled (config.md, `upstream`).
    #[derive(Debug, Clone, PartialEq)]
    pub struct UpstreamSettings in "upstream" {
        /// For one connection to be made.
        live connect_timeout: Duration as NonZeroSpan = Duration::from_secs(3),
        /// For silence on an established request, each direction.
        live silence_timeout: Duration as NonZeroSpan = Duration::from_secs(7206),
        /// Idle connections kept.
        restart pool_size: usize as Count = 1500,
        /// How long an idle connection is kept for its generation.
        live pool_idle: Duration as Span = Duration::from_secs(80),
        /// What may be dialled; `None`: the guard of metadata.md.
        live cidrs: Option<Vec<IpNet>> as Option<Vec<Network>> = None,
        /// Host ports that may be dialled.
        live host_ports: RangeInclusive<u16> as PortRange = 1024..=65535,
        /// How long a refused connection is tried again; zero: not at all. Follows from the dialect.
        live port_open_wait: Auto<Duration> as Option<Span> = Auto::new(Duration::ZERO),
        /// What drives requests to plain HTTP/1.1 upstreams.
        restart exchange: ExchangeChoice = ExchangeChoice::Pingora,
    }
}

impl Settings {
    /// What of these concerns client connections.
    pub(crate) fn connections(&self) -> ConnectionSettings {
        ConnectionSettings {
            limits: self.limits.clone(),
            silence_timeout: self.upstream.silence_timeout,
            proxy_protocol: self.proxy_protocol.clone(),
        }
    }

    /// Whether `address` may be believed what it forwards.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        contains(&self.routing.trusted_proxies, address)
    }

    /// Whether a request to `host` that names no sandbox is the control plane's.
    pub(crate) fn is_control_plane(&self, host: &ClientHost<'_>) -> bool {
        let Some(control_plane) = &self.control_plane else { return false };
        control_plane.hosts.iter().any(|known| known.eq_ignore_ascii_case(host.name()))
    }

    /// Whether `address` may call the control routes of envd.
    pub(crate) fn allows_envd_control(&self, address: IpAddr) -> bool {
        self.routing.envd_control_from.as_ref().is_none_or(|nets| contains(nets, address))
    }
}

fn contains(nets: &[IpNet], address: IpAddr) -> bool {
    if nets.is_empty() {
        return false;
    }
    let address = address.to_canonical();
    nets.iter().any(|net| net.contains(&address))
}
