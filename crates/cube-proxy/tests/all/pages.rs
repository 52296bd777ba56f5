//! What a browser shows where the proxy responds itself (errors.md, "Browsers that meet an error").

use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::{By, Env, Origin, Response, Sandbox};

use crate::support::{browser, cube, own};

const NAVIGATION: [(&str, &str); 2] =
    [("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")];

async fn navigate(env: &Env, sandbox: &Sandbox) -> Response {
    env.get_with(sandbox, "/", &NAVIGATION).await
}

/// The page, with what differs from request to request taken out.
fn page(response: &Response) -> String {
    assert_eq!(response.headers.all("content-type"), ["text/html; charset=utf-8"], "{}", response.brief());
    let policy = ["default-src 'none'; style-src 'unsafe-inline'"];
    assert_eq!(response.headers.all("content-security-policy"), policy);
    assert_eq!(response.headers.all("content-length"), [response.body.len().to_string()]);
    let id = response.request_id();
    assert!(response.text().contains(&id), "no request id in {}", response.text());
    response.text().replace(&id, "ID")
}

#[tokio::test]
async fn a_refused_navigation_gets_the_page_of_an_unknown_sandbox() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let private = env.sandbox(&origin).token("example-token").await;
    let refused = navigate(env, &private).await;
    let nobody = env.nobody();
    let unknown = navigate(env, &nobody).await;
    for response in [&refused, &unknown] {
        assert_eq!((response.status, response.retcode()), (404, Some(310_507)), "{}", response.brief());
    }
    assert_eq!(page(&refused).replace(&private.id, "BOX"), page(&unknown).replace(&nobody.id, "BOX"));
    assert!(page(&unknown).contains("<h1>This sandbox was not found</h1>"));
    assert_eq!(origin.count(), 0);
}

/// A script that fetches, a form that was sent, a request of an API: each gets what it can use.
#[tokio::test]
async fn only_a_navigation_gets_a_page_and_only_get_reloads() {
    let env = cube().await;
    let nobody = env.nobody();
    for headers in [
        &[("Sec-Fetch-Mode", "cors"), NAVIGATION[1]][..],
        &[NAVIGATION[1], ("X-Requested-With", "XMLHttpRequest")],
        &[("Accept", "application/json, text/html")],
    ] {
        env.get_with(&nobody, "/", headers).await.is_not_found();
    }
    let origin = Origin::echo().await;
    let paused = env.sandbox(&origin).await;
    env.push(&paused, "paused").await;
    let shown = navigate(env, &paused).await;
    assert_eq!((shown.status, shown.retcode()), (503, Some(310_503)));
    assert!(page(&shown).contains("<meta http-equiv=\"refresh\" content=\"5\">"));
    let posted = env.call(By::Host, &paused, "POST", "/", &NAVIGATION, "x").await;
    assert!(!page(&posted).contains("http-equiv=\"refresh\""));
}

/// Somebody looks at a sandbox that is paused: the browser shows the page, and the application as
/// soon as the sandbox runs, without anybody's help.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_waits_on_the_page_until_the_sandbox_runs() {
    for dialect in ["cube", "e2b"] {
        let env = own(json!({ "errors": { "dialect": dialect } })).await;
        let html = [("Content-Type", "text/html")];
        let origin = Origin::replying(200, &html, "<!doctype html><title>app</title>").await;
        let sandbox = env.sandbox(&origin).await;
        env.push(&sandbox, "paused").await;
        let url = format!("http://8080-{}.cube.localhost:{}/", sandbox.id, env.proxy.http().port());
        let _browser = browser(&url);
        // More than once: it has reloaded by itself.
        browsed("the page, twice", || env.proxy.access_log().matches("||310503||").count() > 1).await;
        assert_eq!(origin.count(), 0, "{dialect}");
        env.push(&sandbox, "running").await;
        browsed("the application", || origin.count() > 0).await;
    }
}

/// Waits until a browser, which may take its time to start, has seen it.
async fn browsed(what: &str, seen: impl Fn() -> bool) {
    let begin = Instant::now();
    while !seen() {
        assert!(begin.elapsed() < Duration::from_secs(90), "no browser saw {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
