//! Why a part of the edge cannot be built.

use std::io;

/// What goes wrong while the edge is put together. Nothing on the request path returns it.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// A metric is registered twice, or its description does not hold.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The access log cannot be opened.
    #[error("access log {path}: {source}")]
    AccessLog {
        /// `access_log.path`.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The route cache cannot be made.
    #[error(transparent)]
    Resolver(#[from] cube_resolver::ResolverError),
    /// The response cache cannot be made.
    #[error("response cache: {0}")]
    ResponseCache(String),
    /// The lifecycle cannot be made.
    #[error(transparent)]
    Lifecycle(#[from] cube_lifecycle::LifecycleError),
    /// Traces cannot be exported.
    #[error(transparent)]
    Traces(#[from] cube_otlp::OtlpError),
    /// The breaker cannot be made.
    #[error(transparent)]
    Breaker(#[from] cube_breaker::BreakerError),
}
