use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};

use super::*;
use crate::response_cache::cacheability::Storable;

const MIB: usize = 1 << 20;

fn request(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

/// A response of `body`, to a request with those headers, of which it varies by Accept.
fn response(body: &[u8], fields: &[(&str, &str)], fresh_for: Duration) -> Stored {
    let vary = vec![http::header::ACCEPT];
    let storable = Storable { age: Duration::ZERO, fresh_for, vary, length: None };
    Stored {
        head: ResponseHeader::build(200, None).unwrap(),
        body: Bytes::copy_from_slice(body),
        freshness: Freshness::new(&storable, Instant::now()),
        selecting: Arc::new(Selecting::of(&request(fields), &storable.vary)),
    }
}

fn id(name: &str) -> SandboxId {
    SandboxId::parse(name).unwrap()
}

fn keep(store: &ResponseStore, name: &str, key: &str, body: &[u8]) -> StoreOutcome {
    store.keep(&id(name), key.as_bytes(), response(body, &[], Duration::from_secs(60)), || true)
}

fn found(store: &ResponseStore, key: &str, fields: &[(&str, &str)]) -> Option<Vec<u8>> {
    let demand = CacheDemand::any(&Method::GET);
    let stored = store.find(key.as_bytes(), &request(fields), &demand, Instant::now());
    stored.map(|stored| stored.body.to_vec())
}

#[test]
fn a_response_is_found_by_its_whole_key_and_replaced_by_the_next() {
    let store = ResponseStore::new(MIB, 1024).unwrap();
    assert_eq!(keep(&store, "a", "k", b"one"), StoreOutcome::Stored { evicted: 0 });
    assert_eq!(found(&store, "k", &[]), Some(b"one".to_vec()));
    assert_eq!(found(&store, "k ", &[]), None);
    assert_eq!(keep(&store, "a", "k", b"two"), StoreOutcome::Stored { evicted: 0 });
    assert_eq!(found(&store, "k", &[]), Some(b"two".to_vec()));
    assert_eq!(store.size().0, 1);
}

#[test]
fn responses_of_one_key_stand_beside_each_other_by_what_they_vary_by() {
    let store = ResponseStore::new(MIB, 1024).unwrap();
    for accept in ["a", "b"] {
        let stored = response(accept.as_bytes(), &[("Accept", accept)], Duration::from_secs(60));
        store.keep(&id("a"), b"k", stored, || true);
    }
    for accept in ["a", "b"] {
        assert_eq!(found(&store, "k", &[("Accept", accept)]), Some(accept.as_bytes().to_vec()));
    }
    assert_eq!(found(&store, "k", &[]), None);
    assert_eq!(store.size().0, 2);
}

#[test]
fn the_variants_of_one_key_are_bounded_and_the_newest_stay() {
    let store = ResponseStore::new(MIB, 1024).unwrap();
    let accepts: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    for accept in &accepts {
        let stored = response(b"x", &[("Accept", accept)], Duration::from_secs(60));
        store.keep(&id("a"), b"k", stored, || true);
    }
    let kept: Vec<bool> =
        accepts.iter().map(|accept| found(&store, "k", &[("Accept", accept)]).is_some()).collect();
    assert!(kept[100 - MOST_VARIANTS..].iter().all(|kept| *kept));
    assert_eq!(kept.iter().filter(|kept| **kept).count(), MOST_VARIANTS);
    assert_eq!(store.size().0, MOST_VARIANTS as u64);
}

#[test]
fn what_is_not_fresh_is_not_found_and_makes_room() {
    let store = ResponseStore::new(MIB, 1024).unwrap();
    let stale = response(b"old", &[("Accept", "a")], Duration::from_nanos(1));
    store.keep(&id("a"), b"k", stale, || true);
    assert_eq!(found(&store, "k", &[("Accept", "a")]), None);
    keep(&store, "a", "k", b"new");
    assert_eq!(store.size().0, 1);
}

#[test]
fn forgetting_a_sandbox_frees_all_of_it_and_nothing_else() {
    let store = ResponseStore::new(MIB, 1024).unwrap();
    keep(&store, "a", "a1", b"x");
    keep(&store, "a", "a2", b"x");
    keep(&store, "b", "b1", b"x");
    let (_, all) = store.size();
    assert_eq!(store.forget(&id("a")), 2);
    assert_eq!((found(&store, "a1", &[]), found(&store, "a2", &[])), (None, None));
    assert_eq!(found(&store, "b1", &[]), Some(b"x".to_vec()));
    let (responses, bytes) = store.size();
    assert!(responses == 1 && bytes < all / 2, "{responses} {bytes} of {all}");
    assert_eq!(store.forget(&id("a")), 0);
    store.forget(&id("b"));
    assert_eq!(store.size(), (0, 0));
    assert!(store.index.lock().keys.is_empty());
}

#[test]
fn a_response_that_is_outdated_when_it_is_whole_is_not_kept() {
    let store = ResponseStore::new(MIB, 1024).unwrap();
    let stored = response(b"x", &[], Duration::from_secs(60));
    assert_eq!(store.keep(&id("a"), b"k", stored, || false), StoreOutcome::Outdated);
    assert_eq!(store.size(), (0, 0));
    assert!(store.index.lock().keys.is_empty());
}

#[test]
fn memory_is_bounded_and_the_index_knows_what_was_pushed_out() {
    let memory = 256 * 1024;
    let store = ResponseStore::new(memory, 1024).unwrap();
    let mut evicted = 0;
    for n in 0..2000 {
        match keep(&store, &format!("s{}", n % 50), &format!("key{n}"), &[7; 1024]) {
            StoreOutcome::Stored { evicted: more } => evicted += more,
            other => panic!("{other:?}"),
        }
        assert!(store.size().1 <= memory as u64);
    }
    let (responses, bytes) = store.size();
    assert_eq!(responses + evicted, 2000);
    assert!(bytes > memory as u64 / 2, "{bytes}");
    let index: usize = store.index.lock().keys.values().map(HashSet::len).sum();
    assert_eq!(index as u64, responses);
    assert_eq!(store.groups.len() as u64, responses);
}

#[test]
fn what_fits_nowhere_is_not_kept_and_one_of_the_largest_is() {
    let store = ResponseStore::new(MIB, MIB).unwrap();
    assert_eq!(keep(&store, "a", "k", &vec![0; MIB]), StoreOutcome::TooLarge);
    assert_eq!(store.size(), (0, 0));
    assert!(store.index.lock().keys.is_empty());
    assert!(matches!(keep(&store, "a", "k", &vec![0; MIB - MIB / 10]), StoreOutcome::Stored { .. }));
    let defaults = ResponseStore::new(48 * MIB, MIB).unwrap();
    assert!(matches!(keep(&defaults, "a", "k", &vec![0; MIB]), StoreOutcome::Stored { .. }));
    // Two that do not fit together under one key: the newer one stays.
    let other = response(&vec![0; MIB - MIB / 10], &[("Accept", "b")], Duration::from_secs(60));
    assert!(matches!(store.keep(&id("a"), b"k", other, || true), StoreOutcome::Stored { .. }));
    assert!(found(&store, "k", &[("Accept", "b")]).is_some());
    assert_eq!((found(&store, "k", &[]), store.size().0), (None, 1));
}
