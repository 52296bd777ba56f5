//! The bounded memory of stored responses.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ahash::RandomState;
use bytes::Bytes;
use cube_route::SandboxId;
use http::HeaderMap;
use parking_lot::Mutex;
use pingora::http::ResponseHeader;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use super::cacheability::{Freshness, Selecting};
use super::request::CacheDemand;
use crate::error::EdgeError;

/// The most responses of one key, which differ in what `Vary` names. The oldest goes first.
const MOST_VARIANTS: usize = 16;
/// What a response and its key take beside their bytes, as measured: the entries of the maps here, and
/// what the allocator rounds up.
const OVERHEAD: usize = 1024;
/// What a header takes beside its name and value, as measured: a head has two maps, one of them for
/// the spelling of names, with room to spare, and an allocation for each name and value.
const OF_A_FIELD: usize = 300;
/// The maps grow to this many keys without having to be built anew, at most; a hint.
const EXPECTED: usize = 4096;

/// A stored response.
pub(crate) struct Stored {
    /// As the sandbox sent it, but for its framing, which is a Content-Length.
    pub(crate) head: ResponseHeader,
    pub(crate) body: Bytes,
    pub(crate) freshness: Freshness,
    pub(crate) selecting: Arc<Selecting>,
}

impl Stored {
    /// Bytes that it takes.
    fn size(&self) -> usize {
        OVERHEAD + size_of_head(&self.head.headers) + self.body.len() + self.selecting.size()
    }
}

/// Bytes that a head with these headers takes.
pub(crate) fn size_of_head(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| 2 * name.as_str().len() + value.len() + OF_A_FIELD).sum()
}

/// The responses of one key, the newest first.
struct Group {
    id: SandboxId,
    responses: Vec<Arc<Stored>>,
    size: u64,
}

impl Group {
    fn of(id: &SandboxId, key: &[u8], responses: Vec<Arc<Stored>>) -> Self {
        let size = 2 * key.len() + responses.iter().map(|stored| stored.size()).sum::<usize>();
        Self { id: id.clone(), responses, size: size as u64 }
    }
}

type GroupKey = Arc<[u8]>;

#[derive(Debug, Clone)]
struct Bytewise;

impl Weighter<GroupKey, Arc<Group>> for Bytewise {
    fn weight(&self, _: &GroupKey, group: &Arc<Group>) -> u64 {
        group.size
    }
}

/// Hands what is pushed out or replaced to the caller.
#[derive(Debug, Clone)]
struct PushedOut;

impl Lifecycle<GroupKey, Arc<Group>> for PushedOut {
    type RequestState = Vec<(GroupKey, Arc<Group>)>;

    fn on_evict(&self, out: &mut Self::RequestState, key: GroupKey, group: Arc<Group>) {
        out.push((key, group));
    }
}

/// What is known about `groups` as a whole.
#[derive(Default)]
struct Index {
    /// The keys of each sandbox.
    keys: HashMap<SandboxId, HashSet<GroupKey, RandomState>, RandomState>,
    /// Responses in all.
    responses: u64,
}

impl Index {
    /// A group is gone.
    fn remove(&mut self, key: &GroupKey, group: &Group) {
        self.responses = self.responses.saturating_sub(group.responses.len() as u64);
        if let Some(of_sandbox) = self.keys.get_mut(&group.id) {
            of_sandbox.remove(key);
            if of_sandbox.is_empty() {
                self.keys.remove(&group.id);
            }
        }
    }
}

/// What became of a response that was to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StoreOutcome {
    /// It is stored; so many others had to go.
    Stored { evicted: u64 },
    /// It is larger than all that may be stored.
    TooLarge,
    /// It was not to be kept any more.
    Outdated,
}

/// All stored responses.
pub(crate) struct ResponseStore {
    groups: Cache<GroupKey, Arc<Group>, Bytewise, RandomState, PushedOut>,
    /// Whoever writes to `groups` holds it: responses that are forgotten and one that is kept at the
    /// same time come one after the other, in either order.
    index: Mutex<Index>,
    /// Bytes of the largest group that fits.
    most: u64,
}

impl ResponseStore {
    /// Room for `memory` bytes, of responses with bodies of up to `max_object` bytes.
    pub(crate) fn new(memory: usize, max_object: usize) -> Result<Self, EdgeError> {
        // A part that is locked alone must hold some of the largest responses.
        let parts = (memory / max_object.saturating_mul(8).max(1)).clamp(1, 16);
        let parts = 1 << parts.ilog2();
        let options = OptionsBuilder::new()
            .shards(parts)
            .estimated_items_capacity(EXPECTED)
            .weight_capacity(memory as u64)
            .build()
            .map_err(|error| EdgeError::ResponseCache(error.to_string()))?;
        let groups = Cache::with_options(options, Bytewise, RandomState::default(), PushedOut);
        // The share that the map gives what was used again, less what rounding may take.
        let most = groups.shard_capacity() / 100 * 96;
        Ok(Self { groups, index: Mutex::default(), most })
    }

    /// A stored response that will do for a request.
    pub(crate) fn find(
        &self,
        key: &[u8],
        request: &HeaderMap,
        demand: &CacheDemand,
        now: Instant,
    ) -> Option<Arc<Stored>> {
        let group = self.groups.get(key)?;
        let newest = group.responses.iter().find(|stored| stored.selecting.matches(request))?;
        demand.takes(&newest.freshness, now).then(|| newest.clone())
    }

    /// Keeps a response, in place of the one that it replaces, if `still` says that it is to be kept.
    /// That is asked when nothing can be forgotten meanwhile.
    pub(crate) fn keep(
        &self,
        id: &SandboxId,
        key: &[u8],
        stored: Stored,
        still: impl FnOnce() -> bool,
    ) -> StoreOutcome {
        let now = Instant::now();
        let mut index = self.index.lock();
        if !still() {
            return StoreOutcome::Outdated;
        }
        let before = self.groups.peek(key);
        let others = before.iter().flat_map(|group| &group.responses);
        let mut responses: Vec<_> = others
            .filter(|other| other.freshness.left(now).is_some() && other.selecting != stored.selecting)
            .take(MOST_VARIANTS - 1)
            .cloned()
            .collect();
        responses.insert(0, Arc::new(stored));
        let mut group = Group::of(id, key, responses);
        while group.size > self.most && group.responses.len() > 1 {
            group.responses.pop();
            group = Group::of(id, key, group.responses);
        }
        if group.size > self.most {
            return StoreOutcome::TooLarge;
        }
        let of_sandbox = index.keys.entry(id.clone()).or_default();
        let key: GroupKey = of_sandbox.get(key).cloned().unwrap_or_else(|| key.into());
        of_sandbox.insert(key.clone());
        index.responses += group.responses.len() as u64;
        let mut out = Vec::new();
        self.groups.insert_with_lifecycle(key, Arc::new(group), &mut out);
        if let Some(before) = &before {
            index.responses = index.responses.saturating_sub(before.responses.len() as u64);
            out.retain(|(_, group)| !Arc::ptr_eq(group, before));
        }
        let mut evicted = 0;
        for (key, group) in out {
            evicted += group.responses.len() as u64;
            index.remove(&key, &group);
        }
        StoreOutcome::Stored { evicted }
    }

    /// Drops every response of a key; how many there were.
    pub(crate) fn forget_key(&self, key: &[u8]) -> u64 {
        let mut index = self.index.lock();
        let Some((key, group)) = self.groups.remove(key) else { return 0 };
        index.remove(&key, &group);
        group.responses.len() as u64
    }

    /// Drops every response of a sandbox; how many there were.
    pub(crate) fn forget(&self, id: &SandboxId) -> u64 {
        let mut index = self.index.lock();
        let Some(of_sandbox) = index.keys.remove(id) else { return 0 };
        let groups = of_sandbox.iter().filter_map(|key| self.groups.remove(&key[..]));
        let forgotten = groups.map(|(_, group)| group.responses.len() as u64).sum();
        index.responses = index.responses.saturating_sub(forgotten);
        forgotten
    }

    /// Answers, and bytes that they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.index.lock().responses, self.groups.weight())
    }
}

#[cfg(test)]
mod tests;
