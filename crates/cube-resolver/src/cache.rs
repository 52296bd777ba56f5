//! The two bounded caches (sandboxes, and ids without a sandbox), and entries that were evicted while in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cube_route::SandboxId;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, UnitWeighter};

use crate::freshness::EntryFreshness;
use crate::{ResolverError, RouteEntry};

/// The most ids kept that have no sandbox: enough for a scan to be served from memory for the
/// time a negative entry lives, at some 100 bytes each.
const NEGATIVES: usize = 200_000;

/// Hands evicted entries to the caller, so that they are looked at outside the lock.
#[derive(Debug, Clone)]
struct EvictedEntries;

impl Lifecycle<SandboxId, Arc<RouteEntry>> for EvictedEntries {
    type RequestState = Vec<Arc<RouteEntry>>;

    fn on_evict(&self, out: &mut Vec<Arc<RouteEntry>>, _: SandboxId, entry: Arc<RouteEntry>) {
        out.push(entry);
    }
}

type EvictedInUse = HashMap<SandboxId, Arc<RouteEntry>, ahash::RandomState>;

pub(crate) struct RouteCache {
    positives: Cache<SandboxId, Arc<RouteEntry>, UnitWeighter, ahash::RandomState, EvictedEntries>,
    negatives: Cache<SandboxId, Arc<EntryFreshness>, UnitWeighter, ahash::RandomState>,
    /// Sandboxes that somebody was refused at, each with the read that confirmed it: kept as ids without a
    /// sandbox are, so that the two cost the same.
    refused: Cache<SandboxId, Arc<EntryFreshness>, UnitWeighter, ahash::RandomState>,
    /// Evicted while a request holds them: what is read next is compared with them, so that neither
    /// their generation nor a revocation is lost.
    evicted_in_use: Mutex<EvictedInUse>,
}

impl RouteCache {
    pub(crate) fn new(capacity: usize) -> Result<Self, ResolverError> {
        let capacity = capacity.max(1);
        let bound = |items: usize| {
            let mut options = OptionsBuilder::new();
            options.estimated_items_capacity(items).weight_capacity(items as u64);
            options
        };
        let build = |options: &OptionsBuilder| {
            options.build().map_err(|error| ResolverError::Cache(error.to_string()))
        };
        // Use says little about an id that does not exist. An even share keeps the newest half of
        // them whatever filled the map before, and no ghosts are needed.
        let negative = build(bound(NEGATIVES).hot_allocation(0.5).ghost_allocation(0.0))?;
        Ok(Self {
            positives: Cache::with_options(
                build(&bound(capacity))?,
                UnitWeighter,
                ahash::RandomState::default(),
                EvictedEntries,
            ),
            negatives: Cache::with_options(
                negative.clone(),
                UnitWeighter,
                ahash::RandomState::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            refused: Cache::with_options(
                negative,
                UnitWeighter,
                ahash::RandomState::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            evicted_in_use: Mutex::default(),
        })
    }

    pub(crate) fn resize(&self, capacity: usize) {
        self.positives.set_capacity(capacity.max(1) as u64);
    }

    pub(crate) fn len(&self) -> usize {
        self.positives.len()
    }

    /// The entry, counting as a use.
    #[inline]
    pub(crate) fn found(&self, id: &str) -> Option<Arc<RouteEntry>> {
        self.positives.get(id)
    }

    /// How fresh "there is no such sandbox" is; counts as a use.
    #[inline]
    pub(crate) fn unknown(&self, id: &str) -> Option<Arc<EntryFreshness>> {
        self.negatives.get(id)
    }

    /// How fresh the read is that confirmed a refusal at this sandbox; counts as a use.
    pub(crate) fn refused(&self, id: &str) -> Option<Arc<EntryFreshness>> {
        self.refused.get(id)
    }

    /// Notes that a refusal was confirmed by a read.
    pub(crate) fn put_refused(&self, id: &SandboxId, freshness: EntryFreshness) {
        self.refused.insert(id.clone(), Arc::new(freshness));
    }

    /// The last entry known, also one that is over or was pushed out while in use. No use.
    pub(crate) fn last(&self, id: &str) -> Option<Arc<RouteEntry>> {
        self.positives.peek(id).or_else(|| self.evicted_in_use.lock().get(id).cloned())
    }

    /// Whether a request holds the entry that [`RouteCache::last`] gave.
    pub(crate) fn in_use(entry: &Arc<RouteEntry>) -> bool {
        // The map and the caller hold it.
        entry.in_use(2)
    }

    /// Puts a sandbox that was read in place of everything known about the id.
    pub(crate) fn put(&self, entry: Arc<RouteEntry>) {
        let id = entry.id.clone();
        self.negatives.remove(id.as_str());
        // A new reading of a sandbox that is there is no use of it.
        let mut out = Vec::new();
        if let Err((id, entry)) = self.positives.replace_with_lifecycle(id.clone(), entry, true, &mut out) {
            self.positives.insert_with_lifecycle(id, entry, &mut out);
        }
        let mut evicted_in_use = self.evicted_in_use.lock();
        evicted_in_use.remove(id.as_str());
        for entry in out.into_iter().filter(|entry| entry.id != id && entry.in_use(1)) {
            evicted_in_use.insert(entry.id.clone(), entry);
        }
        drop_unused(&mut evicted_in_use);
    }

    /// Puts "there is none" in place of everything known about the id.
    pub(crate) fn put_unknown(&self, id: &SandboxId, freshness: EntryFreshness) {
        self.remove(id.as_str());
        self.negatives.insert(id.clone(), Arc::new(freshness));
    }

    /// Forgets that there is no such sandbox, and that somebody was refused at it.
    pub(crate) fn remove_unknown(&self, id: &str) {
        self.negatives.remove(id);
        self.refused.remove(id);
    }

    /// Forgets the sandbox, its generation too.
    pub(crate) fn remove(&self, id: &str) {
        self.positives.remove(id);
        self.evicted_in_use.lock().remove(id);
    }

    /// Ends the entry's generation and invalidates the entry; whether there was one whose generation went on until
    /// now (also one that had to be read again). Kept for comparison while a request holds it.
    pub(crate) fn invalidate_generation(&self, id: &str) -> bool {
        let Some(entry) = self.last(id) else { return false };
        let known = !entry.generation_ended.swap(true, Ordering::AcqRel) && self.positives.contains_key(id);
        entry.freshness.invalidate();
        if !Self::in_use(&entry) {
            self.remove(id);
        }
        known
    }

    /// Every entry, those evicted while in use included.
    pub(crate) fn each(&self) -> impl Iterator<Item = Arc<RouteEntry>> {
        let evicted_in_use: Vec<_> = self.evicted_in_use.lock().values().cloned().collect();
        self.positives.iter().map(|(_, entry)| entry).chain(evicted_in_use)
    }
}

/// Keeps the map of evicted entries within twice the number of those in use.
fn drop_unused(evicted_in_use: &mut EvictedInUse) {
    if evicted_in_use.len() > 64 && evicted_in_use.len() == evicted_in_use.capacity() {
        evicted_in_use.retain(|_, entry| entry.in_use(1));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::freshness::TrackingEpoch;

    #[test]
    fn the_newest_of_many_unknown_ids_are_kept_whatever_came_before() {
        let cache = RouteCache::new(1).unwrap();
        let tracking_epoch = TrackingEpoch { session: None, resync: 0 };
        let freshness = || EntryFreshness::new(Instant::now(), Duration::from_secs(1), tracking_epoch);
        let id = |n: usize| SandboxId::parse(&format!("stranger{n}")).unwrap();
        let all = 2 * NEGATIVES;
        (0..all).for_each(|n| cache.put_unknown(&id(n), freshness()));
        assert!(cache.negatives.len() <= NEGATIVES + 64, "{}", cache.negatives.len());
        let newest = all - NEGATIVES * 9 / 20..all;
        assert!(newest.into_iter().all(|n| cache.unknown(id(n).as_str()).is_some()));
    }
}
