//! The process that serves: it answers who asks for an upgrade, hands over, and keeps the links to
//! those that handed over to it.

mod hand_over;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cube_edge::{AdminApi, Gateway};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::channel::Channel;
use super::child::StartedAs;
use super::drainer::Drainer;
use super::socket::{self, ListenerHandle};
use super::{Message, PROMPT, PROTOCOL, Presence, link};

/// How long a first word is waited for.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// How long the end of this process waits for the outcome to be told: what a successor may take for
/// its own last word, and a second.
const LAST_WORD: Duration = PROMPT.saturating_add(Duration::from_secs(1));
/// Between two looks whether pid file and socket are in place.
const LOOK: Duration = Duration::from_secs(1);
/// Where this process stands. Only the first leads to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessPhase {
    /// It is the main process.
    Serving,
    /// It is the main process, and was asked to stop.
    Stopping,
    /// A successor serves.
    HandedOver,
}

/// What the incumbent needs.
pub(crate) struct Settings {
    /// Where its socket is.
    pub(crate) run_dir: PathBuf,
    /// How it was started.
    pub(crate) started: StartedAs,
    /// Whether a service manager holds it, which must learn of a successor from this process.
    pub(crate) managed: bool,
    /// Why it cannot hand over at all.
    pub(crate) obstacle: Option<String>,
    /// `drain.upgrade_timeout`.
    pub(crate) limit: Box<dyn Fn() -> Duration + Send + Sync>,
}

/// The process that serves, for everybody who talks to it about upgrades. See the module.
pub(crate) struct Incumbent {
    settings: Settings,
    gateway: Arc<Gateway>,
    /// For requests that come through a drainer.
    admin: Arc<AdminApi>,
    handles: Mutex<Vec<ListenerHandle>>,
    phase: watch::Sender<ProcessPhase>,
    stop_asked: watch::Sender<bool>,
    /// Held while somebody is answered; one attempt at a time.
    attempt: tokio::sync::Mutex<()>,
    /// How many have asked for an upgrade and not heard its outcome.
    asking: watch::Sender<usize>,
    /// Held while it is undecided which of two processes is the main one.
    deciding: tokio::sync::Mutex<()>,
    /// The child that will connect, and who waits for it.
    expected: tokio::sync::Mutex<Option<(i32, oneshot::Sender<Channel>)>>,
    links: watch::Sender<usize>,
    drainer: Mutex<Option<Drainer>>,
    successor: Mutex<Option<Pid>>,
}

impl Incumbent {
    pub(crate) fn new(
        settings: Settings,
        gateway: Arc<Gateway>,
        admin: Arc<AdminApi>,
        handles: Vec<ListenerHandle>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            gateway,
            admin,
            handles: Mutex::new(handles),
            phase: watch::Sender::new(ProcessPhase::Serving),
            stop_asked: watch::Sender::new(false),
            attempt: tokio::sync::Mutex::default(),
            asking: watch::Sender::new(0),
            deciding: tokio::sync::Mutex::default(),
            expected: tokio::sync::Mutex::default(),
            links: watch::Sender::new(0),
            drainer: Mutex::default(),
            successor: Mutex::default(),
        })
    }

    /// Answers on the socket until a successor has its own, and sees to it that it is found.
    pub(crate) async fn serve(self: Arc<Self>, mut presence: Presence) {
        let mut phase = self.phase.subscribe();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                accepted = presence.accept() => match accepted {
                    Ok(stream) => {
                        tokio::spawn(self.clone().respond(stream));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the upgrade socket pauses");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                },
                _ = looks.tick() => {
                    // Not while a successor may be putting its own there.
                    let decided = self.deciding.try_lock();
                    if decided.is_ok() && *self.phase.borrow() != ProcessPhase::HandedOver {
                        presence.heal().await;
                    }
                }
                () = async { let _ = phase.wait_for(|phase| *phase == ProcessPhase::HandedOver).await; } => {
                    return presence.leave();
                }
            }
        }
    }

    /// Returns when a successor serves.
    pub(crate) async fn handed_over(&self) {
        // The sender lives in self.
        let _ = self.phase.subscribe().wait_for(|phase| *phase == ProcessPhase::HandedOver).await;
    }

    /// No attempt succeeds from now on, and drainers are told to stop. Where a successor has just
    /// taken over it is asked to stop instead: whoever asked meant the service.
    pub(crate) async fn stop(&self) -> ProcessPhase {
        self.stop_asked.send_replace(true);
        let _decided = self.deciding.lock().await;
        self.phase.send_if_modified(|phase| {
            let serving = *phase == ProcessPhase::Serving;
            if serving {
                *phase = ProcessPhase::Stopping;
            }
            serving
        });
        let phase = *self.phase.borrow();
        match phase {
            ProcessPhase::HandedOver => {
                if let Some(successor) = *self.successor.lock() {
                    // Gone already: then there is nothing to stop.
                    let _ = kill_process(successor, Signal::TERM);
                }
            }
            _ => {
                // No successor will ask for them; and a socket that is kept here listens on, with
                // nobody to accept, when the drain closes its own.
                self.handles.lock().clear();
                self.gateway.admin_forwarding().stop(false);
            }
        }
        phase
    }

    /// Drainers end their streams at once.
    pub(crate) fn stop_now(&self) {
        self.gateway.admin_forwarding().stop(true);
    }

    /// Returns when no drainer is left.
    pub(crate) async fn unlinked(&self) {
        // The sender lives in self.
        let _ = self.links.subscribe().wait_for(|links| *links == 0).await;
    }

    /// Returns when everybody who asked for an upgrade has heard its outcome, or it is late. An idle
    /// process is at its end as soon as another one serves, and whoever asked must not take that for
    /// a failure.
    pub(crate) async fn answered(&self) {
        let answered = async {
            // The sender lives in self.
            let _ = self.asking.subscribe().wait_for(|asking| *asking == 0).await;
        };
        if timeout(LAST_WORD, answered).await.is_err() {
            tracing::warn!("who asked for the upgrade has not heard its outcome");
        }
    }

    /// The link to the successor, once there is one.
    pub(crate) fn take_drainer(&self) -> Option<Drainer> {
        self.drainer.lock().take()
    }

    async fn respond(self: Arc<Self>, stream: UnixStream) {
        let pid = match socket::peer(&stream) {
            Ok(pid) => pid,
            Err(error) => return tracing::warn!(%error, "the upgrade socket is not for others"),
        };
        let mut channel = Channel::new(stream);
        match channel.receive_within(FIRST_WORD).await {
            Ok(Some(Message::Upgrade { protocol, version })) => {
                self.asked(channel, pid, protocol, &version).await;
            }
            Ok(Some(Message::Drainer { protocol: PROTOCOL, standing }))
                if *self.phase.borrow() != ProcessPhase::HandedOver =>
            {
                tracing::info!(pid, "linked to a draining process");
                self.links.send_modify(|links| *links += 1);
                link::serve(channel, pid, standing, &self.gateway, &self.admin).await;
                self.links.send_modify(|links| *links -= 1);
                tracing::info!(pid, "the link to a draining process has ended");
            }
            other => tracing::debug!(pid, ?other, "not what is said first"),
        }
    }
}
