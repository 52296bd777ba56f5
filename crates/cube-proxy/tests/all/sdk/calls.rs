//! Every call of an SDK does what it does without a proxy.

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{Envd, LOG_FIELDS};

use super::{Flavour, Place, Way};

/// What becomes of each step of the `calls` scripts.
fn expected() -> Vec<(&'static str, Value)> {
    let is = |value: Value| json!({ "ok": value });
    vec![
        ("running", is(json!([true, true]))),
        ("write", is(json!(["a b.txt", "file", "/tmp/a b.txt"]))),
        ("read", is(json!(["hello", "hello"]))),
        ("missing", json!({ "error": "FileNotFound" })),
        ("stream", is(json!(true))),
        ("gzip", is(json!([true, true]))),
        ("empty", is(json!(["", 0]))),
        ("large", is(json!([50_000_000, true]))),
        ("many", is(json!(["/tmp/many/0", "/tmp/many/1", "/tmp/many/2"]))),
        ("listed", is(json!([["0", "file"], ["1", "file"], ["2", "file"]]))),
        ("exists", is(json!([true, false]))),
        ("info", is(json!(["a b.txt", "file", 5]))),
        ("directories", is(json!([[true, false], "/tmp/newer", false]))),
        ("foreground", is(json!([0, "out\n", "err\n"]))),
        ("failing", json!({ "error": "CommandExit" })),
        ("callback", is(json!(["1\n", "2\n", "3\n"]))),
        ("much", is(json!(4 * 1024 * 1024))),
        ("background", is(json!([true, "early\nlate\n"]))),
        ("stdin", is(json!([["one", "two"], "onetwo"]))),
        ("stream_input", is(json!("abc"))),
        ("attach", is(json!(["both", "both"]))),
        ("kill", is(json!([true, ["CommandExit", -1], false]))),
        ("timeout", json!({ "error": "Timeout" })),
        ("parallel", is(json!(20))),
        ("watch", is(json!(["new", "create"]))),
    ]
}

async fn every_call(flavour: Flavour, way: Way) {
    let place = Place::new(way, &json!({})).await;
    let envd = Envd::start().await;
    let sandbox = place.sandbox(&envd).await;
    let results = place.run(flavour, "calls", std::slice::from_ref(&sandbox.id)).await;
    let mut wrong = Vec::new();
    for (step, expected) in expected() {
        // The JavaScript SDK has no such call.
        if step == "stream_input" && flavour == Flavour::JavaScript {
            continue;
        }
        let mut result = results.of(step);
        if expected.get("error").is_some()
            && let Some(result) = result.as_object_mut()
        {
            result.remove("message");
        }
        if result != expected {
            wrong.push(format!("{step}: {} instead of {expected}", results.of(step)));
        }
    }
    assert!(wrong.is_empty(), "{flavour:?} by {way:?}:\n{}", wrong.join("\n"));
    assert_eq!(envd.file("/tmp/large").map(|file| file.len()), Some(50_000_000));
    protocols_are_right(&place, flavour, way);
    // The SDK's own key of the sandbox reaches it, the headers that name it do not.
    let seen = envd.origin().last().headers;
    assert_eq!(seen.all("X-Access-Token"), ["example-envd-token"]);
    assert!(!seen.has("E2b-Sandbox-Id") && !seen.has("E2b-Sandbox-Port"), "{seen:?}");
}

/// The protocol that each request came by, out of the access log.
fn protocols_are_right(place: &Place, flavour: Flavour, way: Way) {
    let log = place.env.proxy.access_log();
    let field = |line: &str, name: &str| {
        let at = LOG_FIELDS.iter().position(|field| *field == name).unwrap();
        line.split("||").nth(at).unwrap_or_default().to_owned()
    };
    let mut by_h2 = 0;
    for line in log.lines() {
        // The Python SDK pins downloads to HTTP/1.1 itself.
        let download = field(line, "method") == "GET" && field(line, "uri").starts_with("/files");
        let h1 = way != Way::Hosts || (download && flavour != Flavour::JavaScript);
        let wanted = if h1 { "HTTP/1.1" } else { "HTTP/2.0" };
        assert_eq!(field(line, "protocol"), wanted, "{line}");
        by_h2 += usize::from(!h1);
    }
    assert!(way != Way::Hosts || by_h2 >= 50, "{by_h2} requests by HTTP/2");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_over_plain_http() {
    every_call(Flavour::PythonSync, Way::Headers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_async_with_everything_at_one_address() {
    every_call(Flavour::PythonAsync, Way::OneAddress).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_over_tls_and_http_2() {
    every_call(Flavour::PythonSync, Way::Hosts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_async_over_tls_and_http_2() {
    every_call(Flavour::PythonAsync, Way::Hosts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_over_plain_http() {
    every_call(Flavour::JavaScript, Way::Headers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_with_everything_at_one_address() {
    every_call(Flavour::JavaScript, Way::OneAddress).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_over_tls_and_http_2() {
    every_call(Flavour::JavaScript, Way::Hosts).await;
}
