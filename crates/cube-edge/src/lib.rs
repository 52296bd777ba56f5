//! The data path: the connection driver, what becomes of a request from its head to its log line, the proxy's
//! own responses, metrics and the admin API. Which file holds what is in docs/architecture.md.

mod access_log;
mod admin;
mod connection;
mod decision;
mod drain;
mod error;
mod error_response;
mod exchange;
#[cfg(any(test, cube_fuzz))]
pub mod fuzz;
mod gateway;
mod limits;
mod metrics;
mod preview;
mod processes;
mod proxy;
mod reconfigure;
mod response_cache;
mod retcode;
mod routing_settings;
mod settings;
mod tls_trust;
mod trace;

pub use access_log::{
    AccessLog, Format as LogFormat, LineValues, LogEntry, Settings as AccessLogSettings, Texts, UpstreamTry,
    escape_controls,
};
pub use admin::{
    AdminApi, AdminApp, AdminForwarding, AdminSettings, DrainerCommand, ForwardedRequest, MetricsApp,
    OperatorApp, PendingRequest, Push, Readiness, admin_routes, read_head,
};
pub use connection::{
    BindError, Certificate, CertificateError, CertificateExpiry, CertificateFiles, Certificates,
    ConnectionSettings, Driver, Listener, ListenerProtocol, NewCertificates, TlsSettings, listen_plain,
};
pub use decision::{ExplainQuery, ExplainQueryError};
pub use drain::{Drain, Stage};
pub use error::EdgeError;
pub use error_response::{
    Dialect, OwnResponse, ProxyError, Reason, ResponseFormat, Settings as OwnResponseSettings, is_preflight,
    render,
};
pub use gateway::{Gateway, GatewayParts};
pub use limits::settings::{Limits, RequestRate};
pub use metrics::{
    ConnectOutcome, ConnectionLimit, Direction, EdgeMetrics, Finished, FormClass, GaugeGuard, ListenerClass,
    MethodClass, ProtocolClass, RouteClass, SimpleMetrics, TlsOutcome,
};
pub use preview::{PreviewResult, PreviewSettings};
pub use processes::{Counted, CountedProcess, Ledger, LinkedProcess, ProcessStanding, Processes};
pub use proxy::hooks::SandboxProxy;
pub use reconfigure::Reconfiguration;
pub use response_cache::Settings as ResponseCacheSettings;
pub use retcode::Retcode;
pub use routing_settings::{ControlPlaneKeys, RoutingSettings};
pub use settings::{ControlPlaneSettings, ExchangeChoice, Settings, TrafficTokenSettings, UpstreamSettings};
pub use tls_trust::{TlsTrust, TrustFile};
pub use trace::{HeaderFile, OtlpKeys, TracingSettings};
