//! Following the shared faulty set: pushed, and polled as a floor.

use std::sync::Arc;

use cube_metadata::StoreEvent;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, sleep_until};

use crate::Breaker;

impl Breaker {
    /// Reads the faulty set at once, when a change of it is pushed, when the store's word is in
    /// doubt, and every `shared_poll`. A store that cannot answer leaves the last known set in
    /// force. To be spawned once; ends when the store is gone.
    pub async fn run(self: Arc<Self>) {
        let Some(mut events) = self.events.lock().take() else {
            tracing::error!("the breaker follows the store already");
            return;
        };
        loop {
            let read_at = Instant::now();
            self.refresh().await;
            self.expire();
            if self.wait(&mut events, read_at).await.is_err() {
                return;
            }
        }
    }

    /// Reads the faulty set once.
    pub async fn refresh(&self) {
        match self.store.faulty_nodes().await {
            Ok(nodes) => self.set_faulty(nodes),
            // The store itself counts and logs the error.
            Err(error) => tracing::debug!("the faulty set cannot be read: {error}"),
        }
    }

    /// Waits until it is time to read the set again; an error: the store is gone.
    async fn wait(
        &self,
        events: &mut broadcast::Receiver<StoreEvent>,
        read_at: Instant,
    ) -> Result<(), RecvError> {
        loop {
            let due = read_at + self.settings.load().shared_poll;
            tokio::select! {
                () = sleep_until(due) => return Ok(()),
                () = self.changed.notified() => {}
                event = events.recv() => match event {
                    Ok(StoreEvent::FaultyNodes | StoreEvent::InvalidateAll) | Err(RecvError::Lagged(_)) => {
                        // One read covers all that was pushed until it begins.
                        while !matches!(events.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
                        return Ok(());
                    }
                    Ok(StoreEvent::RecordChanged(_) | StoreEvent::StateChanged(_) | StoreEvent::TrackingLost) => {}
                    Err(RecvError::Closed) => return Err(RecvError::Closed),
                },
            }
        }
    }
}
