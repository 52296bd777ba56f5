//! Between requests that end and the collector: a bounded queue and a thread.
//!
//! Nothing here waits for the collector but that thread. What does not fit in the queue, and what the collector
//! does not take, is counted and lost.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use opentelemetry_proto::tonic::resource::v1::Resource;
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::collector::{Collector, ExportError};
use crate::{DropReason, Metrics, OtlpError, Settings, Span, encode};

/// Requests whose spans wait, at most: some megabytes.
const QUEUE: usize = 2048;
/// Spans of one export, about.
const BATCH: usize = 512;
/// For how long spans gather before they are exported together.
const GATHER: Duration = Duration::from_secs(1);
/// For all tries of one export; a try that has begun may end after it.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Before the second try; doubled for each further one.
const PAUSE: Duration = Duration::from_millis(200);
/// That the collector fails is logged this seldom.
const LOG: Duration = Duration::from_secs(60);

/// Takes spans and has them exported.
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Sender<Vec<Span>>,
    metrics: Metrics,
    closing: watch::Sender<Option<Instant>>,
    ended: Arc<Ended>,
}

#[derive(Debug, Default)]
struct Ended {
    ended: Mutex<bool>,
    told: Condvar,
}

impl Exporter {
    /// Starts the thread. The collector is not looked for before there are spans.
    ///
    /// # Errors
    /// [`OtlpError`] when the endpoint cannot be dialled or the thread cannot be started.
    pub fn start(settings: &Settings, metrics: Metrics) -> Result<Self, OtlpError> {
        let (queue, spans) = mpsc::channel(QUEUE);
        let closing = watch::Sender::new(None);
        let ended = Arc::new(Ended::default());
        let worker = Worker {
            spans,
            closing: closing.subscribe(),
            collector: Collector::new(settings)?,
            resource: encode::resource(settings),
            metrics: metrics.clone(),
            failing: Failing { endpoint: settings.endpoint.to_string(), told: None, to_take_back: false },
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tell = ended.clone();
        std::thread::Builder::new().name("traces".into()).spawn(move || {
            runtime.block_on(worker.run());
            // A look-up of a name that hangs is not waited for.
            runtime.shutdown_background();
            *tell.ended.lock() = true;
            tell.told.notify_all();
        })?;
        Ok(Self { queue, metrics, closing, ended })
    }

    /// Takes the spans of one request. Never waits: what does not fit is counted and lost.
    pub fn submit(&self, spans: Vec<Span>) {
        if let Err(refused) = self.queue.try_send(spans) {
            let (reason, spans) = match refused {
                TrySendError::Full(spans) => (DropReason::QueueFull, spans),
                TrySendError::Closed(spans) => (DropReason::Unreachable, spans),
            };
            self.metrics.dropped(reason, spans.len());
        }
    }

    /// Has what waits exported at once, for no longer than `wait`, and the thread end; returns at once.
    pub fn close(&self, wait: Duration) {
        self.closing.send_replace(Some(Instant::now() + wait));
    }

    /// Waits for the thread to end, for no longer than `wait`; whether it has.
    pub fn closed(&self, wait: Duration) -> bool {
        let mut ended = self.ended.ended.lock();
        self.ended.told.wait_while_for(&mut ended, |ended| !*ended, wait);
        *ended
    }
}

/// The thread's side.
struct Worker {
    spans: mpsc::Receiver<Vec<Span>>,
    closing: watch::Receiver<Option<Instant>>,
    collector: Collector,
    resource: Resource,
    metrics: Metrics,
    failing: Failing,
}

impl Worker {
    async fn run(mut self) {
        let out_of_time = out_of_time(self.closing.clone());
        tokio::select! {
            () = self.export_all() => {}
            () = out_of_time => {}
        }
        self.spans.close();
        while let Ok(left) = self.spans.try_recv() {
            self.metrics.dropped(DropReason::Unreachable, left.len());
        }
    }

    /// Exports until there is nothing left of a queue that is being closed.
    async fn export_all(&mut self) {
        while let Some(batch) = self.next_batch().await {
            let mut pending = Pending { spans: batch.len(), metrics: self.metrics.clone() };
            let body = encode::request(batch, &self.resource);
            match self.export(body).await {
                Ok(rejected) => {
                    pending.rejected(rejected);
                    pending.exported();
                }
                Err(error) if error.is_final() => pending.rejected(pending.spans),
                // They are lost with `pending`.
                Err(_) => {}
            }
        }
    }

    /// Exports one batch. Tries again, for a while, where that may help.
    async fn export(&mut self, body: Bytes) -> Result<usize, ExportError> {
        let over = Instant::now() + GIVE_UP;
        let mut pause = PAUSE;
        loop {
            let error = match self.collector.export(body.clone()).await {
                Ok(rejected) => {
                    self.failing.over();
                    return Ok(rejected);
                }
                Err(error) => error,
            };
            self.failing.tell(&error);
            let wait = error.wait().unwrap_or(pause);
            if error.is_final() || Instant::now() + wait >= over {
                return Err(error);
            }
            sleep(wait).await;
            pause *= 2;
        }
    }

    /// What has gathered by now; `None`: nothing comes any more.
    async fn next_batch(&mut self) -> Option<Vec<Span>> {
        let mut batch = tokio::select! {
            biased;
            spans = self.spans.recv() => spans?,
            () = closed(&mut self.closing) => return None,
        };
        let gathered = sleep(GATHER);
        tokio::pin!(gathered);
        while batch.len() < BATCH {
            tokio::select! {
                biased;
                spans = self.spans.recv() => match spans {
                    Some(spans) => batch.extend(spans),
                    None => break,
                },
                () = closed(&mut self.closing) => break,
                () = &mut gathered => break,
            }
        }
        Some(batch)
    }
}

/// Returns when the exporter is to end.
async fn closed(closing: &mut watch::Receiver<Option<Instant>>) {
    // A sender that is gone says the same.
    let _ = closing.wait_for(Option::is_some).await;
}

/// Returns when the time for ending is over.
async fn out_of_time(mut closing: watch::Receiver<Option<Instant>>) {
    closed(&mut closing).await;
    let until = *closing.borrow();
    if let Some(until) = until {
        tokio::time::sleep_until(until.into()).await;
    }
}

/// Spans of an export that is under way: those of which nothing else is said when it is dropped are lost.
struct Pending {
    spans: usize,
    metrics: Metrics,
}

impl Pending {
    fn rejected(&mut self, spans: usize) {
        let spans = spans.min(self.spans);
        self.metrics.dropped(DropReason::Rejected, spans);
        self.spans -= spans;
    }

    fn exported(&mut self) {
        self.metrics.exported(std::mem::take(&mut self.spans));
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.metrics.dropped(DropReason::Unreachable, self.spans);
    }
}

/// What was logged of a collector that fails.
struct Failing {
    endpoint: String,
    /// When that was.
    told: Option<Instant>,
    /// It has not taken anything since.
    to_take_back: bool,
}

impl Failing {
    fn tell(&mut self, error: &ExportError) {
        if self.told.is_none_or(|told| told.elapsed() >= LOG) {
            (self.told, self.to_take_back) = (Some(Instant::now()), true);
            tracing::warn!(endpoint = %self.endpoint, %error, "the collector does not take spans; those that do not fit in the queue are lost");
        }
    }

    fn over(&mut self) {
        if std::mem::take(&mut self.to_take_back) {
            tracing::info!(endpoint = %self.endpoint, "the collector takes spans again");
        }
    }
}
