//! What an exporter is told.

use http::{HeaderName, HeaderValue, Uri};
use rustls::RootCertStore;

/// Where spans go, and in whose name.
#[derive(Debug)]
pub struct Settings {
    /// `http` or `https`, a host, and a path before `/v1/traces`.
    pub endpoint: Uri,
    /// Who may sign the certificate of an `https` endpoint.
    pub authorities: RootCertStore,
    /// Sent with each export; the values are secrets and marked as such.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// `service.name` of what is exported.
    pub service_name: String,
    /// `service.version`.
    pub service_version: &'static str,
    /// `host.name`.
    pub host_name: String,
}
