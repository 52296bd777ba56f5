use cube_metadata::SandboxState::{Killed, Killing, Paused, Pausing, Running};

use super::*;
use crate::testbed::{Behaviour, ResumeServer as Scripted, Testbed, id, snapshot};
use crate::{GateRefusal, GateVerdict, HoldOutcome, ResumeSettings};

#[test]
fn a_new_life_is_announced_before_the_gate_opens_and_a_kill_after_it_has_closed() {
    let testbed = Testbed::new();
    let lifecycle = testbed.build();
    for state in [Running, Pausing, Paused, Running, Running, Killing, Killed] {
        lifecycle.push_state(&id("a"), state);
    }
    assert_eq!(testbed.told.take(), ["resumed a paused", "killed a killing", "killed a killed"]);
}

#[test]
fn what_the_store_says_reaches_the_hooks_too() {
    let testbed = Testbed::new();
    let lifecycle = testbed.build();
    for word in ["paused", "running", "running", "killed", "killed"] {
        lifecycle.observed(&id("a"), &snapshot("", word));
    }
    assert_eq!(testbed.told.take(), ["resumed a paused", "killed a killed"]);
    for status in ["paused", "running", "killing"] {
        lifecycle.observed(&id("b"), &snapshot(status, ""));
    }
    assert_eq!(testbed.told.take(), ["resumed b paused", "killed b killing"]);
}

#[test]
fn a_push_between_the_beginning_of_a_read_and_its_end_wins() {
    let lifecycle = Testbed::new().build();
    lifecycle.observed(&id("a"), &snapshot("", "running"));
    let began = lifecycle.mark();
    lifecycle.push_state(&id("a"), Paused);
    lifecycle.observed_since(&id("a"), &snapshot("resuming", "resuming"), began);
    assert_eq!(lifecycle.state(&id("a")), Some(Status::Known(Paused)));
    // A push for another sandbox is no reason to doubt a read.
    let began = lifecycle.mark();
    lifecycle.push_state(&id("b"), Paused);
    lifecycle.observed_since(&id("a"), &snapshot("", "killed"), began);
    assert_eq!(lifecycle.state(&id("a")), Some(Status::Known(Killed)));
}

#[test]
fn the_state_string_is_not_believed_where_it_is_not_followed() {
    let mut testbed = Testbed::new();
    testbed.settings.follow_redis = false;
    let lifecycle = testbed.build();
    lifecycle.observed(&id("a"), &snapshot("", "killed"));
    assert_eq!((lifecycle.state(&id("a")), lifecycle.gate(&id("a"))), (None, GateVerdict::Pass));
}

#[test]
fn a_deleted_sandbox_is_forgotten_and_its_streams_end() {
    let testbed = Testbed::new();
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Killed);
    lifecycle.set_auto_resume(&id("a"), Some(true));
    lifecycle.touch(&id("a"));
    testbed.told.take();
    testbed.told.routes.store(1, std::sync::atomic::Ordering::SeqCst);
    assert!(lifecycle.delete(&id("a")));
    assert_eq!(testbed.told.take(), ["forgotten a killed", "killed a none"]);
    assert_eq!((lifecycle.gate(&id("a")), lifecycle.auto_resume(&id("a"))), (GateVerdict::Pass, None));
    assert!(!lifecycle.delete(&id("a")));

    // The end of a stream that is being ended is no activity.
    testbed.clock.pass(10_000);
    lifecycle.touch(&id("a"));
    assert_eq!(lifecycle.active_len(), 0);
    // What is read afterwards is.
    lifecycle.observed(&id("a"), &snapshot("", ""));
    testbed.clock.pass(10_000);
    lifecycle.touch(&id("a"));
    assert_eq!(lifecycle.last_active(0).entries, [(id("a"), 30_000)]);
}

#[test]
fn a_deleted_record_takes_its_activity_along() {
    let testbed = Testbed::new();
    let lifecycle = testbed.build();
    lifecycle.observed(&id("a"), &snapshot("", ""));
    lifecycle.touch(&id("a"));
    lifecycle.observed(&id("a"), &Snapshot::default());
    testbed.clock.pass(10_000);
    lifecycle.touch(&id("a"));
    assert_eq!(lifecycle.active_len(), 0);
    lifecycle.observed(&id("a"), &snapshot("", ""));
    testbed.clock.pass(10_000);
    lifecycle.touch(&id("a"));
    assert_eq!(lifecycle.active_len(), 1);
}

#[test]
fn a_deletion_keeps_activity_away_only_for_its_time() {
    let mut testbed = Testbed::new();
    testbed.timing.gone = Duration::ZERO;
    let lifecycle = testbed.build();
    lifecycle.delete(&id("a"));
    lifecycle.touch(&id("a"));
    assert_eq!(lifecycle.active_len(), 1);
}

#[test]
fn unknown_ids_leave_no_trace() {
    let lifecycle = Testbed::new().build();
    for n in 0..1000 {
        lifecycle.observed(&id(&format!("u{n}")), &Snapshot::default());
        let _ = lifecycle.gate(&id(&format!("u{n}")));
    }
    assert_eq!(lifecycle.states_len(), 0);
}

#[test]
fn what_cannot_be_called_is_refused_at_start() {
    let mut testbed = Testbed::new();
    testbed.settings.resume = Some(ResumeSettings::new("https://manager"));
    let hooks: Arc<dyn LifecycleHooks> = Arc::<crate::testbed::RecordingHooks>::clone(&testbed.told);
    let built = Lifecycle::new(testbed.settings.clone(), hooks, &testbed.registry);
    assert!(matches!(built.err(), Some(LifecycleError::ResumeUrl(_))));
}

#[test]
fn metrics_that_are_registered_already_are_refused() {
    let testbed = Testbed::new();
    let _first = testbed.build();
    let hooks: Arc<dyn LifecycleHooks> = Arc::<crate::testbed::RecordingHooks>::clone(&testbed.told);
    let built = Lifecycle::new(testbed.settings.clone(), hooks, &testbed.registry);
    assert!(matches!(built.err(), Some(LifecycleError::Metrics(_))));
}

#[tokio::test]
async fn new_settings_hold_from_the_next_request_on() {
    let (first, second) =
        (Scripted::start(Behaviour::Respond(200)).await, Scripted::start(Behaviour::Respond(200)).await);
    let mut testbed = Testbed::resuming_at(&first);
    let lifecycle = testbed.build();
    lifecycle.update(Testbed::resuming_at(&second).settings).unwrap();
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Resumed);
    assert_eq!((first.requests().len(), second.requests().len()), (0, 1));

    testbed.settings.resume = Some(ResumeSettings::new("https://manager"));
    assert!(matches!(lifecycle.update(testbed.settings.clone()), Err(LifecycleError::ResumeUrl(_))));
    lifecycle.push_state(&id("b"), Paused);
    assert_eq!(lifecycle.hold(&id("b"), "r", true).await, HoldOutcome::Resumed, "what was in force stays");

    testbed.settings.resume = None;
    lifecycle.update(testbed.settings).unwrap();
    lifecycle.push_state(&id("c"), Paused);
    assert_eq!(lifecycle.hold(&id("c"), "r", true).await, HoldOutcome::Refuse(GateRefusal::Paused));
}
