//! What is served while the store cannot answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cube_metadata::StoreError;

use super::{HERE, SECOND, THERE, host, settings, testbed_with};
use crate::Lookup;
use crate::metrics::LookupOutcome;
use crate::testbed::{Testbed, id};

#[tokio::test]
async fn a_fresh_lookup_that_fails_takes_nothing_away() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    testbed.fail(true);
    assert_eq!(testbed.resolver.lookup_fresh(&id("a")).await.unwrap_err(), StoreError::Timeout);
    assert!(testbed.resolver.cached("a").is_some());
}

#[tokio::test]
async fn while_the_store_fails_no_id_is_called_unknown() {
    let testbed = Testbed::new(settings()).await;
    assert!(matches!(testbed.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    testbed.fail(true);
    assert!(testbed.resolver.lookup(&id("a")).await.is_err());
    assert!(testbed.resolver.lookup(&id("b")).await.is_err());
    testbed.fail(false);
    assert!(matches!(testbed.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
}

#[tokio::test]
async fn while_the_store_fails_an_entry_past_its_time_is_served_at_once() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    testbed.channel_down().await;
    testbed.fail(true);
    testbed.after(20 * SECOND);
    for _ in 0..50 {
        assert!(matches!(testbed.resolver.cached("a"), Some(Lookup::Found(_))));
    }
    testbed.settled().await;
    assert_eq!(testbed.counted(LookupOutcome::Stale), 50);
    assert_eq!(testbed.store.reads_of(&id("a")), 2, "one try in the background");
    testbed.fail(false);
    testbed.write(&id("a"), THERE).await;
    assert!(host(&testbed.found(&id("a")).await).contains("10.0.0.2"));
}

#[tokio::test]
async fn an_error_of_the_store_serves_what_is_there_for_ten_minutes() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    testbed.channel_down().await;
    testbed.after(1099 * SECOND);
    // Not known to fail: the read comes first.
    testbed.store.error.store(true, Ordering::SeqCst);
    assert!(matches!(testbed.resolver.lookup(&id("a")).await, Ok(Lookup::Found(_))));
    assert_eq!(testbed.counted(LookupOutcome::Stale), 1);
    testbed.after(SECOND);
    assert_eq!(testbed.resolver.lookup(&id("a")).await.unwrap_err(), StoreError::Timeout);
    assert_eq!(testbed.resolver.lookup(&id("b")).await.unwrap_err(), StoreError::Timeout);
}

#[tokio::test]
async fn many_stale_entries_ask_a_failing_store_seldom() {
    let testbed = Testbed::new(settings()).await;
    let ids: Vec<_> = (0..200).map(|n| id(&format!("s{n}"))).collect();
    for id in &ids {
        testbed.write(id, HERE).await;
        testbed.found(id).await;
    }
    testbed.channel_down().await;
    testbed.fail(true);
    testbed.after(10 * SECOND);
    for _ in 0..20 {
        for id in &ids {
            assert!(testbed.resolver.cached(id.as_str()).is_some());
        }
        testbed.settled().await;
        testbed.after(Duration::from_millis(50));
    }
    let reads: usize = ids.iter().map(|id| testbed.store.reads_of(id)).sum();
    assert!((5..=11).contains(&(reads - ids.len())), "{reads}");
}

#[tokio::test]
async fn what_was_invalidated_is_not_served_even_when_the_store_fails() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    testbed.write(&id("a"), THERE).await;
    testbed.fail(true);
    assert!(testbed.resolver.lookup(&id("a")).await.is_err());
}
