//! The configuration: one field a section of the file (config.md), each declared by the crate that it is
//! about. Here are the file as a whole and the sections that concern the process.
//!
//! As it is read nothing is judged that hangs on another key, a file or the machine; [`super::resolve`] does
//! that, and fills in what follows from them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use cube_edge::{Dialect, LogFormat as AccessLogFormat};
use cube_settings::{
    Address, Auto, FileForm, FilePath, ListenAddress, Network, NonZeroCount, NonZeroSpan, Secret, Span,
};
use ipnet::IpNet;

cube_settings::section! {
    /// The whole file.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Config in "" {
        /// This node's address; `None`: the local address of each accepted connection.
        restart node_ip: Option<IpAddr> as Option<Address> = None,
        /// Where to listen.
        section listen: Listen = Listen::default(),
        /// Certificates of the https listener.
        section tls: cube_edge::TlsSettings = cube_edge::TlsSettings::default(),
        /// Which requests name a sandbox, and whom to believe.
        section routing: cube_edge::RoutingSettings = cube_edge::RoutingSettings::default(),
        /// How error responses look.
        section errors: cube_edge::OwnResponseSettings = cube_edge::OwnResponseSettings::default(),
        /// Where records come from.
        section store: cube_metadata::StoreSettings = cube_metadata::StoreSettings::default(),
        /// How long records are kept.
        section cache: cube_resolver::Settings = cube_resolver::Settings::default(),
        /// The token of private sandboxes.
        section traffic_token: cube_edge::TrafficTokenSettings = cube_edge::TrafficTokenSettings::default(),
        /// Links that open private sandboxes in a browser.
        section previews: cube_edge::PreviewSettings = cube_edge::PreviewSettings::default(),
        /// Pause state and the gate.
        section lifecycle: cube_lifecycle::Settings = cube_lifecycle::Settings::default(),
        /// How paused sandboxes are woken.
        section resume: cube_lifecycle::ResumeSettings = cube_lifecycle::ResumeSettings::default(),
        /// Who may use the admin API.
        section admin: cube_edge::AdminSettings = cube_edge::AdminSettings::default(),
        /// How this replica announces itself.
        section registry: cube_lifecycle::RegistrySettings = cube_lifecycle::RegistrySettings::default(),
        /// When a node is not dialled.
        section breaker: cube_breaker::Settings = cube_breaker::Settings::default(),
        /// Connections to sandboxes.
        section upstream: cube_edge::UpstreamSettings = cube_edge::UpstreamSettings::default(),
        /// What a client may ask for.
        section limits: cube_edge::Limits = cube_edge::Limits::default(),
        /// How the process ends.
        section drain: Drain = Drain::default(),
        /// The cache of public responses.
        section response_cache: cube_edge::ResponseCacheSettings = cube_edge::ResponseCacheSettings::default(),
        /// The log of requests.
        section access_log: cube_edge::AccessLogSettings = cube_edge::AccessLogSettings::default(),
        /// Traces of requests.
        section tracing: cube_edge::TracingSettings = cube_edge::TracingSettings::default(),
        /// The log of the process.
        section log: Log = Log::default(),
        /// The process.
        section server: Server = Server::default(),
    }
    beside {
        /// What `routing.control_plane` means; `None`: there is none.
        control_plane: Option<cube_edge::ControlPlaneSettings> = None,
        /// What `tracing.otlp` means; `None`: no request is traced.
        otlp: Option<Otlp> = None,
    }
}

/// A collector of spans.
#[derive(Debug, Clone, PartialEq)]
pub struct Otlp {
    /// `http` or `https`, a host and a path.
    pub endpoint: http::Uri,
    /// By whom the certificate of an `https` endpoint must be signed.
    pub trust: cube_edge::TlsTrust,
    /// Sent with each export.
    pub headers: Vec<(http::HeaderName, Secret)>,
    /// `service.name`.
    pub service_name: String,
    /// `host.name`: the machine's.
    pub host_name: String,
}

cube_settings::section! {
    /// Where to listen (operations.md, Listeners).
    #[derive(Debug, Clone, PartialEq)]
    pub struct Listen in "listen" {
        /// Plain HTTP/1.1.
        restart http: Vec<SocketAddr> as Vec<ListenAddress> = vec![SocketAddr::from(([0, 0, 0, 0], 8081))],
        /// TLS with `h2` and `http/1.1`; empty when no certificate is configured.
        restart https: Vec<SocketAddr> as Vec<ListenAddress> = vec![SocketAddr::from(([0, 0, 0, 0], 8080))],
        /// Plaintext HTTP/2 with prior knowledge.
        restart grpc: Vec<SocketAddr> as Vec<ListenAddress> = Vec::new(),
        /// The admin API; `None`: off.
        restart admin: Option<SocketAddr> as Option<ListenAddress> =
            Some(SocketAddr::from(([127, 0, 0, 1], 8082))),
        /// `GET /metrics`, `/healthz`, `/readyz`; `None`: off.
        restart metrics: Option<SocketAddr> as Option<ListenAddress> =
            Some(SocketAddr::from(([127, 0, 0, 1], 9101))),
        /// `/healthz` and `/readyz` alone; `None`: off.
        restart health: Option<SocketAddr> as Option<ListenAddress> = None,
        /// Peers whose connections to http, https and grpc begin with a PROXY protocol header.
        live proxy_protocol: Vec<IpNet> as Vec<Network> = Vec::new(),
    }
}

impl Listen {
    /// Every address with the option that names it (`listen.http`), in the order of the file.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> + '_ {
        let data = [("listen.http", &self.http), ("listen.https", &self.https), ("listen.grpc", &self.grpc)];
        let own =
            [("listen.admin", self.admin), ("listen.metrics", self.metrics), ("listen.health", self.health)];
        data.into_iter()
            .flat_map(|(option, list)| list.iter().map(move |address| (option, *address)))
            .chain(own.into_iter().filter_map(|(option, address)| Some((option, address?))))
    }
}

cube_settings::section! {
    /// How the process ends (connections.md, Draining).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Drain in "drain" {
        /// How long it still takes requests after readiness is gone.
        live delay: Duration as Span = Duration::from_secs(5),
        /// For streams of the old process after a hot restart.
        live timeout: Duration as Span = Duration::from_secs(3600),
        /// For streams after SIGTERM.
        live stop_timeout: Duration as Span = Duration::from_secs(300),
        /// How long a successor may take to get ready.
        live upgrade_timeout: Duration as NonZeroSpan = Duration::from_secs(60),
    }
}

cube_settings::choice! {
    /// How lines of the process's log look.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

cube_settings::choice! {
    /// How the file writes what is logged.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogLevel {
        /// Errors alone.
        Error = "error",
        /// And warnings.
        Warn = "warn",
        /// And what happens.
        Info = "info",
        /// And how.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

impl LogLevel {
    const ALL: [(Self, tracing::Level); 5] = [
        (Self::Error, tracing::Level::ERROR),
        (Self::Warn, tracing::Level::WARN),
        (Self::Info, tracing::Level::INFO),
        (Self::Debug, tracing::Level::DEBUG),
        (Self::Trace, tracing::Level::TRACE),
    ];
}

impl FileForm<tracing::Level> for LogLevel {
    fn read(self) -> tracing::Level {
        Self::ALL.iter().find(|(own, _)| *own == self).map_or(tracing::Level::INFO, |(_, level)| *level)
    }

    fn write(value: &tracing::Level) -> Self {
        Self::ALL.iter().find(|(_, level)| level == value).map_or(Self::Info, |(own, _)| *own)
    }
}

cube_settings::section! {
    /// The log of the process, on standard error.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Log in "log" {
        /// What is written.
        live level: tracing::Level as LogLevel = tracing::Level::INFO,
        /// How a line looks.
        restart format: LogFormat = LogFormat::Text,
    }
}

cube_settings::section! {
    /// The process.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Server in "server" {
        /// Worker threads for requests. Follows from the CPU quota.
        restart threads: Auto<usize> as Option<NonZeroCount> = Auto::new(0),
        /// For the pid file and the upgrade socket; `None`: see [`crate::run_dir`].
        restart run_dir: Option<PathBuf> as Option<FilePath> = None,
        /// Whether the process may leave a core dump, and its user's other processes may look into it.
        restart core_dumps: bool = false,
    }
}
