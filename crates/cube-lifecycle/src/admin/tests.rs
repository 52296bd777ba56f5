use cube_metadata::SandboxState::Paused;
use cube_metadata::Status;

use super::*;
use crate::testbed::{Testbed, id};

fn post(lifecycle: &Lifecycle, path: &str, body: &str) -> (u16, String) {
    let response = lifecycle.admin(&Method::POST, path, None, body.as_bytes()).unwrap();
    (response.status.as_u16(), String::from_utf8(response.body.to_vec()).unwrap())
}

fn get(lifecycle: &Lifecycle, query: Option<&str>) -> (u16, String) {
    let response = lifecycle.admin(&Method::GET, "/admin/last_active", query, b"").unwrap();
    (response.status.as_u16(), String::from_utf8(response.body.to_vec()).unwrap())
}

const ROUTES: [&str; 4] =
    ["/admin/meta/upsert", "/admin/meta/delete", "/admin/backend_cache/delete", "/admin/state"];

#[test]
fn a_bad_body_has_its_text_on_every_route() {
    let lifecycle = Testbed::new().build();
    for route in ROUTES {
        for (body, text) in [
            ("", "empty body"),
            ("[1]", "body must be a JSON object"),
            ("null", "body must be a JSON object"),
            ("\"a\"", "body must be a JSON object"),
            ("{}", r#"field "sandbox_id" must be a non-empty string"#),
            (r#"{"sandbox_id":""}"#, r#"field "sandbox_id" must be a non-empty string"#),
            (r#"{"sandbox_id":7}"#, r#"field "sandbox_id" must be a non-empty string"#),
            (r#"{"sandbox_id":null}"#, r#"field "sandbox_id" must be a non-empty string"#),
        ] {
            let response = (400, json!({ "error": text }).to_string());
            assert_eq!(post(&lifecycle, route, body), response, "{route} {body}");
        }
        for body in [" ", r#"{"sandbox_id":"#, "{'a':1}", "\u{0}", &"[".repeat(10_000)] {
            let (status, response) = post(&lifecycle, route, body);
            assert_eq!(status, 400);
            assert!(response.starts_with(r#"{"error":"invalid json: "#), "{response}");
        }
        let (status, response) = post(&lifecycle, route, r#"{"sandbox_id":"a:b"}"#);
        assert!(status == 400 && response.contains("not a sandbox id"), "{response}");
    }
    assert_eq!(lifecycle.states_len(), 0);
}

#[test]
fn an_unknown_state_names_the_six() {
    let lifecycle = Testbed::new().build();
    let text = r#"field \"state\" must be one of running, pausing, paused, resuming, killing, killed"#;
    for state in [r#""asleep""#, r#""Paused""#, r#""""#, "7", "null"] {
        let body = format!(r#"{{"sandbox_id":"a","state":{state}}}"#);
        assert_eq!(post(&lifecycle, "/admin/state", &body), (400, format!(r#"{{"error":"{text}"}}"#)));
    }
    assert_eq!(post(&lifecycle, "/admin/state", r#"{"sandbox_id":"a"}"#).0, 400);
    assert_eq!(lifecycle.state(&id("a")), None);
}

#[test]
fn a_pushed_state_is_in_force_whatever_the_case_of_its_id() {
    let lifecycle = Testbed::new().build();
    for state in SandboxState::ALL {
        let body = format!(r#"{{"sandbox_id":"ABC","state":"{state}","reason":"x"}}"#);
        assert_eq!(post(&lifecycle, "/admin/state", &body), (200, r#"{"ok":true}"#.to_owned()));
        assert_eq!(lifecycle.state(&id("abc")), Some(Status::Known(state)));
    }
}

#[test]
fn metadata_is_kept_until_it_is_named_again() {
    let lifecycle = Testbed::new().build();
    for (fields, auto_resume) in [
        (r#""auto_pause":true,"auto_resume":true,"timeout_seconds":null,"other":{"x":1}"#, Some(true)),
        (r#""timeout_seconds":60"#, Some(true)),
        (r#""auto_resume":false"#, Some(false)),
        (r#""auto_resume":null"#, None),
        (r#""auto_resume":true"#, Some(true)),
        (r#""auto_resume":"yes""#, None),
    ] {
        let body = format!(r#"{{"sandbox_id":"a",{fields}}}"#);
        assert_eq!(post(&lifecycle, "/admin/meta/upsert", &body), (200, r#"{"ok":true}"#.to_owned()));
        assert_eq!(lifecycle.auto_resume(&id("a")), auto_resume, "{fields}");
    }
    assert_eq!(lifecycle.state(&id("a")), None);
}

#[test]
fn deleting_says_whether_there_was_a_route() {
    let testbed = Testbed::new();
    let lifecycle = testbed.build();
    let there = || testbed.told.routes.store(1, std::sync::atomic::Ordering::SeqCst);
    let body = r#"{"sandbox_id":"a"}"#;
    lifecycle.push_state(&id("a"), Paused);
    there();
    let deleted = |n| (200, format!(r#"{{"ok":true,"deleted":{n}}}"#));
    assert_eq!(post(&lifecycle, "/admin/backend_cache/delete", body), deleted(1));
    assert_eq!(post(&lifecycle, "/admin/backend_cache/delete", body), deleted(0));
    // The route alone: neither state nor streams.
    assert_eq!(lifecycle.state(&id("a")), Some(Status::Known(Paused)));
    assert_eq!(testbed.told.take(), ["forgotten a paused", "forgotten a paused"]);
    there();
    let deleted = |n| (200, format!(r#"{{"ok":true,"backend_cache_deleted":{n}}}"#));
    assert_eq!(post(&lifecycle, "/admin/meta/delete", body), deleted(1));
    assert_eq!(post(&lifecycle, "/admin/meta/delete", body), deleted(0));
    assert_eq!(lifecycle.state(&id("a")), None);
}

#[test]
fn activity_is_listed_from_where_the_reader_was() {
    let testbed = Testbed::new();
    let lifecycle = testbed.build();
    lifecycle.touch(&id("a"));
    testbed.clock.pass(10_000);
    lifecycle.touch(&id("b"));
    testbed.clock.pass(10_000);
    let (status, body) = get(&lifecycle, None);
    let response: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &response["since"], &response["count"]), (200, &json!(0), &json!(2)));
    assert_eq!(response["entries"], json!({"a": 10_000, "b": 20_000}));
    assert_eq!(response["now"], json!(30_000));
    for (query, entries) in [
        ("since=10000", json!({"b": 20_000})),
        ("a=b&since=20000", json!({})),
        ("since=", json!({"a": 10_000, "b": 20_000})),
        ("other=1", json!({"a": 10_000, "b": 20_000})),
    ] {
        let response: Value = serde_json::from_str(&get(&lifecycle, Some(query)).1).unwrap();
        assert_eq!(response["entries"], entries, "{query}");
    }
    for query in ["since=x", "since=-1", "since=1.5", "since=99999999999999999999"] {
        assert_eq!(get(&lifecycle, Some(query)).0, 400, "{query}");
    }
}

#[test]
fn other_routes_and_methods_belong_to_others() {
    let lifecycle = Testbed::new().build();
    for route in ROUTES {
        assert_eq!(lifecycle.admin(&Method::GET, route, None, b""), None);
    }
    for (method, path) in [
        (Method::POST, "/admin/last_active"),
        (Method::GET, "/admin/healthz"),
        (Method::GET, "/admin/nothing"),
        (Method::POST, "/admin/state/"),
    ] {
        assert_eq!(lifecycle.admin(&method, path, None, b"{}"), None);
    }
}
