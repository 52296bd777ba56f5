//! Which life of a sandbox a request belongs to, and who is told that one is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::broadcast::error::TryRecvError;

use super::{HERE, REBORN, SECOND, THERE, host, settings, world_with};
use crate::scripted::{World, id, until};
use crate::{Lookup, Settings};

#[tokio::test]
async fn a_pushed_change_is_followed_and_one_that_changes_nothing_keeps_the_generation() {
    let world = world_with(HERE).await;
    let first = world.found(&id("a")).await.generation;
    world.write(&id("a"), HERE).await;
    assert!(world.resolver.cached("a").is_none(), "it is read again before it is served");
    assert_eq!(world.found(&id("a")).await.generation, first);
    world.write(&id("a"), THERE).await;
    let moved = world.found(&id("a")).await;
    assert!(host(&moved).contains("10.0.0.2"));
    assert!(moved.generation > first);
}

#[tokio::test]
async fn forgetting_says_whether_a_route_was_served_and_moves_the_generation_on() {
    let world = world_with(HERE).await;
    assert!(!world.resolver.forget(&id("a")));
    let first = world.found(&id("a")).await.generation;
    assert!(world.resolver.forget(&id("a")));
    assert!(!world.resolver.forget(&id("a")));
    assert!(world.resolver.cached("a").is_none());
    assert!(world.found(&id("a")).await.generation > first);
}

#[tokio::test]
async fn forgetting_during_a_read_leaves_nothing_of_the_old_generation() {
    let world = world_with(HERE).await;
    let first = world.found(&id("a")).await;
    world.store.held.send_replace(true);
    let lookup = tokio::spawn({
        let resolver = Arc::clone(&world.resolver);
        async move { resolver.lookup_fresh(&id("a")).await }
    });
    until(|| world.store.reads_now.load(Ordering::SeqCst) == 1).await;
    world.resolver.advance(&id("a"));
    world.store.held.send_replace(false);
    lookup.await.unwrap().unwrap();
    assert!(world.resolver.cached("a").is_none());
    assert!(world.found(&id("a")).await.generation > first.generation);
}

#[tokio::test]
async fn a_deleted_record_is_gone_and_its_streams_are_revoked() {
    let mut world = world_with(HERE).await;
    let streaming = world.found(&id("a")).await;
    world.delete(&id("a")).await;
    world.settled().await;
    let revocation = world.revocations.try_recv().unwrap();
    assert_eq!(revocation.id, id("a"));
    assert!(revocation.before > streaming.generation);
    assert!(matches!(world.resolver.cached("a"), Some(Lookup::Unknown)));
    world.write(&id("a"), HERE).await;
    assert!(world.found(&id("a")).await.generation > revocation.before);
}

#[tokio::test]
async fn a_new_created_at_revokes_and_a_new_host_ip_does_not() {
    let mut world = world_with(HERE).await;
    let first = world.found(&id("a")).await;
    world.write(&id("a"), THERE).await;
    world.settled().await;
    assert_eq!(world.revocations.try_recv().unwrap_err(), TryRecvError::Empty);
    let moved = world.found(&id("a")).await;
    world.write(&id("a"), REBORN).await;
    world.settled().await;
    let revocation = world.revocations.try_recv().unwrap();
    assert!(revocation.before > moved.generation && moved.generation > first.generation);
    assert_eq!(world.found(&id("a")).await.generation, revocation.before, "the new life goes on");
}

#[tokio::test]
async fn what_nobody_uses_is_not_read_again_until_somebody_asks() {
    let world = world_with(HERE).await;
    drop(world.found(&id("a")).await);
    world.write(&id("a"), THERE).await;
    world.settled().await;
    assert_eq!(world.store.reads_of(&id("a")), 1);
    world.watcher.interests.lock().insert(id("a"));
    world.write(&id("a"), THERE).await;
    world.settled().await;
    assert_eq!(world.store.reads_of(&id("a")), 2, "somebody waits for it");
}

#[tokio::test]
async fn a_record_removed_while_nothing_was_pushed_is_revoked_on_reconnect() {
    let mut world = world_with(HERE).await;
    let streaming = world.found(&id("a")).await;
    world.channel_down().await;
    world.delete(&id("a")).await;
    world.channel_up().await;
    world.settled().await;
    assert!(world.revocations.try_recv().unwrap().before > streaming.generation);
}

#[tokio::test]
async fn a_stream_that_outlives_the_entry_it_began_with_is_revoked_too() {
    let mut world = world_with(HERE).await;
    let streaming = world.found(&id("a")).await;
    for _ in 0..3 {
        world.after(501 * SECOND);
        assert!(world.resolver.cached("a").is_some());
        world.settled().await;
    }
    world.delete(&id("a")).await;
    world.settled().await;
    assert!(world.revocations.try_recv().unwrap().before > streaming.generation);
}

#[tokio::test]
async fn an_entry_pushed_out_while_in_use_keeps_its_generation_and_its_revocation() {
    let mut world = World::new(Settings { capacity: 1, ..settings() }).await;
    world.write(&id("a"), HERE).await;
    let streaming = world.found(&id("a")).await;
    for n in 0..200 {
        world.write(&id(&format!("b{n}")), HERE).await;
        world.found(&id(&format!("b{n}"))).await;
    }
    assert!(world.resolver.cached("a").is_none());
    assert_eq!(world.found(&id("a")).await.generation, streaming.generation);
    for n in 0..200 {
        world.found(&id(&format!("b{n}"))).await;
    }
    world.delete(&id("a")).await;
    world.settled().await;
    assert!(world.revocations.try_recv().unwrap().before > streaming.generation);
}

#[tokio::test]
async fn an_entry_pushed_out_does_not_come_back_with_a_used_number() {
    let world = World::new(Settings { capacity: 1, ..settings() }).await;
    let mut seen = std::collections::HashSet::new();
    for n in 0..50 {
        let id = id(&format!("b{}", n % 5));
        world.write(&id, HERE).await;
        let generation = world.found(&id).await.generation;
        assert!(seen.insert(generation), "{generation} twice");
    }
}
