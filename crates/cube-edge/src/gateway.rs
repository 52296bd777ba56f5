//! Everything of one running proxy, put together: what knows about sandboxes, Pingora, the
//! driver.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use cube_breaker::Breaker;
use cube_lifecycle::{Lifecycle, LifecycleHooks};
use cube_metadata::{MetadataStore, Snapshot, SnapshotObserver};
use cube_resolver::{Resolver, Revocation};
use cube_route::SandboxId;
use cube_settings::Secret;
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::configuration::ServerConf;
use prometheus::Registry;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::access_log::{self, AccessLog};
use crate::admin::{AdminApi, AdminForwarding, MetricsApp, Readiness};
use crate::connection::{CertificateError, CertificateFiles, Certificates, Driver};
use crate::decision::{ExplainQuery, Explanation};
use crate::drain::Drain;
use crate::error::EdgeError;
use crate::exchange::Exchange;
use crate::limits::active_requests::{ActiveRequests, EndReason};
use crate::limits::descriptors::Descriptors;
use crate::limits::rate_limit::RateLimit;
use crate::metrics::EdgeMetrics;
use crate::processes::{Ledger, ProcessStanding, Processes};
use crate::proxy::control_plane::ControlPlane;
use crate::proxy::hooks::SandboxProxy;
use crate::proxy::state::ProxyState;
use crate::response_cache::{self, ResponseCache};
use crate::settings::Settings;

/// How long the end of a process waits for the collector of traces.
const LAST_EXPORT: Duration = Duration::from_millis(900);

/// What a gateway is made of.
pub struct GatewayParts {
    /// Where records come from.
    pub store: Arc<dyn MetadataStore>,
    /// The settings of the request path.
    pub settings: Settings,
    /// `cache`.
    pub resolver: cube_resolver::Settings,
    /// `lifecycle` and `resume`.
    pub lifecycle: cube_lifecycle::Settings,
    /// `breaker`.
    pub breaker: cube_breaker::Settings,
    /// `response_cache`; `None`: there is none.
    pub response_cache: Option<response_cache::Settings>,
    /// `access_log`; `None`: none is written.
    pub access_log: Option<access_log::Settings>,
    /// `tracing.otlp`; `None`: no request is traced.
    pub traces: Option<cube_otlp::Settings>,
    /// `upstream.pool_size`.
    pub pool_size: usize,
    /// `upstream.exchange: own`: plain requests are not left to Pingora.
    pub own_exchange: bool,
    /// `server.threads`: worker threads of the runtime that will serve.
    pub threads: usize,
}

/// One proxy. Its background tasks are started with [`Gateway::start`], its listeners are served
/// through [`Gateway::driver`].
pub struct Gateway {
    state: Arc<ProxyState>,
    driver: Arc<Driver<HttpProxy<SandboxProxy>>>,
}

impl Gateway {
    /// Puts the parts together and registers their metrics in `registry`.
    ///
    /// # Errors
    /// [`EdgeError`] when a part cannot be made: its settings do not hold, its metrics are
    /// registered already, the access log cannot be opened.
    pub fn new(parts: GatewayParts, registry: &Registry) -> Result<Self, EdgeError> {
        let metrics = Arc::new(EdgeMetrics::new(registry)?);
        let live = ActiveRequests::new();
        let hooks = Arc::new(SandboxHooks { resolver: OnceLock::new(), live: live.clone() });
        let lifecycle = Lifecycle::new(parts.lifecycle, hooks.clone(), registry)?;
        let response_cache =
            parts.response_cache.map(|settings| ResponseCache::new(settings, registry)).transpose()?;
        let observer = Arc::new(Observer {
            lifecycle: lifecycle.clone(),
            live: live.clone(),
            response_cache: response_cache.clone(),
        });
        let resolver = Resolver::new(parts.store.clone(), observer, parts.resolver, registry)?;
        // Set once, here; nothing has happened to a sandbox before.
        let _ = hooks.resolver.set(resolver.clone());
        let breaker = Breaker::new(parts.store.clone(), parts.breaker, registry)?;
        let access_log = parts.access_log.map(|settings| AccessLog::open(&settings, &metrics)).transpose()?;
        let traces = parts
            .traces
            .map(|settings| {
                let metrics = cube_otlp::Metrics::new(registry)?;
                Ok::<_, EdgeError>(cube_otlp::Exporter::start(&settings, metrics)?)
            })
            .transpose()?;
        let drain = Arc::new(Drain::default());
        let descriptors = Descriptors::of_this_process();
        let connections = parts.settings.connections();
        let control_plane = ControlPlane::default();
        control_plane.update(parts.settings.control_plane.clone());
        let processes = Processes::new(registry.clone(), lifecycle.steady_ms());
        let state = Arc::new(ProxyState {
            settings: ArcSwap::from_pointee(parts.settings),
            store: parts.store,
            resolver,
            lifecycle,
            breaker,
            active_requests: live,
            control_plane,
            response_cache,
            drain: drain.clone(),
            descriptors: descriptors.clone(),
            forwarding: Arc::default(),
            processes,
            metrics: metrics.clone(),
            access_log,
            traces,
            rate: RateLimit::default(),
            admin_token: ArcSwapOption::empty(),
        });
        let pool_size = descriptors.idle_upstreams(parts.pool_size);
        let conf = Arc::new(ServerConf {
            // Pingora keeps as many idle connections as the product of the two.
            threads: 1,
            upstream_keepalive_pool_size: pool_size,
            // Counts attempts. Ours are counted in retry.rs, where they have a reason each.
            max_retries: usize::MAX,
            ..ServerConf::default()
        });
        let app = Arc::new(http_proxy(&conf, SandboxProxy(state.clone())));
        // The response cache is Pingora's, with all that a stored response means for a request.
        let own = parts.own_exchange && state.response_cache.is_none();
        let exchange = own.then(|| Arc::new(Exchange::new(state.clone(), pool_size)));
        let driver = Driver::new(app, exchange, connections, drain, descriptors, metrics, state.clone());
        Ok(Self { state, driver })
    }

    /// Starts what runs beside the requests. To be called once, within the runtime that serves.
    pub fn start(&self) {
        let state = &self.state;
        tokio::spawn(self.driver.clone().tend());
        tokio::spawn(state.resolver.clone().run());
        tokio::spawn(state.breaker.clone().run());
        tokio::spawn(state.settings.load().guard.clone().run());
        let follower = state.clone();
        tokio::spawn(async move { follower.control_plane.run().await });
        // Subscribed here, so that none is missed before the task runs.
        let revocations = state.resolver.revocations();
        tokio::spawn(end_revoked(state.clone(), revocations));
    }

    pub(crate) fn state(&self) -> &Arc<ProxyState> {
        &self.state
    }

    /// The admin API. `token` is `admin.token`; without one only loopback peers are served.
    #[must_use]
    pub fn admin_api(&self, readiness: Arc<Readiness>, token: Option<Secret>) -> AdminApi {
        AdminApi::new(self.state.clone(), readiness, token)
    }

    /// The admin API for requests that a draining process passes on ([`AdminApi::forwarded`]).
    #[must_use]
    pub fn forwarded_admin_api(&self, readiness: Arc<Readiness>) -> AdminApi {
        AdminApi::for_forwarded(self.state.clone(), readiness)
    }

    /// What the metrics listener serves.
    #[must_use]
    pub fn metrics_app(&self, readiness: Arc<Readiness>) -> MetricsApp {
        MetricsApp::new(self.state.clone(), readiness)
    }

    /// How `question` would be routed and answered, step by step, with what this process knows;
    /// nothing is woken, held, counted or stamped. JSON: `{"steps": [{"step", "ok", "says", ..}],
    /// "answer": {"by", "says", ..}}`; no token is in it.
    pub async fn explain(&self, question: &ExplainQuery) -> serde_json::Value {
        Explanation::of(&self.state, question).await
    }

    /// Serves listeners.
    #[must_use]
    pub fn driver(&self) -> &Arc<Driver<HttpProxy<SandboxProxy>>> {
        &self.driver
    }

    /// After the drain has begun to close: waits for the connections to end by themselves, and ends
    /// what is left when its time is over.
    pub async fn finish(&self) {
        self.driver.finish(|| self.state.active_requests.end_all(EndReason::Drained)).await;
    }

    /// Reads the certificates of a TLS listener; their end is told in this proxy's metrics.
    ///
    /// # Errors
    /// [`CertificateError`] for the first pair that does not hold.
    pub fn certificates(&self, files: &[CertificateFiles]) -> Result<Certificates, CertificateError> {
        Certificates::load(files, self.state.metrics.clone())
    }

    /// The stages of the end.
    #[must_use]
    pub fn drain(&self) -> &Arc<Drain> {
        &self.state.drain
    }

    /// Which process answers the admin API, and who else is told what it did.
    #[must_use]
    pub fn admin_forwarding(&self) -> &Arc<AdminForwarding> {
        &self.state.forwarding
    }

    /// The processes of before a hot restart that still drain, and what they counted.
    #[must_use]
    pub fn processes(&self) -> &Arc<Processes> {
        &self.state.processes
    }

    /// How this process stands: since when it runs or drains, and what it still serves.
    #[must_use]
    pub fn standing(&self) -> ProcessStanding {
        let ProxyState { processes, lifecycle, metrics, active_requests, .. } = &*self.state;
        let since = |began: Instant| {
            let passed = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            lifecycle.steady_ms().saturating_sub(passed)
        };
        ProcessStanding {
            streams: Some(metrics.under_way()),
            connections: u64::try_from(self.driver.open()).ok(),
            oldest: active_requests.oldest().map(since),
            ..processes.own_standing()
        }
    }

    /// What is left of this process's requests will be ended after this time, unless it was said that
    /// they end earlier.
    pub fn ends_within(&self, time: Duration) {
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.state.processes.end_by(self.state.lifecycle.steady_ms().saturating_add(time));
    }

    /// What the successor of this process is to know of what was counted.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let ProxyState { processes, metrics, .. } = &*self.state;
        processes.ledger(self.standing(), metrics.service_started.get())
    }

    /// Takes what the process before this one knew of what was counted.
    pub fn take_ledger(&self, ledger: Ledger) {
        let ProxyState { processes, metrics, lifecycle, .. } = &*self.state;
        if ledger.service_started > 0 {
            metrics.service_started.set(ledger.service_started);
        }
        processes.take(ledger, lifecycle.steady_ms());
    }

    /// States, activity and registry row.
    #[must_use]
    pub fn lifecycle(&self) -> &Arc<Lifecycle> {
        &self.state.lifecycle
    }

    /// The route cache.
    #[must_use]
    pub fn resolver(&self) -> &Arc<Resolver> {
        &self.state.resolver
    }

    /// The breaker.
    #[must_use]
    pub fn breaker(&self) -> &Arc<Breaker> {
        &self.state.breaker
    }

    /// Opens the access log anew, after it was moved away; so do the draining processes of before.
    pub fn reopen_log(&self) {
        self.state.forwarding.reopen();
        if let Some(log) = &self.state.access_log {
            log.reopen();
        }
    }

    /// Writes what is left of the access log and exports what is left of traces; what comes later is lost. Waits
    /// at most a second.
    pub fn close_logs(&self) {
        let began = Instant::now();
        if let Some(traces) = &self.state.traces {
            traces.close(LAST_EXPORT);
        }
        if let Some(log) = &self.state.access_log
            && !log.close(Duration::from_secs(1))
        {
            tracing::warn!("the access log was not written to its end");
        }
        if let Some(traces) = &self.state.traces {
            // It ends by itself within its time.
            traces.closed(Duration::from_secs(1).saturating_sub(began.elapsed()));
        }
    }
}

/// Ends the requests of lives that are over.
async fn end_revoked(state: Arc<ProxyState>, mut revocations: Receiver<Revocation>) {
    loop {
        match revocations.recv().await {
            Ok(revoked) => state.active_requests.end(&revoked.id, EndReason::Revoked, Some(revoked.before)),
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(missed, "revocations came faster than they were followed; looking at all");
                for id in state.active_requests.ids() {
                    // What is not known any more is read by the next request; only a life that is
                    // known to be over ends its requests.
                    if let Some(known) = state.resolver.inspect(id.as_str()) {
                        state.active_requests.end(&id, EndReason::Revoked, Some(known.entry.generation));
                    }
                }
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// What happens to a sandbox reaches its routes and its requests.
struct SandboxHooks {
    resolver: OnceLock<Arc<Resolver>>,
    live: Arc<ActiveRequests>,
}

impl LifecycleHooks for SandboxHooks {
    fn resumed(&self, id: &SandboxId) {
        if let Some(resolver) = self.resolver.get() {
            resolver.advance(id);
        }
    }

    fn killed(&self, id: &SandboxId) {
        if let Some(resolver) = self.resolver.get() {
            resolver.advance(id);
        }
        self.live.end(id, EndReason::Killed, None);
    }

    fn forgotten(&self, id: &SandboxId) -> bool {
        self.resolver.get().is_some_and(|resolver| resolver.forget(id))
    }
}

/// What was read of a sandbox reaches its state, and that it holds no more its stored responses.
struct Observer {
    lifecycle: Arc<Lifecycle>,
    live: Arc<ActiveRequests>,
    response_cache: Option<Arc<ResponseCache>>,
}

impl SnapshotObserver for Observer {
    fn observed(&self, id: &SandboxId, snapshot: &Snapshot) {
        self.lifecycle.observed(id, snapshot);
    }

    fn mark(&self) -> u64 {
        self.lifecycle.mark()
    }

    fn observed_since(&self, id: &SandboxId, snapshot: &Snapshot, began: u64) {
        self.lifecycle.observed_since(id, snapshot, began);
    }

    fn state_changed(&self, id: &SandboxId) {
        self.lifecycle.state_changed(id);
    }

    fn record_invalidated(&self, id: &SandboxId) {
        if let Some(cache) = &self.response_cache {
            cache.forget(id);
        }
    }

    fn interested(&self, id: &SandboxId) -> bool {
        self.live.any(id) || self.lifecycle.interested(id)
    }
}
