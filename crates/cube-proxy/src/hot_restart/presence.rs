//! What the main process has in its run directory: the pid file, and the socket where it is asked
//! for an upgrade. A directory that was removed, full or read-only is put right as soon as it can be.

use std::io;
use std::process;

use tokio::net::UnixStream;

use super::{UpgradeSocket, socket};
use crate::error::StartError;
use crate::run_dir::RunDir;

/// How this process is found by others: its pid file and its upgrade socket in the run directory.
pub(crate) struct Presence {
    run_dir: RunDir,
    socket: Option<UpgradeSocket>,
    /// Whether it was said that something is missing.
    told: bool,
}

impl Presence {
    /// `socket`: none when it could not be opened.
    pub(crate) fn new(run_dir: RunDir, socket: Option<UpgradeSocket>) -> Self {
        let told = socket.is_none();
        Self { run_dir, socket, told }
    }

    /// Somebody who asks; nobody can while there is no socket.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        match &self.socket {
            Some(socket) => socket.listener.accept().await.map(|(stream, _)| stream),
            None => std::future::pending().await,
        }
    }

    /// Leaves the place to a successor, which has its own there or is about to.
    pub(super) fn leave(self) {
        if let Some(socket) = self.socket {
            socket.leave();
        }
    }

    /// Puts back what is missing, unless another process serves from the directory by now. Must be
    /// called by the main process alone, and not while it hands over.
    pub(super) async fn heal(&mut self) {
        let in_place = self.socket.as_ref().is_some_and(UpgradeSocket::is_in_place);
        if in_place && self.run_dir.is_ours() {
            return;
        }
        match self.put_back(in_place).await {
            Ok(()) => {
                self.told = false;
                tracing::warn!(
                    "pid file and upgrade socket were missing in {} (server.run_dir), and are there again",
                    self.run_dir.path().display()
                );
            }
            Err(error) if !self.told => {
                self.told = true;
                tracing::error!("the next upgrade will not find this process: {error}");
            }
            Err(_) => {}
        }
    }

    async fn put_back(&mut self, in_place: bool) -> Result<(), StartError> {
        if !in_place && let Some(other) = self.other().await {
            return Err(StartError::Running { pid: other, file: socket::path(self.run_dir.path()) });
        }
        self.run_dir.create()?;
        // Removed at the end of this process by who holds it.
        self.run_dir.succeed()?.leave();
        if !in_place {
            self.socket = Some(UpgradeSocket::open(&self.run_dir)?);
        }
        Ok(())
    }

    /// Another process that answers in this directory.
    async fn other(&self) -> Option<i32> {
        let stream = UnixStream::connect(socket::path(self.run_dir.path())).await.ok()?;
        let pid = stream.peer_cred().ok()?.pid()?;
        (i32::try_from(process::id()) != Ok(pid)).then_some(pid)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::Environment;

    fn at(path: &std::path::Path) -> RunDir {
        RunDir::locate(Some(path), &Environment::default())
    }

    #[tokio::test]
    async fn what_is_missing_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = at(&dir.path().join("run"));
        run_dir.create().unwrap();
        let mut presence = Presence::new(run_dir.clone(), None);
        let whole =
            async || run_dir.is_ours() && UnixStream::connect(socket::path(run_dir.path())).await.is_ok();
        presence.heal().await;
        assert!(whole().await, "it could not be opened at first");
        fs::remove_dir_all(run_dir.path()).unwrap();
        presence.heal().await;
        assert!(whole().await, "it was removed");
        fs::remove_file(socket::path(run_dir.path())).unwrap();
        presence.heal().await;
        assert!(whole().await, "only the socket was");
        // What a process of before left behind.
        fs::remove_file(socket::path(run_dir.path())).unwrap();
        UpgradeSocket::open(&run_dir).unwrap().leave();
        fs::write(run_dir.path().join("cube-proxy.pid"), "1\n").unwrap();
        presence.heal().await;
        assert!(whole().await, "a stale one was there");
        assert_eq!(fs::read_dir(run_dir.path()).unwrap().count(), 2, "and nothing besides");
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_written_to_is_named_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = at(&dir.path().join("run"));
        // A file where the directory should be stands for one that refuses.
        fs::write(run_dir.path(), "").unwrap();
        let mut presence = Presence::new(run_dir.clone(), None);
        let error = presence.put_back(false).await.unwrap_err().to_string();
        assert!(
            error.contains("server.run_dir") && error.contains(&*run_dir.path().to_string_lossy()),
            "{error}"
        );
        presence.heal().await;
        fs::remove_file(run_dir.path()).unwrap();
        presence.heal().await;
        assert!(run_dir.is_ours());
    }
}
