//! The configuration as the edge wants it.

use std::net::SocketAddr;
use std::sync::Arc;

use cube_edge::{AccessLogSettings, Settings};
use cube_resolver::AddressGuard;
use http::HeaderValue;

use crate::config::Config;
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
        routing: config.routing.clone(),
        control_plane: config.control_plane.clone(),
        previews: config.previews.clone().settle(config.preview_base()),
        own_responses: config.errors,
        traffic_token: config.traffic_token.clone(),
        guard: Arc::new(AddressGuard::new(
            upstream.cidrs.clone(),
            upstream.host_ports.clone(),
            own_sockets(config),
        )),
        pause_wait: config.lifecycle.pause_wait,
        upstream: upstream.clone(),
        limits: config.limits.clone(),
        trace_ratio: config.tracing.otlp.sample_ratio,
    })
}

/// `access_log`, where one is written.
pub(super) fn access_log(config: &Config) -> Option<AccessLogSettings> {
    config.access_log.path.is_some().then(|| config.access_log.clone())
}

/// `tracing.otlp`, where requests are traced.
pub(super) fn traces(config: &Config) -> Option<cube_otlp::Settings> {
    let otlp = config.otlp.as_ref()?;
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
