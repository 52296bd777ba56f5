//! What another site makes a browser send (previews.md, "Cross-site requests"): the rules in full are in
//! `cube_route::preview::cross_site`.

use cube_testkit::serde_json::json;
use cube_testkit::{By, Origin, scripts};

use super::*;
use crate::support::{cube, own};

#[tokio::test]
async fn a_cookie_counts_only_where_the_request_is_the_sandboxs_own() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let cookie = format!("cube-preview={}", ticket(&sandbox));
    let own_origin = format!("http://{}", sandbox.host());
    let sibling = "http://8080-evil.cube.test";
    for (method, headers, right) in [
        ("GET", &[NAVIGATION[0], ("Sec-Fetch-Site", "cross-site")][..], true),
        ("POST", &[NAVIGATION[0], ("Sec-Fetch-Site", "same-site"), ("Origin", sibling)], false),
        ("POST", &[NAVIGATION[0], ("Sec-Fetch-Site", "same-origin"), ("Origin", &own_origin)], true),
        ("GET", &[("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors")], false),
        ("GET", &[("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "cors"), ("Origin", sibling)], false),
        ("GET", &[("Origin", "null")], false),
        ("GET", &[], false),
        ("GET", &[("Referer", &format!("{own_origin}/page"))], true),
        ("GET", &[("Referer", &format!("{sibling}/page"))], false),
    ] {
        let mut all = headers.to_vec();
        all.push(("Cookie", &cookie));
        let response = env.call(By::Host, &sandbox, method, "/", &all, "").await;
        assert_eq!(response.retcode(), Some(if right { 310_200 } else { 310_507 }), "{method} {headers:?}");
        let line = env.proxy.log_line(&response.request_id()).await;
        assert_eq!(line.field("reason"), if right { "ok" } else { "token_missing" });
    }
    assert!(counted(env, "cross_site").await >= 5.0);
    // An expired one is told to its own pages alone.
    let expired = format!("cube-preview={}", ticket_for(TOKEN, &sandbox, -5));
    let of_sibling = [("Cookie", expired.as_str()), ("Origin", sibling)];
    env.get_with(&sandbox, "/", &of_sibling).await.is_not_found();
}

#[tokio::test]
async fn a_websocket_with_a_cookie_needs_the_sandboxs_own_origin() {
    let env = own(json!({ "previews": { "allowed_origins": ["https://platform.example"] } })).await;
    let origin = Origin::scripted(scripts::websocket).await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let ticket = ticket(&sandbox);
    let cookie = ("Cookie", format!("cube-preview={ticket}"));
    let cookie = (cookie.0, cookie.1.as_str());
    let own_origin = format!("http://{}", sandbox.host());
    for (headers, right) in [
        (&[("Origin", own_origin.as_str())][..], true),
        (&[("Origin", "https://platform.example")], true),
        (&[("Origin", "http://8080-evil.cube.test")], false),
        (&[], false),
    ] {
        let mut all = headers.to_vec();
        all.push(cookie);
        let opened = env.websocket(By::Host, &sandbox, "/", &all).await;
        assert_eq!(opened.is_ok(), right, "{headers:?}");
    }
    // With the ticket in its query it needs none.
    let opened =
        env.websocket(By::Host, &sandbox, &with("/", &ticket), &[("Origin", "http://a.example")]).await;
    assert!(opened.is_ok());
}

#[tokio::test]
async fn an_allowed_origin_sends_credentials_and_its_preflight_is_told_so() {
    let env = own(json!({ "previews": {
        "allowed_origins": ["https://platform.example"], "frame_ancestors": ["https://platform.example"],
    } }))
    .await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let platform = ("Origin", "https://platform.example");
    let cookie = format!("cube-preview={}", ticket(&sandbox));
    let headers = [platform, ("Sec-Fetch-Site", "cross-site"), ("Cookie", &cookie)];
    let response = env.call(By::Host, &sandbox, "POST", "/", &headers, "x").await;
    let policy = ["frame-ancestors 'self' https://platform.example"];
    assert_eq!(response.passed(200).headers.all("content-security-policy"), policy);

    let asks = [platform, ("Access-Control-Request-Method", "PUT")];
    let nobody = env.nobody();
    let count = origin.count();
    for named in [&sandbox, &nobody] {
        let told = env.call(By::Host, named, "OPTIONS", "/", &asks, "").await;
        assert_eq!(told.status, 204, "{}", told.brief());
        assert_eq!(told.headers.all("access-control-allow-origin"), ["https://platform.example"]);
        assert_eq!(told.headers.all("access-control-allow-credentials"), ["true"]);
        let other = [("Origin", "https://other.example"), asks[1]];
        let told = env.call(By::Host, named, "OPTIONS", "/", &other, "").await;
        assert_eq!(told.headers.all("access-control-allow-origin"), ["*"]);
        assert_eq!(told.headers.all("access-control-allow-credentials"), [""; 0]);
    }
    assert_eq!(origin.count(), count);
}
