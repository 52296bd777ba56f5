//! The file as it is written: names, order and defaults of config.md, nothing judged yet.

use cube_edge::{Dialect, LogFormat as AccessLogFormat, ResponseCacheSettings, UpstreamSettings};
use cube_settings::{Secret, Span};
use serde::{Deserialize, Serialize};

#[cfg(test)]
use super::shape::{Shape, Shaped};
use super::types::{Drain, LogFormat};

/// Declares one section: its fields with their types and defaults.
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($field:ident : $kind:ty = $default:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct $name { $(pub(super) $field: $kind),* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }

        #[cfg(test)]
        impl Shaped for $name {
            fn shape() -> Shape {
                Shape::Section(vec![$((stringify!($field), <$kind as Shaped>::shape())),*])
            }
        }
    };
}

/// Declares the words that a key may say.
macro_rules! choice {
    ($name:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
        pub(super) enum $name {
            $(#[serde(rename = $word)] $variant),*
        }

        #[cfg(test)]
        impl Shaped for $name {
            fn shape() -> Shape {
                Shape::Value(vec![$(concat!("`", $word, "`")),*].join(", "))
            }
        }
    };
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

section!(
    /// The whole file.
    File {
        node_ip: Option<String> = None,
        listen: Listen = Listen::default(),
        tls: Tls = Tls::default(),
        routing: Routing = Routing::default(),
        errors: Errors = Errors::default(),
        store: Store = Store::default(),
        cache: cube_resolver::Settings = cube_resolver::Settings::default(),
        traffic_token: TrafficToken = TrafficToken::default(),
        previews: Previews = Previews::default(),
        lifecycle: cube_lifecycle::Settings = cube_lifecycle::Settings::default(),
        resume: Resume = Resume::default(),
        admin: Admin = Admin::default(),
        registry: Registry = Registry::default(),
        breaker: cube_breaker::Settings = cube_breaker::Settings::default(),
        upstream: UpstreamSettings = UpstreamSettings::default(),
        limits: cube_edge::Limits = cube_edge::Limits::default(),
        drain: Drain = Drain::default(),
        response_cache: ResponseCacheSettings = ResponseCacheSettings::default(),
        access_log: AccessLog = AccessLog::default(),
        tracing: Tracing = Tracing::default(),
        log: Log = Log::default(),
        server: Server = Server::default(),
    }
);

section!(Listen {
    http: Vec<String> = texts(&["0.0.0.0:8081"]),
    https: Vec<String> = texts(&["0.0.0.0:8080"]),
    grpc: Vec<String> = Vec::new(),
    admin: Option<String> = Some("127.0.0.1:8082".to_owned()),
    metrics: Option<String> = Some("127.0.0.1:9101".to_owned()),
    health: Option<String> = None,
    proxy_protocol: Vec<String> = Vec::new(),
});

section!(Tls {
    certificates: Vec<Certificate> = Vec::new(),
    reload_interval: Span = Span::secs(10),
});

/// One pair of PEM files. Both must be named: there is no default to fall back to.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Certificate {
    pub(super) cert: String,
    pub(super) key: String,
}

section!(Routing {
    domains: Vec<String> = Vec::new(),
    trusted_proxies: Vec<String> = Vec::new(),
    forward_credentials: bool = false,
    control_plane: ControlPlane = ControlPlane::default(),
    envd_control_from: Option<Vec<String>> = None,
});

section!(ControlPlane {
    url: Option<String> = None,
    ca_file: Option<String> = None,
    hosts: Vec<String> = Vec::new(),
});

section!(Errors {
    dialect: Dialect = Dialect::Cube,
    mask_existence: Option<bool> = None,
});

section!(Store {
    kind: StoreKind = StoreKind::Redis,
    file: Option<String> = None,
    redis: Redis = Redis::default(),
});

choice!(StoreKind { Redis = "redis", File = "file" });

section!(Redis {
    url: Secret = Secret::new("redis://127.0.0.1:6379/0"),
    username: Option<String> = None,
    password: Option<Secret> = None,
    password_file: Option<String> = None,
    sentinel_password: Option<Secret> = None,
    sentinel_password_file: Option<String> = None,
    ca_file: Option<String> = None,
    key_prefixes: Vec<String> =
        texts(&["cube:v1:shared:sandbox:proxy:", "sandbox:proxy:", "bypass_host_proxy:"]),
    command_timeout: Span = Span::secs(1),
    tracking: bool = true,
});

section!(TrafficToken {
    exempt_ports: Option<Vec<u16>> = None,
});

section!(Previews {
    enabled: bool = true,
    max_ttl: Span = Span::secs(86_400),
    cookie: bool = true,
    path_cookie: bool = false,
    base_url: Option<String> = None,
    login_url: Option<String> = None,
    frame_ancestors: Vec<String> = Vec::new(),
    allowed_origins: Vec<String> = Vec::new(),
});

section!(Resume {
    url: Option<String> = None,
    timeout: Span = Span::secs(30),
    max_concurrent: u32 = 256,
    token_file: Option<String> = None,
});

section!(Admin {
    token: Option<Secret> = None,
    token_file: Option<String> = None,
});

section!(Registry {
    enabled: bool = false,
    proxy_id: Option<String> = None,
    admin_url: Option<String> = None,
    resume_url: Option<String> = None,
    interval: Span = Span::secs(5),
});

section!(AccessLog {
    path: Option<String> = None,
    format: AccessLogFormat = AccessLogFormat::Cube,
    redact_query: Vec<String> = texts(&[
        "token",
        "access_token",
        "signature",
        "sig",
        "key",
        "secret",
        "password",
        "auth",
        "x-amz-signature",
    ]),
});

section!(Tracing { otlp: Otlp = Otlp::default() });

section!(Otlp {
    endpoint: Option<String> = None,
    ca_file: Option<String> = None,
    headers: Vec<HeaderFile> = Vec::new(),
    sample_ratio: f64 = 0.01,
    service_name: String = "cube-proxy".to_owned(),
});

/// A header whose value is a secret in a file.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderFile {
    pub(super) name: String,
    pub(super) file: String,
}

section!(Log { level: LogLevel = LogLevel::Info, format: LogFormat = LogFormat::Text });

choice!(LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" });

section!(Server {
    threads: Option<u32> = None,
    run_dir: Option<String> = None,
    core_dumps: bool = false,
});
