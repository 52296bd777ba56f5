//! The main process's end of the link to a drainer.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cube_edge::{AdminApi, DrainerCommand, Gateway, LinkedProcess, ProcessStanding};
use cube_lifecycle::Lifecycle;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Message;
use super::channel::{Channel, Sender};

type Unheard = Mutex<HashMap<u64, oneshot::Sender<()>>>;

/// How long a drainer that was told to end at once may take before it is killed: one that hangs
/// hears nothing.
const ENDS: Duration = Duration::from_secs(2);

/// Tells the drainer what the admin API is told and takes its activity and its counts, until it ends
/// or the forwarding dismisses it, since this process has a successor too.
pub(super) async fn serve(
    channel: Channel,
    pid: i32,
    standing: Option<ProcessStanding>,
    gateway: &Gateway,
    admin: &Arc<AdminApi>,
) {
    // From here on nothing is missed.
    let words = gateway.admin_forwarding().listen();
    let process = gateway.processes().link(pid.unsigned_abs(), standing);
    let sender = channel.sender();
    let unheard = Unheard::default();
    let linked = async {
        sender.send(&Message::Welcome { reports: true }).await?;
        // Both at once: neither end may wait for the other to read while both write.
        let mut heard = std::pin::pin!(hear(channel, gateway.lifecycle(), admin, &process, &unheard));
        tokio::select! {
            told = tell(words, &sender, &unheard) => match told {
                Ok(()) => Ok(()),
                // The draining process is gone, and its last words may not have been read yet.
                Err(_) => heard.await,
            },
            heard = &mut heard => heard,
            () = end_when_wanted(&process, pid, &sender) => Ok(()),
        }
    };
    if let Err(error) = linked.await {
        tracing::debug!(%error, "the link to a draining process broke");
    }
}

/// Ends the drainer once somebody wants that; its end is heard by who listens to it.
async fn end_when_wanted(process: &LinkedProcess, pid: i32, sender: &Sender) {
    process.end_wanted().await;
    tracing::info!(pid, "a draining process is ended");
    // An error: it is gone.
    let _ = timeout(ENDS, sender.send(&Message::Stop { now: true })).await;
    tokio::time::sleep(ENDS).await;
    if let Some(process) = Pid::from_raw(pid) {
        tracing::warn!(pid, "a draining process does not end; it is killed");
        // An error: it is gone. While this link lives the id is no other process's.
        let _ = kill_process(process, Signal::KILL);
    }
    std::future::pending().await
}

async fn tell(
    mut words: mpsc::Receiver<DrainerCommand>,
    sender: &Sender,
    unheard: &Unheard,
) -> io::Result<()> {
    let mut last = 0;
    while let Some(word) = words.recv().await {
        let message = match word {
            DrainerCommand::Push(push, heard) => {
                let number = heard.map(|heard| {
                    last += 1;
                    unheard.lock().insert(last, heard);
                    last
                });
                // The admin API has read it as JSON, so it is text.
                let body = String::from_utf8_lossy(&push.body).into_owned();
                Message::Push { number, path: push.path, body }
            }
            DrainerCommand::Reopen => Message::Reopen,
            DrainerCommand::Stop => Message::Stop { now: false },
            DrainerCommand::StopNow => Message::Stop { now: true },
        };
        sender.send(&message).await?;
    }
    Ok(())
}

async fn hear(
    mut channel: Channel,
    lifecycle: &Lifecycle,
    admin: &Arc<AdminApi>,
    process: &LinkedProcess,
    unheard: &Unheard,
) -> io::Result<()> {
    while let Some(message) = channel.receive().await? {
        match message {
            Message::Activity { rows, offset } => lifecycle.import_activity(&rows, offset),
            Message::Report { standing, counted } => process.report(standing, counted),
            Message::Heard { number } => {
                if let Some(heard) = unheard.lock().remove(&number) {
                    // Whoever waited may have given up.
                    let _ = heard.send(());
                }
            }
            Message::Forwarded { number, method, target, body } => {
                let (admin, sender) = (admin.clone(), channel.sender());
                let own_end = AdminApi::own_end(process.pid(), &method, &target);
                let end = own_end.is_some().then(|| process.end());
                tokio::spawn(async move {
                    let (status, body) = match own_end {
                        Some(told) => told,
                        None => admin.forwarded(&method, &target, body.as_bytes()).await,
                    };
                    let body = String::from_utf8_lossy(&body).into_owned();
                    // The drainer may have ended.
                    let _ = sender.send(&Message::Done { number, status, body }).await;
                    if let Some(end) = end {
                        end.notify_one();
                    }
                });
            }
            other => tracing::debug!(?other, "not what a draining process says"),
        }
    }
    Ok(())
}
