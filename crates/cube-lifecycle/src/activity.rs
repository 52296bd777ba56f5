//! When sandboxes last had authorised traffic (lifecycle.md, "Last active").
//!
//! A reader asks for what is strictly newer than the `now` of its last response. So no stamp may
//! appear afterwards at or below that `now`: see [`Activity::since`].
//!
//! Stamps are milliseconds of the steady clock ([`crate::clock`]) and become unix time when they are
//! listed, so that no stamp lies in the future, whoever sets the system's clock. What a reader asks
//! from is unix time of an earlier moment, when that clock may have stood elsewhere: see
//! [`Cursors`].

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use cube_route::SandboxId;
use cube_sharded::Sharded;
use parking_lot::{Mutex, RwLock};

use crate::clock::Moment;

const SHARDS: usize = 64;
/// Within this time of a stamp no other one is written for the same sandbox.
const STAMP_INTERVAL_MS: u64 = 1000;
/// Responses whose `now` is remembered: more than several readers get in a quarter of an hour.
const MAX_CURSORS: usize = 1024;
/// The most bytes of a response; its reader stops at 1 MiB.
const MAX_RESPONSE_BYTES: usize = 768 * 1024;

type Stamps = HashMap<SandboxId, AtomicU64, ahash::RandomState>;

/// Stamps of sandboxes, in shards, so that requests do not meet.
pub(crate) struct Activity {
    shards: Sharded<RwLock<Stamps>, SHARDS>,
    per_shard: usize,
    /// The moment of the newest response: a later stamp is above it.
    listed: AtomicU64,
    cursors: Cursors,
}

/// The `now` of the last responses: unix milliseconds as they were sent, and the moment of the steady
/// clock that was meant. Whoever asks from one of them goes on from that moment, although the
/// system's clock was set since.
#[derive(Default)]
struct Cursors(Mutex<VecDeque<(u64, u64)>>);

impl Cursors {
    fn add(&self, unix: u64, steady: u64) {
        let mut known = self.0.lock();
        if known.len() >= MAX_CURSORS {
            known.pop_front();
        }
        known.push_back((unix, steady));
    }

    /// The moment that a reader's `since` stands for. A `since` that this process never sent is converted by
    /// the clock as it is now. Where that makes it later than now, a clock was ahead: then everything may be
    /// news to the reader.
    fn resolve(&self, since: u64, now: Moment) -> u64 {
        let known = self.0.lock();
        let told = known.iter().filter(|(unix, _)| *unix == since).map(|(_, steady)| *steady).min();
        told.unwrap_or_else(|| Some(now.steady_of(since)).filter(|at| *at <= now.steady).unwrap_or(0))
    }
}

/// Part of what is known about activity, `GET /admin/last_active`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastActive {
    /// The `since` of the next request: everything up to here is in a response.
    pub now: u64,
    /// The `since` of the request.
    pub since: u64,
    /// All sandboxes known, also those that are not in this response.
    pub count: usize,
    /// Stamps in unix milliseconds, the oldest first.
    pub entries: Vec<(SandboxId, u64)>,
}

impl Activity {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            shards: Sharded::default(),
            per_shard: max.div_ceil(SHARDS).max(1),
            listed: AtomicU64::new(0),
            cursors: Cursors::default(),
        }
    }

    /// Stamps `id`, where its stamp is a second old or more and `alive` still says so.
    pub(crate) fn touch(&self, id: &SandboxId, now: u64, alive: impl FnOnce() -> bool) {
        let shard = self.shard(id);
        {
            let stamps = shard.read();
            if let Some(stamp) = stamps.get(id) {
                let last = stamp.load(Ordering::Relaxed);
                if now.saturating_sub(last) >= STAMP_INTERVAL_MS && alive() {
                    // The loser of a race stamped the same moment.
                    let next = self.above_listed(now);
                    let _ = stamp.compare_exchange(last, next, Ordering::Relaxed, Ordering::Relaxed);
                }
                return;
            }
        }
        if !alive() {
            return;
        }
        let mut stamps = shard.write();
        if stamps.len() >= self.per_shard && !stamps.contains_key(id) {
            evict_oldest(&mut stamps);
        }
        stamps.insert(id.clone(), AtomicU64::new(self.above_listed(now)));
    }

    /// Takes a stamp that another process made, where it is newer than what is known and `alive`
    /// says so. Whoever reads the listing sees it: it appears above what was listed last. One that
    /// is later than `now` was made by a clock that was ahead: it is of now at the latest.
    pub(crate) fn take(&self, id: &SandboxId, stamp: u64, now: u64, alive: impl FnOnce() -> bool) {
        let stamp = stamp.min(now);
        let shard = self.shard(id);
        let mut stamps = shard.write();
        if let Some(kept) = stamps.get(id) {
            if stamp > kept.load(Ordering::Relaxed) && alive() {
                kept.store(self.above_listed(stamp), Ordering::Relaxed);
            }
        } else if alive() {
            if stamps.len() >= self.per_shard {
                evict_oldest(&mut stamps);
            }
            stamps.insert(id.clone(), AtomicU64::new(self.above_listed(stamp)));
        }
    }

    /// Stamps newer than `since`, in no order, for another process. No listing is made of it.
    pub(crate) fn newer(&self, since: u64) -> Vec<(SandboxId, u64)> {
        let shards = self.shards.iter().flat_map(|shard| {
            let stamps = shard.read();
            let stamps = stamps.iter().map(|(id, stamp)| (id.clone(), stamp.load(Ordering::Relaxed)));
            stamps.filter(|(_, stamp)| *stamp > since).collect::<Vec<_>>()
        });
        shards.collect()
    }

    /// The moment of the newest listing.
    pub(crate) fn listed(&self) -> u64 {
        self.listed.load(Ordering::SeqCst)
    }

    /// The `now` of the last responses, unix milliseconds, and the moment that each was.
    pub(crate) fn cursors(&self) -> Vec<(u64, u64)> {
        self.cursors.0.lock().iter().copied().collect()
    }

    /// Goes on where the listings of another process ended; later than `now` is of a clock that was
    /// ahead. Its stamps must be taken before.
    pub(crate) fn continue_from(&self, listed: u64, cursors: &[(u64, u64)], now: u64) {
        self.listed.fetch_max(listed.min(now), Ordering::SeqCst);
        for (unix, steady) in cursors {
            self.cursors.add(*unix, (*steady).min(now));
        }
    }

    fn above_listed(&self, now: u64) -> u64 {
        now.max(self.listed.load(Ordering::SeqCst).saturating_add(1))
    }

    pub(crate) fn knows(&self, id: &SandboxId) -> bool {
        self.shard(id).read().contains_key(id)
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        self.shard(id).write().remove(id);
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Stamps strictly newer than `since` (unix milliseconds), the oldest first, as many as a response
    /// holds.
    ///
    /// The response covers what is not above its own moment, which no two responses share: a stamp
    /// that is written later is above it, and comes in the next.
    pub(crate) fn since(&self, since: u64, now: Moment) -> LastActive {
        let moment = |listed: u64| now.steady.max(listed.saturating_add(1));
        let listed =
            self.listed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |listed| Some(moment(listed)));
        let moment = Moment { steady: listed.map_or(now.steady, moment), ..now };
        let after = self.cursors.resolve(since, moment);
        let mut entries = Vec::new();
        let mut count = 0;
        for shard in &self.shards {
            // Whoever stamps holds the lock: after this one, a stamp that took the old moment is
            // written, and every later one is above the new.
            drop(shard.write());
            let stamps = shard.read();
            count += stamps.len();
            entries.extend(
                stamps
                    .iter()
                    .map(|(id, stamp)| (id.clone(), stamp.load(Ordering::Relaxed)))
                    .filter(|(_, stamp)| *stamp > after && *stamp <= moment.steady),
            );
        }
        entries.sort_unstable_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        let covered = self.truncate_to_response(&mut entries).unwrap_or(moment.steady);
        let now = moment.unix(covered);
        self.cursors.add(now, covered);
        for (_, stamp) in &mut entries {
            *stamp = moment.unix(*stamp);
        }
        LastActive { now, since, count, entries }
    }

    /// Cuts `entries` to what a response holds; the last stamp in it if something was cut.
    fn truncate_to_response(&self, entries: &mut Vec<(SandboxId, u64)>) -> Option<u64> {
        let mut bytes = ENVELOPE_BYTES;
        let fits = entries.iter().take_while(|(id, _)| {
            bytes += id.as_str().len() + ENTRY_BYTES;
            bytes <= MAX_RESPONSE_BYTES
        });
        let fits = fits.count();
        let rest = entries.split_off(fits);
        let (last, (_, next)) = (entries.last()?.1, rest.first()?);
        if *next == last {
            // The reader will ask for what is newer than `last`, and would never see those of the same moment
            // that are left out: so these are stamped a millisecond later.
            for (id, stamp) in rest.iter().take_while(|(_, stamp)| *stamp == last) {
                self.postpone(id, *stamp);
            }
        }
        Some(last)
    }

    fn postpone(&self, id: &SandboxId, stamp: u64) {
        let shard = self.shard(id);
        if let Some(kept) = shard.read().get(id) {
            let _ = kept.compare_exchange(stamp, stamp + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn shard(&self, id: &SandboxId) -> &RwLock<Stamps> {
        self.shards.of(id.as_str())
    }
}

/// Makes room: an eighth of a full shard, so that the search for the oldest is rare.
fn evict_oldest(stamps: &mut Stamps) {
    let mut ages: Vec<u64> = stamps.values().map(|stamp| stamp.load(Ordering::Relaxed)).collect();
    let at = ages.len() / 8;
    if at >= ages.len() {
        return;
    }
    let (_, limit, _) = ages.select_nth_unstable(at);
    let limit = *limit;
    let mut room = at + 1;
    stamps.retain(|_, stamp| {
        let goes = room > 0 && stamp.load(Ordering::Relaxed) <= limit;
        room -= usize::from(goes);
        !goes
    });
}

/// `{"now":,"since":,"count":,"entries":{}}` and three numbers.
const ENVELOPE_BYTES: usize = 40 + 3 * 20;
/// `"":,` and a number.
const ENTRY_BYTES: usize = 4 + 20;

impl LastActive {
    /// The body of `GET /admin/last_active`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let ids: usize = self.entries.iter().map(|(id, _)| id.as_str().len() + ENTRY_BYTES).sum();
        let mut json = String::with_capacity(ENVELOPE_BYTES + ids);
        let Self { now, since, count, entries } = self;
        // Writing to a String cannot fail, and an id has no byte that JSON would escape.
        let _ = write!(json, r#"{{"now":{now},"since":{since},"count":{count},"entries":{{"#);
        for (at, (id, stamp)) in entries.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(json, r#"{comma}"{id}":{stamp}"#);
        }
        json.push_str("}}");
        json
    }
}

#[cfg(test)]
mod tests;
