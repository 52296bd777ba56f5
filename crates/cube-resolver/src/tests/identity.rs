//! Which generation of a sandbox a request belongs to, and who is notified that one is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cube_route::SandboxId;
use tokio::sync::broadcast::error::TryRecvError;

use super::{HERE, REBORN, SECOND, THERE, host, settings, testbed_with};
use crate::resolver::MAX_BACKGROUND_READS;
use crate::testbed::{Testbed, id, until};
use crate::{Lookup, Settings};

#[tokio::test]
async fn a_pushed_change_is_followed_and_one_that_changes_nothing_keeps_the_generation() {
    let testbed = testbed_with(HERE).await;
    let first = testbed.found(&id("a")).await.generation;
    testbed.write(&id("a"), HERE).await;
    assert!(testbed.resolver.cached("a").is_none(), "it is read again before it is served");
    assert_eq!(testbed.found(&id("a")).await.generation, first);
    testbed.write(&id("a"), THERE).await;
    let moved = testbed.found(&id("a")).await;
    assert!(host(&moved).contains("10.0.0.2"));
    assert!(moved.generation > first);
}

#[tokio::test]
async fn forgetting_says_whether_a_route_was_served_and_moves_the_generation_on() {
    let testbed = testbed_with(HERE).await;
    assert!(!testbed.resolver.forget(&id("a")));
    let first = testbed.found(&id("a")).await.generation;
    assert!(testbed.resolver.forget(&id("a")));
    assert!(!testbed.resolver.forget(&id("a")));
    assert!(testbed.resolver.cached("a").is_none());
    assert!(testbed.found(&id("a")).await.generation > first);
}

#[tokio::test]
async fn forgetting_during_a_read_leaves_nothing_of_the_old_generation() {
    let testbed = testbed_with(HERE).await;
    let first = testbed.found(&id("a")).await;
    testbed.store.held.send_replace(true);
    let lookup = tokio::spawn({
        let resolver = Arc::clone(&testbed.resolver);
        async move { resolver.lookup_fresh(&id("a")).await }
    });
    until(|| testbed.store.reads_now.load(Ordering::SeqCst) == 1).await;
    testbed.resolver.advance(&id("a"));
    testbed.store.held.send_replace(false);
    lookup.await.unwrap().unwrap();
    assert!(testbed.resolver.cached("a").is_none());
    assert!(testbed.found(&id("a")).await.generation > first.generation);
}

#[tokio::test]
async fn a_deleted_record_is_gone_and_its_streams_are_revoked() {
    let mut testbed = testbed_with(HERE).await;
    let streaming = testbed.found(&id("a")).await;
    testbed.delete(&id("a")).await;
    testbed.settled().await;
    let revocation = testbed.revocations.try_recv().unwrap();
    assert_eq!(revocation.id, id("a"));
    assert!(revocation.before > streaming.generation);
    assert!(matches!(testbed.resolver.cached("a"), Some(Lookup::Unknown)));
    testbed.write(&id("a"), HERE).await;
    assert!(testbed.found(&id("a")).await.generation > revocation.before);
}

#[tokio::test]
async fn a_new_created_at_revokes_and_a_new_host_ip_does_not() {
    let mut testbed = testbed_with(HERE).await;
    let first = testbed.found(&id("a")).await;
    testbed.write(&id("a"), THERE).await;
    testbed.settled().await;
    assert_eq!(testbed.revocations.try_recv().unwrap_err(), TryRecvError::Empty);
    let moved = testbed.found(&id("a")).await;
    testbed.write(&id("a"), REBORN).await;
    testbed.settled().await;
    let revocation = testbed.revocations.try_recv().unwrap();
    assert!(revocation.before > moved.generation && moved.generation > first.generation);
    assert_eq!(testbed.found(&id("a")).await.generation, revocation.before, "the new life goes on");
}

#[tokio::test]
async fn what_nobody_uses_is_not_read_again_until_somebody_asks() {
    let testbed = testbed_with(HERE).await;
    drop(testbed.found(&id("a")).await);
    testbed.write(&id("a"), THERE).await;
    testbed.settled().await;
    assert_eq!(testbed.store.reads_of(&id("a")), 1);
    testbed.observer.interests.lock().insert(id("a"));
    testbed.write(&id("a"), THERE).await;
    testbed.settled().await;
    assert_eq!(testbed.store.reads_of(&id("a")), 2, "somebody waits for it");
}

#[tokio::test]
async fn a_changed_state_is_read_at_once_although_nobody_asks() {
    let testbed = testbed_with(HERE).await;
    for (n, known) in ["a", "never-heard-of"].into_iter().enumerate() {
        for time in 1..=3 {
            testbed.push_state(&id(known)).await;
            testbed.settled().await;
            assert_eq!(testbed.store.reads_of(&id(known)), time, "{n}: each change is read");
        }
    }
    // While the store fails it stays wanted.
    testbed.fail(true);
    testbed.push_state(&id("a")).await;
    testbed.settled().await;
    testbed.fail(false);
    until(|| testbed.store.completed_reads_of(&id("a")) == 4).await;
}

#[tokio::test]
async fn changed_states_are_read_together_and_a_bounded_number_at_a_time() {
    let testbed = testbed_with(HERE).await;
    testbed.store.held.send_replace(true);
    let ids: Vec<SandboxId> = (0..3 * MAX_BACKGROUND_READS).map(|n| id(&format!("s{n}"))).collect();
    for id in &ids {
        for _ in 0..10 {
            testbed.push_state(id).await;
        }
    }
    until(|| testbed.store.reads_now.load(Ordering::SeqCst) == MAX_BACKGROUND_READS).await;
    testbed.store.held.send_replace(false);
    testbed.settled().await;
    until(|| ids.iter().all(|id| testbed.store.completed_reads_of(id) >= 1)).await;
    testbed.settled().await;
    assert!(testbed.store.most_reads_at_once.load(Ordering::SeqCst) <= MAX_BACKGROUND_READS);
    for id in &ids {
        let reads = testbed.store.reads_of(id);
        assert!(reads <= 3, "{id} was read {reads} times");
    }
}

#[tokio::test]
async fn a_record_removed_while_nothing_was_pushed_is_revoked_on_reconnect() {
    let mut testbed = testbed_with(HERE).await;
    let streaming = testbed.found(&id("a")).await;
    testbed.channel_down().await;
    testbed.delete(&id("a")).await;
    testbed.channel_up().await;
    testbed.settled().await;
    assert!(testbed.revocations.try_recv().unwrap().before > streaming.generation);
}

#[tokio::test]
async fn a_stream_that_outlives_the_entry_it_began_with_is_revoked_too() {
    let mut testbed = testbed_with(HERE).await;
    let streaming = testbed.found(&id("a")).await;
    for _ in 0..3 {
        testbed.after(501 * SECOND);
        assert!(testbed.resolver.cached("a").is_some());
        testbed.settled().await;
    }
    testbed.delete(&id("a")).await;
    testbed.settled().await;
    assert!(testbed.revocations.try_recv().unwrap().before > streaming.generation);
}

#[tokio::test]
async fn an_entry_pushed_out_while_in_use_keeps_its_generation_and_its_revocation() {
    let mut testbed = Testbed::new(Settings { capacity: 1, ..settings() }).await;
    testbed.write(&id("a"), HERE).await;
    let streaming = testbed.found(&id("a")).await;
    for n in 0..200 {
        testbed.write(&id(&format!("b{n}")), HERE).await;
        testbed.found(&id(&format!("b{n}"))).await;
    }
    assert!(testbed.resolver.cached("a").is_none());
    assert_eq!(testbed.found(&id("a")).await.generation, streaming.generation);
    for n in 0..200 {
        testbed.found(&id(&format!("b{n}"))).await;
    }
    testbed.delete(&id("a")).await;
    testbed.settled().await;
    assert!(testbed.revocations.try_recv().unwrap().before > streaming.generation);
}

#[tokio::test]
async fn an_entry_pushed_out_does_not_come_back_with_a_used_number() {
    let testbed = Testbed::new(Settings { capacity: 1, ..settings() }).await;
    let mut seen = std::collections::HashSet::new();
    for n in 0..50 {
        let id = id(&format!("b{}", n % 5));
        testbed.write(&id, HERE).await;
        let generation = testbed.found(&id).await.generation;
        assert!(seen.insert(generation), "{generation} twice");
    }
}

#[tokio::test]
async fn readings_that_say_the_same_share_a_revision_and_every_other_has_one_of_its_own() {
    let testbed = testbed_with(HERE).await;
    let first = testbed.found(&id("a")).await;
    testbed.write(&id("a"), HERE).await;
    let again = testbed.found(&id("a")).await;
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
        testbed.write(&id("a"), &fields).await;
        let other = testbed.found(&id("a")).await;
        assert!(!known.contains(&other.revision), "{field:?}");
        known.push(other.revision);
    }
    let before = testbed.found(&id("a")).await;
    testbed.resolver.forget(&id("a"));
    assert!(before.is_invalidated());
    assert!(
        !known.contains(&testbed.found(&id("a")).await.revision),
        "forgotten, the same record is another"
    );
    testbed.delete(&id("a")).await;
    testbed.write(&id("a"), HERE).await;
    assert!(!known.contains(&testbed.found(&id("a")).await.revision), "so is one that was deleted");
}

#[tokio::test]
async fn the_observer_is_told_when_what_was_known_holds_no_more_pushed_or_not() {
    let testbed = testbed_with(HERE).await;
    let told = || std::mem::take(&mut *testbed.observer.invalidated.lock()).contains(&id("a"));
    let first = testbed.found(&id("a")).await;
    assert!(told(), "there is nothing to compare it with");
    testbed.resolver.lookup_fresh(&id("a")).await.unwrap();
    assert!(!told() && !first.is_invalidated(), "it reads the same");
    testbed.write(&id("a"), HERE).await;
    assert!(told(), "a key changed");
    let second = testbed.found(&id("a")).await;
    told();
    let fields = THERE.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    testbed.store.records.lock().insert(id("a"), fields);
    testbed.resolver.lookup_fresh(&id("a")).await.unwrap();
    assert!(told() && second.is_invalidated(), "it reads otherwise, and nobody said so");
    let third = testbed.found(&id("a")).await;
    testbed.store.records.lock().remove(&id("a"));
    testbed.resolver.lookup_fresh(&id("a")).await.unwrap();
    assert!(told() && third.is_invalidated(), "it is gone, and nobody said so");
}
