//! See Cargo.toml.

mod access_log;
mod admin;
mod admit;
mod answer;
mod back;
mod bare_path;
mod busy;
mod context;
mod control_plane;
mod descriptors;
mod drain;
mod driver;
mod edge;
mod error;
mod failure;
mod finish;
mod forward;
mod gateway;
mod judge;
mod live;
mod media_type;
mod metrics;
mod peer;
mod pool_key;
mod processes;
mod rate;
mod reason;
mod reconfigure;
mod request_id;
mod response_cache;
mod retcode;
mod retry;
mod settings;
mod trust;
mod upgrade;

pub use access_log::{
    AccessLog, Entry, Format as LogFormat, Settings as AccessLogSettings, UpstreamTry, escape_controls,
};
pub use admin::{
    AdminApi, AdminApp, Desk, Errand, MetricsApp, OperatorApp, Push, Question, QuestionError, Readiness,
    UnderWay, Word, read_head,
};
pub use answer::{Asker, Dialect, Fault, OwnAnswer, Settings as AnswerSettings, is_preflight, render};
pub use drain::{Drain, Stage};
pub use driver::{
    BindError, Certificate, CertificateError, CertificateFiles, Certificates, ConnectionLimits, Driver,
    Listener, NewCertificates, Speaks, Standing, listen_plain,
};
pub use edge::Edge;
pub use error::EdgeError;
pub use gateway::{Gateway, Parts};
pub use metrics::{
    ConnectOutcome, ConnectionLimit, Direction, EdgeMetrics, Finished, FormClass, GaugeGuard, ListenerClass,
    MethodClass, ProtocolClass, RouteClass, TlsOutcome,
};
pub use processes::{Counted, CountedProcess, Ledger, LinkedProcess, ProcessStanding, Processes};
pub use reason::Reason;
pub use reconfigure::Reconfiguration;
pub use response_cache::Settings as ResponseCacheSettings;
pub use retcode::Retcode;
pub use settings::{ControlPlaneSettings, RequestLimits, RequestRate, Settings, UpstreamSettings};
pub use trust::Trust;
