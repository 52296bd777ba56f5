//! See Cargo.toml.

mod access_log;
mod answer;
mod error;
mod metrics;
mod reason;
mod retcode;

pub use access_log::{AccessLog, Entry, Format as LogFormat, Settings as AccessLogSettings, UpstreamTry};
pub use answer::{Asker, Dialect, Fault, OwnAnswer, Settings as AnswerSettings, is_preflight, render};
pub use error::EdgeError;
pub use metrics::{
    ConnectOutcome, ConnectionLimit, Direction, EdgeMetrics, Finished, FormClass, GaugeGuard, ListenerClass,
    MethodClass, ProtocolClass, RouteClass, TlsOutcome,
};
pub use reason::Reason;
pub use retcode::Retcode;
