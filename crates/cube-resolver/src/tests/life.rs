//! Served from memory, for as long as what was read can be trusted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{HERE, SECOND, THERE, host, settings, world_with};
use crate::metrics::Outcome;
use crate::scripted::{World, id, until};
use crate::{Lookup, Settings};

#[tokio::test]
async fn a_sandbox_is_read_once_and_then_served_from_memory() {
    let world = world_with(HERE).await;
    assert!(world.resolver.cached("a").is_none());
    for _ in 0..10 {
        world.found(&id("a")).await;
    }
    assert!(matches!(world.resolver.cached("a"), Some(Lookup::Found(_))));
    assert_eq!(world.store.reads_of(&id("a")), 1);
    assert_eq!((world.counted(Outcome::Miss), world.counted(Outcome::Hit)), (1, 10));
    assert_eq!(world.resolver.metrics.entries.get(), 1);
}

#[tokio::test]
async fn a_thousand_at_once_make_one_read_and_one_that_leaves_does_not_end_it() {
    let world = world_with(HERE).await;
    world.store.held.send_replace(true);
    let lookups: Vec<_> = (0..1000)
        .map(|_| {
            let resolver = Arc::clone(&world.resolver);
            tokio::spawn(async move { resolver.lookup(&id("a")).await })
        })
        .collect();
    until(|| world.store.reads_now.load(Ordering::SeqCst) == 1).await;
    lookups[0].abort();
    world.store.held.send_replace(false);
    for lookup in lookups.into_iter().skip(1) {
        assert!(matches!(lookup.await.unwrap(), Ok(Lookup::Found(_))));
    }
    assert_eq!(world.store.reads_of(&id("a")), 1);
}

#[tokio::test]
async fn hits_do_not_extend_a_life_and_at_its_end_no_request_waits() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    for _ in 0..499 {
        world.after(SECOND);
        assert!(world.resolver.cached("a").is_some());
    }
    assert_eq!(world.store.reads_of(&id("a")), 1);
    world.after(2 * SECOND);
    world.store.held.send_replace(true);
    for _ in 0..5 {
        assert!(matches!(world.resolver.cached("a"), Some(Lookup::Found(_))));
    }
    world.store.held.send_replace(false);
    world.settled().await;
    assert_eq!(world.store.reads_of(&id("a")), 2);
    assert_eq!(world.counted(Outcome::Refresh), 5);
    assert!(world.resolver.cached("a").is_some());
    assert_eq!((world.counted(Outcome::Hit), world.counted(Outcome::Stale)), (500, 0));
}

#[tokio::test]
async fn while_nothing_is_pushed_an_entry_lives_two_seconds_and_is_read_before_it_is_served() {
    let world = world_with(HERE).await;
    world.channel_down().await;
    world.found(&id("a")).await;
    world.write(&id("a"), THERE).await;
    world.after(Duration::from_millis(1999));
    assert!(host(&world.found(&id("a")).await).contains("10.0.0.1"));
    world.after(Duration::from_millis(1));
    assert!(host(&world.found(&id("a")).await).contains("10.0.0.2"));
}

#[tokio::test]
async fn when_the_channel_goes_down_what_was_read_before_lives_two_seconds_from_its_reading() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    world.after(Duration::from_millis(1500));
    world.channel_down().await;
    assert!(world.resolver.cached("a").is_some());
    world.after(Duration::from_millis(500));
    assert!(world.resolver.cached("a").is_none());
}

#[tokio::test]
async fn after_a_reconnect_everything_is_read_again_before_it_is_trusted() {
    let world = world_with(HERE).await;
    let before = world.found(&id("a")).await.generation;
    world.channel_down().await;
    world.channel_up().await;
    assert!(world.resolver.cached("a").is_none());
    assert_eq!(world.found(&id("a")).await.generation, before);
    world.after(100 * SECOND);
    assert!(world.resolver.cached("a").is_some());
}

#[tokio::test]
async fn lost_messages_distrust_everything_although_the_session_is_the_same() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    assert!(matches!(world.resolver.lookup(&id("none")).await, Ok(Lookup::Unknown)));
    world.lose_messages().await;
    assert!(world.resolver.cached("a").is_none());
    assert!(world.resolver.cached("none").is_none());
}

#[tokio::test]
async fn without_a_follower_nothing_is_trusted() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    world.resolver.following.store(false, Ordering::SeqCst);
    world.after(2 * SECOND);
    assert!(world.resolver.cached("a").is_none());
}

#[tokio::test]
async fn a_read_that_raced_with_a_change_is_for_those_who_waited_only() {
    let world = world_with(HERE).await;
    world.store.held.send_replace(true);
    let early = tokio::spawn({
        let resolver = Arc::clone(&world.resolver);
        async move { resolver.lookup(&id("a")).await }
    });
    until(|| world.store.reads_now.load(Ordering::SeqCst) == 1).await;
    world.write(&id("a"), THERE).await;
    let late = tokio::spawn({
        let resolver = Arc::clone(&world.resolver);
        async move { resolver.lookup(&id("a")).await }
    });
    world.store.held.send_replace(false);
    let Ok(Lookup::Found(early)) = early.await.unwrap() else { panic!("not found") };
    let Ok(Lookup::Found(late)) = late.await.unwrap() else { panic!("not found") };
    assert!(host(&early).contains("10.0.0.1"));
    assert!(host(&late).contains("10.0.0.2"));
    assert!(late.generation > early.generation);
    assert!(host(&world.found(&id("a")).await).contains("10.0.0.2"));
    assert_eq!(world.store.most_reads_at_once.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_raced_read_is_not_served_later_although_nobody_else_waited() {
    let world = world_with(HERE).await;
    world.store.held.send_replace(true);
    let early = tokio::spawn({
        let resolver = Arc::clone(&world.resolver);
        async move { resolver.lookup(&id("a")).await }
    });
    until(|| world.store.reads_now.load(Ordering::SeqCst) == 1).await;
    world.write(&id("a"), HERE).await;
    world.store.held.send_replace(false);
    let Ok(Lookup::Found(early)) = early.await.unwrap() else { panic!("not found") };
    assert!(world.resolver.cached("a").is_none());
    assert_eq!(world.found(&id("a")).await.generation, early.generation, "what began in between goes on");
}

#[tokio::test]
async fn a_fresh_lookup_begins_its_read_after_the_call() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    world.store.held.send_replace(true);
    let spawn = || {
        let resolver = Arc::clone(&world.resolver);
        tokio::spawn(async move { resolver.lookup_fresh(&id("a")).await })
    };
    let first = spawn();
    until(|| world.store.reads_now.load(Ordering::SeqCst) == 1).await;
    let others: Vec<_> = (0..100).map(|_| spawn()).collect();
    for _ in 0..300 {
        tokio::task::yield_now().await;
    }
    world.store.held.send_replace(false);
    for lookup in others.into_iter().chain([first]) {
        assert!(matches!(lookup.await.unwrap(), Ok(Lookup::Found(_))));
    }
    assert_eq!(world.store.reads_of(&id("a")), 3, "the first, the one under way, one for all who came then");
}

#[tokio::test]
async fn an_unknown_id_is_kept_apart_and_known_as_soon_as_it_is_created() {
    let world = World::new(settings()).await;
    for _ in 0..10 {
        assert!(matches!(world.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    }
    assert_eq!(world.store.reads_of(&id("a")), 1);
    assert_eq!(world.counted(Outcome::Negative), 9);
    assert_eq!(world.resolver.metrics.entries.get(), 0);
    world.write(&id("a"), HERE).await;
    world.found(&id("a")).await;
}

#[tokio::test]
async fn an_unknown_id_lives_a_second_while_nothing_is_pushed() {
    let world = World::new(settings()).await;
    world.channel_down().await;
    assert!(matches!(world.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    world.after(Duration::from_millis(999));
    assert!(world.resolver.cached("a").is_some());
    world.after(Duration::from_millis(1));
    assert!(world.resolver.cached("a").is_none());
}

#[tokio::test]
async fn an_unknown_id_past_its_time_is_served_and_read_again_as_a_sandbox_is() {
    let world = World::new(settings()).await;
    assert!(matches!(world.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    world.after(501 * SECOND);
    for _ in 0..3 {
        assert!(matches!(world.resolver.cached("a"), Some(Lookup::Unknown)));
    }
    world.settled().await;
    assert_eq!(world.store.reads_of(&id("a")), 2);
}

#[tokio::test]
async fn a_scan_pushes_no_sandbox_out_and_asks_once_an_id() {
    let world = World::new(Settings { capacity: 100, ..settings() }).await;
    for n in 0..100 {
        world.write(&id(&format!("warm{n}")), HERE).await;
        world.found(&id(&format!("warm{n}"))).await;
    }
    let warm = world.resolver.len();
    for round in 0..2 {
        for n in 0..3000 {
            let stranger = id(&format!("stranger{n}"));
            assert!(matches!(world.resolver.lookup(&stranger).await, Ok(Lookup::Unknown)));
            assert_eq!(world.store.reads_of(&stranger), 1, "round {round}");
        }
    }
    assert_eq!(world.resolver.len(), warm);
}

#[tokio::test]
async fn every_reading_is_observed_before_those_who_wait_go_on() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    assert_eq!(*world.watcher.observed.lock(), [(id("a"), true)]);
    world.delete(&id("a")).await;
    assert!(matches!(world.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    assert_eq!(world.watcher.observed.lock().last(), Some(&(id("a"), false)));
}

#[tokio::test]
async fn an_entry_is_shown_as_it_is() {
    let world = world_with(HERE).await;
    assert!(world.resolver.inspect("a").is_none());
    world.found(&id("a")).await;
    world.after(3 * SECOND);
    let seen = world.resolver.inspect("a").unwrap();
    assert_eq!((seen.age, seen.tracked, seen.must_be_read), (3 * SECOND, true, false));
    drop(seen);
    world.write(&id("a"), THERE).await;
    assert!(world.resolver.inspect("a").unwrap().must_be_read);
}

#[tokio::test]
async fn new_settings_hold_at_once() {
    let world = World::new(settings()).await;
    for n in 0..500 {
        world.write(&id(&format!("s{n}")), HERE).await;
        world.found(&id(&format!("s{n}"))).await;
    }
    world.resolver.update(Settings { capacity: 50, untracked_ttl: 9 * SECOND, ..settings() });
    assert!(world.resolver.len() <= 64, "{}", world.resolver.len());
    assert_eq!(world.resolver.metrics.entries.get(), i64::try_from(world.resolver.len()).unwrap());
    world.channel_down().await;
    world.found(&id("s0")).await;
    world.after(8 * SECOND);
    assert!(world.resolver.cached("s0").is_some());
}
