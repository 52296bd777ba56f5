//! The configuration as the proxy uses it: checked, with every default filled in, secrets read.
//!
//! One struct a section of the file (config.md). A field whose default depends on the dialect or
//! on the machine has its value here, never "null".

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use cube_edge::{CertificateFiles, ResponseCacheSettings, UpstreamSettings};
pub use cube_edge::{Dialect, LogFormat as AccessLogFormat};
use cube_route::preview::{LinkBase, LoginUrl};
use cube_settings::{NonZeroSpan, Secret, Span};
use ipnet::IpNet;

/// A configuration that holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// This node's address; `None`: the local address of each accepted connection.
    pub node_ip: Option<IpAddr>,
    /// Where to listen.
    pub listen: Listen,
    /// Certificates of the https listener.
    pub tls: Tls,
    /// Which requests name a sandbox, and whom to believe.
    pub routing: Routing,
    /// How error responses look.
    pub errors: Errors,
    /// Where records come from.
    pub store: Store,
    /// How long records are kept.
    pub cache: cube_resolver::Settings,
    /// The token of private sandboxes.
    pub traffic_token: TrafficTokenRules,
    /// Links that open private sandboxes in a browser.
    pub previews: Previews,
    /// Pause state and the gate.
    pub lifecycle: cube_lifecycle::Settings,
    /// How paused sandboxes are woken; `None`: they are not.
    pub resume: Option<Resume>,
    /// Who may use the admin API.
    pub admin: Admin,
    /// How this replica announces itself; `None`: it does not.
    pub registry: Option<Registry>,
    /// When a node is not dialled.
    pub breaker: cube_breaker::Settings,
    /// Connections to sandboxes.
    pub upstream: UpstreamSettings,
    /// What a client may ask for.
    pub limits: cube_edge::Limits,
    /// How the process ends.
    pub drain: Drain,
    /// The cache of public responses.
    pub response_cache: ResponseCacheSettings,
    /// The log of requests.
    pub access_log: AccessLog,
    /// Traces of requests.
    pub tracing: Tracing,
    /// The log of the process.
    pub log: Log,
    /// The process.
    pub server: Server,
}

/// Where to listen (operations.md, Listeners).
#[derive(Debug, Clone, PartialEq)]
pub struct Listen {
    /// Plain HTTP/1.1.
    pub http: Vec<SocketAddr>,
    /// TLS with `h2` and `http/1.1`; empty when no certificate is configured.
    pub https: Vec<SocketAddr>,
    /// Plaintext HTTP/2 with prior knowledge.
    pub grpc: Vec<SocketAddr>,
    /// The admin API; `None`: off.
    pub admin: Option<SocketAddr>,
    /// `GET /metrics`, `/healthz`, `/readyz`; `None`: off.
    pub metrics: Option<SocketAddr>,
    /// `/healthz` and `/readyz` alone; `None`: off.
    pub health: Option<SocketAddr>,
    /// Peers whose connections to http, https and grpc begin with a PROXY protocol header.
    pub proxy_protocol: Vec<IpNet>,
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

/// Certificates of the https listener. Each pair was read once and fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Tls {
    /// The first is the default, for clients that name no or an unknown host.
    pub certificates: Vec<CertificateFiles>,
    /// How often the files are looked at for a change.
    pub reload_interval: Duration,
}

/// Which requests name a sandbox, and whom to believe (routing.md).
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Base domains accepted in hosts, in lower case without a trailing dot; empty: any.
    pub domains: Vec<String>,
    /// Peers whose X-Forwarded-For and -Proto are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether traffic tokens and `E2b-Sandbox-*` reach the sandbox.
    pub forward_credentials: bool,
    /// Where requests go that name no sandbox; `None`: they are a 400.
    pub control_plane: Option<ControlPlane>,
    /// Peers that may call envd's control routes; `None`: everyone, empty: nobody.
    pub envd_control_from: Option<Vec<IpNet>>,
}

/// The API behind the same address as its sandboxes (routing.md).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPlane {
    /// Host of the URL: a name or an address (IPv6 without brackets).
    pub host: String,
    /// Port of the URL; 80, or 443 with `https`, where it names none.
    pub port: u16,
    /// Hosts (no port, lower case) whose requests go there.
    pub hosts: Vec<String>,
    /// `https`: by whom its certificate must be signed; `None`: plain `http`.
    pub tls: Option<cube_edge::TlsTrust>,
}

/// How error responses look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errors {
    /// One for the process; not live.
    pub dialect: Dialect,
    /// Whether a refused token answers as an unknown sandbox does.
    pub mask_existence: bool,
}

/// Where records come from (metadata.md).
#[derive(Debug, Clone, PartialEq)]
pub enum Store {
    /// Redis.
    Redis(RedisStore),
    /// The embedded store: a YAML file, watched.
    File(PathBuf),
}

/// How Redis is reached.
#[derive(Debug, Clone, PartialEq)]
pub struct RedisStore {
    /// `redis`, `rediss`, `redis-sentinel`, `rediss-sentinel`, `redis-cluster`, `rediss-cluster`.
    pub url: Secret,
    /// Wins over the URL's.
    pub username: Option<String>,
    /// Wins over the URL's.
    pub password: Option<Secret>,
    /// Of the Sentinels themselves; no fall-back to the master's.
    pub sentinel_password: Option<Secret>,
    /// Certificates to trust instead of the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// In the order they are looked at; none is a prefix of another.
    pub key_prefixes: Vec<String>,
    /// For one command.
    pub command_timeout: Duration,
    /// Whether to ask for invalidations.
    pub tracking: bool,
}

/// The token of private sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficTokenRules {
    /// Container ports where every request counts as authorised.
    pub exempt_ports: Vec<u16>,
}

/// Links that open private sandboxes in a browser (previews.md).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previews {
    /// Whether tickets are taken.
    pub enabled: bool,
    /// How long a ticket may live, and is told to have expired.
    pub max_ttl: Duration,
    /// Whether a navigation with a ticket gets a cookie.
    pub cookie: bool,
    /// Whether it does in the path form too, where all sandboxes share one origin.
    pub path_cookie: bool,
    /// Where links lead; `None`: see [`Config::preview_base`].
    pub base_url: Option<LinkBase>,
    /// Where a browser is sent that may not enter; `None`: nowhere.
    pub login_url: Option<LoginUrl>,
    /// Origins that may frame what a cookie lets in.
    pub frame_ancestors: Vec<String>,
    /// Origins that may send cookies across sites.
    pub allowed_origins: Vec<String>,
}

/// How paused sandboxes are woken (lifecycle.md, Resume).
#[derive(Debug, Clone, PartialEq)]
pub struct Resume {
    /// `http://host:port[/base]`, without a trailing slash.
    pub url: http::Uri,
    /// For one resume.
    pub timeout: Duration,
    /// Resumes under way at once.
    pub max_concurrent: usize,
    /// Bearer token for the manager.
    pub token: Option<Secret>,
}

/// Who may use the admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// `None`: loopback peers only.
    pub token: Option<Secret>,
}

/// How this replica announces itself (lifecycle.md, Registry).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// Name of this replica; the host name by default.
    pub proxy_id: String,
    /// Where the manager reaches the admin API.
    pub admin_url: Option<String>,
    /// Where this replica asks for resumes.
    pub resume_url: Option<String>,
    /// Between two heartbeats.
    pub interval: Duration,
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

/// Where access log lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// Standard output.
    Stdout,
    /// Appended to this file, reopened on SIGUSR1.
    File(PathBuf),
}

/// The log of requests (operations.md, Access log).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// `None`: no access log.
    pub target: Option<AccessLogTarget>,
    /// How a line looks.
    pub format: AccessLogFormat,
    /// Query keys whose values are not written, in lower case.
    pub redact_query: Vec<String>,
}

/// Traces of requests (fleet.md, Tracing).
#[derive(Debug, Clone, PartialEq)]
pub struct Tracing {
    /// Where spans go; `None`: no request is traced.
    pub otlp: Option<Otlp>,
    /// The share of requests that is traced where no trusted peer has decided, from 0 to 1.
    pub sample_ratio: f64,
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

/// The log of the process, on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// What is written.
    pub level: tracing::Level,
    /// How a line looks.
    pub format: LogFormat,
}

/// The process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Worker threads for requests; the CPU quota by default.
    pub threads: usize,
    /// For the pid file and the upgrade socket; `None`: see [`crate::run_dir`].
    pub run_dir: Option<PathBuf>,
    /// Whether the process may leave a core dump, and its user's other processes may look into it.
    pub core_dumps: bool,
}
