//! What is served while the store cannot answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cube_metadata::StoreError;

use super::{HERE, SECOND, THERE, host, settings, world_with};
use crate::Lookup;
use crate::metrics::Outcome;
use crate::scripted::{World, id};

#[tokio::test]
async fn a_fresh_lookup_that_fails_takes_nothing_away() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    world.fail(true);
    assert_eq!(world.resolver.lookup_fresh(&id("a")).await.unwrap_err(), StoreError::Timeout);
    assert!(world.resolver.cached("a").is_some());
}

#[tokio::test]
async fn while_the_store_fails_no_id_is_called_unknown() {
    let world = World::new(settings()).await;
    assert!(matches!(world.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    world.fail(true);
    assert!(world.resolver.lookup(&id("a")).await.is_err());
    assert!(world.resolver.lookup(&id("b")).await.is_err());
    world.fail(false);
    assert!(matches!(world.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
}

#[tokio::test]
async fn while_the_store_fails_an_entry_past_its_time_is_served_at_once() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    world.channel_down().await;
    world.fail(true);
    world.after(20 * SECOND);
    for _ in 0..50 {
        assert!(matches!(world.resolver.cached("a"), Some(Lookup::Found(_))));
    }
    world.settled().await;
    assert_eq!(world.counted(Outcome::Stale), 50);
    assert_eq!(world.store.reads_of(&id("a")), 2, "one try in the background");
    world.fail(false);
    world.write(&id("a"), THERE).await;
    assert!(host(&world.found(&id("a")).await).contains("10.0.0.2"));
}

#[tokio::test]
async fn an_error_of_the_store_serves_what_is_there_for_ten_minutes() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    world.channel_down().await;
    world.after(1099 * SECOND);
    // Not known to fail: the read comes first.
    world.store.error.store(true, Ordering::SeqCst);
    assert!(matches!(world.resolver.lookup(&id("a")).await, Ok(Lookup::Found(_))));
    assert_eq!(world.counted(Outcome::Stale), 1);
    world.after(SECOND);
    assert_eq!(world.resolver.lookup(&id("a")).await.unwrap_err(), StoreError::Timeout);
    assert_eq!(world.resolver.lookup(&id("b")).await.unwrap_err(), StoreError::Timeout);
}

#[tokio::test]
async fn many_stale_entries_ask_a_failing_store_seldom() {
    let world = World::new(settings()).await;
    let ids: Vec<_> = (0..200).map(|n| id(&format!("s{n}"))).collect();
    for id in &ids {
        world.write(id, HERE).await;
        world.found(id).await;
    }
    world.channel_down().await;
    world.fail(true);
    world.after(10 * SECOND);
    for _ in 0..20 {
        for id in &ids {
            assert!(world.resolver.cached(id.as_str()).is_some());
        }
        world.settled().await;
        world.after(Duration::from_millis(50));
    }
    let reads: usize = ids.iter().map(|id| world.store.reads_of(id)).sum();
    assert!((5..=11).contains(&(reads - ids.len())), "{reads}");
}

#[tokio::test]
async fn what_was_invalidated_is_not_served_even_when_the_store_fails() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    world.write(&id("a"), THERE).await;
    world.fail(true);
    assert!(world.resolver.lookup(&id("a")).await.is_err());
}
