use cube_metadata::SandboxState::{Killed, Paused, Running};
use cube_metadata::SnapshotObserver as _;

use super::*;
use crate::Gate;
use crate::testing::{Bench, id, snapshot};

/// A successor of `old`, told over JSON.
fn successor(old: &Lifecycle) -> std::sync::Arc<Lifecycle> {
    let new = Bench::new().build();
    let rows = serde_json::to_string(&old.state_rows()).unwrap();
    new.take_states(&serde_json::from_str::<Vec<StateRow>>(&rows).unwrap());
    let rows: Vec<(String, u64)> =
        old.activity_since(0).into_iter().map(|(id, stamp)| (id.as_str().to_owned(), stamp)).collect();
    new.take_activity(&rows);
    new.go_on_from(old.activity_listed());
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
    old.touch(&id("a"), 10_000);
    old.touch(&id("b"), 10_000);
    old.delete(&id("a"));
    let new = successor(&old);
    new.take_activity(&[("a".to_owned(), 20_000), ("not an id".to_owned(), 20_000)]);
    new.touch(&id("a"), 30_000);
    assert_eq!(new.last_active(0).entries, [(id("b"), 10_000)]);
}
