//! A value in parts that are locked one by one, so that requests to different sandboxes do not wait for each
//! other. What is locked how, and what else a part holds beside a map, is its owner's: see
//! docs/decisions/0002-dependencies.md for why this is not a concurrent map.

use std::hash::Hash;

use ahash::RandomState;

/// `N` parts; each key belongs to one of them for as long as this lives.
#[derive(Debug)]
pub struct Sharded<T, const N: usize> {
    parts: Box<[T; N]>,
    hasher: RandomState,
}

impl<T: Default, const N: usize> Default for Sharded<T, N> {
    fn default() -> Self {
        Self { parts: Box::new(std::array::from_fn(|_| T::default())), hasher: RandomState::new() }
    }
}

impl<T, const N: usize> Sharded<T, N> {
    /// The part that `key` belongs to.
    #[inline]
    pub fn of<K: Hash + ?Sized>(&self, key: &K) -> &T {
        const { assert!(N.is_power_of_two(), "the low bits of a hash choose the part") };
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits choose the part")]
        #[expect(clippy::indexing_slicing, reason = "the index is taken modulo the length")]
        &self.parts[self.hasher.hash_one(key) as usize % N]
    }

    /// All parts, one after the other.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.parts.iter()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a Sharded<T, N> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_key_stays_in_its_part_and_keys_are_spread() {
        let counts = Sharded::<Cell<usize>, 8>::default();
        for key in 0..8_000 {
            let part = counts.of(&key);
            part.set(part.get() + 1);
            assert!(std::ptr::eq(part, counts.of(&key)));
        }
        let found: Vec<_> = counts.iter().map(Cell::get).collect();
        assert_eq!(found.iter().sum::<usize>(), 8_000);
        assert!(found.iter().all(|count| (700..1300).contains(count)), "{found:?}");
    }

    #[test]
    fn borrowed_and_owned_keys_are_the_same_key() {
        let parts = Sharded::<Cell<usize>, 64>::default();
        assert!(std::ptr::eq(parts.of("abc"), parts.of(&"abc".to_owned())));
    }
}
