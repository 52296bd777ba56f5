//! Which life of a sandbox a request belongs to, and who is told that one is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cube_route::SandboxId;
use tokio::sync::broadcast::error::TryRecvError;

use super::{HERE, REBORN, SECOND, THERE, host, settings, world_with};
use crate::resolver::BACKGROUND;
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
async fn a_changed_state_is_read_at_once_although_nobody_asks() {
    let world = world_with(HERE).await;
    for (n, known) in ["a", "never-heard-of"].into_iter().enumerate() {
        for time in 1..=3 {
            world.push_state(&id(known)).await;
            world.settled().await;
            assert_eq!(world.store.reads_of(&id(known)), time, "{n}: each change is read");
        }
    }
    // While the store fails it stays wanted.
    world.fail(true);
    world.push_state(&id("a")).await;
    world.settled().await;
    world.fail(false);
    until(|| world.store.answers_of(&id("a")) == 4).await;
}

#[tokio::test]
async fn changed_states_are_read_together_and_a_bounded_number_at_a_time() {
    let world = world_with(HERE).await;
    world.store.held.send_replace(true);
    let ids: Vec<SandboxId> = (0..3 * BACKGROUND).map(|n| id(&format!("s{n}"))).collect();
    for id in &ids {
        for _ in 0..10 {
            world.push_state(id).await;
        }
    }
    until(|| world.store.reads_now.load(Ordering::SeqCst) == BACKGROUND).await;
    world.store.held.send_replace(false);
    world.settled().await;
    until(|| ids.iter().all(|id| world.store.answers_of(id) >= 1)).await;
    world.settled().await;
    assert!(world.store.most_reads_at_once.load(Ordering::SeqCst) <= BACKGROUND);
    for id in &ids {
        let reads = world.store.reads_of(id);
        assert!(reads <= 3, "{id} was read {reads} times");
    }
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

#[tokio::test]
async fn readings_that_say_the_same_share_a_revision_and_every_other_has_one_of_its_own() {
    let world = world_with(HERE).await;
    let first = world.found(&id("a")).await;
    world.write(&id("a"), HERE).await;
    let again = world.found(&id("a")).await;
    assert!(!Arc::ptr_eq(&first, &again));
    assert_eq!((again.generation, again.revision), (first.generation, first.revision));
    let mut known = vec![first.revision];
    for field in [
        ("AllowPublicTraffic", "false"),
        ("TrafficAccessToken", "example-token"),
        ("TrafficAccessToken", "example-token-2"),
        ("MaskRequestHost", "inner.test"),
        ("Status", "running"),
        ("8080", "49000"),
        ("HostIP", "10.0.0.7"),
        ("CreatedAt", "7"),
    ] {
        let fields: Vec<_> =
            HERE.iter().copied().filter(|(name, _)| *name != field.0).chain([field]).collect();
        world.write(&id("a"), &fields).await;
        let other = world.found(&id("a")).await;
        assert!(!known.contains(&other.revision), "{field:?}");
        known.push(other.revision);
    }
    let before = world.found(&id("a")).await;
    world.resolver.forget(&id("a"));
    assert!(before.is_over());
    assert!(!known.contains(&world.found(&id("a")).await.revision), "forgotten, the same record is another");
    world.delete(&id("a")).await;
    world.write(&id("a"), HERE).await;
    assert!(!known.contains(&world.found(&id("a")).await.revision), "so is one that was deleted");
}

#[tokio::test]
async fn the_observer_is_told_when_what_was_known_holds_no_more_pushed_or_not() {
    let world = world_with(HERE).await;
    let told = || std::mem::take(&mut *world.watcher.outdated.lock()).contains(&id("a"));
    let first = world.found(&id("a")).await;
    assert!(told(), "there is nothing to compare it with");
    world.resolver.lookup_fresh(&id("a")).await.unwrap();
    assert!(!told() && !first.is_over(), "it reads the same");
    world.write(&id("a"), HERE).await;
    assert!(told(), "a key changed");
    let second = world.found(&id("a")).await;
    told();
    let fields = THERE.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    world.store.records.lock().insert(id("a"), fields);
    world.resolver.lookup_fresh(&id("a")).await.unwrap();
    assert!(told() && second.is_over(), "it reads otherwise, and nobody said so");
    let third = world.found(&id("a")).await;
    world.store.records.lock().remove(&id("a"));
    world.resolver.lookup_fresh(&id("a")).await.unwrap();
    assert!(told() && third.is_over(), "it is gone, and nobody said so");
}
