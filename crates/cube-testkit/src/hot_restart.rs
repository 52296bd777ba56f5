//! Replacing a running proxy by another process of it.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::Guarded;
use crate::unique_id;
use crate::{Proxy, ServiceManager, eventually, merge};

/// How long one upgrade may take on a busy machine.
const UPGRADE: Duration = Duration::from_secs(30);

/// How `run --upgrade` ended that was to end.
#[derive(Debug)]
pub struct UpgradeRun {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote.
    pub output: String,
}

/// `run --upgrade` under way.
pub struct Attempt {
    process: Guarded,
    output: PathBuf,
}

impl Attempt {
    /// Waits until it ends.
    pub async fn ended(mut self) -> UpgradeRun {
        let output = || std::fs::read_to_string(&self.output).expect("its output");
        let begin = Instant::now();
        loop {
            if let Some(status) = self.process.ended() {
                return UpgradeRun { status, output: output() };
            }
            assert!(begin.elapsed() < UPGRADE, "the upgrade does not end:\n{}", output());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Proxy {
    /// The process id in its pid file.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        std::fs::read_to_string(self.directory().join("cube-proxy.pid")).ok()?.trim().parse().ok()
    }

    /// The process that this test takes for the main one.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.lock().unwrap().id()
    }

    /// Replaces the running process with `cube-proxy run --upgrade`; returns when the new one has
    /// taken over. The old one is kept in view: [`Proxy::old_ended`].
    pub async fn upgrade(&self) {
        let drained = self.draining();
        self.replace().await;
        eventually("the old process to have stopped listening", || async {
            let ended = self.old.lock().unwrap().last_mut().is_none_or(|old| old.ended().is_some());
            (ended || self.draining() > drained).then_some(())
        })
        .await;
    }

    /// How many processes have said that they drain after an upgrade.
    fn draining(&self) -> usize {
        self.output().matches("a successor serves; draining").count()
    }

    async fn replace(&self) {
        if self.manager.is_some() {
            let asked = self.ask_upgrade().await;
            assert!(asked.status.success(), "{asked:?}\n{}", self.output());
            let main = self.service().main_pid().expect("a main process");
            self.is_main(Guarded::adopt(main));
            return;
        }
        let mut process = Guarded::spawn(&mut self.program.command(&["--upgrade"], "output"), None);
        let begin = Instant::now();
        while self.pid() != Some(process.id()) {
            let ended = process.ended();
            assert!(
                ended.is_none() && begin.elapsed() < UPGRADE,
                "no upgrade (ended: {ended:?}):\n{}",
                self.output()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.is_main(process);
    }

    /// Runs `cube-proxy run --upgrade` that is to end: with an error, or since the service manager's
    /// process starts its successor itself.
    pub async fn ask_upgrade(&self) -> UpgradeRun {
        self.begin_upgrade().ended().await
    }

    /// The same with another binary than the one that the proxy was started with.
    pub async fn ask_upgrade_of(&self, binary: &str) -> UpgradeRun {
        self.attempt(Path::new(binary)).ended().await
    }

    /// Starts `cube-proxy run --upgrade` and waits for nothing; it is killed when dropped.
    #[must_use]
    pub fn begin_upgrade(&self) -> Attempt {
        self.attempt(&self.program.binary)
    }

    fn attempt(&self, binary: &Path) -> Attempt {
        let name = unique_id("asked-");
        let mut command = self.program.command_of(binary, &["--upgrade"], &name);
        Attempt { process: Guarded::spawn(&mut command, None), output: self.directory().join(name) }
    }

    /// Changes the configuration file, for the next process.
    pub fn configure_next(&mut self, overrides: &Value) {
        merge(&mut self.config, overrides);
        self.program.configure(&self.config);
    }

    /// What it told the service manager.
    #[must_use]
    pub fn service(&self) -> &ServiceManager {
        self.manager.as_ref().expect("a managed proxy")
    }

    /// Processes that were replaced and have not ended.
    #[must_use]
    pub fn old_processes(&self) -> usize {
        let mut old = self.old.lock().unwrap();
        old.iter_mut().map(|process| usize::from(process.ended().is_none())).sum()
    }

    /// Waits until that many processes that were replaced have not ended.
    pub async fn old_ended(&self, left: usize) {
        eventually(&format!("{left} old processes"), || async {
            (self.old_processes() == left).then_some(())
        })
        .await;
    }

    /// Sends SIGTERM to the process that was replaced last.
    pub fn terminate_old(&self) {
        let mut old = self.old.lock().unwrap();
        old.last_mut().expect("a replaced process").signal(rustix::process::Signal::TERM);
    }

    /// What each of its open files is.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        self.process.lock().unwrap().files()
    }

    /// What each open file of the process that was replaced last is.
    #[must_use]
    pub fn old_files(&self) -> Vec<String> {
        self.old.lock().unwrap().last().expect("a replaced process").files()
    }

    /// Points a symbolic link, through which the proxy was started, at another program.
    pub fn swap_binary(&self, link: &Path, to: &Path) {
        let draft = link.with_extension("new");
        std::os::unix::fs::symlink(to, &draft).expect("a writable directory");
        std::fs::rename(draft, link).expect("a writable directory");
    }

    fn is_main(&self, process: Guarded) {
        let old = std::mem::replace(&mut *self.process.lock().unwrap(), process);
        self.old.lock().unwrap().push(old);
    }
}
