use cube_metadata::SandboxState::{Killed, Paused, Running};
use cube_metadata::SnapshotObserver as _;

use super::*;
use crate::GateVerdict;
use crate::clock::tests::TestClock;
use crate::testbed::{Testbed, id, snapshot};

/// Hands stamps over as messages do.
fn hand(from: &Lifecycle, to: &Lifecycle) {
    let (rows, offset) = from.export_activity(0);
    let rows: Vec<(String, u64)> =
        rows.into_iter().map(|(id, stamp)| (id.as_str().to_owned(), stamp)).collect();
    to.import_activity(&rows, Some(offset));
}

/// A successor of `old`, which got its state as JSON.
fn successor(old: &Lifecycle) -> std::sync::Arc<Lifecycle> {
    successor_at(old, &TestClock::at(10_000, 10_000))
}

fn successor_at(old: &Lifecycle, clock: &TestClock) -> std::sync::Arc<Lifecycle> {
    let testbed = Testbed { clock: clock.clone(), ..Testbed::new() };
    let new = testbed.build();
    let rows = serde_json::to_string(&old.export_states()).unwrap();
    new.import_states(&serde_json::from_str::<Vec<StateRow>>(&rows).unwrap());
    hand(old, &new);
    let listings = serde_json::to_string(&old.listing_cursors()).unwrap();
    new.continue_from(&serde_json::from_str(&listings).unwrap());
    new
}

#[test]
fn states_and_metadata_go_over() {
    let old = Testbed::new().build();
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
    assert!(matches!(new.gate(&id("b")), GateVerdict::Refuse(_)));
}

#[test]
fn a_push_is_not_undone_by_a_value_that_the_old_process_had_read() {
    let old = Testbed::new().build();
    for read in [snapshot("paused", ""), snapshot("", "paused")] {
        old.observed(&id("a"), &read);
        old.push_state(&id("a"), Running);
        let new = successor(&old);
        new.observed(&id("a"), &read);
        assert_eq!(new.state(&id("a")), Some(Status::Known(Running)));
    }
    // Nor by a read that began before the successor got the state.
    let new = Testbed::new().build();
    let began = new.mark();
    new.import_states(&old.export_states());
    new.observed_since(&id("a"), &snapshot("", "killed"), began);
    assert_eq!(new.state(&id("a")), Some(Status::Known(Running)));
}

#[test]
fn a_deleted_sandbox_stays_deleted() {
    let old = Testbed::new().build();
    old.touch(&id("a"));
    old.touch(&id("b"));
    old.delete(&id("a"));
    let new = successor(&old);
    new.import_activity(&[("a".to_owned(), 20_000), ("not an id".to_owned(), 20_000)], None);
    new.touch(&id("a"));
    assert_eq!(new.last_active(0).entries, [(id("b"), 10_000)]);
}

const HOURS: i64 = 5 * 3_600_000;

#[test]
fn a_clock_that_was_set_forward_and_back_leaves_no_stamp_ahead_of_it() {
    let testbed = Testbed { clock: TestClock::at(10_000, 1_000_000_000), ..Testbed::new() };
    let clock = &testbed.clock;
    let old = testbed.build();
    old.touch(&id("before"));
    let mut since = old.last_active(0).now;
    clock.set_by(HOURS);
    clock.pass(5_000);
    old.touch(&id("ahead"));
    let response = old.last_active(since);
    assert_eq!((response.entries, response.now), (vec![(id("ahead"), clock.unix())], clock.unix()));
    since = response.now;
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
    let testbed = Testbed { clock: TestClock::at(10_000, 1_000_000_000), ..Testbed::new() };
    let clock = &testbed.clock;
    let old = testbed.build();
    let new = successor_at(&old, clock);
    old.touch(&id("a"));
    let since = new.last_active(0).now;
    let (rows, offset) = old.export_activity(0);
    clock.set_by(HOURS);
    clock.pass(1_000);
    let rows: Vec<_> = rows.into_iter().map(|(id, stamp)| (id.as_str().to_owned(), stamp)).collect();
    new.import_activity(&rows, Some(offset));
    let response = new.last_active(since);
    // It appears above what was listed before it came.
    assert_eq!(response.entries, [(id("a"), clock.unix() - 1_000 + 1)]);
    // What comes again is no news.
    hand(&old, &new);
    assert!(new.last_active(response.now).entries.is_empty());
}

#[test]
fn stamps_of_a_version_whose_clock_was_ahead_are_of_now() {
    let testbed = Testbed { clock: TestClock::at(10_000, 1_000_000_000), ..Testbed::new() };
    let new = testbed.build();
    let ahead = testbed.clock.unix().saturating_add_signed(HOURS);
    new.import_activity(&[("a".to_owned(), ahead)], None);
    new.continue_from(&ListingCursors { listed: ahead, ..ListingCursors::default() });
    testbed.clock.pass(5_000);
    new.touch(&id("b"));
    let now = testbed.clock.unix();
    let response = new.last_active(ahead);
    assert_eq!(
        response.entries,
        [(id("a"), now - 5_000), (id("b"), now)],
        "everything is news to its reader"
    );
    assert_eq!(response.now, now);
}
