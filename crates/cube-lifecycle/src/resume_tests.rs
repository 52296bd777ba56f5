use cube_metadata::SandboxState::{Killed, Paused, Resuming, Running};
use cube_metadata::SnapshotObserver;

use super::*;
use crate::testing::{Act, Bench, LONG, Manager as Scripted, id, snapshot, until};
use crate::{Gate, Held};

fn held(lifecycle: &Arc<Lifecycle>, name: &str, request: &str) -> tokio::task::JoinHandle<Held> {
    let (lifecycle, id, request) = (Arc::clone(lifecycle), id(name), request.to_owned());
    tokio::spawn(async move { lifecycle.hold(&id, &request, true).await })
}

fn outcomes(bench: &Bench, outcome: &str) -> f64 {
    bench.metric(&format!(r#"cube_proxy_resumes_total{{outcome="{outcome}"}}"#))
}

#[tokio::test]
async fn the_call_is_the_one_of_the_contract() {
    let manager = Scripted::start(Act::Answer(200)).await;
    let mut bench = Bench::resuming_at(&manager);
    bench.resume().token = Some(BearerToken::new("example-token").unwrap());
    let lifecycle = bench.build();
    lifecycle.push_state(&id("a-b_c"), Paused);
    let end = lifecycle.hold(&id("a-b_c"), "x&sandbox_id=other/é ~._-\r\n", true).await;
    assert_eq!(end, Held::Resumed);
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
    let manager = Scripted::start(Act::Answer(200)).await;
    let mut bench = Bench::resuming_at(&manager);
    bench.resume().url = format!("{}/base/", manager.url);
    let lifecycle = bench.build();
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, Held::Resumed);
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
    let manager = Scripted::start(Act::Held(200)).await;
    let bench = Bench::resuming_at(&manager);
    let lifecycle = bench.build();
    lifecycle.push_state(&id("a"), Paused);
    let mut waiting = vec![held(&lifecycle, "a", "first")];
    until("called", || manager.calls() == 1).await;
    waiting.extend((1..200).map(|n| held(&lifecycle, "a", &n.to_string())));
    until("all held", || lifecycle.held() == 200).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    assert_eq!(bench.told.take(), Vec::<String>::new());
    manager.release();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), Held::Resumed);
    }
    assert_eq!(manager.calls(), 1);
    assert!(manager.requests()[0].contains("request_id=first "));
    // Once, and before the gate opened.
    assert_eq!(bench.told.take(), ["resumed a paused"]);
    assert_eq!(lifecycle.gate(&id("a")), Gate::Pass);
    assert_eq!((outcomes(&bench, "resumed"), bench.metric("cube_proxy_resume_seconds_count")), (1.0, 1.0));
    assert_eq!(bench.metric("cube_proxy_held_requests"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waited_for_a_resume_is_always_told_so() {
    let manager = Scripted::start(Act::Answer(200)).await;
    let lifecycle = Bench::resuming_at(&manager).build();
    for n in 0..50 {
        let name = format!("s{n}");
        lifecycle.push_state(&id(&name), Paused);
        let waiting: Vec<_> = (0..8).map(|n| held(&lifecycle, &name, &n.to_string())).collect();
        let mut resumed = 0;
        for waiting in waiting {
            match waiting.await.unwrap() {
                Held::Resumed => resumed += 1,
                // Came when it was awake already.
                Held::Changed => {}
                refused @ Held::Refuse(_) => panic!("{refused:?}"),
            }
        }
        assert!(resumed > 0);
    }
    assert_eq!(manager.calls(), 50);
}

#[tokio::test]
async fn a_waiter_that_leaves_cancels_nothing() {
    let manager = Scripted::start(Act::Held(200)).await;
    let bench = Bench::resuming_at(&manager);
    let lifecycle = bench.build();
    lifecycle.push_state(&id("a"), Paused);
    let first = held(&lifecycle, "a", "first");
    until("called", || manager.calls() == 1).await;
    let second = held(&lifecycle, "a", "second");
    until("both held", || lifecycle.held() == 2).await;
    first.abort();
    until("one left", || lifecycle.held() == 1).await;
    manager.release();
    assert_eq!(second.await.unwrap(), Held::Resumed);

    // Even where nobody is left.
    lifecycle.push_state(&id("b"), Paused);
    let only = held(&lifecycle, "b", "only");
    until("called", || manager.calls() == 2).await;
    only.abort();
    until("nobody held", || lifecycle.held() == 0).await;
    manager.release();
    until("resumed", || lifecycle.gate(&id("b")) == Gate::Pass).await;
}

#[tokio::test]
async fn each_failure_has_its_answer_and_is_shared_and_remembered() {
    for (act, refusal, outcome) in [
        (Act::Answer(500), Refusal::ResumeFailed, "failed"),
        (Act::Answer(404), Refusal::ResumeFailed, "failed"),
        (Act::Answer(204), Refusal::ResumeFailed, "failed"),
        (Act::Answer(302), Refusal::ResumeFailed, "failed"),
        (Act::Answer(429), Refusal::ResumeQuota, "quota"),
        (Act::Close, Refusal::ResumeFailed, "failed"),
        (Act::Garbage, Refusal::ResumeFailed, "failed"),
        (Act::Silent, Refusal::ResumeFailed, "timed_out"),
    ] {
        let manager = Scripted::start(act).await;
        let mut bench = Bench::resuming_at(&manager);
        if outcome == "timed_out" {
            bench.resume().timeout = Duration::from_millis(100);
        }
        let lifecycle = bench.build();
        lifecycle.push_state(&id("a"), Paused);
        let waiting: Vec<_> = (0..5).map(|n| held(&lifecycle, "a", &n.to_string())).collect();
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), Held::Refuse(refusal), "{act:?}");
        }
        for _ in 0..100 {
            assert_eq!(lifecycle.hold(&id("a"), "r", true).await, Held::Refuse(refusal), "{act:?}");
        }
        assert_eq!((manager.calls(), outcomes(&bench, outcome)), (1, 1.0), "{act:?}");
        assert_eq!(bench.told.take(), Vec::<String>::new());
        assert_eq!(lifecycle.held(), 0);
        // Another sandbox is not refused for it.
        lifecycle.push_state(&id("b"), Paused);
        manager.act(Act::Answer(200));
        assert_eq!(lifecycle.hold(&id("b"), "r", true).await, Held::Resumed, "{act:?}");
    }
}

#[tokio::test]
async fn a_manager_that_is_not_there_is_a_failure() {
    let manager = Scripted::start(Act::Silent).await;
    let mut bench = Bench::resuming_at(&manager);
    bench.resume().url = Scripted::nobody().await;
    let lifecycle = bench.build();
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, Held::Refuse(Refusal::ResumeFailed));
    assert_eq!(outcomes(&bench, "failed"), 1.0);
}

#[tokio::test]
async fn a_failure_is_forgotten_after_its_time() {
    let manager = Scripted::start(Act::Answer(500)).await;
    let mut bench = Bench::resuming_at(&manager);
    bench.timing.back_off = Duration::from_millis(20);
    let lifecycle = bench.build();
    lifecycle.push_state(&id("a"), Paused);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, Held::Refuse(Refusal::ResumeFailed));
    until("forgotten", || lifecycle.flights.0.lock().is_empty()).await;
    manager.act(Act::Answer(200));
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, Held::Resumed);
    assert_eq!(manager.calls(), 2);
    until("nothing kept", || lifecycle.flights.0.lock().is_empty()).await;
}

#[tokio::test]
async fn there_are_no_more_calls_than_their_bound() {
    let manager = Scripted::start(Act::Held(200)).await;
    let mut bench = Bench::resuming_at(&manager);
    bench.resume().max_concurrent = 2;
    let lifecycle = bench.build();
    for name in ["a", "b", "c"] {
        lifecycle.push_state(&id(name), Paused);
    }
    let two = [held(&lifecycle, "a", "r"), held(&lifecycle, "b", "r")];
    until("two calls", || manager.calls() == 2).await;
    assert_eq!(lifecycle.hold(&id("c"), "r", true).await, Held::Refuse(Refusal::ResumeFailed));
    assert_eq!(outcomes(&bench, "crowded"), 1.0);
    // To wait for a call that is under way needs none of its own.
    let third = held(&lifecycle, "a", "r");
    until("three held", || lifecycle.held() == 3).await;
    manager.release();
    manager.release();
    for waiting in two.into_iter().chain([third]) {
        assert_eq!(waiting.await.unwrap(), Held::Resumed);
    }
    // Nothing failed, so there is nothing to wait out.
    manager.act(Act::Answer(200));
    assert_eq!(lifecycle.hold(&id("c"), "r", true).await, Held::Resumed);
}

#[tokio::test]
async fn a_resuming_sandbox_is_joined_by_the_same_call() {
    let manager = Scripted::start(Act::Answer(200)).await;
    let lifecycle = Bench::resuming_at(&manager).build();
    lifecycle.push_state(&id("a"), Resuming);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, Held::Resumed);
    assert_eq!(manager.calls(), 1);
}

#[tokio::test]
async fn a_change_ends_the_wait_before_the_call_does() {
    for (state, hooks) in
        [(Running, ["resumed a paused"].as_slice()), (Killed, ["killed a killed"].as_slice())]
    {
        let manager = Scripted::start(Act::Held(200)).await;
        let bench = Bench::resuming_at(&manager);
        let lifecycle = bench.build();
        lifecycle.push_state(&id("a"), Paused);
        let waiting = held(&lifecycle, "a", "r");
        until("called", || manager.calls() == 1).await;
        // `resuming` is what it waits for.
        lifecycle.push_state(&id("a"), Resuming);
        lifecycle.push_state(&id("a"), Paused);
        lifecycle.push_state(&id("a"), state);
        assert_eq!(waiting.await.unwrap(), Held::Resumed);
        manager.release();
        until("landed", || lifecycle.flights.0.lock().is_empty()).await;
        // No second life, and no life for the dead.
        assert_eq!(bench.told.take(), hooks);
        assert_eq!(lifecycle.state(&id("a")), Some(cube_metadata::Status::Known(state)));
    }
}

#[tokio::test]
async fn a_record_that_still_says_paused_after_the_resume_is_no_event() {
    let manager = Scripted::start(Act::Answer(200)).await;
    let lifecycle = Bench::resuming_at(&manager).build();
    lifecycle.observed(&id("a"), &snapshot("paused", "paused"));
    assert_eq!(lifecycle.gate(&id("a")), Gate::Hold);
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, Held::Resumed);
    lifecycle.observed(&id("a"), &snapshot("paused", "paused"));
    assert_eq!(lifecycle.gate(&id("a")), Gate::Pass);
}

#[tokio::test]
async fn a_connect_timeout_resumes_where_metadata_says_so_and_once_in_a_while() {
    let manager = Scripted::start(Act::Answer(200)).await;
    let bench = Bench::resuming_at(&manager);
    let lifecycle = bench.build();
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
    bench.told.take();
    assert!(timed_out("a").await);
    // A new life although the state did not change.
    assert_eq!(bench.told.take(), ["resumed a running"]);
    assert!(!timed_out("a").await, "a moment ago");
    assert_eq!(manager.calls(), 1);
    lifecycle.set_auto_resume(&id("b"), Some(true));
    assert!(timed_out("b").await, "another sandbox");

    // A resume that fails leaves the 504.
    manager.act(Act::Answer(500));
    lifecycle.set_auto_resume(&id("c"), Some(true));
    assert!(!timed_out("c").await);
    assert_eq!((manager.calls(), lifecycle.held()), (3, 0));
}

#[tokio::test]
async fn the_gap_between_two_resumes_after_timeouts_ends() {
    let manager = Scripted::start(Act::Answer(200)).await;
    let mut bench = Bench::resuming_at(&manager);
    bench.timing.timeout_gap = Duration::ZERO;
    let lifecycle = bench.build();
    lifecycle.set_auto_resume(&id("a"), Some(true));
    assert!(lifecycle.resume_after_timeout(&id("a"), "r").await);
    assert!(lifecycle.resume_after_timeout(&id("a"), "r").await);
    assert_eq!(manager.calls(), 2);
}

#[tokio::test]
async fn without_a_manager_a_connect_timeout_resumes_nothing() {
    let lifecycle = Bench::new().build();
    lifecycle.set_auto_resume(&id("a"), Some(true));
    assert!(!lifecycle.resume_after_timeout(&id("a"), "r").await);
}

#[tokio::test]
async fn a_paused_sandbox_waits_for_its_places_too() {
    let manager = Scripted::start(Act::Held(200)).await;
    let mut bench = Bench::resuming_at(&manager);
    bench.settings.max_held_per_sandbox = 2;
    bench.resume().timeout = LONG;
    let lifecycle = bench.build();
    lifecycle.push_state(&id("a"), Paused);
    let two = [held(&lifecycle, "a", "r"), held(&lifecycle, "a", "r")];
    until("two held", || lifecycle.held() == 2).await;
    assert_eq!(lifecycle.hold(&id("a"), "r", true).await, Held::Refuse(Refusal::TooManyHeld));
    until("called", || manager.calls() == 1).await;
    manager.release();
    for waiting in two {
        assert_eq!(waiting.await.unwrap(), Held::Resumed);
    }
}
