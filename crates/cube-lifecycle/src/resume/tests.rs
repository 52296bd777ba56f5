use cube_metadata::SandboxState::{Killed, Paused, Resuming, Running};
use cube_metadata::SnapshotObserver;

use cube_settings::{Secret, SecretFile};

use super::*;
use crate::testbed::{Behaviour, LONG, ResumeServer as Scripted, Testbed, id, snapshot, until};
use crate::{GateVerdict, HoldOutcome};

fn held(lifecycle: &Arc<Lifecycle>, name: &str, request: &str) -> tokio::task::JoinHandle<HoldOutcome> {
    let (lifecycle, id, request) = (Arc::clone(lifecycle), id(name), request.to_owned());
    tokio::spawn(async move { lifecycle.hold(&id, &request, true).await })
}

fn outcomes(testbed: &Testbed, outcome: &str) -> f64 {
    testbed.metric(&format!(r#"cube_proxy_resumes_total{{outcome="{outcome}"}}"#))
}

#[tokio::test]
async fn the_call_is_the_one_of_the_contract() {
    let manager = Scripted::start(Behaviour::Respond(200)).await;
    let mut testbed = Testbed::resuming_at(&manager);
    let mut token = SecretFile::new("token");
    token.set(Secret::non_empty("example-token"));
    testbed.resume().token_file = Some(token);
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a-b_c"), Paused);
    let end = lifecycle.hold(&id("a-b_c"), "x&sandbox_id=other/é ~._-\r\n", true).await;
    assert_eq!(end, HoldOutcome::Resumed);
    let host = manager.url.strip_prefix("http://").unwrap();
    assert_eq!(
        manager.requests(),
        [format!(
            "POST /internal/resume?sandbox_id=a-b_c&request_id=x%26sandbox_id%3Dother%2F%C3%A9%20~._-%0D%0A \
             HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nAuthorization: Bearer example-token\r\n\r\n"
        )]
    );
}

#[tokio::test]
async fn without_a_token_none_is_sent_and_a_path_of_the_url_is_kept() {
    let manager = Scripted::start(Behaviour::Respond(200)).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.resume().url = Some(format!("{}/base/", manager.url));
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Resumed);
    let host = manager.url.strip_prefix("http://").unwrap();
    assert_eq!(
        manager.requests(),
        [format!(
            "POST /base/internal/resume?sandbox_id=a&request_id=r HTTP/1.1\r\nHost: {host}\r\n\
             Content-Length: 0\r\n\r\n"
        )]
    );
}

#[tokio::test]
async fn many_requests_make_one_call_and_none_goes_on_before_it_has_ended() {
    let manager = Scripted::start(Behaviour::RespondWhenReleased(200)).await;
    let testbed = Testbed::resuming_at(&manager);
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Paused);
    let mut waiting = vec![held(&lifecycle, "a", "first")];
    until("called", || manager.calls() == 1).await;
    waiting.extend((1..200).map(|n| held(&lifecycle, "a", &n.to_string())));
    until("all held", || lifecycle.held() == 200).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    assert_eq!(testbed.told.take(), Vec::<String>::new());
    manager.release();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), HoldOutcome::Resumed);
    }
    assert_eq!(manager.calls(), 1);
    assert!(manager.requests()[0].contains("request_id=first "));
    // Once, and before the gate opened.
    assert_eq!(testbed.told.take(), ["resumed a paused"]);
    assert_eq!(lifecycle.gate(&id("a")), GateVerdict::Pass);
    assert_eq!(
        (outcomes(&testbed, "resumed"), testbed.metric("cube_proxy_resume_seconds_count")),
        (1.0, 1.0)
    );
    assert_eq!(testbed.metric("cube_proxy_held_requests"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waited_for_a_resume_is_always_told_so() {
    let manager = Scripted::start(Behaviour::Respond(200)).await;
    let lifecycle = Testbed::resuming_at(&manager).build();
    for n in 0..50 {
        let name = format!("s{n}");
        lifecycle.push_state(&id(&name), Paused);
        let waiting: Vec<_> = (0..8).map(|n| held(&lifecycle, &name, &n.to_string())).collect();
        let mut resumed = 0;
        for waiting in waiting {
            match waiting.await.unwrap() {
                HoldOutcome::Resumed => resumed += 1,
                // Came when it was awake already.
                HoldOutcome::Changed => {}
                refused @ HoldOutcome::Refuse(_) => panic!("{refused:?}"),
            }
        }
        assert!(resumed > 0);
    }
    assert_eq!(manager.calls(), 50);
}

#[tokio::test]
async fn a_waiter_that_leaves_cancels_nothing() {
    let manager = Scripted::start(Behaviour::RespondWhenReleased(200)).await;
    let testbed = Testbed::resuming_at(&manager);
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Paused);
    let first = held(&lifecycle, "a", "first");
    until("called", || manager.calls() == 1).await;
    let second = held(&lifecycle, "a", "second");
    until("both held", || lifecycle.held() == 2).await;
    first.abort();
    until("one left", || lifecycle.held() == 1).await;
    manager.release();
    assert_eq!(second.await.unwrap(), HoldOutcome::Resumed);

    // Even where nobody is left.
    lifecycle.push_state(&id("b"), Paused);
    let only = held(&lifecycle, "b", "only");
    until("called", || manager.calls() == 2).await;
    only.abort();
    until("nobody held", || lifecycle.held() == 0).await;
    manager.release();
    until("resumed", || lifecycle.gate(&id("b")) == GateVerdict::Pass).await;
}

#[tokio::test]
async fn each_failure_has_its_response_and_is_shared_and_remembered() {
    for (act, refusal, outcome) in [
        (Behaviour::Respond(500), GateRefusal::ResumeFailed, "failed"),
        (Behaviour::Respond(404), GateRefusal::ResumeFailed, "failed"),
        (Behaviour::Respond(204), GateRefusal::ResumeFailed, "failed"),
        (Behaviour::Respond(302), GateRefusal::ResumeFailed, "failed"),
        (Behaviour::Respond(429), GateRefusal::ResumeQuota, "quota"),
        (Behaviour::Close, GateRefusal::ResumeFailed, "failed"),
        (Behaviour::Garbage, GateRefusal::ResumeFailed, "failed"),
        (Behaviour::Silent, GateRefusal::ResumeFailed, "timed_out"),
    ] {
        let manager = Scripted::start(act).await;
        let mut testbed = Testbed::resuming_at(&manager);
        if outcome == "timed_out" {
            testbed.resume().timeout = Duration::from_millis(100);
        }
        let lifecycle = testbed.build();
        lifecycle.push_state(&id("a"), Paused);
        let waiting: Vec<_> = (0..5).map(|n| held(&lifecycle, "a", &n.to_string())).collect();
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), HoldOutcome::Refuse(refusal), "{act:?}");
        }
        for _ in 0..100 {
            assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Refuse(refusal), "{act:?}");
        }
        assert_eq!((manager.calls(), outcomes(&testbed, outcome)), (1, 1.0), "{act:?}");
        assert_eq!(testbed.told.take(), Vec::<String>::new());
        assert_eq!(lifecycle.held(), 0);
        // Another sandbox is not refused for it.
        lifecycle.push_state(&id("b"), Paused);
        manager.set_behaviour(Behaviour::Respond(200));
        assert_eq!(lifecycle.hold(&id("b"), "r", true).await, HoldOutcome::Resumed, "{act:?}");
    }
}

#[tokio::test]
async fn a_manager_that_is_not_there_is_a_failure() {
    let manager = Scripted::start(Behaviour::Silent).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.resume().url = Some(Scripted::nobody().await);
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Refuse(GateRefusal::ResumeFailed));
    assert_eq!(outcomes(&testbed, "failed"), 1.0);
}

#[tokio::test]
async fn a_failure_is_forgotten_after_its_time() {
    let manager = Scripted::start(Behaviour::Respond(500)).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.timing.back_off = Duration::from_millis(20);
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Refuse(GateRefusal::ResumeFailed));
    until("forgotten", || lifecycle.resumes_in_flight.0.lock().is_empty()).await;
    manager.set_behaviour(Behaviour::Respond(200));
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Resumed);
    assert_eq!(manager.calls(), 2);
    until("nothing kept", || lifecycle.resumes_in_flight.0.lock().is_empty()).await;
}

#[tokio::test]
async fn there_are_no_more_calls_than_their_bound() {
    let manager = Scripted::start(Behaviour::RespondWhenReleased(200)).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.resume().max_concurrent = 2;
    let lifecycle = testbed.build();
    for name in ["a", "b", "c"] {
        lifecycle.push_state(&id(name), Paused);
    }
    let two = [held(&lifecycle, "a", "r"), held(&lifecycle, "b", "r")];
    until("two calls", || manager.calls() == 2).await;
    assert_eq!(lifecycle.hold(&id("c"), "r", true).await, HoldOutcome::Refuse(GateRefusal::ResumeFailed));
    assert_eq!(outcomes(&testbed, "crowded"), 1.0);
    // To wait for a call that is under way needs none of its own.
    let third = held(&lifecycle, "a", "r");
    until("three held", || lifecycle.held() == 3).await;
    manager.release();
    manager.release();
    for waiting in two.into_iter().chain([third]) {
        assert_eq!(waiting.await.unwrap(), HoldOutcome::Resumed);
    }
    // Nothing failed, so there is nothing to wait out.
    manager.set_behaviour(Behaviour::Respond(200));
    assert_eq!(lifecycle.hold(&id("c"), "r", true).await, HoldOutcome::Resumed);
}

#[tokio::test]
async fn a_resuming_sandbox_is_joined_by_the_same_call() {
    let manager = Scripted::start(Behaviour::Respond(200)).await;
    let lifecycle = Testbed::resuming_at(&manager).build();
    lifecycle.push_state(&id("a"), Resuming);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Resumed);
    assert_eq!(manager.calls(), 1);
}

#[tokio::test]
async fn a_change_ends_the_wait_before_the_call_does() {
    for (state, hooks) in
        [(Running, ["resumed a paused"].as_slice()), (Killed, ["killed a killed"].as_slice())]
    {
        let manager = Scripted::start(Behaviour::RespondWhenReleased(200)).await;
        let testbed = Testbed::resuming_at(&manager);
        let lifecycle = testbed.build();
        lifecycle.push_state(&id("a"), Paused);
        let waiting = held(&lifecycle, "a", "r");
        until("called", || manager.calls() == 1).await;
        // `resuming` is what it waits for.
        lifecycle.push_state(&id("a"), Resuming);
        lifecycle.push_state(&id("a"), Paused);
        lifecycle.push_state(&id("a"), state);
        assert_eq!(waiting.await.unwrap(), HoldOutcome::Resumed);
        manager.release();
        until("landed", || lifecycle.resumes_in_flight.0.lock().is_empty()).await;
        // It is not woken twice, and not at all once it was killed.
        assert_eq!(testbed.told.take(), hooks);
        assert_eq!(lifecycle.state(&id("a")), Some(cube_metadata::Status::Known(state)));
    }
}

#[tokio::test]
async fn a_record_that_still_says_paused_after_the_resume_is_no_event() {
    let manager = Scripted::start(Behaviour::Respond(200)).await;
    let lifecycle = Testbed::resuming_at(&manager).build();
    lifecycle.observed(&id("a"), &snapshot("paused", "paused"));
    assert_eq!(lifecycle.gate(&id("a")), GateVerdict::Hold);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Resumed);
    lifecycle.observed(&id("a"), &snapshot("paused", "paused"));
    assert_eq!(lifecycle.gate(&id("a")), GateVerdict::Pass);
}

#[tokio::test]
async fn a_connect_timeout_resumes_where_metadata_says_so_and_once_in_a_while() {
    let manager = Scripted::start(Behaviour::Respond(200)).await;
    let testbed = Testbed::resuming_at(&manager);
    let lifecycle = testbed.build();
    let timed_out = |name: &'static str| {
        let lifecycle = Arc::clone(&lifecycle);
        async move { lifecycle.resume_after_timeout(&id(name), "r").await }
    };
    assert!(!timed_out("a").await, "nobody said auto_resume");
    lifecycle.set_auto_resume(&id("a"), Some(false));
    assert!(!timed_out("a").await, "auto_resume is false");
    lifecycle.set_auto_resume(&id("a"), Some(true));
    lifecycle.push_state(&id("a"), Killed);
    assert!(!timed_out("a").await, "not believed running");
    lifecycle.push_state(&id("a"), Running);
    testbed.told.take();
    assert!(timed_out("a").await);
    // It wakes although the state did not change.
    assert_eq!(testbed.told.take(), ["resumed a running"]);
    assert!(!timed_out("a").await, "a moment ago");
    assert_eq!(manager.calls(), 1);
    lifecycle.set_auto_resume(&id("b"), Some(true));
    assert!(timed_out("b").await, "another sandbox");

    // A resume that fails leaves the 504.
    manager.set_behaviour(Behaviour::Respond(500));
    lifecycle.set_auto_resume(&id("c"), Some(true));
    assert!(!timed_out("c").await);
    assert_eq!((manager.calls(), lifecycle.held()), (3, 0));
}

#[tokio::test]
async fn the_gap_between_two_resumes_after_timeouts_ends() {
    let manager = Scripted::start(Behaviour::Respond(200)).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.timing.timeout_gap = Duration::ZERO;
    let lifecycle = testbed.build();
    lifecycle.set_auto_resume(&id("a"), Some(true));
    assert!(lifecycle.resume_after_timeout(&id("a"), "r").await);
    assert!(lifecycle.resume_after_timeout(&id("a"), "r").await);
    assert_eq!(manager.calls(), 2);
}

#[tokio::test]
async fn without_a_manager_a_connect_timeout_resumes_nothing() {
    let lifecycle = Testbed::new().build();
    lifecycle.set_auto_resume(&id("a"), Some(true));
    assert!(!lifecycle.resume_after_timeout(&id("a"), "r").await);
}

#[tokio::test]
async fn a_paused_sandbox_waits_for_its_places_too() {
    let manager = Scripted::start(Behaviour::RespondWhenReleased(200)).await;
    let mut testbed = Testbed::resuming_at(&manager);
    testbed.settings.max_held_per_sandbox = 2;
    testbed.resume().timeout = LONG;
    let lifecycle = testbed.build();
    lifecycle.push_state(&id("a"), Paused);
    let two = [held(&lifecycle, "a", "r"), held(&lifecycle, "a", "r")];
    until("two held", || lifecycle.held() == 2).await;
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, HoldOutcome::Refuse(GateRefusal::TooManyHeld));
    until("called", || manager.calls() == 1).await;
    manager.release();
    for waiting in two {
        assert_eq!(waiting.await.unwrap(), HoldOutcome::Resumed);
    }
}
