//! Keys whose values are known, so that a change without an invalidation shows (metadata.md).
//!
//! Several are kept: those whose change is announced are dropped, and what else is in the cache
//! must not be left without a single key that tells.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use fred::types::Value;
use parking_lot::Mutex;

/// The most keys kept.
const KEYS: usize = 16;

/// The keys that are read again, one at a time.
pub(crate) struct Canary {
    kept: Mutex<CanaryKeys>,
    /// Whether there is room for the next record that is read.
    wanted: AtomicBool,
    /// Whether a record was read since the last check.
    read: AtomicBool,
}

#[derive(Default)]
struct CanaryKeys {
    /// With a fingerprint of what each held, the next to be checked first.
    keys: Vec<(String, u64)>,
    /// Whether a record was read in this session, and may be in a cache.
    any: bool,
}

/// What the next canary check reads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CanaryCheck {
    /// The record under this key.
    Key(String),
    /// Nothing: no record was read.
    Nothing,
    /// Nothing although records were read: a change of those would not show.
    Blind,
}

impl Default for Canary {
    fn default() -> Self {
        Self { kept: Mutex::default(), wanted: AtomicBool::new(true), read: AtomicBool::new(false) }
    }
}

impl Canary {
    /// A record was read; whether its value is worth [`Canary::set`].
    pub(crate) fn read(&self) -> bool {
        self.read.store(true, Ordering::Relaxed);
        self.wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, key: &str, value: &Value) {
        let mut kept = self.kept.lock();
        kept.any = true;
        // Another value of a key that is kept is for the check to find.
        if kept.keys.iter().all(|(known, _)| known != key) {
            if kept.keys.len() >= KEYS {
                kept.keys.pop();
            }
            kept.keys.push((key.to_owned(), fingerprint(value)));
        }
        self.wanted.store(kept.keys.len() < KEYS, Ordering::Relaxed);
    }

    /// An invalidation of `key` was seen: its value is not known any more.
    pub(crate) fn changed(&self, key: &[u8]) {
        let mut kept = self.kept.lock();
        if let Some(at) = kept.keys.iter().position(|(known, _)| known.as_bytes() == key) {
            kept.keys.remove(at);
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear(&self) {
        *self.kept.lock() = CanaryKeys::default();
        self.read.store(false, Ordering::Relaxed);
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// What to check now; from now on there is room for another key.
    pub(crate) fn next(&self) -> CanaryCheck {
        let mut kept = self.kept.lock();
        let lately = self.read.swap(false, Ordering::Relaxed);
        kept.any |= lately;
        self.wanted.store(true, Ordering::Relaxed);
        if kept.keys.is_empty() {
            // What was read lately is likely to be read again at once, and is kept then.
            return if kept.any && !lately { CanaryCheck::Blind } else { CanaryCheck::Nothing };
        }
        kept.keys.rotate_left(1);
        kept.keys.last().map_or(CanaryCheck::Nothing, |(key, _)| CanaryCheck::Key(key.clone()))
    }

    /// Whether `key` still holds what it held, or is not kept any more.
    pub(crate) fn still_holds(&self, key: &str, value: &Value) -> bool {
        let kept = self.kept.lock();
        kept.keys.iter().find(|(known, _)| known == key).is_none_or(|(_, print)| *print == fingerprint(value))
    }
}

/// The same for the same fields in any order.
fn fingerprint(value: &Value) -> u64 {
    let Value::Map(map) = value else { return 0 };
    map.iter().fold(0, |sum: u64, (name, value)| {
        let mut hasher = DefaultHasher::new();
        name.as_bytes().hash(&mut hasher);
        value.as_bytes().hash(&mut hasher);
        sum.wrapping_add(hasher.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &str)]) -> Value {
        let map: std::collections::HashMap<String, String> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Value::try_from(map).unwrap()
    }

    #[test]
    fn a_changed_value_shows_unless_the_change_was_announced() {
        let canary = Canary::default();
        canary.set("k", &map(&[("a", "1"), ("b", "2")]));
        assert!(canary.still_holds("k", &map(&[("b", "2"), ("a", "1")])));
        assert!(!canary.still_holds("k", &map(&[("a", "2"), ("b", "1")])));
        assert!(!canary.still_holds("k", &map(&[])));
        assert!(canary.still_holds("other", &map(&[])));
        canary.changed(b"k");
        assert!(canary.still_holds("k", &map(&[])));
    }

    #[test]
    fn the_keys_are_checked_in_turn_and_those_that_changed_are_not() {
        let canary = Canary::default();
        assert_eq!(canary.next(), CanaryCheck::Nothing);
        for key in ["a", "b", "c"] {
            assert!(canary.read());
            canary.set(key, &map(&[("x", key)]));
        }
        let checked: Vec<_> = (0..4).map(|_| canary.next()).collect();
        assert_eq!(checked, ["a", "b", "c", "a"].map(|key| CanaryCheck::Key(key.to_owned())));
        canary.changed(b"b");
        let checked: Vec<_> = (0..2).map(|_| canary.next()).collect();
        assert_eq!(checked, ["c", "a"].map(|key| CanaryCheck::Key(key.to_owned())));
    }

    #[test]
    fn the_keys_are_bounded_and_one_is_replaced_after_each_check() {
        let canary = Canary::default();
        for n in 0..KEYS {
            assert!(canary.read());
            canary.set(&n.to_string(), &map(&[]));
        }
        assert!(!canary.read());
        canary.next();
        assert!(canary.read());
        canary.set("late", &map(&[]));
        assert!(!canary.read());
        let checked: Vec<_> = (0..KEYS).map(|_| canary.next()).collect();
        assert!(checked.contains(&CanaryCheck::Key("late".to_owned())));
        assert_eq!(canary.kept.lock().keys.len(), KEYS);
    }

    #[test]
    fn it_is_blind_when_every_key_it_knew_has_changed_and_none_was_read_since() {
        let canary = Canary::default();
        canary.read();
        canary.set("a", &map(&[]));
        canary.changed(b"a");
        assert_eq!(canary.next(), CanaryCheck::Nothing, "one was read lately");
        assert_eq!(canary.next(), CanaryCheck::Blind);
        canary.clear();
        assert_eq!(canary.next(), CanaryCheck::Nothing, "a new session");
    }
}
