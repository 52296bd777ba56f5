//! What a process does for its successor while it still has streams.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cube_edge::{Counted, ForwardedRequest, Gateway};
use http::Method;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::channel::{Channel, Sender};
use super::{Message, PROMPT, PROTOCOL, ROWS, socket};

/// Between two reports of activity.
const REPORT: Duration = Duration::from_secs(1);
/// Stamps of this much before the last report are sent again: they may have been written while it
/// was made. The main process takes each once.
const AGAIN: Duration = Duration::from_secs(2);
/// The same after a link broke: what was on its way may be lost.
const AGAIN_AFTER_BREAK: Duration = Duration::from_secs(10);
/// Between two attempts to link, at first, while the successor is about to have its socket, and
/// later.
const RETRY_SOON: Duration = Duration::from_millis(10);
const RETRY: Duration = Duration::from_millis(200);
const SOON: u32 = 200;
/// How long the last report may take, with the link that it needs.
const LAST: Duration = Duration::from_millis(900);

/// How far this process was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DrainEnd {
    /// Not at all: its streams have `drain.timeout`.
    No,
    /// The service is being stopped: they have `drain.stop_timeout`.
    Asked,
    /// The streams are to end at once.
    Now,
}

/// The link to whoever is the main process.
pub(crate) struct Drainer {
    stop: Arc<watch::Sender<DrainEnd>>,
    last: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drainer {
    /// Links, and links again, until [`Drainer::finish`]. `since` is when this process began to say
    /// what it knows (milliseconds of the steady clock); `forwarded_requests` come from its admin API.
    pub(super) fn start(
        run_dir: PathBuf,
        gateway: Arc<Gateway>,
        forwarded_requests: mpsc::Receiver<ForwardedRequest>,
        since: u64,
    ) -> Self {
        let stop = Arc::new(watch::Sender::new(DrainEnd::No));
        let (last, ending) = watch::channel(false);
        let linked = Linked {
            gateway,
            stop: stop.clone(),
            forwarded_requests,
            asked: HashMap::new(),
            last: 0,
            reported: since,
            again: AGAIN_AFTER_BREAK,
            counted: None,
        };
        let task = tokio::spawn(linked.run(run_dir, ending));
        Self { stop, last, task }
    }

    /// How far this process is to stop; by the main process, or by a signal of its own.
    pub(crate) fn stop(&self) -> Arc<watch::Sender<DrainEnd>> {
        self.stop.clone()
    }

    /// Reports the end of the last streams and ends the link.
    pub(crate) async fn finish(self) {
        self.last.send_replace(true);
        let mut task = self.task;
        if timeout(LAST, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("the last activity did not reach the process that took over");
        }
    }
}

struct Linked {
    gateway: Arc<Gateway>,
    stop: Arc<watch::Sender<DrainEnd>>,
    forwarded_requests: mpsc::Receiver<ForwardedRequest>,
    /// Requests that the main process has not answered. They are asked again over a new link: the
    /// one that it came over ends with a further hand-over.
    asked: HashMap<u64, ForwardedRequest>,
    /// The number of the last of them.
    last: u64,
    /// When activity was last reported, milliseconds of the steady clock.
    reported: u64,
    again: Duration,
    /// What was said over this link to have been counted; none where that is not understood.
    counted: Option<Counted>,
}

impl Linked {
    async fn run(mut self, run_dir: PathBuf, mut ending: watch::Receiver<bool>) {
        let mut failed = 0_u32;
        loop {
            // At its end, too: what is still to be reported needs a link.
            match link(&run_dir, &self.gateway).await {
                Ok((channel, reports)) => {
                    failed = 0;
                    // Over a new link everything is said anew.
                    self.counted = reports.then(Counted::default);
                    match self.converse(channel, &mut ending).await {
                        Ok(true) => return,
                        Ok(false) => tracing::debug!("the main process has handed over or ended"),
                        Err(error) => tracing::debug!(%error, "the link to the main process broke"),
                    }
                }
                Err(error) => {
                    failed = failed.saturating_add(1);
                    tracing::debug!(%error, "no link to the main process");
                    tokio::time::sleep(if failed < SOON { RETRY_SOON } else { RETRY }).await;
                }
            }
            self.again = AGAIN_AFTER_BREAK;
        }
    }

    /// Whether this process is at its end.
    async fn converse(
        &mut self,
        mut channel: Channel,
        ending: &mut watch::Receiver<bool>,
    ) -> io::Result<bool> {
        let sender = channel.sender();
        let mut ticks = interval(REPORT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.asked.retain(|_, forwarded| !forwarded.reply.is_closed());
        for (number, forwarded) in &self.asked {
            sender.send(&question(*number, forwarded)).await?;
        }
        loop {
            tokio::select! {
                _ = ticks.tick() => self.report(&sender).await?,
                () = async { let _ = ending.wait_for(|ending| *ending).await; } => {
                    self.report(&sender).await?;
                    return Ok(true);
                }
                Some(forwarded) = self.forwarded_requests.recv() => {
                    self.last += 1;
                    self.asked.retain(|_, forwarded| !forwarded.reply.is_closed());
                    let question = question(self.last, &forwarded);
                    self.asked.insert(self.last, forwarded);
                    sender.send(&question).await?;
                }
                message = channel.receive() => match message? {
                    None => return Ok(false),
                    Some(Message::Push { number, path, body }) => {
                        self.take(&path, &body);
                        if let Some(number) = number {
                            sender.send(&Message::Heard { number }).await?;
                        }
                    }
                    Some(Message::Done { number, status, body }) => {
                        if let Some(forwarded) = self.asked.remove(&number) {
                            // Its client may have left.
                            let _ = forwarded.reply.send((status, body.into()));
                        }
                    }
                    Some(Message::Reopen) => self.gateway.reopen_log(),
                    Some(Message::Stop { now }) => {
                        let to = if now { DrainEnd::Now } else { DrainEnd::Asked };
                        self.stop.send_if_modified(|stop| {
                            let further = to > *stop;
                            *stop = to.max(*stop);
                            further
                        });
                    }
                    Some(other) => tracing::debug!(?other, "not what a main process says"),
                },
            }
        }
    }

    /// A change that the main process's admin API took.
    fn take(&self, path: &str, body: &str) {
        let response = self.gateway.lifecycle().admin(&Method::POST, path, None, body.as_bytes());
        if response.is_none_or(|response| response.status != http::StatusCode::OK) {
            tracing::warn!(path, "a change that the main process took means nothing to this one");
        }
    }

    async fn report(&mut self, sender: &Sender) -> io::Result<()> {
        let lifecycle = self.gateway.lifecycle();
        let began = lifecycle.steady_ms();
        let again = std::mem::replace(&mut self.again, AGAIN).as_millis();
        let since = self.reported.saturating_sub(u64::try_from(again).unwrap_or(u64::MAX));
        send_activity(sender, lifecycle.export_activity(since)).await?;
        self.reported = began;
        let Some(said) = self.counted.take() else { return Ok(()) };
        // Gathering reads files of the system's.
        let gateway = self.gateway.clone();
        let gathered = tokio::task::spawn_blocking(move || (gateway.standing(), gateway.processes().own()));
        let (standing, counted) = gathered.await.map_err(io::Error::other)?;
        sender.send(&Message::Report { standing, counted: counted.since(&said) }).await?;
        self.counted = Some(counted);
        Ok(())
    }
}

/// A request of the admin API, for the main process.
fn question(number: u64, forwarded: &ForwardedRequest) -> Message {
    let body = String::from_utf8_lossy(&forwarded.body).into_owned();
    Message::Forwarded { number, method: forwarded.method.clone(), target: forwarded.target.clone(), body }
}

/// Sends stamps in messages of a bounded size.
pub(super) async fn send_activity(
    sender: &Sender,
    (stamps, offset): (Vec<(cube_route::SandboxId, u64)>, i64),
) -> io::Result<()> {
    for rows in stamps.chunks(ROWS) {
        let rows = rows.iter().map(|(id, stamp)| (id.as_str().to_owned(), *stamp)).collect();
        sender.send(&Message::Activity { rows, offset: Some(offset) }).await?;
    }
    Ok(())
}

/// The link, and whether its other end understands reports.
async fn link(run_dir: &Path, gateway: &Gateway) -> io::Result<(Channel, bool)> {
    let stream = UnixStream::connect(socket::path(run_dir)).await?;
    socket::peer(&stream)?;
    let mut channel = Channel::new(stream);
    let standing = Some(gateway.standing());
    channel.send(&Message::Drainer { protocol: PROTOCOL, standing }).await?;
    match channel.receive_within(PROMPT).await? {
        Some(Message::Welcome { reports }) => Ok((channel, reports)),
        other => Err(io::Error::other(format!("no welcome: {other:?}"))),
    }
}
