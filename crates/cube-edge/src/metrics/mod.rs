//! The edge's metrics (operations.md). Every handle is looked up once: what a request costs here
//! is a few atomic additions.

mod class;
mod process;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use once_cell::sync::OnceCell;
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    exponential_buckets,
};

pub use class::{
    ConnectOutcome, ConnectionLimit, Direction, FormClass, ListenerClass, MethodClass, ProtocolClass,
    RouteClass, TlsOutcome,
};

use crate::error::EdgeError;
use crate::error_response::Reason;
use crate::preview::PreviewResult;
use crate::retcode::Retcode;

const RESULTS: [&str; 2] = ["fail", "success"];

/// A handle for each method, result and route.
type ByRequest<T> = [[[T; RouteClass::ALL.len()]; RESULTS.len()]; MethodClass::ALL.len()];

/// A request that has ended, however it did.
#[derive(Debug, Clone, Copy)]
pub struct Finished {
    /// Class of its method.
    pub method: MethodClass,
    /// Class of the path that went (or would have gone) upstream.
    pub route: RouteClass,
    /// Status 200..=399; for a response of the proxy [`crate::OwnResponse::success`].
    pub success: bool,
    /// From the first byte of its head to the last of its response.
    pub took: Duration,
    /// The return code for the log (unmasked).
    pub retcode: Retcode,
    /// The reason for the log.
    pub reason: Reason,
    /// How it named its sandbox.
    pub form: FormClass,
}

/// Declares the metrics of one handle, and those of one for each value of a label: field, name, help and
/// registration are one entry.
macro_rules! simple_metrics {
    (@type counter $($rest:tt)*) => { IntCounter };
    (@type gauge $($rest:tt)*) => { IntGauge };
    (@type counter_by $label:ident $($rest:tt)*) => { [IntCounter; $label::ALL.len()] };
    (@new $make:ident counter $name:literal, $help:literal) => { $make.counter($name, $help)? };
    (@new $make:ident gauge $name:literal, $help:literal) => { $make.gauge($name, $help)? };
    (@new $make:ident counter_by $label:ident $key:literal, $name:literal, $help:literal) => {{
        let counters = $make.counters($name, $help, &[$key])?;
        $label::ALL.map(|value| counters.with_label_values(&[value.as_str()]))
    }};
    ($($(#[$doc:meta])* $field:ident: $kind:ident($($rest:tt)*);)*) => {
        /// The metrics that have one handle, or one for each value of a label. [`EdgeMetrics`] holds those with
        /// several labels besides.
        pub struct SimpleMetrics {
            $($(#[$doc])* pub $field: simple_metrics!(@type $kind $($rest)*),)*
        }

        impl SimpleMetrics {
            fn new(make: &Maker<'_>) -> Result<Self, EdgeError> {
                Ok(Self { $($field: simple_metrics!(@new make $kind $($rest)*),)* })
            }
        }
    };
}

simple_metrics! {
    /// What preview tickets came to.
    previews: counter_by(PreviewResult "result", "previews_total",
        "Requests that a preview ticket let in or did not, or that were sent to log in.");
    /// New upstream connections, and attempts at them.
    connects: counter_by(ConnectOutcome "outcome", "upstream_connects_total", "New upstream connections.");
    /// Client connections closed at once.
    refused: counter_by(ConnectionLimit "limit", "client_connections_refused_total",
        "Client connections closed at once, by the limit they were over.");
    /// Bytes of bodies and tunnels.
    transferred: counter_by(Direction "direction", "bytes_total",
        "Bytes of bodies and tunnels: in from clients, out to clients.");
    /// TLS handshakes with clients.
    handshakes: counter_by(TlsOutcome "outcome", "tls_handshakes_total", "TLS handshakes with clients.");
    /// Requests that went out on a pooled connection.
    upstream_reused: counter("upstream_reused_total", "Requests sent on a pooled connection.");
    /// Second routes and second sendings.
    upstream_retries: counter("upstream_retries_total", "Second routes and second sendings.");
    /// Requests whose response is under way.
    open_streams: gauge("open_streams", "Responses under way.");
    /// Upgraded connections.
    open_websockets: gauge("open_websockets", "Upgraded connections.");
    /// Lines written to the access log.
    access_log_lines: counter("access_log_lines_total", "Lines written to the access log.");
    /// Lines lost: the queue was full, or the file could not be written.
    access_log_dropped: counter("access_log_dropped_total", "Lines the access log has lost.");
    /// What `/readyz` says, set when it is scraped.
    ready: gauge("ready", "1 while /readyz says 200");
    /// Processes of before a hot restart that still drain, set when it is scraped.
    draining_processes: gauge("draining_processes",
        "Processes of before a hot restart that still have connections.");
    /// When the service was started, unix seconds: by the first process that took over from no other.
    service_started: gauge("service_start_time_seconds",
        "When the service was started, unix seconds; a hot restart does not change it.");
}

/// The metrics of the edge, registered.
pub struct EdgeMetrics {
    requests: ByRequest<IntCounter>,
    seconds: ByRequest<Histogram>,
    inflight: [IntGauge; RouteClass::ALL.len()],
    responses: IntCounterVec,
    /// The handles of `responses` by return code, reason and form, filled as they are met.
    known_responses: Box<[OnceCell<IntCounter>]>,
    connections: [[IntGauge; ProtocolClass::ALL.len()]; ListenerClass::ALL.len()],
    certificates: IntGaugeVec,
    /// From the request's head being sent upstream to the first byte of the response, seconds.
    pub upstream_first_byte: Histogram,
    /// What the proxy itself adds before the request goes upstream, without holding and
    /// connecting, seconds.
    pub added_latency: Histogram,
    simple: SimpleMetrics,
}

/// A metric is counted by its name, `metrics.upstream_retries`, wherever its handle is kept.
impl std::ops::Deref for EdgeMetrics {
    type Target = SimpleMetrics;

    fn deref(&self) -> &SimpleMetrics {
        &self.simple
    }
}

impl EdgeMetrics {
    /// Creates and registers all of them, `build_info` and `process_*` too.
    ///
    /// # Errors
    /// [`EdgeError::Metrics`] when the registry has one of the names already.
    pub fn new(registry: &Registry) -> Result<Self, EdgeError> {
        let make = Maker(registry);
        let by_request = ["method", "result", "route"];
        let requests = make.counters("request_total", "Requests that have ended.", &by_request)?;
        let buckets = exponential_buckets(0.001, 2.0, 14)?;
        let seconds = make.histograms(
            "request_duration_seconds",
            "Time from a request's head to the end of its response.",
            &by_request,
            buckets.clone(),
        )?;
        let inflight = make.gauges("inflight_requests", "Requests under way.", &["route"])?;
        let responses = make.counters(
            "answers_total",
            "Requests by return code, reason and the form in which they named their sandbox.",
            &["retcode", "reason", "form"],
        )?;
        let connections = make.gauges(
            "client_connections",
            "Open client connections by listener and protocol.",
            &["listener", "protocol"],
        )?;
        let certificates = make.gauges(
            "tls_certificate_expiry_timestamp_seconds",
            "When a configured certificate expires, unix seconds.",
            &["certificate"],
        )?;
        let build = make.gauges("build_info", "The version that runs; always 1.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(process::ProcessMetrics::new()?))?;
        let simple = SimpleMetrics::new(&make)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        simple.service_started.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));

        let cells = Retcode::LABELS * Reason::ALL.len() * FormClass::ALL.len();
        Ok(Self {
            requests: by_request_handles(|labels| requests.with_label_values(&labels)),
            seconds: by_request_handles(|labels| seconds.with_label_values(&labels)),
            inflight: RouteClass::ALL.map(|route| inflight.with_label_values(&[route.as_str()])),
            responses,
            known_responses: (0..cells).map(|_| OnceCell::new()).collect(),
            connections: ListenerClass::ALL.map(|listener| {
                ProtocolClass::ALL
                    .map(|protocol| connections.with_label_values(&[listener.as_str(), protocol.as_str()]))
            }),
            certificates,
            upstream_first_byte: make.histogram(
                "upstream_first_byte_seconds",
                "Time from sending a request's head upstream to the first byte of its response.",
                buckets,
            )?,
            added_latency: make.histogram(
                "added_latency_seconds",
                "Time the proxy itself adds before a request goes upstream, without holding and connecting.",
                exponential_buckets(0.000_025, 2.0, 16)?,
            )?,
            simple,
        })
    }

    /// Counts a request. Once for each, those that Pingora refuses too.
    pub fn finished(&self, request: &Finished) {
        let (method, result, route) =
            (request.method as usize, usize::from(request.success), request.route as usize);
        if let Some(counter) = pick(&self.requests, method, result, route) {
            counter.inc();
        }
        if let Some(histogram) = pick(&self.seconds, method, result, route) {
            histogram.observe(request.took.as_secs_f64());
        }
        let cell = (request.retcode.index() * Reason::ALL.len() + request.reason.index())
            * FormClass::ALL.len()
            + request.form as usize;
        if let Some(known) = self.known_responses.get(cell) {
            let labels = [request.retcode.label(), request.reason.as_str(), request.form.as_str()];
            // Fails where the labels do not fit the metric: then nothing is counted, and no request suffers.
            if let Ok(counter) =
                known.get_or_try_init(|| self.responses.get_metric_with_label_values(&labels))
            {
                counter.inc();
            }
        }
    }

    /// Counts a request as under way for as long as the guard lives.
    #[must_use]
    pub fn inflight(&self, route: RouteClass) -> GaugeGuard {
        GaugeGuard::of(self.inflight.get(route as usize))
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        let all = self.inflight.iter().map(|gauge| u64::try_from(gauge.get()).unwrap_or_default());
        all.sum()
    }

    /// Counts a client connection as open for as long as the guard lives.
    #[must_use]
    pub fn connection(&self, listener: ListenerClass, protocol: ProtocolClass) -> GaugeGuard {
        GaugeGuard::of(
            self.connections.get(listener as usize).and_then(|protocols| protocols.get(protocol as usize)),
        )
    }

    /// Counts a response as under way for as long as the guard lives.
    #[must_use]
    pub fn stream(&self) -> GaugeGuard {
        GaugeGuard::of(Some(&self.open_streams))
    }

    /// Counts a tunnel as open for as long as the guard lives.
    #[must_use]
    pub fn websocket(&self) -> GaugeGuard {
        GaugeGuard::of(Some(&self.open_websockets))
    }

    /// Counts a client connection that was closed at once.
    pub fn connection_refused(&self, limit: ConnectionLimit) {
        add(&self.refused, limit as usize, 1);
    }

    /// Counts what a preview ticket came to.
    pub fn preview(&self, result: PreviewResult) {
        add(&self.previews, result as usize, 1);
    }

    /// Counts a new upstream connection, or an attempt at one.
    pub fn connected(&self, outcome: ConnectOutcome) {
        add(&self.connects, outcome as usize, 1);
    }

    /// Counts a TLS handshake with a client.
    pub fn handshake(&self, outcome: TlsOutcome) {
        add(&self.handshakes, outcome as usize, 1);
    }

    /// Counts bytes of a body or a tunnel.
    pub fn bytes(&self, direction: Direction, count: u64) {
        add(&self.transferred, direction as usize, count);
    }

    /// Says when a certificate expires; `name` is its path in the configuration.
    pub fn certificate_expires(&self, name: &str, unix_seconds: i64) {
        self.certificates.with_label_values(&[name]).set(unix_seconds);
    }

    /// Forgets a certificate that is no longer configured.
    pub fn certificate_gone(&self, name: &str) {
        // An error says only that there is none of that name.
        let _ = self.certificates.remove_label_values(&[name]);
    }
}

/// Holds a gauge up by one until it is dropped.
#[derive(Debug)]
pub struct GaugeGuard(Option<IntGauge>);

impl GaugeGuard {
    fn of(gauge: Option<&IntGauge>) -> Self {
        if let Some(gauge) = gauge {
            gauge.inc();
        }
        Self(gauge.cloned())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        if let Some(gauge) = &self.0 {
            gauge.dec();
        }
    }
}

fn pick<T>(handles: &ByRequest<T>, method: usize, result: usize, route: usize) -> Option<&T> {
    handles.get(method)?.get(result)?.get(route)
}

fn add(handles: &[IntCounter], at: usize, count: u64) {
    if let Some(counter) = handles.get(at) {
        counter.inc_by(count);
    }
}

fn by_request_handles<T>(mut handle: impl FnMut([&'static str; 3]) -> T) -> ByRequest<T> {
    MethodClass::ALL.map(|method| {
        RESULTS.map(|result| RouteClass::ALL.map(|route| handle([method.as_str(), result, route.as_str()])))
    })
}

/// Creates metrics under the common prefix and registers them.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn keep<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, EdgeError> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, EdgeError> {
        self.keep(IntCounter::with_opts(opts(name, help))?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, EdgeError> {
        self.keep(IntCounterVec::new(opts(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, EdgeError> {
        self.keep(IntGauge::with_opts(opts(name, help))?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, EdgeError> {
        self.keep(IntGaugeVec::new(opts(name, help), labels)?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> Result<Histogram, EdgeError> {
        self.keep(Histogram::with_opts(HistogramOpts::from(opts(name, help)).buckets(buckets))?)
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: Vec<f64>,
    ) -> Result<HistogramVec, EdgeError> {
        self.keep(HistogramVec::new(HistogramOpts::from(opts(name, help)).buckets(buckets), labels)?)
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("cube_proxy")
}

#[cfg(test)]
mod tests;
