use std::time::Duration;

use cube_metadata::SandboxState::{Killed, Killing, Paused, Pausing, Resuming, Running};
use cube_metadata::SnapshotObserver;

use super::*;
use crate::testbed::{Behaviour, LONG, ResumeServer, Testbed, id, snapshot, until};

fn held(
    lifecycle: &Arc<Lifecycle>,
    name: &str,
    request: &str,
    may_resume: bool,
) -> tokio::task::JoinHandle<HoldOutcome> {
    let (lifecycle, id, request) = (Arc::clone(lifecycle), id(name), request.to_owned());
    tokio::spawn(async move { lifecycle.hold(&id, &request, may_resume).await })
}

#[test]
fn the_gate_follows_its_table_without_a_manager() {
    let lifecycle = Testbed::new().build();
    assert_eq!(lifecycle.gate(&id("a")), GateVerdict::Pass);
    for (state, verdict) in [
        (Running, GateVerdict::Pass),
        (Pausing, GateVerdict::Hold),
        (Paused, GateVerdict::Refuse(GateRefusal::Paused)),
        (Resuming, GateVerdict::Hold),
        (Killing, GateVerdict::Refuse(GateRefusal::Killed)),
        (Killed, GateVerdict::Refuse(GateRefusal::Killed)),
    ] {
        lifecycle.push_state(&id("a"), state);
        assert_eq!(lifecycle.gate(&id("a")), verdict, "{state}");
    }
    lifecycle.observed(&id("b"), &snapshot("hibernated", ""));
    assert_eq!(lifecycle.gate(&id("b")), GateVerdict::Pass);
}

#[tokio::test]
async fn the_gate_follows_its_table_with_a_manager() {
    let manager = ResumeServer::start(Behaviour::Silent).await;
    let lifecycle = Testbed::resuming_at(&manager).build();
    for (state, verdict) in [
        (Running, GateVerdict::Pass),
        (Pausing, GateVerdict::Hold),
        (Paused, GateVerdict::Hold),
        (Resuming, GateVerdict::Hold),
        (Killed, GateVerdict::Refuse(GateRefusal::Killed)),
    ] {
        lifecycle.push_state(&id("a"), state);
        assert_eq!(lifecycle.gate(&id("a")), verdict, "{state}");
    }
    lifecycle.push_state(&id("a"), Paused);
    lifecycle.set_auto_resume(&id("a"), Some(false));
    assert_eq!(lifecycle.gate(&id("a")), GateVerdict::Refuse(GateRefusal::Paused));
    lifecycle.set_auto_resume(&id("a"), None);
    assert_eq!(lifecycle.gate(&id("a")), GateVerdict::Hold);
}

#[tokio::test]
async fn a_preflight_learns_the_refusal_and_wakes_nothing() {
    let manager = ResumeServer::start(Behaviour::Respond(200)).await;
    let lifecycle = Testbed::resuming_at(&manager).build();
    assert_eq!(lifecycle.gate_without_hold(&id("a")), None);
    for (state, refusal) in [
        (Running, None),
        (Pausing, Some(GateRefusal::Pausing)),
        (Paused, Some(GateRefusal::Paused)),
        (Resuming, Some(GateRefusal::Pausing)),
        (Killing, Some(GateRefusal::Killed)),
    ] {
        lifecycle.push_state(&id("a"), state);
        assert_eq!(lifecycle.gate_without_hold(&id("a")), refusal, "{state}");
    }
    assert_eq!(manager.calls(), 0);
}

#[tokio::test]
async fn a_change_lets_those_who_wait_be_judged_again() {
    let testbed = Testbed::new();
    let lifecycle = testbed.build();
    for state in [Running, Paused, Killed] {
        lifecycle.push_state(&id("a"), Pausing);
        let waiting = held(&lifecycle, "a", "r", true);
        until("held", || lifecycle.held() == 1).await;
        lifecycle.push_state(&id("a"), state);
        assert_eq!(waiting.await.unwrap(), HoldOutcome::Changed, "{state}");
        assert_eq!(lifecycle.held(), 0);
    }
}

#[tokio::test]
async fn a_change_in_the_store_lets_those_who_wait_be_judged_again() {
    let lifecycle = Testbed::new().build();
    lifecycle.observed(&id("a"), &snapshot("", "pausing"));
    let waiting = held(&lifecycle, "a", "r", true);
    until("held", || lifecycle.held() == 1).await;
    assert!(lifecycle.interested(&id("a")));
    assert!(!lifecycle.interested(&id("b")));
    lifecycle.observed(&id("a"), &snapshot("", "running"));
    assert_eq!(waiting.await.unwrap(), HoldOutcome::Changed);
    assert!(!lifecycle.interested(&id("a")));
}

#[tokio::test]
async fn one_change_into_another_does_not_lengthen_the_wait() {
    let mut testbed = Testbed::new();
    testbed.settings.pause_wait = Duration::from_millis(50);
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Pausing);
    let waiting = held(&lifecycle, "a", "r", true);
    until("held", || lifecycle.held() == 1).await;
    lifecycle.push_state(&id("a"), Resuming);
    assert_eq!(waiting.await.unwrap(), HoldOutcome::Refuse(GateRefusal::Pausing));
    assert_eq!(testbed.metric(r#"cube_proxy_gate_verdicts_total{verdict="pausing"}"#), 1.0);
}

#[tokio::test]
async fn a_request_that_was_resumed_is_not_resumed_again() {
    let manager = ResumeServer::start(Behaviour::Respond(200)).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.settings.pause_wait = Duration::from_millis(20);
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!(lifecycle.hold(&id("a"), "r", false).await, HoldOutcome::Refuse(GateRefusal::Paused));
    lifecycle.push_state(&id("a"), Resuming);
    assert_eq!(lifecycle.hold(&id("a"), "r", false).await, HoldOutcome::Refuse(GateRefusal::Pausing));
    assert_eq!(manager.calls(), 0);
}

#[tokio::test]
async fn the_outlook_says_what_the_gate_would_do_and_does_nothing() {
    let manager = ResumeServer::start(Behaviour::Respond(500)).await;
    let testbed = Testbed::resuming_at(&manager);
    let lifecycle = testbed.build();
    for (state, outlook) in [
        (Running, GateForecast::Pass),
        (Pausing, GateForecast::Wait),
        (Paused, GateForecast::Wake),
        (Resuming, GateForecast::Wake),
        (Killed, GateForecast::Refuse(GateRefusal::Killed)),
    ] {
        lifecycle.push_state(&id("a"), state);
        assert_eq!(lifecycle.forecast(&id("a")), outlook, "{state:?}");
    }
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!((manager.calls(), lifecycle.held()), (0, 0));
    assert_eq!(testbed.metric(r#"cube_proxy_gate_verdicts_total{verdict="hold"}"#), 0.0);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Refuse(GateRefusal::ResumeFailed));
    assert_eq!(lifecycle.forecast(&id("a")), GateForecast::Refuse(GateRefusal::ResumeFailed));
}

#[tokio::test]
async fn a_request_that_was_resumed_waits_for_the_next_one_to_wake_the_sandbox() {
    let manager = ResumeServer::start(Behaviour::Respond(200)).await;
    let lifecycle = Testbed::resuming_at(&manager).build();
    lifecycle.push_state(&id("a"), Paused);
    let waiting = held(&lifecycle, "a", "r", false);
    until("held", || lifecycle.held() == 1).await;
    assert_eq!(lifecycle.hold(&id("a"), "s", true).await, HoldOutcome::Resumed);
    assert_eq!((waiting.await.unwrap(), manager.calls()), (HoldOutcome::Changed, 1));
}

#[tokio::test]
async fn the_one_beyond_the_bound_is_refused_at_once() {
    let mut testbed = Testbed::new();
    testbed.settings.max_held_per_sandbox = 3;
    testbed.settings.max_held = 4;
    let lifecycle = testbed.build();
    for name in ["a", "b", "c"] {
        lifecycle.push_state(&id(name), Pausing);
    }
    let three: Vec<_> = (0..3).map(|_| held(&lifecycle, "a", "r", true)).collect();
    until("three held", || lifecycle.held() == 3).await;
    let full = HoldOutcome::Refuse(GateRefusal::TooManyHeld);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, full);
    let fourth = held(&lifecycle, "b", "r", true);
    until("four held", || lifecycle.held() == 4).await;
    assert_eq!(lifecycle.hold(&id("c"), "r", true).await, full);
    assert_eq!(testbed.metric("cube_proxy_held_requests"), 4.0);
    assert_eq!(testbed.metric(r#"cube_proxy_gate_verdicts_total{verdict="too_many_held"}"#), 2.0);

    // Whoever leaves frees its slot.
    for waiting in &three {
        waiting.abort();
    }
    until("places are free", || lifecycle.held() == 1).await;
    let again = held(&lifecycle, "a", "r", true);
    until("held again", || lifecycle.held() == 2).await;
    assert_eq!(testbed.metric("cube_proxy_held_requests"), 2.0);
    lifecycle.push_state(&id("a"), Running);
    lifecycle.push_state(&id("b"), Running);
    assert_eq!((again.await.unwrap(), fourth.await.unwrap()), (HoldOutcome::Changed, HoldOutcome::Changed));
}

#[tokio::test]
async fn a_sandbox_deleted_while_requests_wait_lets_them_go() {
    let lifecycle = Testbed::new().build();
    lifecycle.push_state(&id("a"), Pausing);
    let waiting = held(&lifecycle, "a", "r", true);
    until("held", || lifecycle.held() == 1).await;
    lifecycle.delete(&id("a"));
    assert_eq!(waiting.await.unwrap(), HoldOutcome::Changed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flapping_sandbox_leaves_nobody_waiting() {
    let manager = ResumeServer::start(Behaviour::Respond(200)).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.settings.pause_wait = Duration::from_millis(200);
    let lifecycle = testbed.build();
    let flapping = tokio::spawn({
        let lifecycle = Arc::clone(&lifecycle);
        async move {
            for _ in 0..50 {
                for state in [Running, Pausing, Running, Paused] {
                    lifecycle.push_state(&id("a"), state);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            // And ends in a state that only a resume leaves.
        }
    });
    let requests = (0..200).map(|n| {
        let lifecycle = Arc::clone(&lifecycle);
        tokio::spawn(async move {
            let mut may_resume = true;
            loop {
                match lifecycle.gate(&id("a")) {
                    GateVerdict::Pass => return Ok(()),
                    GateVerdict::Refuse(refusal) => return Err(refusal),
                    GateVerdict::Hold => {}
                }
                match lifecycle.hold(&id("a"), &n.to_string(), may_resume).await {
                    HoldOutcome::Changed => {}
                    HoldOutcome::Resumed => may_resume = false,
                    HoldOutcome::Refuse(refusal) => return Err(refusal),
                }
            }
        })
    });
    for request in requests.collect::<Vec<_>>() {
        let end =
            tokio::time::timeout(Duration::from_secs(20), request).await.expect("left waiting").unwrap();
        // Asleep again after its one resume, or changing all through its wait.
        assert!(matches!(end, Ok(()) | Err(GateRefusal::Paused | GateRefusal::Pausing)), "{end:?}");
    }
    flapping.await.unwrap();
    assert_eq!(lifecycle.held(), 0);
}

#[tokio::test]
async fn verdicts_are_counted() {
    let testbed = Testbed::new();
    let lifecycle = testbed.build();
    let count =
        |verdict: &str| testbed.metric(&format!(r#"cube_proxy_gate_verdicts_total{{verdict="{verdict}"}}"#));
    for state in [Running, Pausing, Paused, Killed] {
        lifecycle.push_state(&id("a"), state);
        let _ = lifecycle.gate(&id("a"));
    }
    let counted = ["pass", "hold", "paused", "killed", "resume_failed"].map(count);
    assert_eq!(counted, [1.0, 1.0, 1.0, 1.0, 0.0]);
}

#[tokio::test]
async fn metadata_that_forbids_waking_reaches_those_who_wait_for_it() {
    let manager = ResumeServer::start(Behaviour::Silent).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.resume().timeout = LONG;
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Paused);
    let waiting = held(&lifecycle, "a", "r", true);
    until("called", || manager.calls() == 1).await;
    lifecycle.set_auto_resume(&id("a"), Some(false));
    assert_eq!(waiting.await.unwrap(), HoldOutcome::Resumed);
    assert_eq!(lifecycle.gate(&id("a")), GateVerdict::Refuse(GateRefusal::Paused));
}
