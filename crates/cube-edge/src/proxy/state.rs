//! What all requests share: the state that hooks, phases and the admin API work on. Data alone; what is
//! done with it stands beside the phase that does it.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use cube_breaker::Breaker;
use cube_lifecycle::Lifecycle;
use cube_metadata::MetadataStore;
use cube_otlp::Exporter;
use cube_resolver::Resolver;
use cube_settings::Secret;
use http::HeaderValue;

use crate::access_log::AccessLog;
use crate::admin::AdminForwarding;
use crate::drain::Drain;
use crate::limits::active_requests::ActiveRequests;
use crate::limits::descriptors::Descriptors;
use crate::limits::rate_limit::RateLimit;
use crate::metrics::EdgeMetrics;
use crate::processes::Processes;
use crate::proxy::control_plane::ControlPlane;
use crate::response_cache::ResponseCache;
use crate::settings::Settings;

/// Everything that requests share.
pub(crate) struct ProxyState {
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) active_requests: Arc<ActiveRequests>,
    pub(crate) control_plane: ControlPlane,
    pub(crate) response_cache: Option<Arc<ResponseCache>>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(crate) forwarding: Arc<AdminForwarding>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) metrics: Arc<EdgeMetrics>,
    pub(crate) access_log: Option<AccessLog>,
    /// Where the spans of traced requests go; `None`: none is traced.
    pub(crate) traces: Option<Exporter>,
    pub(crate) rate: RateLimit,
    pub(crate) admin_token: ArcSwapOption<Secret>,
}

impl ProxyState {
    /// Whether a request with this Host may be for `routing.control_plane`.
    pub(crate) fn names_control_plane(&self, host: &[u8]) -> bool {
        let settings = self.settings.load();
        let Some(control_plane) = &settings.control_plane else { return false };
        let name = host.split(|byte| *byte == b':').next().unwrap_or_default();
        let name = name.strip_suffix(b".").unwrap_or(name);
        control_plane
            .hosts
            .iter()
            .any(|known| known.trim_end_matches('.').as_bytes().eq_ignore_ascii_case(name))
    }
}

/// A header value of ours as text; they are all ASCII.
pub(crate) fn header_text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
}
