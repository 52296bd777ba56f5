//! One key whose value is known, so that a change without an invalidation shows (metadata.md).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use fred::types::Value;
use parking_lot::Mutex;

/// The key that is read again, with a fingerprint of what it held.
pub(crate) struct Canary {
    kept: Mutex<Option<(String, u64)>>,
    /// Whether the next record that is read should take the place: after each check another key.
    wanted: AtomicBool,
}

impl Default for Canary {
    fn default() -> Self {
        Self { kept: Mutex::new(None), wanted: AtomicBool::new(true) }
    }
}

impl Canary {
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, key: &str, value: &Value) {
        *self.kept.lock() = Some((key.to_owned(), fingerprint(value)));
        self.wanted.store(false, Ordering::Relaxed);
    }

    /// An invalidation of `key` was seen: its value is not known any more.
    pub(crate) fn changed(&self, key: &[u8]) {
        let mut kept = self.kept.lock();
        if kept.as_ref().is_some_and(|(known, _)| known.as_bytes() == key) {
            *kept = None;
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear(&self) {
        *self.kept.lock() = None;
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// The key to check; another one may take its place from now on.
    pub(crate) fn key(&self) -> Option<String> {
        let key = self.kept.lock().as_ref().map(|(key, _)| key.clone());
        self.wanted.store(true, Ordering::Relaxed);
        key
    }

    /// Whether `key` still holds what it held, or is not the one that is kept any more.
    pub(crate) fn still_holds(&self, key: &str, value: &Value) -> bool {
        match self.kept.lock().as_ref() {
            Some((known, print)) if known == key => *print == fingerprint(value),
            _ => true,
        }
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
    fn another_key_is_wanted_after_each_check() {
        let canary = Canary::default();
        assert!(canary.is_wanted());
        canary.set("k", &map(&[("a", "1")]));
        assert!(!canary.is_wanted());
        assert_eq!(canary.key().as_deref(), Some("k"));
        assert!(canary.is_wanted());
    }
}
