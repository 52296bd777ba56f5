//! The main process's end of the link to a drainer.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use cube_edge::{AdminApi, Desk, Word};
use cube_lifecycle::Lifecycle;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::Message;
use super::channel::{Channel, Sender};

type Unheard = Mutex<HashMap<u64, oneshot::Sender<()>>>;

/// Tells the drainer what the admin API is told and takes its activity, until it ends or the desk
/// dismisses it, since this process has a successor too.
pub(super) async fn serve(channel: Channel, desk: &Desk, lifecycle: &Lifecycle, admin: &Arc<AdminApi>) {
    // From here on nothing is missed.
    let words = desk.listen();
    let sender = channel.sender();
    let unheard = Unheard::default();
    let linked = async {
        sender.send(&Message::Welcome).await?;
        // Both at once: neither end may wait for the other to read while both write.
        tokio::select! {
            told = tell(words, &sender, &unheard) => told,
            heard = hear(channel, lifecycle, admin, &unheard) => heard,
        }
    };
    if let Err(error) = linked.await {
        tracing::debug!(%error, "the link to a draining process broke");
    }
}

async fn tell(mut words: mpsc::Receiver<Word>, sender: &Sender, unheard: &Unheard) -> io::Result<()> {
    let mut last = 0;
    while let Some(word) = words.recv().await {
        let message = match word {
            Word::Push(push, heard) => {
                let number = heard.map(|heard| {
                    last += 1;
                    unheard.lock().insert(last, heard);
                    last
                });
                // The admin API has read it as JSON, so it is text.
                let body = String::from_utf8_lossy(&push.body).into_owned();
                Message::Push { number, path: push.path, body }
            }
            Word::Reopen => Message::Reopen,
            Word::Stop => Message::Stop { now: false },
            Word::StopNow => Message::Stop { now: true },
        };
        sender.send(&message).await?;
    }
    Ok(())
}

async fn hear(
    mut channel: Channel,
    lifecycle: &Lifecycle,
    admin: &Arc<AdminApi>,
    unheard: &Unheard,
) -> io::Result<()> {
    while let Some(message) = channel.receive().await? {
        match message {
            Message::Activity { rows, offset } => lifecycle.take_activity(&rows, offset),
            Message::Heard { number } => {
                if let Some(heard) = unheard.lock().remove(&number) {
                    // Whoever waited may have given up.
                    let _ = heard.send(());
                }
            }
            Message::Errand { number, method, target, body } => {
                let (admin, sender) = (admin.clone(), channel.sender());
                tokio::spawn(async move {
                    let (status, body) = admin.errand(&method, &target, body.as_bytes()).await;
                    let body = String::from_utf8_lossy(&body).into_owned();
                    // The drainer may have ended.
                    let _ = sender.send(&Message::Done { number, status, body }).await;
                });
            }
            other => tracing::debug!(?other, "not what a draining process says"),
        }
    }
    Ok(())
}
