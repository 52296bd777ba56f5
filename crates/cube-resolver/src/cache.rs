//! The two bounded maps, and the memory of entries that were pushed out while in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cube_route::SandboxId;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, UnitWeighter};

use crate::life::Life;
use crate::{Entry, ResolverError};

/// The most ids kept that have no sandbox: enough for a scan to be answered from memory for the
/// time a negative entry lives, at some 100 bytes each.
const NEGATIVES: usize = 200_000;

/// Hands what is pushed out to the caller, so that it is looked at outside the lock.
#[derive(Debug, Clone)]
struct PushedOut;

impl Lifecycle<SandboxId, Arc<Entry>> for PushedOut {
    type RequestState = Vec<Arc<Entry>>;

    fn on_evict(&self, out: &mut Vec<Arc<Entry>>, _: SandboxId, entry: Arc<Entry>) {
        out.push(entry);
    }
}

type Parked = HashMap<SandboxId, Arc<Entry>, ahash::RandomState>;

pub(crate) struct RouteCache {
    positives: Cache<SandboxId, Arc<Entry>, UnitWeighter, ahash::RandomState, PushedOut>,
    negatives: Cache<SandboxId, Arc<Life>, UnitWeighter, ahash::RandomState>,
    /// Pushed out, but held by a request: what is read next is compared with it, so that neither
    /// its generation nor a revocation is lost.
    parked: Mutex<Parked>,
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
                PushedOut,
            ),
            negatives: Cache::with_options(
                negative,
                UnitWeighter,
                ahash::RandomState::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            parked: Mutex::default(),
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
    pub(crate) fn found(&self, id: &str) -> Option<Arc<Entry>> {
        self.positives.get(id)
    }

    /// The life of "there is none", counting as a use.
    #[inline]
    pub(crate) fn unknown(&self, id: &str) -> Option<Arc<Life>> {
        self.negatives.get(id)
    }

    /// The last entry known, also one that is over or was pushed out while in use. No use.
    pub(crate) fn last(&self, id: &str) -> Option<Arc<Entry>> {
        self.positives.peek(id).or_else(|| self.parked.lock().get(id).cloned())
    }

    /// Whether a request holds the entry that [`RouteCache::last`] gave.
    pub(crate) fn in_use(entry: &Arc<Entry>) -> bool {
        // The map and the caller hold it.
        entry.in_use(2)
    }

    /// Puts a sandbox that was read in place of everything known about the id.
    pub(crate) fn put(&self, entry: Arc<Entry>) {
        let id = entry.id.clone();
        self.negatives.remove(id.as_str());
        // A new reading of a sandbox that is there is no use of it.
        let mut out = Vec::new();
        if let Err((id, entry)) = self.positives.replace_with_lifecycle(id.clone(), entry, true, &mut out) {
            self.positives.insert_with_lifecycle(id, entry, &mut out);
        }
        let mut parked = self.parked.lock();
        parked.remove(id.as_str());
        for entry in out.into_iter().filter(|entry| entry.id != id && entry.in_use(1)) {
            parked.insert(entry.id.clone(), entry);
        }
        drop_unused(&mut parked);
    }

    /// Puts "there is none" in place of everything known about the id.
    pub(crate) fn put_unknown(&self, id: &SandboxId, life: Life) {
        self.remove(id.as_str());
        self.negatives.insert(id.clone(), Arc::new(life));
    }

    /// Forgets that there is none.
    pub(crate) fn remove_unknown(&self, id: &str) {
        self.negatives.remove(id);
    }

    /// Forgets the sandbox, its generation too.
    pub(crate) fn remove(&self, id: &str) {
        self.positives.remove(id);
        self.parked.lock().remove(id);
    }

    /// Ends the entry's generation and life; whether there was one whose generation went on until
    /// now (also one that had to be read again). Kept for comparison while a request holds it.
    pub(crate) fn sever(&self, id: &str) -> bool {
        let Some(entry) = self.last(id) else { return false };
        let known = !entry.severed.swap(true, Ordering::AcqRel) && self.positives.contains_key(id);
        entry.life.end();
        if !Self::in_use(&entry) {
            self.remove(id);
        }
        known
    }

    /// Every entry, those parked too, one after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = Arc<Entry>> {
        let parked: Vec<_> = self.parked.lock().values().cloned().collect();
        self.positives.iter().map(|(_, entry)| entry).chain(parked)
    }
}

/// Keeps the map of parked entries within twice of those in use.
fn drop_unused(parked: &mut Parked) {
    if parked.len() > 64 && parked.len() == parked.capacity() {
        parked.retain(|_, entry| entry.in_use(1));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::life::Trust;

    #[test]
    fn the_newest_of_many_unknown_ids_are_kept_whatever_came_before() {
        let cache = RouteCache::new(1).unwrap();
        let trust = Trust { session: None, round: 0 };
        let life = || Life::new(Instant::now(), Duration::from_secs(1), trust);
        let id = |n: usize| SandboxId::parse(&format!("stranger{n}")).unwrap();
        let all = 2 * NEGATIVES;
        (0..all).for_each(|n| cache.put_unknown(&id(n), life()));
        assert!(cache.negatives.len() <= NEGATIVES + 64, "{}", cache.negatives.len());
        let newest = all - NEGATIVES * 9 / 20..all;
        assert!(newest.into_iter().all(|n| cache.unknown(id(n).as_str()).is_some()));
    }
}
