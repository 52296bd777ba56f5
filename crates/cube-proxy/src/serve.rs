//! The running server: everything the configuration asks for, put together, served, drained.

mod edge_settings;
mod plain;
mod reload;
mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cube_edge::{
    AccessLogSettings, AdminApi, AdminApp, Certificates, Gateway, Listener, MetricsApp, Parts, Readiness,
    Speaks, Stage,
};
use cube_metadata::MetadataStore;
use prometheus::Registry;
use tokio::runtime::Runtime;

use crate::config::Config;
use crate::error::StartError;
use plain::PlainListener;
use reload::Reload;

/// How long the end of the process waits for what hangs.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// What the command line says about how to serve.
#[derive(Default)]
pub struct ServeOptions {
    /// The configuration file, to be read again at SIGHUP.
    pub file: Option<PathBuf>,
    /// Called once, when everything is listening.
    pub ready: Option<Box<dyn FnOnce() + Send>>,
}

/// Serves until the process is asked to end.
///
/// `store` replaces the one that the configuration names.
///
/// # Errors
/// [`StartError`] when it cannot start.
pub fn serve(
    config: Config,
    store: Option<Arc<dyn MetadataStore>>,
    options: ServeOptions,
) -> Result<(), StartError> {
    let runtime = runtime("proxy", config.server.threads)?;
    // Admin, metrics and health have a thread of their own: what the data plane does must not
    // keep the manager or a scrape waiting, nor the other way round.
    let beside = runtime_beside()?;
    let served = runtime.block_on(run(config, store, options, &beside));
    beside.shutdown_timeout(LAST_WAIT);
    runtime.shutdown_timeout(LAST_WAIT);
    served
}

async fn run(
    config: Config,
    store: Option<Arc<dyn MetadataStore>>,
    options: ServeOptions,
    beside: &Runtime,
) -> Result<(), StartError> {
    let registry = Registry::new();
    let store = match store {
        Some(store) => store,
        None => config.open_store(&registry)?,
    };
    let access_log = edge_settings::access_log(&config);
    let gateway = Arc::new(assemble(&config, store.clone(), access_log, &registry)?);
    let readiness = Arc::new(Readiness::new(store.clone(), gateway.drain().clone()));

    let mut signals = signals::Signals::listen()?;
    let certificates = certificates(&config, &gateway)?;
    let listeners = bind_data(&config, certificates.clone())?;
    let reload = Reload::new(options.file, config.clone(), gateway.clone(), certificates, &registry)?;
    let plain = bind_plain(&config, &gateway, &readiness, registry)?;
    gateway.start();
    tokio::spawn(reload.clone().run());
    for listener in plain {
        beside.spawn(listener.serve());
    }
    for listener in listeners {
        tokio::spawn(gateway.driver().clone().serve(listener));
    }
    readiness.listening();
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let heartbeat = config.registry().map(|settings| {
        let beat = gateway.lifecycle().clone().heartbeat(store.clone(), settings, async move {
            // A dropped sender is the end as well.
            let _ = end.await;
        });
        tokio::spawn(beat)
    });
    if let Some(ready) = options.ready {
        ready();
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "serving");

    signals.until_stop(&gateway, &reload).await;
    drain(&gateway, &mut signals, &reload).await;
    // The registry row goes with the last stream, not before: until then the manager must see
    // this replica's activity.
    drop(ended);
    if let Some(heartbeat) = heartbeat {
        let _ = tokio::time::timeout(Duration::from_secs(1), heartbeat).await;
    }
    gateway.close_log();
    tracing::info!("ended");
    Ok(())
}

/// The proxy that the configuration describes, not yet serving.
pub(crate) fn assemble(
    config: &Config,
    store: Arc<dyn MetadataStore>,
    access_log: Option<AccessLogSettings>,
    registry: &Registry,
) -> Result<Gateway, StartError> {
    let parts = Parts {
        store,
        settings: edge_settings::of(config)?,
        resolver: config.resolver(),
        lifecycle: config.lifecycle().map_err(engine)?,
        breaker: config.breaker(),
        access_log,
        pool_size: config.upstream.pool_size,
        threads: config.server.threads,
    };
    Gateway::new(parts, registry).map_err(engine)
}

/// connections.md, Draining. A second signal ends it at once.
async fn drain(gateway: &Gateway, signals: &mut signals::Signals, reload: &Reload) {
    let times = reload.running().drain;
    let stages = gateway.drain();
    tracing::info!(open = gateway.driver().open(), "draining");
    let orderly = async {
        stages.advance(Stage::Unready);
        tokio::time::sleep(times.delay).await;
        stages.advance(Stage::Closing);
        let late = async {
            let half = times.stop_timeout / 2;
            tokio::time::sleep(half).await;
            stages.advance(Stage::Late);
            tokio::time::sleep(times.stop_timeout.saturating_sub(half)).await;
            tracing::warn!(open = gateway.driver().open(), "drain.stop_timeout is over; ending what is left");
            stages.advance(Stage::Over);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = gateway.driver().finish() => {}
            () = late => {}
        }
    };
    tokio::select! {
        () = orderly => {}
        () = signals.again(gateway, reload) => {
            tracing::warn!(open = gateway.driver().open(), "asked twice; ending at once");
            stages.advance(Stage::Over);
        }
    }
}

fn engine(error: impl std::fmt::Display) -> StartError {
    StartError::Engine(error.to_string())
}

fn runtime(name: &str, threads: usize) -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| StartError::Engine(format!("cannot start threads: {error}")))
}

fn runtime_beside() -> Result<Runtime, StartError> {
    runtime("admin", 1)
}

/// The certificates of the https listener, where it is open.
fn certificates(config: &Config, gateway: &Gateway) -> Result<Option<Arc<Certificates>>, StartError> {
    let files = &config.tls.certificates;
    (!files.is_empty())
        .then(|| gateway.certificates(files).map(Arc::new))
        .transpose()
        .map_err(|error| StartError::Engine(format!("tls.certificates: {error}")))
}

fn bind_data(config: &Config, certificates: Option<Arc<Certificates>>) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    let mut open = |addresses: &[SocketAddr], speaks, certificates: Option<Arc<Certificates>>| {
        for address in addresses {
            let listener = Listener::bind(*address, speaks, certificates.clone()).map_err(engine)?;
            listeners.push(listener);
        }
        Ok::<_, StartError>(())
    };
    open(&config.listen.http, Speaks::Http, None)?;
    open(&config.listen.grpc, Speaks::Grpc, None)?;
    if certificates.is_some() {
        open(&config.listen.https, Speaks::Https, certificates)?;
    }
    Ok(listeners)
}

fn bind_plain(
    config: &Config,
    gateway: &Arc<Gateway>,
    readiness: &Arc<Readiness>,
    registry: Registry,
) -> Result<Vec<PlainListener>, StartError> {
    let mut listeners = Vec::new();
    if let Some(address) = config.listen.admin {
        let token = config.admin.token.as_ref().map(|token| token.expose().as_bytes().to_vec());
        let api = AdminApi::new(gateway, readiness.clone(), token);
        listeners.push(PlainListener::bind("listen.admin", address, AdminApp::new(api))?);
    }
    if let Some(address) = config.listen.metrics {
        let app = MetricsApp::new(registry, readiness.clone()).map_err(engine)?;
        listeners.push(PlainListener::bind("listen.metrics", address, app)?);
    }
    if let Some(address) = config.listen.health {
        let app = MetricsApp::health_only(readiness.clone());
        listeners.push(PlainListener::bind("listen.health", address, app)?);
    }
    Ok(listeners)
}
