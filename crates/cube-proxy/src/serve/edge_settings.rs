//! The configuration as the edge wants it.

use std::net::SocketAddr;
use std::sync::Arc;

use cube_edge::{AccessLogSettings, ControlPlaneSettings, OwnResponseSettings, PreviewSettings, Settings};
use cube_resolver::AddressGuard;
use cube_route::Port;
use http::HeaderValue;

use crate::config::{AccessLogTarget, Config};
use crate::error::StartError;

/// The settings of the request path.
///
/// # Errors
/// [`StartError`] when `routing.domains` does not hold.
pub(super) fn of(config: &Config) -> Result<Settings, StartError> {
    let upstream = &config.upstream;
    Ok(Settings {
        node_ip: config.node_ip,
        listens: [&config.listen.http, &config.listen.https, &config.listen.grpc]
            .into_iter()
            .flatten()
            .copied()
            .collect(),
        proxy_protocol: config.listen.proxy_protocol.clone(),
        rules: config.rules().map_err(|error| StartError::Assembly(format!("routing.domains: {error}")))?,
        trusted_proxies: config.routing.trusted_proxies.clone(),
        forward_credentials: config.routing.forward_credentials,
        envd_control_from: config.routing.envd_control_from.clone(),
        control_plane: config.routing.control_plane.as_ref().map(|control_plane| ControlPlaneSettings {
            host: control_plane.host.clone(),
            port: control_plane.port,
            hosts: control_plane.hosts.clone(),
            tls: control_plane.tls.clone(),
        }),
        previews: previews(config),
        own_responses: OwnResponseSettings {
            dialect: config.errors.dialect,
            mask_existence: config.errors.mask_existence,
        },
        exempt_ports: config.traffic_token.exempt_ports.iter().filter_map(|port| Port::new(*port)).collect(),
        guard: Arc::new(AddressGuard::new(
            upstream.cidrs.clone(),
            upstream.host_ports.clone(),
            own_sockets(config),
        )),
        pause_wait: config.lifecycle.pause_wait,
        upstream: upstream.clone(),
        limits: config.limits.clone(),
        trace_ratio: config.tracing.sample_ratio,
    })
}

/// `previews`.
fn previews(config: &Config) -> PreviewSettings {
    let previews = &config.previews;
    let mut settings = PreviewSettings::with_frame_ancestors(&previews.frame_ancestors);
    settings.enabled = previews.enabled;
    settings.max_ttl = previews.max_ttl;
    settings.cookie = previews.cookie;
    settings.path_cookie = previews.path_cookie;
    settings.base_url = config.preview_base();
    settings.login_url = previews.login_url.clone();
    settings.allowed_origins.clone_from(&previews.allowed_origins);
    settings
}

/// `access_log`, where one is written.
pub(super) fn access_log(config: &Config) -> Option<AccessLogSettings> {
    let log = &config.access_log;
    let path = match log.target.as_ref()? {
        AccessLogTarget::Stdout => "-".to_owned(),
        AccessLogTarget::File(path) => path.to_string_lossy().into_owned(),
    };
    Some(AccessLogSettings { path, format: log.format, redact_query: log.redact_query.clone() })
}

/// `tracing.otlp`, where requests are traced.
pub(super) fn traces(config: &Config) -> Option<cube_otlp::Settings> {
    let otlp = config.tracing.otlp.as_ref()?;
    let headers = otlp.headers.iter().filter_map(|(name, secret)| {
        let mut value = HeaderValue::from_bytes(secret.expose()).ok()?;
        value.set_sensitive(true);
        Some((name.clone(), value))
    });
    Some(cube_otlp::Settings {
        endpoint: otlp.endpoint.clone(),
        authorities: otlp.trust.roots(),
        headers: headers.collect(),
        service_name: otlp.service_name.clone(),
        service_version: env!("CARGO_PKG_VERSION"),
        host_name: otlp.host_name.clone(),
    })
}

/// Where this process listens, which a record must not point at.
fn own_sockets(config: &Config) -> Vec<SocketAddr> {
    config.listen.all().map(|(_, address)| address).collect()
}
