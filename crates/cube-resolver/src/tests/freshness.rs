//! Served from memory, for as long as what was read can be trusted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{HERE, SECOND, THERE, host, settings, testbed_with};
use crate::metrics::LookupOutcome;
use crate::testbed::{Testbed, id, until};
use crate::{Lookup, Settings};

#[tokio::test]
async fn a_sandbox_is_read_once_and_then_served_from_memory() {
    let testbed = testbed_with(HERE).await;
    assert!(testbed.resolver.cached("a").is_none());
    for _ in 0..10 {
        testbed.found(&id("a")).await;
    }
    assert!(matches!(testbed.resolver.cached("a"), Some(Lookup::Found(_))));
    assert_eq!(testbed.store.reads_of(&id("a")), 1);
    assert_eq!((testbed.counted(LookupOutcome::Miss), testbed.counted(LookupOutcome::Hit)), (1, 10));
    assert_eq!(testbed.resolver.metrics.entries.get(), 1);
}

#[tokio::test]
async fn a_thousand_at_once_make_one_read_and_one_that_leaves_does_not_end_it() {
    let testbed = testbed_with(HERE).await;
    testbed.store.held.send_replace(true);
    let lookups: Vec<_> = (0..1000).map(|_| testbed.lookup_meanwhile(&id("a"))).collect();
    until(|| testbed.store.reads_now.load(Ordering::SeqCst) == 1).await;
    lookups[0].abort();
    testbed.store.held.send_replace(false);
    for lookup in lookups.into_iter().skip(1) {
        assert!(matches!(lookup.await.unwrap(), Ok(Lookup::Found(_))));
    }
    assert_eq!(testbed.store.reads_of(&id("a")), 1);
}

#[tokio::test]
async fn hits_do_not_extend_a_life_and_at_its_end_no_request_waits() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    for _ in 0..499 {
        testbed.after(SECOND);
        assert!(testbed.resolver.cached("a").is_some());
    }
    assert_eq!(testbed.store.reads_of(&id("a")), 1);
    testbed.after(2 * SECOND);
    testbed.store.held.send_replace(true);
    for _ in 0..5 {
        assert!(matches!(testbed.resolver.cached("a"), Some(Lookup::Found(_))));
    }
    testbed.store.held.send_replace(false);
    testbed.settled().await;
    assert_eq!(testbed.store.reads_of(&id("a")), 2);
    assert_eq!(testbed.counted(LookupOutcome::Refresh), 5);
    assert!(testbed.resolver.cached("a").is_some());
    assert_eq!((testbed.counted(LookupOutcome::Hit), testbed.counted(LookupOutcome::Stale)), (500, 0));
}

#[tokio::test]
async fn while_nothing_is_pushed_an_entry_lives_two_seconds_and_is_read_before_it_is_served() {
    let testbed = testbed_with(HERE).await;
    testbed.channel_down().await;
    testbed.found(&id("a")).await;
    testbed.write(&id("a"), THERE).await;
    testbed.after(Duration::from_millis(1999));
    assert!(host(&testbed.found(&id("a")).await).contains("10.0.0.1"));
    testbed.after(Duration::from_millis(1));
    assert!(host(&testbed.found(&id("a")).await).contains("10.0.0.2"));
}

#[tokio::test]
async fn when_the_channel_goes_down_what_was_read_before_lives_two_seconds_from_its_reading() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    testbed.after(Duration::from_millis(1500));
    testbed.channel_down().await;
    assert!(testbed.resolver.cached("a").is_some());
    testbed.after(Duration::from_millis(500));
    assert!(testbed.resolver.cached("a").is_none());
}

#[tokio::test]
async fn after_a_reconnect_everything_is_read_again_before_it_is_trusted() {
    let testbed = testbed_with(HERE).await;
    let before = testbed.found(&id("a")).await.generation;
    testbed.channel_down().await;
    testbed.channel_up().await;
    assert!(testbed.resolver.cached("a").is_none());
    assert_eq!(testbed.found(&id("a")).await.generation, before);
    testbed.after(100 * SECOND);
    assert!(testbed.resolver.cached("a").is_some());
}

#[tokio::test]
async fn lost_messages_distrust_everything_although_the_session_is_the_same() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    assert!(matches!(testbed.resolver.lookup(&id("none")).await, Ok(Lookup::Unknown)));
    testbed.lose_messages().await;
    assert!(testbed.resolver.cached("a").is_none());
    assert!(testbed.resolver.cached("none").is_none());
}

#[tokio::test]
async fn without_a_follower_nothing_is_trusted() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    testbed.resolver.following.store(false, Ordering::SeqCst);
    testbed.after(2 * SECOND);
    assert!(testbed.resolver.cached("a").is_none());
}

#[tokio::test]
async fn a_read_that_raced_with_a_change_is_for_those_who_waited_only() {
    let testbed = testbed_with(HERE).await;
    testbed.store.held.send_replace(true);
    let early = testbed.lookup_meanwhile(&id("a"));
    until(|| testbed.store.reads_now.load(Ordering::SeqCst) == 1).await;
    testbed.write(&id("a"), THERE).await;
    let late = testbed.lookup_meanwhile(&id("a"));
    testbed.store.held.send_replace(false);
    let Ok(Lookup::Found(early)) = early.await.unwrap() else { panic!("not found") };
    let Ok(Lookup::Found(late)) = late.await.unwrap() else { panic!("not found") };
    assert!(host(&early).contains("10.0.0.1"));
    assert!(host(&late).contains("10.0.0.2"));
    assert!(late.generation > early.generation);
    assert!(host(&testbed.found(&id("a")).await).contains("10.0.0.2"));
    assert_eq!(testbed.store.most_reads_at_once.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_raced_read_is_not_served_later_although_nobody_else_waited() {
    let testbed = testbed_with(HERE).await;
    testbed.store.held.send_replace(true);
    let early = testbed.lookup_meanwhile(&id("a"));
    until(|| testbed.store.reads_now.load(Ordering::SeqCst) == 1).await;
    testbed.write(&id("a"), HERE).await;
    testbed.store.held.send_replace(false);
    let Ok(Lookup::Found(early)) = early.await.unwrap() else { panic!("not found") };
    assert!(testbed.resolver.cached("a").is_none());
    assert_eq!(testbed.found(&id("a")).await.generation, early.generation, "what began in between goes on");
}

#[tokio::test]
async fn a_fresh_lookup_begins_its_read_after_the_call() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    testbed.store.held.send_replace(true);
    let spawn = || {
        let resolver = Arc::clone(&testbed.resolver);
        tokio::spawn(async move { resolver.lookup_fresh(&id("a")).await })
    };
    let first = spawn();
    until(|| testbed.store.reads_now.load(Ordering::SeqCst) == 1).await;
    let others: Vec<_> = (0..100).map(|_| spawn()).collect();
    for _ in 0..300 {
        tokio::task::yield_now().await;
    }
    testbed.store.held.send_replace(false);
    for lookup in others.into_iter().chain([first]) {
        assert!(matches!(lookup.await.unwrap(), Ok(Lookup::Found(_))));
    }
    assert_eq!(
        testbed.store.reads_of(&id("a")),
        3,
        "the first, the one under way, one for all who came then"
    );
}

#[tokio::test]
async fn an_unknown_id_is_kept_apart_and_known_as_soon_as_it_is_created() {
    let testbed = Testbed::new(settings()).await;
    for _ in 0..10 {
        assert!(matches!(testbed.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    }
    assert_eq!(testbed.store.reads_of(&id("a")), 1);
    assert_eq!(testbed.counted(LookupOutcome::Negative), 9);
    assert_eq!(testbed.resolver.metrics.entries.get(), 0);
    testbed.write(&id("a"), HERE).await;
    testbed.found(&id("a")).await;
}

#[tokio::test]
async fn an_unknown_id_lives_a_second_while_nothing_is_pushed() {
    let testbed = Testbed::new(settings()).await;
    testbed.channel_down().await;
    assert!(matches!(testbed.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    testbed.after(Duration::from_millis(999));
    assert!(testbed.resolver.cached("a").is_some());
    testbed.after(Duration::from_millis(1));
    assert!(testbed.resolver.cached("a").is_none());
}

#[tokio::test]
async fn an_unknown_id_past_its_time_is_served_and_read_again_as_a_sandbox_is() {
    let testbed = Testbed::new(settings()).await;
    assert!(matches!(testbed.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    testbed.after(501 * SECOND);
    for _ in 0..3 {
        assert!(matches!(testbed.resolver.cached("a"), Some(Lookup::Unknown)));
    }
    testbed.settled().await;
    assert_eq!(testbed.store.reads_of(&id("a")), 2);
}

#[tokio::test]
async fn a_scan_pushes_no_sandbox_out_and_asks_once_an_id() {
    let testbed = Testbed::new(Settings { capacity: 100, ..settings() }).await;
    for n in 0..100 {
        testbed.write(&id(&format!("warm{n}")), HERE).await;
        testbed.found(&id(&format!("warm{n}"))).await;
    }
    let warm = testbed.resolver.len();
    for round in 0..2 {
        for n in 0..3000 {
            let stranger = id(&format!("stranger{n}"));
            assert!(matches!(testbed.resolver.lookup(&stranger).await, Ok(Lookup::Unknown)));
            assert_eq!(testbed.store.reads_of(&stranger), 1, "round {round}");
        }
    }
    assert_eq!(testbed.resolver.len(), warm);
}

#[tokio::test]
async fn every_reading_is_observed_before_those_who_wait_go_on() {
    let testbed = testbed_with(HERE).await;
    testbed.found(&id("a")).await;
    assert_eq!(*testbed.observer.observed.lock(), [(id("a"), true)]);
    testbed.delete(&id("a")).await;
    assert!(matches!(testbed.resolver.lookup(&id("a")).await, Ok(Lookup::Unknown)));
    assert_eq!(testbed.observer.observed.lock().last(), Some(&(id("a"), false)));
}

#[tokio::test]
async fn an_entry_is_shown_as_it_is() {
    let testbed = testbed_with(HERE).await;
    assert!(testbed.resolver.inspect("a").is_none());
    testbed.found(&id("a")).await;
    testbed.after(3 * SECOND);
    let seen = testbed.resolver.inspect("a").unwrap();
    assert_eq!((seen.age, seen.tracked, seen.must_be_read), (3 * SECOND, true, false));
    drop(seen);
    testbed.write(&id("a"), THERE).await;
    assert!(testbed.resolver.inspect("a").unwrap().must_be_read);
}

#[tokio::test]
async fn new_settings_hold_at_once() {
    let testbed = Testbed::new(settings()).await;
    for n in 0..500 {
        testbed.write(&id(&format!("s{n}")), HERE).await;
        testbed.found(&id(&format!("s{n}"))).await;
    }
    testbed.resolver.update(Settings { capacity: 50, untracked_ttl: 9 * SECOND, ..settings() });
    assert!(testbed.resolver.len() <= 64, "{}", testbed.resolver.len());
    assert_eq!(testbed.resolver.metrics.entries.get(), i64::try_from(testbed.resolver.len()).unwrap());
    testbed.channel_down().await;
    testbed.found(&id("s0")).await;
    testbed.after(8 * SECOND);
    assert!(testbed.resolver.cached("s0").is_some());
}
