//! The requests that are under way, by sandbox: their number, and how they are ended from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use ahash::AHashMap;
use cube_resolver::Generation;
use cube_route::SandboxId;
use cube_sharded::Sharded;
use parking_lot::Mutex;

use crate::connection::{Conn, Downstream, Kill};
use crate::limits::top_sandboxes::{Counts, TopSandbox, TopSandboxes, Watch, WindowStep};

const SHARDS: usize = 64;

/// A part of the requests under way, by sandbox.
#[derive(Default)]
struct Part {
    requests: AHashMap<SandboxId, Vec<Arc<RequestState>>>,
    /// Filled only while somebody looks.
    counts: Counts,
}

type Shard = Mutex<Part>;

/// Why a request is ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The sandbox is being or was killed.
    Killed,
    /// Its record was deleted, or describes another life of it.
    Revoked,
    /// The time for draining is over.
    Drained,
}

/// One request under way.
pub(crate) struct RequestState {
    ended: AtomicU8,
    began: Instant,
    conn: Arc<Conn>,
    kill: Option<Arc<Kill>>,
    /// The life of the sandbox that it streams from; moves when the record is read again.
    generation: Mutex<Option<Generation>>,
}

impl RequestState {
    /// Whether, and why, it was ended from outside. One atomic load.
    pub(crate) fn ended(&self) -> Option<EndReason> {
        match self.ended.load(Ordering::Acquire) {
            0 => None,
            1 => Some(EndReason::Killed),
            2 => Some(EndReason::Revoked),
            _ => Some(EndReason::Drained),
        }
    }

    /// The request has been judged against this life of its sandbox; `None`: it waits to be judged
    /// again, so that the end of an old life is not its own.
    pub(crate) fn belongs_to(&self, generation: Option<Generation>) {
        *self.generation.lock() = generation;
    }

    fn end(&self, why: EndReason) {
        let why = match why {
            EndReason::Killed => 1,
            EndReason::Revoked => 2,
            EndReason::Drained => 3,
        };
        if self.ended.compare_exchange(0, why, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        match &self.kill {
            Some(kill) => kill.kill(),
            None => self.conn.end_request(),
        }
    }
}

/// All requests under way.
pub(crate) struct ActiveRequests {
    shards: Sharded<Shard, SHARDS>,
    watch: Watch,
}

impl ActiveRequests {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { shards: Sharded::default(), watch: Watch::new() })
    }

    /// Adds a request that `began` then; the error is the limit that it would go over.
    pub(crate) fn enter(
        self: &Arc<Self>,
        id: &SandboxId,
        downstream: &Downstream,
        limit: Option<u32>,
        began: Instant,
    ) -> Result<ActiveRequest, u32> {
        let live = Arc::new(RequestState {
            ended: AtomicU8::new(0),
            began,
            conn: downstream.conn.clone(),
            kill: downstream.kill.clone(),
            generation: Mutex::new(None),
        });
        let counted = self.watch.counts().unwrap_or_else(|turn| {
            self.turn(turn);
            false
        });
        let mut shard = self.shard(id).lock();
        let requests = shard.requests.entry(id.clone()).or_default();
        if let Some(limit) = limit.filter(|limit| requests.len() >= *limit as usize) {
            return Err(limit);
        }
        requests.push(live.clone());
        if counted {
            shard.counts.add(id);
        }
        drop(shard);
        Ok(ActiveRequest { all: self.clone(), id: id.clone(), request: live })
    }

    /// Whether a request of this sandbox is under way.
    pub(crate) fn any(&self, id: &SandboxId) -> bool {
        self.shard(id).lock().requests.contains_key(id)
    }

    /// The requests of this sandbox that are under way.
    pub(crate) fn count(&self, id: &SandboxId) -> usize {
        self.shard(id).lock().requests.get(id).map_or(0, Vec::len)
    }

    /// When the oldest request under way began.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let oldest = |shard: &Shard| shard.lock().requests.values().flatten().map(|live| live.began).min();
        self.shards.iter().filter_map(oldest).min()
    }

    /// The sandboxes that have requests under way.
    pub(crate) fn ids(&self) -> Vec<SandboxId> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().requests.keys().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Ends the requests of a sandbox; with `before`, only those of an older life.
    pub(crate) fn end(&self, id: &SandboxId, why: EndReason, before: Option<Generation>) {
        let requests = self.shard(id).lock().requests.get(id).cloned().unwrap_or_default();
        for live in requests {
            let concerned = match before {
                None => true,
                Some(before) => live.generation.lock().is_some_and(|own| own < before),
            };
            if concerned {
                live.end(why);
            }
        }
    }

    /// Ends the requests of all sandboxes.
    pub(crate) fn end_all(&self, why: EndReason) {
        for id in self.ids() {
            self.end(&id, why, None);
        }
    }

    /// The `most` busiest sandboxes. Looking begins the counting of requests, which ends by itself
    /// when nobody looks again.
    pub(crate) fn busiest(&self, most: usize) -> TopSandboxes {
        let (turn, window) = self.watch.look(Instant::now());
        self.turn(turn);
        let mut found = TopSandboxes { window, under_way: 0, sandboxes: 0, busiest: Vec::new() };
        for shard in &self.shards {
            let (begun, running) = {
                let shard = shard.lock();
                let running = shard.requests.iter().map(|(id, requests)| (id.clone(), requests.len()));
                (shard.counts.begun(), running.collect::<AHashMap<_, _>>())
            };
            found.sandboxes += running.len();
            found.under_way += running.values().sum::<usize>();
            let idle = begun.keys().filter(|id| !running.contains_key(id.as_str()));
            let all = running.iter().map(|(id, under_way)| (id, *under_way)).chain(idle.map(|id| (id, 0)));
            found.busiest.extend(all.map(|(id, under_way)| TopSandbox {
                id: id.clone(),
                under_way,
                begun: begun.get(id.as_str()).copied().unwrap_or(0),
            }));
            found.busiest.sort_by(|a, b| {
                (b.begun, b.under_way).cmp(&(a.begun, a.under_way)).then_with(|| a.id.cmp(&b.id))
            });
            found.busiest.truncate(most);
        }
        found
    }

    fn turn(&self, turn: WindowStep) {
        for shard in &self.shards {
            match turn {
                WindowStep::Clear => shard.lock().counts.clear(),
                WindowStep::Next => shard.lock().counts.turn(),
                WindowStep::Stay => return,
            }
        }
    }

    fn shard(&self, id: &SandboxId) -> &Shard {
        self.shards.of(id.as_str())
    }
}

/// A request's place among those of its sandbox, given back when dropped.
pub(crate) struct ActiveRequest {
    all: Arc<ActiveRequests>,
    id: SandboxId,
    pub(crate) request: Arc<RequestState>,
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut shard = self.all.shard(&self.id).lock();
        if let Some(requests) = shard.requests.get_mut(&self.id) {
            if let Some(at) = requests.iter().position(|live| Arc::ptr_eq(live, &self.request)) {
                requests.swap_remove(at);
            }
            if requests.is_empty() {
                shard.requests.remove(&self.id);
            }
        }
    }
}
