//! The processes that still drain after a hot restart, as their main process sees them (fleet.md,
//! "Processes that drain"): who they are, how they are ended, and what they have counted.
//!
//! What a process counted stays for ever: while it drains, as it last said; once it is gone, in one
//! sum of all that are gone. The whole of it goes to the successor with every hot restart.

mod counted;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::Registry;
use prometheus::proto::MetricFamily;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

pub use counted::Counted;

/// How long a process of before a hot restart is believed to have its streams still, until it links.
const LINKS: Duration = Duration::from_secs(5);

/// Milliseconds of a tick in which the kernel tells times: `USER_HZ` is 100 on every architecture that
/// is in use.
const TICK: u64 = 10;
/// By how much, in milliseconds, the steady clock may be behind the system's boot clock; it is less than one ahead.
const CLOCK: u64 = 10;

/// How a process stands. Times are milliseconds of the steady clock
/// ([`cube_lifecycle::Lifecycle::steady_ms`]), which is the same in all processes. A field that is
/// missing was not known to the version that said it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStanding {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: Option<String>,
    /// When it was started. With the id it tells one process from all others.
    pub started: u64,
    /// Since when it drains.
    pub draining_since: Option<u64>,
    /// Requests, streams and tunnels under way.
    pub streams: Option<u64>,
    /// Open client connections, idle ones among them.
    pub connections: Option<u64>,
    /// When the oldest of its streams began.
    pub oldest: Option<u64>,
    /// When what is left of its streams will be ended.
    pub deadline: Option<u64>,
}

/// What a main process knows of what was counted before and beside it, for its successor.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// When the first process of this service was started that no other handed over to, unix seconds.
    pub service_started: i64,
    /// What processes counted that are gone.
    pub gone: Counted,
    /// Those that are not: the process that says it, first, and those that drain.
    pub processes: Vec<CountedProcess>,
}

/// What one process has counted, as its main process knows it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CountedProcess {
    /// Which process, and how it stood when it last said it.
    pub standing: ProcessStanding,
    /// What it has counted.
    pub counted: Counted,
    /// Whether it still serves or drains, as far as is known.
    pub lives: bool,
}

/// The counts of this process and of those whose place it took, so that no counter of `/metrics` falls with a
/// hot restart.
pub struct Processes {
    registry: Registry,
    /// When this process was started, milliseconds of the steady clock.
    started: u64,
    known: Mutex<KnownProcesses>,
    /// Changes when a link begins or ends.
    links: watch::Sender<u64>,
}

#[derive(Default)]
struct KnownProcesses {
    /// What processes counted that are gone.
    gone: Counted,
    draining: Vec<Draining>,
    /// Since when this process drains, milliseconds of the steady clock.
    draining_since: Option<u64>,
    deadline: Option<u64>,
}

struct Draining {
    standing: ProcessStanding,
    counted: Counted,
    /// There while it is linked: tells the link to end it.
    link: Option<Arc<Notify>>,
    /// Not linked yet, and expected until then.
    expected_until: Option<Instant>,
}

impl Draining {
    fn is(&self, pid: u32, started: u64) -> bool {
        self.standing.pid == pid && self.standing.started == started
    }

    /// Whether its streams are there, as far as is known.
    fn lives(&self) -> bool {
        self.link.is_some() || self.expected_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether there is no such process any more.
    fn gone(&self) -> bool {
        !self.lives() && !is_there(self.standing.pid, self.standing.started)
    }
}

/// Whether a process of this id is there that may be the one which was `started` then (milliseconds of
/// the steady clock; 0 where that is not known). An id is given again.
fn is_there(pid: u32, started: u64) -> bool {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if id.is_none_or(|id| test_kill_process(id) == Err(Errno::SRCH)) {
        return false;
    }
    // One that cannot be looked into may be it.
    started == 0 || began(pid).is_none_or(|began| began <= started.saturating_add(CLOCK))
}

/// When a process began, milliseconds of the system's boot clock, cut to its ticks.
fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which may hold anything, is in brackets. The start is field 22, the 20th after it.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some(ticks.saturating_mul(TICK))
}

impl KnownProcesses {
    /// Moves what processes counted that are gone to the one sum. One that is not known to be gone
    /// may link again and say all of it anew, so it stays apart.
    fn settle(&mut self) {
        for gone in self.draining.extract_if(.., |process| process.gone()) {
            self.gone.add(&gone.counted, false);
        }
    }
}

impl Processes {
    pub(crate) fn new(registry: Registry, started: u64) -> Arc<Self> {
        Arc::new(Self { registry, started, known: Mutex::default(), links: watch::Sender::new(0) })
    }

    /// What this process has counted.
    #[must_use]
    pub fn own(&self) -> Counted {
        Counted::of(&self.registry.gather())
    }

    /// Everything that is scraped: this process's metrics, with those of the others added.
    pub(crate) fn gather(&self) -> Vec<MetricFamily> {
        let mut families = self.registry.gather();
        let others = {
            let mut known = self.known.lock();
            known.settle();
            let mut others = known.gone.clone();
            for process in &known.draining {
                others.add(&process.counted, process.lives());
            }
            others
        };
        others.add_to(&mut families);
        families
    }

    /// This process drains from now on.
    pub fn drain_since(&self, now: u64) {
        self.known.lock().draining_since = Some(now);
    }

    /// When what is left of this process's streams will be ended. An earlier time stays.
    pub fn end_by(&self, deadline: u64) {
        let earlier = |known: u64| known.min(deadline);
        let mut known = self.known.lock();
        known.deadline = Some(known.deadline.map_or(deadline, earlier));
    }

    /// How this process stands, without what is under way in it.
    pub(crate) fn own_standing(&self) -> ProcessStanding {
        let known = self.known.lock();
        ProcessStanding {
            pid: std::process::id(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            started: self.started,
            draining_since: known.draining_since,
            deadline: known.deadline,
            ..ProcessStanding::default()
        }
    }

    /// What the successor of this process is to know.
    pub(crate) fn ledger(&self, own: ProcessStanding, service_started: i64) -> Ledger {
        let own = CountedProcess { standing: own, counted: self.own(), lives: true };
        let mut known = self.known.lock();
        known.settle();
        let others = known.draining.iter().map(|process| CountedProcess {
            standing: process.standing.clone(),
            counted: process.counted.clone(),
            lives: process.lives(),
        });
        let processes = std::iter::once(own).chain(others).collect();
        Ledger { service_started, gone: known.gone.clone(), processes }
    }

    /// Takes what the process before this one knew, which drains from `now` on (milliseconds of the steady
    /// clock). Its processes will link.
    pub(crate) fn take(&self, mut ledger: Ledger, now: u64) {
        if let Some(before) = ledger.processes.first_mut() {
            before.standing.draining_since.get_or_insert(now);
        }
        let mut known = self.known.lock();
        known.gone.add(&ledger.gone, false);
        let until = Instant::now() + LINKS;
        for CountedProcess { standing, counted, lives } in ledger.processes {
            let expected_until = lives.then_some(until);
            known.draining.push(Draining { standing, counted, link: None, expected_until });
        }
    }

    /// A draining process has linked; `pid` is known from the system, all else it said itself, unless
    /// it is of a version that says nothing.
    pub fn link(self: &Arc<Self>, pid: u32, said: Option<ProcessStanding>) -> LinkedProcess {
        let standing = ProcessStanding { pid, ..said.unwrap_or_default() };
        let started = standing.started;
        let end = Arc::new(Notify::new());
        {
            let mut known = self.known.lock();
            known.settle();
            match known.draining.iter_mut().find(|process| process.is(pid, started)) {
                Some(process) => {
                    process.standing = standing;
                    process.link = Some(end.clone());
                    process.expected_until = None;
                }
                None => known.draining.push(Draining {
                    standing,
                    counted: Counted::default(),
                    link: Some(end.clone()),
                    expected_until: None,
                }),
            }
        }
        self.changed();
        LinkedProcess { processes: self.clone(), pid, started, end }
    }

    /// Those that drain now, the longest first.
    #[must_use]
    pub fn draining(&self) -> Vec<ProcessStanding> {
        let known = self.known.lock();
        let mut all: Vec<ProcessStanding> = known
            .draining
            .iter()
            .filter(|process| process.lives())
            .map(|process| process.standing.clone())
            .collect();
        all.sort_by_key(|standing| (standing.draining_since, standing.pid));
        all
    }

    /// Ends a draining process at once and waits, at most `patience`, until it is gone. `None`: there
    /// is none of that id. Else whether it has gone.
    pub(crate) async fn end(&self, pid: u32, patience: Duration) -> Option<bool> {
        let mut links = self.links.subscribe();
        let linked = || {
            let known = self.known.lock();
            let process = known.draining.iter().find(|process| process.standing.pid == pid)?;
            Some((process.lives(), process.link.clone()))
        };
        linked().filter(|(lives, _)| *lives)?;
        let gone = async {
            loop {
                match linked() {
                    // Told to end a second time, a process is ended already, and nothing listens.
                    Some((_, Some(link))) => link.notify_one(),
                    Some((true, None)) => {}
                    _ => return,
                }
                // The sender lives in self.
                let _ = timeout(Duration::from_millis(100), links.changed()).await;
            }
        };
        Some(timeout(patience, gone).await.is_ok())
    }

    fn changed(&self) {
        self.links.send_modify(|changes| *changes = changes.wrapping_add(1));
    }
}

/// A draining process while it is linked.
pub struct LinkedProcess {
    processes: Arc<Processes>,
    pid: u32,
    started: u64,
    end: Arc<Notify>,
}

impl LinkedProcess {
    /// Returns when somebody wants it ended.
    pub async fn end_wanted(&self) {
        self.end.notified().await;
    }

    /// The process's id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What [`LinkedProcess::end_wanted`] waits for, for a task of its own.
    #[must_use]
    pub fn end(&self) -> Arc<Notify> {
        self.end.clone()
    }

    /// Takes a report: how it stands, and what it has counted that it had not said yet.
    pub fn report(&self, standing: ProcessStanding, counted: Counted) {
        let mut known = self.processes.known.lock();
        if let Some(process) = known.draining.iter_mut().find(|process| process.is(self.pid, self.started)) {
            process.standing = ProcessStanding { pid: self.pid, started: self.started, ..standing };
            process.counted.update(counted);
        }
    }
}

impl Drop for LinkedProcess {
    fn drop(&mut self) {
        {
            let mut known = self.processes.known.lock();
            let own = known.draining.iter_mut().find(|process| process.is(self.pid, self.started));
            // A link that came after this one stays.
            if let Some(process) =
                own.filter(|process| process.link.as_ref().is_some_and(|link| Arc::ptr_eq(link, &self.end)))
            {
                process.link = None;
            }
            known.settle();
        }
        self.processes.changed();
    }
}
