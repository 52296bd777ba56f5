//! The running server: everything the configuration asks for, put together, served, drained.

mod edge_settings;
mod internal_connections;
mod internal_listeners;
mod listeners;
mod reload;
mod shutdown;
mod signals;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cube_edge::{AccessLogSettings, ExchangeChoice, Gateway, GatewayParts, Listener, Readiness};
use cube_metadata::MetadataStore;
use prometheus::Registry;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::bind;
use crate::config::Config;
use crate::error::StartError;
use crate::hot_restart::{
    self, Incumbent, Inherited, ListenerHandle, Predecessor, Presence, ProcessPhase, StartedAs, Takeover,
    UpgradeSocket,
};
use crate::run_dir::{PidFile, RunDir};
use crate::sd_notify::NotifySocket;
use internal_listeners::InternalListener;
use listeners::{bind_data, bind_plain, certificates};
use reload::Reload;

/// How long the end of the process waits for what hangs.
const LAST_WAIT: Duration = Duration::from_millis(200);
/// How often a successor looks whether its store has answered.
const LOOK: Duration = Duration::from_millis(20);

/// What the command line says about how to serve.
#[derive(Default)]
pub struct ServeOptions {
    /// The configuration file, to be read again at SIGHUP.
    pub file: Option<PathBuf>,
    /// Called once, when everything is listening.
    pub ready: Option<Box<dyn FnOnce() + Send>>,
    /// This process among those of its run directory; none: it serves for itself and cannot be
    /// upgraded.
    pub(crate) process: Option<Process>,
}

/// A process among those that serve one after the other from a run directory.
pub(crate) struct Process {
    /// The run directory.
    pub(crate) run_dir: RunDir,
    /// Where it comes from.
    pub(crate) startup: Startup,
    /// How it was started, for its successor.
    pub(crate) started: StartedAs,
}

/// Where a process comes from.
pub(crate) enum Startup {
    /// It is the first, and holds the pid file.
    First(PidFile),
    /// It takes over from another one, whose sockets it has.
    Successor(Predecessor, Inherited),
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
    let runtime = runtime("proxy", *config.server.threads)?;
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
    let manager = NotifySocket::of_this_process();
    let mut signals = signals::Signals::listen()?;
    let (mut takeover, mut inherited) = (None, Inherited::default());
    let mut pid_file = None;
    let process = match options.process {
        None => None,
        Some(Process { run_dir, startup, started }) => {
            match startup {
                Startup::First(file) => pid_file = Some(file),
                Startup::Successor(predecessor, sockets) => {
                    takeover = Some(predecessor.attach()?);
                    inherited = sockets;
                }
            }
            Some((run_dir, started))
        }
    };
    let opened = match open(&config, options.file, store, &mut inherited) {
        Ok(opened) => opened,
        Err(error) => {
            if let Some(takeover) = &takeover {
                takeover.fail(&error).await;
            }
            return Err(error);
        }
    };
    // Sockets that this configuration does not name are the other process's alone again.
    drop(inherited);
    let Opened { gateway, readiness, store, reload, data, plain, handles } = opened;
    gateway.start();
    tokio::spawn(reload.clone().run());
    if let Some(takeover) = &mut takeover {
        tokio::select! {
            taken = take_over(takeover, &gateway, store.clone()) => taken?,
            () = signals.until_stop(&gateway, &reload) => return Ok(()),
        }
    }
    // The first process of a run directory must have its socket before it serves. A successor takes
    // the place of the process before when that one can no longer want it back.
    let mut socket = None;
    if let (Some((run_dir, _)), None) = (&process, &takeover) {
        socket = Some(open_socket(run_dir, beside)?);
    }
    for listener in plain {
        beside.spawn(listener.serve());
    }
    for listener in data {
        tokio::spawn(gateway.driver().clone().serve(listener));
    }
    readiness.listening();
    if let (Some((run_dir, _)), Some(takeover)) = (&process, &takeover) {
        takeover.serving().await;
        // By now nobody else serves, so that nothing is a reason to end.
        kept(run_dir.succeed().map(PidFile::leave));
        pid_file = Some(run_dir.pid_file());
        socket = kept(open_socket(run_dir, beside));
    }
    let incumbent = process.map(|(run_dir, started)| {
        let live = reload.clone();
        let settings = hot_restart::Settings {
            run_dir: run_dir.path().to_owned(),
            obstacle: started.obstacle(manager.is_there()),
            started,
            managed: manager.is_there(),
            limit: Box::new(move || live.running().drain.upgrade_timeout),
        };
        let admin = Arc::new(gateway.forwarded_admin_api(readiness.clone()));
        let incumbent = Incumbent::new(settings, gateway.clone(), admin, handles);
        beside.spawn(incumbent.clone().serve(Presence::new(run_dir, socket)));
        incumbent
    });
    manager.ready(takeover.is_some());
    if let Some(takeover) = takeover.take() {
        takeover.settled().await;
    }
    let watchdog = manager.watchdog().map(|every| tokio::spawn(ping(manager.clone(), every)));
    let (ended, end) = oneshot::channel::<()>();
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
    for (listener, address) in config.listen.all() {
        tracing::info!(listener, %address, "listening");
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "serving");

    let serving = Serving { gateway, reload, manager, incumbent, pid_file, watchdog, heartbeat, ended };
    serving.until_over(&mut signals).await;
    Ok(())
}

/// Takes what the process before knows, once the store has answered.
async fn take_over(
    takeover: &mut Takeover,
    gateway: &Gateway,
    store: Arc<dyn MetadataStore>,
) -> Result<(), StartError> {
    tracing::info!(pid = takeover.pid(), "taking over from the running process once the store has answered");
    let ready = async move {
        while !store.has_responded() {
            tokio::time::sleep(LOOK).await;
        }
    };
    takeover.ready(ready).await?;
    takeover.learn(gateway).await?;
    Ok(())
}

/// What the end of a serving process needs of its beginning.
struct Serving {
    gateway: Arc<Gateway>,
    reload: Arc<reload::Reload>,
    manager: NotifySocket,
    /// What a successor would take over from; none where nobody can.
    incumbent: Option<Arc<Incumbent>>,
    pid_file: Option<PidFile>,
    watchdog: Option<JoinHandle<()>>,
    heartbeat: Option<JoinHandle<()>>,
    /// Dropped, it ends the heartbeat.
    ended: oneshot::Sender<()>,
}

impl Serving {
    /// Serves until the process is asked to stop or a successor has taken over, then drains.
    async fn until_over(self, signals: &mut signals::Signals) {
        let Self { gateway, reload, manager, incumbent, mut pid_file, watchdog, heartbeat, ended } = self;
        let stopped = tokio::select! {
            biased;
            () = handed_over(incumbent.as_deref()) => false,
            () = signals.until_stop(&gateway, &reload) => true,
        };
        let phase = match &incumbent {
            Some(incumbent) if stopped => incumbent.stop().await,
            Some(_) => ProcessPhase::HandedOver,
            None => ProcessPhase::Stopping,
        };
        if let (ProcessPhase::HandedOver, Some(incumbent)) = (phase, &incumbent) {
            if let Some(pid_file) = pid_file.take() {
                pid_file.leave();
            }
            // The successor does this now, under the same name.
            for task in [watchdog, heartbeat].into_iter().flatten() {
                task.abort();
            }
            shutdown::drain_after_upgrade(&gateway, signals, &reload, incumbent, stopped).await;
        } else {
            manager.stopping(gateway.driver().open());
            shutdown::drain(&gateway, signals, &reload, incumbent.as_deref()).await;
            // The registry row goes with the last stream, not before: until then the manager must see
            // this replica's activity.
            drop(ended);
            if let Some(heartbeat) = heartbeat {
                let _ = tokio::time::timeout(Duration::from_secs(1), heartbeat).await;
            }
        }
        if let Some(incumbent) = &incumbent {
            incumbent.answered().await;
        }
        gateway.close_logs();
        drop(pid_file);
        tracing::info!("ended");
    }
}

/// Everything that serves, with its sockets open, and nothing accepted yet.
struct Opened {
    gateway: Arc<Gateway>,
    readiness: Arc<Readiness>,
    store: Arc<dyn MetadataStore>,
    reload: Arc<Reload>,
    data: Vec<Listener>,
    plain: Vec<InternalListener>,
    handles: Vec<ListenerHandle>,
}

fn open(
    config: &Config,
    file: Option<PathBuf>,
    store: Option<Arc<dyn MetadataStore>>,
    inherited: &mut Inherited,
) -> Result<Opened, StartError> {
    bind::check(&config.listen, &inherited.addresses())?;
    let registry = Registry::new();
    let store = match store {
        Some(store) => store,
        None => config.open_store(&registry)?,
    };
    let told = Told { access_log: edge_settings::access_log(config), traces: edge_settings::traces(config) };
    let gateway = Arc::new(assemble(config, store.clone(), told, &registry)?);
    let readiness = Arc::new(Readiness::new(store.clone(), gateway.drain().clone()));
    let mut handles = Vec::new();
    let certificates = certificates(config, &gateway)?;
    let data = bind_data(config, certificates.clone(), inherited, &mut handles)?;
    let reload = Reload::new(file, config.clone(), gateway.clone(), certificates, &registry)?;
    let plain = bind_plain(config, &gateway, &readiness, inherited, &mut handles)?;
    Ok(Opened { gateway, readiness, store, reload, data, plain, handles })
}

fn open_socket(run_dir: &RunDir, beside: &Runtime) -> Result<UpgradeSocket, StartError> {
    let _of_the_runtime = beside.enter();
    UpgradeSocket::open(run_dir)
}

fn kept<T>(made: Result<T, StartError>) -> Option<T> {
    made.inspect_err(|error| tracing::error!(%error, "the next upgrade will not find this process")).ok()
}

/// Returns when a successor serves.
async fn handed_over(incumbent: Option<&Incumbent>) {
    match incumbent {
        Some(incumbent) => incumbent.handed_over().await,
        None => std::future::pending().await,
    }
}

/// Answers the manager's watchdog for as long as this runtime, which serves the requests, runs
/// tasks.
async fn ping(manager: NotifySocket, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        if tokio::spawn(async {}).await.is_ok() {
            manager.alive();
        }
    }
}

/// What a proxy tells of its requests, and where; by default nothing.
#[derive(Default)]
pub(crate) struct Told {
    access_log: Option<AccessLogSettings>,
    traces: Option<cube_otlp::Settings>,
}

/// The proxy that the configuration describes, not yet serving.
pub(crate) fn assemble(
    config: &Config,
    store: Arc<dyn MetadataStore>,
    told: Told,
    registry: &Registry,
) -> Result<Gateway, StartError> {
    let parts = GatewayParts {
        store,
        settings: edge_settings::of(config)?,
        resolver: config.cache.clone(),
        lifecycle: config.lifecycle(),
        breaker: config.breaker.clone(),
        response_cache: config.response_cache.enabled.then_some(config.response_cache),
        access_log: told.access_log,
        traces: told.traces,
        pool_size: config.upstream.pool_size,
        own_exchange: config.upstream.exchange == ExchangeChoice::Own,
        threads: *config.server.threads,
    };
    Gateway::new(parts, registry).map_err(not_assembled)
}

fn not_assembled(error: impl std::fmt::Display) -> StartError {
    StartError::Assembly(error.to_string())
}

fn runtime(name: &str, threads: usize) -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| StartError::Assembly(format!("cannot start threads: {error}")))
}

fn runtime_beside() -> Result<Runtime, StartError> {
    runtime("admin", 1)
}
