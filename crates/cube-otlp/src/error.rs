//! Why spans cannot be exported at all.

use std::io;

/// Why an exporter cannot be made. Nothing on the request path returns it.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint names nobody to connect to.
    #[error("tracing.otlp.endpoint: {0}")]
    Endpoint(&'static str),
    /// TLS cannot be set up.
    #[error("tracing.otlp: {0}")]
    Tls(#[from] rustls::Error),
    /// Its thread cannot be started.
    #[error("tracing.otlp: cannot start a thread: {0}")]
    Start(#[from] io::Error),
}
