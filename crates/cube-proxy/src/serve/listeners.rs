//! The listeners that the configuration names: taken over from a predecessor, or bound.

use std::net::SocketAddr;
use std::sync::Arc;

use cube_edge::{AdminApp, Certificates, Gateway, Listener, ListenerProtocol, MetricsApp, Readiness};

use super::internal_listeners::InternalListener;
use super::not_assembled;
use crate::config::Config;
use crate::error::StartError;
use crate::hot_restart::{Inherited, ListenerHandle};

/// The certificates of the https listener, where it is open.
pub(super) fn certificates(
    config: &Config,
    gateway: &Gateway,
) -> Result<Option<Arc<Certificates>>, StartError> {
    let files = &config.tls.certificates;
    (!files.is_empty())
        .then(|| gateway.certificates(files).map(Arc::new))
        .transpose()
        .map_err(|error| StartError::Assembly(format!("tls.certificates: {error}")))
}

/// The data listeners; what a successor needs of each goes into `handles`.
pub(super) fn bind_data(
    config: &Config,
    certificates: Option<Arc<Certificates>>,
    inherited: &mut Inherited,
    handles: &mut Vec<ListenerHandle>,
) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    let mut open = |addresses: &[SocketAddr], speaks, certificates: Option<Arc<Certificates>>| {
        for address in addresses {
            let listener = match inherited.take(*address) {
                Some(socket) => Listener::adopt(socket, *address, speaks, certificates.clone()),
                None => Listener::bind(*address, speaks, certificates.clone()),
            };
            let listener = listener.map_err(not_assembled)?;
            let handle = listener.handle().map_err(not_assembled)?;
            handles.push(ListenerHandle::new(&format!("listen.{}", speaks.name()), *address, handle));
            listeners.push(listener);
        }
        Ok::<_, StartError>(())
    };
    open(&config.listen.http, ListenerProtocol::Http, None)?;
    open(&config.listen.grpc, ListenerProtocol::Grpc, None)?;
    if certificates.is_some() {
        open(&config.listen.https, ListenerProtocol::Https, certificates)?;
    }
    Ok(listeners)
}

/// The listeners for admin, metrics and health; as [`bind_data`].
pub(super) fn bind_plain(
    config: &Config,
    gateway: &Arc<Gateway>,
    readiness: &Arc<Readiness>,
    inherited: &mut Inherited,
    handles: &mut Vec<ListenerHandle>,
) -> Result<Vec<InternalListener>, StartError> {
    let listen = &config.listen;
    let mut listeners = Vec::new();
    let mut add = |option, address, (listener, handle)| {
        listeners.push(listener);
        handles.push(ListenerHandle::new(option, address, handle));
    };
    if let Some(address) = listen.admin {
        let token = config.admin.token().cloned();
        let app = AdminApp::new(gateway.admin_api(readiness.clone(), token));
        let socket = inherited.take(address);
        add(
            "listen.admin",
            address,
            InternalListener::bind("listen.admin", address, socket, app, gateway.clone())?,
        );
    }
    if let Some(address) = listen.metrics {
        let app = gateway.metrics_app(readiness.clone());
        let socket = inherited.take(address);
        add(
            "listen.metrics",
            address,
            InternalListener::bind("listen.metrics", address, socket, app, gateway.clone())?,
        );
    }
    if let Some(address) = listen.health {
        let app = MetricsApp::health_only(readiness.clone());
        let socket = inherited.take(address);
        add(
            "listen.health",
            address,
            InternalListener::bind("listen.health", address, socket, app, gateway.clone())?,
        );
    }
    Ok(listeners)
}
