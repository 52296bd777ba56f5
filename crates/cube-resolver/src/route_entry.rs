//! What the cache holds about a sandbox.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cube_metadata::SandboxRecord;
use cube_route::SandboxId;

use crate::freshness::EntryFreshness;

/// A higher number at each call.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The time of a sandbox between two resumes or rollbacks (metadata.md "Generation"). Numbers come
/// from one counter of the process and are never used twice; a later generation has a higher one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// A number that was never used.
    pub(crate) fn next() -> Self {
        Self(next_number())
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One content of a record within one generation: readings that say the same in every field share
/// it. Numbers come from one counter of the process and are never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Revision(u64);

impl Revision {
    /// A number that was never used.
    pub(crate) fn next() -> Self {
        Self(next_number())
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// A sandbox in the cache. Whoever forwards a request keeps it until the request's end: the
/// resolver takes that as a sign of interest, and reads again at once what was changed under it.
#[derive(Debug)]
pub struct RouteEntry {
    /// The sandbox's id.
    pub id: SandboxId,
    /// The record as it was read.
    pub record: SandboxRecord,
    /// The generation of the sandbox that this record belongs to.
    pub generation: Generation,
    /// Changes with the content of the record.
    pub revision: Revision,
    pub(crate) freshness: EntryFreshness,
    /// Handed on from reading to reading: as long as a request holds an older reading, there is
    /// more than one.
    pub(crate) readings: Arc<()>,
    /// The generation is over although the record may read the same (resume, kill, admin).
    pub(crate) generation_ended: AtomicBool,
}

impl RouteEntry {
    /// Whether this reading is known not to hold any more. One atomic load.
    #[must_use]
    pub fn is_invalidated(&self) -> bool {
        self.freshness.is_invalidated()
    }

    /// Whether `record` is of the same generation: CreatedAt, HostIP, SandboxIP and port mapping.
    pub(crate) fn same_generation(&self, record: &SandboxRecord) -> bool {
        !self.generation_ended.load(Ordering::Acquire)
            && self.same_sandbox(record)
            && self.record.host_ip == record.host_ip
            && self.record.ports() == record.ports()
    }

    /// Whether a request holds this reading, of which the caller knows `known` holders, or an
    /// older one.
    pub(crate) fn in_use(self: &Arc<Self>, known: usize) -> bool {
        Arc::strong_count(self) > known || Arc::strong_count(&self.readings) > 1
    }

    /// Whether `record` is of the same sandbox, so that streams from it may go on (metadata.md
    /// "Revocation").
    pub(crate) fn same_sandbox(&self, record: &SandboxRecord) -> bool {
        self.record.created_at == record.created_at && self.record.sandbox_ip == record.sandbox_ip
    }
}

/// What is known about an id.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// The sandbox.
    Found(Arc<RouteEntry>),
    /// There is none: the store said so.
    Unknown,
}

/// An entry as operators see it (`GET /admin/routes/<id>`).
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The entry itself.
    pub entry: Arc<RouteEntry>,
    /// Since it was read.
    pub age: Duration,
    /// Whether a change of it would be pushed.
    pub tracked: bool,
    /// Whether the next request waits for it to be read again.
    pub must_be_read: bool,
}
