//! Who may share an upstream connection (connections.md, Upstream pool): the group under which
//! Pingora's pool keeps it and looks for it.
//!
//! Pingora's own key is little more than the address: it leaves out whom a connection was opened for
//! and which authorities verified it. So whatever must not be mixed differs here.

use std::sync::atomic::{AtomicU64, Ordering};

/// The two highest bits of a group say which kind it is of.
const KIND_SHIFT: u32 = 62;
/// The rest is a number that is unique within the kind.
const NUMBER: u64 = (1 << KIND_SHIFT) - 1;

/// Requests with equal keys may share a connection to the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolKey {
    /// One generation of one sandbox, by its number (`cube_resolver::Generation`): numbers are never
    /// used twice, so an address that goes to another sandbox never brings an old connection along.
    Sandbox(u64),
    /// One setting of `routing.control_plane`, by its number: a connection that older authorities
    /// verified must not be found under newer ones.
    ControlPlane(u64),
    /// One request alone, by a number of its own (see [`PoolKey::unshared`]).
    Unshared(u64),
}

impl PoolKey {
    /// A key that no other request has: the connection is new, and nobody finds it later.
    pub(crate) fn unshared() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self::Unshared(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number that Pingora's pool compares. Different for different keys, as long as the numbers
    /// in them are below 2^62; they are counted up from zero, so they are.
    pub(crate) const fn group(self) -> u64 {
        let (kind, number) = match self {
            Self::Sandbox(generation) => (0, generation),
            Self::ControlPlane(setting) => (1, setting),
            Self::Unshared(request) => (2, request),
        };
        kind << KIND_SHIFT | number & NUMBER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_keys_have_the_same_group() {
        let kinds = [PoolKey::Sandbox, PoolKey::ControlPlane, PoolKey::Unshared];
        let numbers = [0, 1, 2, u64::from(u32::MAX), 1 << 61, NUMBER];
        let mut groups: Vec<u64> =
            kinds.iter().flat_map(|kind| numbers.map(|number| kind(number).group())).collect();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(groups.len(), kinds.len() * numbers.len());
    }

    #[test]
    fn a_number_out_of_bounds_stays_within_its_kind() {
        assert_eq!(PoolKey::Sandbox(u64::MAX).group() >> KIND_SHIFT, 0);
        assert_eq!(PoolKey::ControlPlane(u64::MAX).group() >> KIND_SHIFT, 1);
    }

    #[test]
    fn an_unshared_key_is_given_once() {
        assert_ne!(PoolKey::unshared(), PoolKey::unshared());
    }
}
