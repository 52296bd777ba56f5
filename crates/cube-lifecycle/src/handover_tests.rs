use cube_metadata::SandboxState::{Killed, Paused, Running};
use cube_metadata::SnapshotObserver as _;

use super::*;
use crate::Gate;
use crate::clock::tests::Given;
use crate::testing::{Bench, id, snapshot};

/// Hands stamps over as messages do.
fn hand(from: &Lifecycle, to: &Lifecycle) {
    let (rows, offset) = from.activity_newer(0);
    let rows: Vec<(String, u64)> =
        rows.into_iter().map(|(id, stamp)| (id.as_str().to_owned(), stamp)).collect();
    to.take_activity(&rows, Some(offset));
}

/// A successor of `old`, told over JSON.
fn successor(old: &Lifecycle) -> std::sync::Arc<Lifecycle> {
    successor_at(old, &Given::at(10_000, 10_000))
}

fn successor_at(old: &Lifecycle, clock: &Given) -> std::sync::Arc<Lifecycle> {
    let bench = Bench { clock: clock.clone(), ..Bench::new() };
    let new = bench.build();
    let rows = serde_json::to_string(&old.state_rows()).unwrap();
    new.take_states(&serde_json::from_str::<Vec<StateRow>>(&rows).unwrap());
    hand(old, &new);
    let listings = serde_json::to_string(&old.listings()).unwrap();
    new.go_on_from(&serde_json::from_str(&listings).unwrap());
    new
}

#[test]
fn states_and_metadata_go_over() {
    let old = Bench::new().build();
    old.push_state(&id("a"), Paused);
    old.set_auto_resume(&id("a"), Some(false));
    old.push_state(&id("b"), Killed);
    old.observed(&id("c"), &snapshot("strange", ""));
    old.set_auto_resume(&id("d"), Some(true));
    let new = successor(&old);
    assert_eq!(new.states_len(), 4);
    for name in ["a", "b", "c", "d"] {
        let id = id(name);
        assert_eq!((new.state(&id), new.auto_resume(&id)), (old.state(&id), old.auto_resume(&id)), "{name}");
        assert_eq!(new.gate(&id), old.gate(&id), "{name}");
    }
    assert!(matches!(new.gate(&id("b")), Gate::Refuse(_)));
}

#[test]
fn a_push_is_not_undone_by_a_value_that_the_old_process_had_read() {
    let old = Bench::new().build();
    for read in [snapshot("paused", ""), snapshot("", "paused")] {
        old.observed(&id("a"), &read);
        old.push_state(&id("a"), Running);
        let new = successor(&old);
        new.observed(&id("a"), &read);
        assert_eq!(new.state(&id("a")), Some(Status::Known(Running)));
    }
    // Nor by a read that began before the successor was told.
    let new = Bench::new().build();
    let began = new.mark();
    new.take_states(&old.state_rows());
    new.observed_since(&id("a"), &snapshot("", "killed"), began);
    assert_eq!(new.state(&id("a")), Some(Status::Known(Running)));
}

#[test]
fn a_deleted_sandbox_stays_deleted() {
    let old = Bench::new().build();
    old.touch(&id("a"));
    old.touch(&id("b"));
    old.delete(&id("a"));
    let new = successor(&old);
    new.take_activity(&[("a".to_owned(), 20_000), ("not an id".to_owned(), 20_000)], None);
    new.touch(&id("a"));
    assert_eq!(new.last_active(0).entries, [(id("b"), 10_000)]);
}

const HOURS: i64 = 5 * 3_600_000;

#[test]
fn a_clock_that_was_set_forward_and_back_leaves_no_stamp_ahead_of_it() {
    let bench = Bench { clock: Given::at(10_000, 1_000_000_000), ..Bench::new() };
    let clock = &bench.clock;
    let old = bench.build();
    old.touch(&id("before"));
    let mut since = old.last_active(0).now;
    clock.set_by(HOURS);
    clock.pass(5_000);
    old.touch(&id("ahead"));
    let answer = old.last_active(since);
    assert_eq!((answer.entries, answer.now), (vec![(id("ahead"), clock.unix())], clock.unix()));
    since = answer.now;
    clock.set_by(-HOURS);
    clock.pass(5_000);
    old.touch(&id("after"));
    // Handed over before anybody listed it, to a process that never saw the clock ahead.
    let new = successor_at(&old, clock);
    for lifecycle in [&old, &new] {
        let all = lifecycle.last_active(0);
        let now = clock.unix();
        assert_eq!(
            all.entries,
            [(id("before"), now - 10_000), (id("ahead"), now - 5_000), (id("after"), now)]
        );
        assert!(all.now <= now + 5, "{} after {now}", all.now);
        // The reader goes on from where it was, five hours ahead.
        assert_eq!(lifecycle.last_active(since).entries, [(id("after"), now)]);
    }
}

#[test]
fn a_clock_that_is_set_between_two_processes_moves_no_stamp() {
    let bench = Bench { clock: Given::at(10_000, 1_000_000_000), ..Bench::new() };
    let clock = &bench.clock;
    let old = bench.build();
    let new = successor_at(&old, clock);
    old.touch(&id("a"));
    let since = new.last_active(0).now;
    let (rows, offset) = old.activity_newer(0);
    clock.set_by(HOURS);
    clock.pass(1_000);
    let rows: Vec<_> = rows.into_iter().map(|(id, stamp)| (id.as_str().to_owned(), stamp)).collect();
    new.take_activity(&rows, Some(offset));
    let answer = new.last_active(since);
    // It appears above what was listed before it came.
    assert_eq!(answer.entries, [(id("a"), clock.unix() - 1_000 + 1)]);
    // What comes again is no news.
    hand(&old, &new);
    assert!(new.last_active(answer.now).entries.is_empty());
}

#[test]
fn stamps_of_a_version_whose_clock_was_ahead_are_of_now() {
    let bench = Bench { clock: Given::at(10_000, 1_000_000_000), ..Bench::new() };
    let new = bench.build();
    let ahead = bench.clock.unix().saturating_add_signed(HOURS);
    new.take_activity(&[("a".to_owned(), ahead)], None);
    new.go_on_from(&Listings { listed: ahead, ..Listings::default() });
    bench.clock.pass(5_000);
    new.touch(&id("b"));
    let now = bench.clock.unix();
    let answer = new.last_active(ahead);
    assert_eq!(answer.entries, [(id("a"), now - 5_000), (id("b"), now)], "everything is news to its reader");
    assert_eq!(answer.now, now);
}
