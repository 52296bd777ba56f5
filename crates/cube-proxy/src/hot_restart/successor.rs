//! `run --upgrade`: asking the running process, and taking over from it.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use cube_edge::Gateway;
use tokio::net::UnixStream;

use super::channel::{Channel, Detached};
use super::socket::{self, Inherited};
use super::{Message, PROTOCOL, UpgradeError};
use crate::error::StartError;
use crate::run_dir::RunDir;

/// How long a process that is just taking over may take to put its socket in place.
const CONNECT: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(50);
/// How long the running process may take for its first word.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// How long it may take for saying what it knows. It gives up earlier.
const KNOWN: Duration = Duration::from_secs(60);

/// What the running process said to `run --upgrade`.
pub(crate) enum RestartReply {
    /// This process is the successor.
    Successor(Predecessor, Inherited),
    /// Another process is, which the running one started; all is done.
    Done(String),
}

/// The process that this one takes over from, not yet in a runtime.
pub(crate) struct Predecessor {
    pid: u32,
    channel: Detached,
}

/// The conversation with the process that is taken over from.
pub(crate) struct Takeover {
    pid: u32,
    channel: Channel,
}

/// Asks the process that serves from `run_dir`.
///
/// # Errors
/// [`StartError::Upgrade`] when there is none, it refuses, or the successor that it started failed.
pub(crate) fn ask(run_dir: &RunDir) -> Result<RestartReply, StartError> {
    let running = run_dir.running()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| StartError::Assembly(format!("no runtime: {error}")))?;
    Ok(runtime.block_on(converse(run_dir.path(), running))?)
}

/// `named`: the process of the pid file. Without one the socket alone may be there.
async fn converse(run_dir: &Path, named: Option<i32>) -> Result<RestartReply, UpgradeError> {
    let stream = match named {
        Some(named) => connect(run_dir).await.map_err(|error| {
            UpgradeError::new(format!(
                "process {named} takes no upgrade at {} (server.run_dir): {error}",
                run_dir.display()
            ))
        })?,
        None => UnixStream::connect(socket::path(run_dir)).await.map_err(|_| {
            UpgradeError::new(format!(
                "no process serves from {} (server.run_dir); start one without --upgrade",
                run_dir.display()
            ))
        })?,
    };
    let (running, user) = socket::running(&stream)
        .map_err(|error| UpgradeError::new(format!("{} (server.run_dir): {error}", run_dir.display())))?;
    let lost = |error: io::Error| UpgradeError::new(format!("process {running}: {error}"));
    let gone = || UpgradeError::new(format!("process {running} ended meanwhile"));
    let mut channel = Channel::new(stream);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    channel.send(&Message::Upgrade { protocol: PROTOCOL, version }).await.map_err(lost)?;
    match channel.receive_within(FIRST_WORD).await.map_err(lost)? {
        Some(Message::Sockets { .. }) if user.is_some() => Err(UpgradeError::new(format!(
            "process {running} runs as user {}: the new process must be of that user, too",
            user.unwrap_or_default()
        ))),
        Some(Message::Sockets { pid, sockets }) => {
            let inherited = Inherited::new(sockets, channel.take_descriptors());
            let channel = channel.detach().map_err(lost)?;
            Ok(RestartReply::Successor(Predecessor { pid, channel }, inherited))
        }
        Some(Message::Starting) => {
            tracing::info!("process {running} starts its successor");
            // No limit here: the running process, which starts the new one, has limits of its own.
            match channel.receive().await.map_err(lost)? {
                Some(Message::Outcome { code: 0, text }) => Ok(RestartReply::Done(text)),
                Some(Message::Outcome { code, text }) => Err(UpgradeError { text, code }),
                _ => Err(gone()),
            }
        }
        Some(Message::Refused { text }) => Err(UpgradeError::new(text)),
        Some(_) => Err(UpgradeError::new(format!("process {running} says what this version does not know"))),
        None => Err(gone()),
    }
}

async fn connect(run_dir: &Path) -> io::Result<UnixStream> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(socket::path(run_dir)).await {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                    && begun.elapsed() < CONNECT =>
            {
                tokio::time::sleep(RETRY).await;
            }
            other => return other,
        }
    }
}

impl Predecessor {
    /// Goes on in the runtime of the caller.
    ///
    /// # Errors
    /// [`UpgradeError`] when the system refuses.
    pub(crate) fn attach(self) -> Result<Takeover, UpgradeError> {
        let channel = self.channel.attach();
        let channel = channel.map_err(|error| UpgradeError::new(format!("process {}: {error}", self.pid)))?;
        Ok(Takeover { pid: self.pid, channel })
    }
}

impl Takeover {
    /// The process that still serves.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Says that this process could serve, as soon as `ready` has come.
    ///
    /// # Errors
    /// [`UpgradeError`] when the other process gives the attempt up or ends before.
    pub(crate) async fn ready(&mut self, ready: impl Future<Output = ()>) -> Result<(), UpgradeError> {
        let word = tokio::select! {
            () = ready => None,
            word = self.channel.receive() => Some(word),
        };
        match word {
            None => self.say(&Message::Ready).await,
            Some(word) => Err(self.broken(word)),
        }
    }

    /// Takes what the other process knows and waits for its leave to begin.
    ///
    /// # Errors
    /// [`UpgradeError`] when the other process gives the attempt up or ends before.
    pub(crate) async fn learn(&mut self, gateway: &Gateway) -> Result<(), UpgradeError> {
        let lifecycle = gateway.lifecycle();
        loop {
            match self.channel.receive_within(KNOWN).await {
                Ok(Some(Message::States { rows })) => lifecycle.import_states(&rows),
                Ok(Some(Message::Activity { rows, offset })) => lifecycle.import_activity(&rows, offset),
                Ok(Some(Message::Known { listings, drainers, ledger })) => {
                    lifecycle.continue_from(&listings);
                    if let Some(ledger) = ledger {
                        gateway.take_ledger(*ledger);
                    }
                    // One more than those that drain already: the process that hands over will drain as well.
                    gateway.admin_forwarding().expect(drainers + 1);
                    break;
                }
                other => return Err(self.broken(other)),
            }
        }
        self.say(&Message::Taken).await?;
        match self.channel.receive_within(KNOWN).await {
            Ok(Some(Message::Begin)) => Ok(()),
            other => Err(self.broken(other)),
        }
    }

    /// Connections are accepted. From here on this process serves, whatever becomes of the other.
    pub(crate) async fn serving(&self) {
        let _ = self.say(&Message::Serving).await;
    }

    /// Pid file and socket are in place.
    pub(crate) async fn settled(&self) {
        let _ = self.say(&Message::Settled).await;
    }

    /// Says why this process cannot take over.
    pub(crate) async fn fail(&self, error: &StartError) {
        let _ = self.say(&Message::Failed { text: error.to_string() }).await;
    }

    async fn say(&self, message: &Message) -> Result<(), UpgradeError> {
        let said = self.channel.send(message).await;
        said.map_err(|error| UpgradeError::new(format!("process {}: {error}", self.pid)))
    }

    fn broken(&self, word: io::Result<Option<Message>>) -> UpgradeError {
        let pid = self.pid;
        UpgradeError::new(match word {
            Ok(Some(Message::Refused { text })) => text,
            Ok(Some(_)) => format!("process {pid} says what this version does not know"),
            Ok(None) => {
                format!("process {pid} ended before this one had taken over; start it without --upgrade")
            }
            Err(error) => format!("process {pid}: {error}"),
        })
    }
}
