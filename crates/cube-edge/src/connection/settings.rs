//! How much of a connection a client may use.

use std::time::Duration;

use crate::limits::settings::Limits;

/// The settings of client connections.
#[derive(Debug, Clone)]
pub struct ConnectionSettings {
    /// `limits`.
    pub limits: Limits,
    /// How long a client may take nothing of a response that is left to be written
    /// (`upstream.silence_timeout`).
    pub silence_timeout: Duration,
}
