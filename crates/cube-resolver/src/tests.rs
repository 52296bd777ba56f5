//! The life of the cache, rule by rule (metadata.md "Cache", "Generation", "Revocation"). The
//! sequences of all of them are in `model`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cube_metadata::StoreError;
use tokio::sync::broadcast::error::TryRecvError;

use crate::metrics::Outcome;
use crate::scripted::{World, id, until};
use crate::{Entry, Lookup, Settings};

const HERE: &[(&str, &str)] = &[("HostIP", "10.0.0.1"), ("SandboxIP", "192.168.0.1"), ("CreatedAt", "1")];
const THERE: &[(&str, &str)] = &[("HostIP", "10.0.0.2"), ("SandboxIP", "192.168.0.1"), ("CreatedAt", "1")];
const REBORN: &[(&str, &str)] = &[("HostIP", "10.0.0.1"), ("SandboxIP", "192.168.0.1"), ("CreatedAt", "2")];
const SECOND: Duration = Duration::from_secs(1);

fn settings() -> Settings {
    Settings { ttl_min: 500 * SECOND, ttl_max: 500 * SECOND, ..Settings::default() }
}

async fn world_with(fields: &[(&str, &str)]) -> World {
    let world = World::new(settings()).await;
    world.write(&id("a"), fields).await;
    world
}

fn host(entry: &Arc<Entry>) -> String {
    format!("{:?}", entry.record.host_ip)
}

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
async fn a_fresh_lookup_that_fails_takes_nothing_away() {
    let world = world_with(HERE).await;
    world.found(&id("a")).await;
    world.fail(true);
    assert_eq!(world.resolver.lookup_fresh(&id("a")).await.unwrap_err(), StoreError::Timeout);
    assert!(world.resolver.cached("a").is_some());
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
