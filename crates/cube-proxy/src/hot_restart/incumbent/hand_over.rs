//! One attempt to hand over, from the word that asks for it to the outcome that is told. Where it fails,
//! everything is as it was before.

use std::time::Duration;

use cube_edge::Gateway;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::super::channel::Channel;
use super::super::child;
use super::super::drainer::{Drainer, send_activity};
use super::super::launcher::Launched;
use super::super::socket::ListenerHandle;
use super::super::{Message, PROMPT, PROTOCOL, ROWS, UpgradeError};
use super::{Incumbent, ProcessPhase};
use crate::error::EXIT_FAILURE;

/// How long a successor that is ready may take to learn what this process knows.
/// The admin API waits meanwhile.
const LEARN: Duration = Duration::from_secs(10);
/// How long a successor that came to nothing may take to end: it has a copy of the listening sockets,
/// and connections that it does not take are nobody's. Of a child the exit code is known then.
const ENDS: Duration = Duration::from_secs(2);
/// What a successor that was told to begin has left for saying that it serves when this process is
/// asked to stop.
const UNDECIDED: Duration = Duration::from_secs(1);
/// Requests of the admin API on their way to the successor.
const FORWARDED_REQUESTS: usize = 64;

impl Incumbent {
    /// Somebody asks for an upgrade.
    pub(super) async fn asked(&self, mut channel: Channel, pid: i32, protocol: u32, version: &str) {
        // The version goes into the log: escaped, it cannot begin a line of its own.
        let version = &version.escape_debug().to_string();
        let refuse = async |channel: &Channel, text: String| {
            tracing::warn!(pid, version, "an upgrade is refused: {text}");
            let _ = channel.send(&Message::Refused { text }).await;
        };
        if protocol != PROTOCOL {
            let text = format!(
                "the running version {} cannot hand over to {version}; restart it",
                env!("CARGO_PKG_VERSION")
            );
            return refuse(&channel, text).await;
        }
        let awaited = self.expected.lock().await.take_if(|(child, _)| *child == pid);
        if let Some((_, awaiting)) = awaited {
            let _ = awaiting.send(channel);
            return;
        }
        let own = std::process::id();
        let Ok(attempt) = self.attempt.try_lock() else {
            return refuse(&channel, format!("another upgrade of process {own} is under way")).await;
        };
        let phase = *self.phase.borrow();
        match phase {
            ProcessPhase::Serving => {}
            ProcessPhase::Stopping => {
                return refuse(&channel, format!("process {own} is being stopped")).await;
            }
            ProcessPhase::HandedOver => {
                return refuse(&channel, format!("process {own} has a successor already")).await;
            }
        }
        if let Some(obstacle) = &self.settings.obstacle {
            return refuse(&channel, obstacle.clone()).await;
        }
        tracing::info!(pid, version, "an upgrade begins");
        let asking = CountedAsker::new(&self.asking);
        let outcome = if self.settings.managed {
            let _ = channel.send(&Message::Starting).await;
            self.hand_over_to_child().await
        } else {
            self.hand_over(&mut channel, pid, &mut None).await
        };
        // Whoever is told may ask again at once.
        drop(attempt);
        let last_word = match outcome {
            Ok(()) => {
                let successor = self.successor.lock().map_or(0, |pid| pid.as_raw_nonzero().get());
                let text = format!("process {successor} has taken over from {own}");
                Message::Outcome { code: 0, text }
            }
            Err(error) => {
                tracing::error!("the upgrade came to nothing; process {own} serves on: {error}");
                match self.settings.managed {
                    true => Message::Outcome { code: error.code, text: error.text },
                    false => Message::Refused { text: error.text },
                }
            }
        };
        // Who asked may be gone, or hang.
        let _ = timeout(ENDS, channel.send(&last_word)).await;
        drop(asking);
        if !self.settings.managed && matches!(last_word, Message::Refused { .. }) {
            see_it_end(&mut channel, pid).await;
        }
    }

    /// Starts the successor and hands over to it.
    async fn hand_over_to_child(&self) -> Result<(), UpgradeError> {
        let (waiting, channel) = oneshot::channel();
        let started = {
            // Held over the start, so that the successor cannot come before it is expected.
            let mut expected = self.expected.lock().await;
            let started = self.settings.started.start().await;
            if let Ok(launched) = &started {
                *expected = Some((launched.pid, waiting));
            }
            started
        };
        let mut launched = started.map_err(|error| {
            UpgradeError::new(format!("{}: {error}", self.settings.started.program().display()))
        })?;
        let pid = launched.pid;
        let connected = tokio::select! {
            channel = timeout((self.settings.limit)(), channel) => match channel {
                Ok(Ok(channel)) => Ok(channel),
                _ => Err(self.too_late()),
            },
            ended = launched.ended() => {
                *self.expected.lock().await = None;
                return Err(of_child(ended));
            }
            () = self.stop_was_asked() => Err(stopped()),
        };
        *self.expected.lock().await = None;
        let mut held = Some(launched);
        let outcome = match connected {
            Ok(mut channel) => {
                let outcome = self.hand_over(&mut channel, pid, &mut held).await;
                if let Err(error) = &outcome {
                    let refused = Message::Refused { text: error.text.clone() };
                    // The new process may be gone, or hang.
                    let _ = timeout(ENDS, channel.send(&refused)).await;
                    if held.is_none() {
                        see_it_end(&mut channel, pid).await;
                    }
                }
                outcome
            }
            Err(error) => Err(error),
        };
        match (outcome, held) {
            (Err(error), Some(launched)) => Err(more_of(error, launched).await),
            (outcome, _) => outcome,
        }
    }

    /// The whole hand-over. Where it fails everything is as it was before. `held`: a successor that
    /// this process started.
    async fn hand_over(
        &self,
        channel: &mut Channel,
        pid: i32,
        held: &mut Option<Launched>,
    ) -> Result<(), UpgradeError> {
        tokio::select! {
            ready = timeout((self.settings.limit)(), self.ready(channel)) => ready.unwrap_or_else(|_| Err(self.too_late())),
            () = self.stop_was_asked() => Err(stopped()),
        }?;
        let decision = self.deciding.lock().await;
        if *self.phase.borrow() != ProcessPhase::Serving {
            return Err(stopped());
        }
        // Before it is the main process, so that it announces itself as a child of the manager.
        if let Some(launched) = held.take() {
            tokio::select! {
                gone = launched.let_go() => gone.map_err(lost),
                () = self.stop_was_asked() => Err(stopped()),
            }?;
        }
        let forwarding = ClosedForwarding(Some(&self.gateway));
        let began = self.gateway.lifecycle().steady_ms();
        tokio::select! {
            taught = timeout(LEARN, self.teach(channel)) => {
                taught.unwrap_or_else(|_| Err(UpgradeError::new("the new process does not take what this one knows")))
            }
            () = self.stop_was_asked() => Err(stopped()),
        }?;
        channel.send(&Message::Begin).await.map_err(lost)?;
        let serving = tokio::select! {
            word = channel.receive_within(PROMPT) => word,
            () = async { self.stop_was_asked().await; tokio::time::sleep(UNDECIDED).await; } => {
                Err(std::io::ErrorKind::TimedOut.into())
            }
        };
        match serving {
            Ok(Some(Message::Serving)) => {}
            // Nobody knows whether it accepts by now, and there must not be two main processes; nor
            // none, which is what believing it would come to if it hangs. So it is ended.
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                kill(pid);
                return Err(UpgradeError::new(
                    "the new process did not say that it serves when it was told to begin, and was ended",
                ));
            }
            other => return Err(unexpected(other)),
        }
        forwarding.keep_closed();
        self.become_drainer(pid, began);
        drop(decision);
        if !matches!(channel.receive_within(PROMPT).await, Ok(Some(Message::Settled))) {
            tracing::warn!(pid, "the new process serves, but has not said that its pid file is in place");
        }
        Ok(())
    }

    /// Gives the sockets and waits until the successor could serve.
    async fn ready(&self, channel: &mut Channel) -> Result<(), UpgradeError> {
        let sent = {
            let handles: Vec<ListenerHandle> =
                self.handles.lock().iter().filter_map(|handle| handle.try_clone().ok()).collect();
            let sockets = handles.iter().map(|handle| handle.name.clone()).collect();
            let message = Message::Sockets { pid: std::process::id(), sockets };
            let descriptors: Vec<_> = handles.iter().map(ListenerHandle::as_fd).collect();
            channel.sender().send_with(&message, &descriptors).await
        };
        sent.map_err(lost)?;
        match channel.receive().await {
            Ok(Some(Message::Ready)) => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Says what only this process knows. The admin API is closed meanwhile, so that nothing is
    /// added to it.
    async fn teach(&self, channel: &mut Channel) -> Result<(), UpgradeError> {
        self.gateway.admin_forwarding().close().await;
        let lifecycle = self.gateway.lifecycle();
        let sender = channel.sender();
        for rows in lifecycle.export_states().chunks(ROWS) {
            sender.send(&Message::States { rows: rows.to_vec() }).await.map_err(lost)?;
        }
        send_activity(&sender, lifecycle.export_activity(0)).await.map_err(lost)?;
        let listings = lifecycle.listing_cursors();
        let drainers = *self.links.borrow();
        let ledger = Some(Box::new(self.gateway.ledger()));
        sender.send(&Message::Known { listings, drainers, ledger }).await.map_err(lost)?;
        match channel.receive().await {
            Ok(Some(Message::Taken)) => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// The successor serves: this process accepts nothing more and links to it.
    fn become_drainer(&self, pid: i32, began: u64) {
        self.handles.lock().clear();
        *self.successor.lock() = Pid::from_raw(pid);
        self.gateway.processes().drain_since(self.gateway.lifecycle().steady_ms());
        self.gateway.drain().hand_over();
        let (forwarded_requests, taken) = mpsc::channel(FORWARDED_REQUESTS);
        let forwarding = self.gateway.admin_forwarding();
        forwarding.hand_over(forwarded_requests);
        // Those that drain already link to the successor by themselves.
        forwarding.dismiss();
        let run_dir = self.settings.run_dir.clone();
        *self.drainer.lock() = Some(Drainer::start(run_dir, self.gateway.clone(), taken, began));
        self.phase.send_replace(ProcessPhase::HandedOver);
    }

    async fn stop_was_asked(&self) {
        // The sender lives in self.
        let _ = self.stop_asked.subscribe().wait_for(|asked| *asked).await;
    }

    fn too_late(&self) -> UpgradeError {
        UpgradeError::new(format!(
            "the new process was not ready within {:?} (drain.upgrade_timeout): its listeners open, and its store \
             has answered once",
            (self.settings.limit)()
        ))
    }
}

/// Counts one who has asked for an upgrade, until it is dropped.
struct CountedAsker<'a>(&'a watch::Sender<usize>);

impl<'a> CountedAsker<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for CountedAsker<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Lets requests to the admin API in again when it is dropped, unless the successor has them by then.
struct ClosedForwarding<'a>(Option<&'a Gateway>);

impl ClosedForwarding<'_> {
    fn keep_closed(mut self) {
        self.0 = None;
    }
}

impl Drop for ClosedForwarding<'_> {
    fn drop(&mut self) {
        if let Some(gateway) = self.0 {
            gateway.admin_forwarding().open();
        }
    }
}

/// Why a successor failed that is still held: its exit code says more than that it is gone. One that
/// does not end is ended.
async fn more_of(error: UpgradeError, mut launched: Launched) -> UpgradeError {
    match timeout(ENDS, launched.ended()).await {
        Ok(Ok(status)) if status.code() == Some(i32::from(EXIT_FAILURE)) => error,
        Ok(ended) => of_child(ended),
        Err(_) => {
            kill(launched.pid);
            error
        }
    }
}

/// Sees to it that a successor ends whose attempt came to nothing and who has been told so.
async fn see_it_end(channel: &mut Channel, pid: i32) {
    let gone = async { while let Ok(Some(_)) = channel.receive().await {} };
    if timeout(ENDS, gone).await.is_err() {
        tracing::warn!(pid, "a new process that was refused does not end; it is killed");
        // While it holds its end of the channel the id is no other process's.
        kill(pid);
    }
}

fn kill(pid: i32) {
    if let Some(process) = Pid::from_raw(pid) {
        // An error says that it is gone already.
        let _ = kill_process(process, Signal::KILL);
    }
}

fn of_child(ended: std::io::Result<std::process::ExitStatus>) -> UpgradeError {
    match ended {
        Ok(status) => {
            let (text, code) = child::ended(status);
            UpgradeError { text, code }
        }
        Err(error) => UpgradeError::new(error.to_string()),
    }
}

fn stopped() -> UpgradeError {
    UpgradeError::new("the running process is being stopped")
}

fn lost(error: std::io::Error) -> UpgradeError {
    UpgradeError::new(format!("the new process: {error}"))
}

fn unexpected(word: std::io::Result<Option<Message>>) -> UpgradeError {
    match word {
        Ok(Some(Message::Failed { text })) => UpgradeError::new(text),
        Ok(Some(_)) => UpgradeError::new("the new process says what this version does not know"),
        Ok(None) => UpgradeError::new("the new process ended before it had taken over"),
        Err(error) => lost(error),
    }
}
