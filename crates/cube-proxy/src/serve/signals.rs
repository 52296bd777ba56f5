//! The signals of a running proxy.

use cube_edge::Gateway;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::reload::Reload;
use crate::error::StartError;

/// Signals that are listened for, from before anything is bound.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    reopen: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, StartError> {
        let listen = |kind| {
            signal(kind).map_err(|error| StartError::Assembly(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            hangup: listen(SignalKind::hangup())?,
            reopen: listen(SignalKind::user_defined1())?,
        })
    }

    /// Returns at the next SIGTERM or SIGINT; acts on the others meanwhile.
    pub(super) async fn until_stop(&mut self, gateway: &Gateway, reload: &Reload) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.quit.recv() => tracing::info!("SIGQUIT alone does nothing"),
                _ = self.hangup.recv() => reload.ask(),
                _ = self.reopen.recv() => gateway.reopen_log(),
            }
        }
    }
}
