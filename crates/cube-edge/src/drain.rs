//! The end of the process's service, stage by stage (connections.md, Draining).

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::watch;

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// Everything is served.
    Serving = 0,
    /// `/readyz` is 503, everything is still served: balancers notice.
    Unready = 1,
    /// Listening has stopped, responses carry `Connection: close`, HTTP/2 connections that have been
    /// quiet go. An idle HTTP/1.1 connection is kept for its next request.
    Closing = 2,
    /// Idle connections are closed.
    Emptying = 3,
    /// Half of the time is over: HTTP/2 connections are told that it ends, with streams or without.
    Late = 4,
    /// What has not ended by itself is ended.
    Over = 5,
}

/// The stage, for everybody who acts on it. It only ever moves forward.
pub struct Drain {
    stage: AtomicU8,
    changed: watch::Sender<Stage>,
    handed_over: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            stage: AtomicU8::new(0),
            changed: watch::Sender::new(Stage::Serving),
            handed_over: watch::Sender::new(false),
        }
    }
}

impl Drain {
    /// The stage now.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Serving,
            1 => Stage::Unready,
            2 => Stage::Closing,
            3 => Stage::Emptying,
            4 => Stage::Late,
            _ => Stage::Over,
        }
    }

    /// Whether a connection should not be kept for another request. One atomic load.
    #[must_use]
    pub fn closing(&self) -> bool {
        self.stage() >= Stage::Closing
    }

    /// Begins the drain of a process whose successor serves on the same sockets by now.
    pub fn hand_over(&self) {
        self.handed_over.send_replace(true);
        self.advance(Stage::Closing);
    }

    /// Whether a successor serves in place of this process.
    #[must_use]
    pub fn handed_over(&self) -> bool {
        *self.handed_over.borrow()
    }

    /// The same, to be waited for. The sender lives as long as the drain.
    #[must_use]
    pub fn watch_hand_over(&self) -> watch::Receiver<bool> {
        self.handed_over.subscribe()
    }

    /// Moves on to `stage`, unless it is past already.
    pub fn advance(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.changed.send_if_modified(|now| {
            let forward = stage > *now;
            if forward {
                *now = stage;
            }
            forward
        });
    }

    /// Returns once `stage` is reached.
    pub async fn reached(&self, stage: Stage) {
        // The sender lives in self, so the channel cannot close while this waits.
        let _ = self.changed.subscribe().wait_for(|now| *now >= stage).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stages_only_move_forward() {
        let drain = Drain::default();
        drain.advance(Stage::Closing);
        drain.advance(Stage::Unready);
        assert_eq!(drain.stage(), Stage::Closing);
        assert!(drain.closing());
        drain.reached(Stage::Unready).await;
    }
}
