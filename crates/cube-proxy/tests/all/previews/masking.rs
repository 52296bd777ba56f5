//! A ticket that opens nothing tells nothing of the sandbox.

use cube_route::Port;
use cube_route::preview::TicketPort;
use cube_testkit::serde_json::json;
use cube_testkit::{By, Env, Origin, Response, Sandbox};

use super::*;
use crate::support::{own, with_tls};

/// Every way in which a ticket can be wrong for a sandbox: the parameter and the cookie.
fn wrong(sandbox: &Sandbox, other: &Sandbox) -> Vec<(&'static str, String)> {
    let day = 86_400;
    let good = ticket(sandbox);
    let mut forged = good.clone();
    forged.replace_range(good.len() - 5..good.len() - 1, "AAAA");
    let of = |port| ticket_of(TOKEN, sandbox, port, now() + 60);
    vec![
        ("empty", String::new()),
        ("no ticket", "x".into()),
        ("forged", forged),
        ("escaped", good.replace('.', "%2E")),
        ("foreign", ticket(other)),
        ("long", format!("{good}{}", "A".repeat(200))),
        ("stale key", ticket_for("example-token-of-before", sandbox, 60)),
        ("wrong port", of(TicketPort::One(Port::new(8081).unwrap()))),
        ("envd's port", of(TicketPort::One(Port::ENVD))),
        ("lives too long", ticket_for(TOKEN, sandbox, day + 120)),
        ("long expired", ticket_for(TOKEN, sandbox, -day - 10)),
    ]
}

async fn same(
    env: &Env,
    by: By,
    pair: [&Sandbox; 2],
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
) -> Response {
    let mut all = vec![("X-Cube-Request-Id", "the-same")];
    all.extend_from_slice(headers);
    let refused = env.call(by, pair[0], method, target, &all, "").await;
    let missing = env.call(by, pair[1], method, target, &all, "").await;
    // What names the sandbox is the request's own.
    let text = |response: &Response, sandbox: &Sandbox| {
        let (head, body) = response.identity();
        let body = String::from_utf8(body).unwrap();
        (head.replace(&sandbox.id, "ID"), body.replace(&sandbox.id, "ID"))
    };
    assert_eq!(text(&refused, pair[0]), text(&missing, pair[1]), "{by:?} {method} {target} {headers:?}");
    refused
}

/// Ids of one length, so that not even lengths differ.
async fn pair(env: &Env, origin: &Origin) -> (Sandbox, Sandbox) {
    let private = env.sandbox(origin).token(TOKEN).await;
    let mut unknown = private.clone();
    unknown.id.replace_range(0..1, "u");
    (private, unknown)
}

async fn all_look_like_an_unknown_sandbox(env: &Env, login: bool) {
    let origin = Origin::echo().await;
    let (private, unknown) = pair(env, &origin).await;
    let other = env.sandbox(&origin).token("example-token-of-another").await;
    for (what, ticket) in wrong(&private, &other) {
        let doubled = format!("{ticket}&cube_preview={ticket}");
        let cookie = format!("cube-preview={ticket}; cube-preview={ticket}");
        for by in By::ALL {
            for navigation in [false, true] {
                let shown: &[(&str, &str)] = if navigation { &NAVIGATION } else { &[] };
                for presented in [&ticket, &doubled] {
                    let target = with("/p?q", presented);
                    let refused = same(env, by, [&private, &unknown], "GET", &target, shown).await;
                    // A ticket in the query is answered as itself, login page or none.
                    assert_eq!(refused.retcode(), Some(310_507), "{what}");
                }
                let mut headers = shown.to_vec();
                headers.push(("Cookie", &cookie));
                headers.push(("Sec-Fetch-Site", "same-origin"));
                let refused = same(env, by, [&private, &unknown], "GET", "/p?q", &headers).await;
                let want = if login && navigation { 310_302 } else { 310_507 };
                assert_eq!(refused.retcode(), Some(want), "{what} {by:?} {navigation}");
            }
            for method in ["POST", "HEAD"] {
                same(env, by, [&private, &unknown], method, &with("/p", &ticket), &[]).await;
            }
        }
    }
    assert_eq!(origin.count(), 0);
    assert!(counted(env, "wrong").await > 100.0);
}

#[tokio::test]
async fn a_wrong_ticket_is_byte_for_byte_an_unknown_sandbox() {
    all_look_like_an_unknown_sandbox(&own(json!({})).await, false).await;
}

#[tokio::test]
async fn a_wrong_ticket_is_byte_for_byte_an_unknown_sandbox_where_people_log_in() {
    let login = json!({ "previews": { "login_url": "https://platform.example/login?to={path}&h={host}" } });
    all_look_like_an_unknown_sandbox(&own(login).await, true).await;
}

#[tokio::test]
async fn a_wrong_ticket_is_an_unknown_sandbox_over_http_2() {
    for login in [None, Some("https://platform.example/login?s={sandbox}&p={port}")] {
        let tls = with_tls(&json!({ "previews": { "login_url": login } })).await;
        let origin = Origin::echo().await;
        let (private, unknown) = pair(&tls.env, &origin).await;
        let other = tls.env.sandbox(&origin).token("example-token-of-another").await;
        let h2 = tls.h2().await;
        for (what, ticket) in wrong(&private, &other) {
            let cookie = format!("__Host-cube-preview={ticket}");
            for (target, headers) in [
                (with("/p", &ticket), &[NAVIGATION[0]][..]),
                (with("/p", &ticket), &[]),
                ("/p".into(), &[NAVIGATION[0], ("cookie", cookie.as_str())]),
                ("/p".into(), &[("sec-fetch-site", "same-origin"), ("cookie", cookie.as_str())]),
            ] {
                let mut seen = Vec::new();
                for sandbox in [&private, &unknown] {
                    let response = h2.get(&sandbox.host(), &target, headers).await;
                    let kept = response
                        .headers
                        .pairs()
                        .iter()
                        .filter(|(name, _)| !["date", "x-cube-request-id"].contains(&name.as_str()));
                    let fields: Vec<String> = kept
                        .map(|(name, value)| format!("{name}: {}", value.replace(&sandbox.id, "ID")))
                        .collect();
                    let text =
                        response.text().replace(&sandbox.id, "ID").replace(&response.request_id(), "REQUEST");
                    seen.push((response.status, fields, text));
                }
                assert_eq!(seen[0], seen[1], "{what} {target} {headers:?}");
            }
        }
        assert_eq!(origin.count(), 0);
    }
}

/// A record without a token, or with one that could be guessed from a ticket, takes none.
#[tokio::test]
async fn a_sandbox_without_a_proper_token_takes_no_ticket() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let short = env.sandbox(&origin).token("example-15bytes").await;
    env.get(&short, &with("/", &ticket_for("example-15bytes", &short, 60))).await.is_not_found();
    env.get_with(&short, "/", &[(E2B, "example-15bytes")]).await.passed(200);
    let closed = env.sandbox(&origin).field("AllowPublicTraffic", "false").await;
    env.get(&closed, &with("/", &ticket_for("", &closed, 60))).await.is_not_found();
}

#[tokio::test]
async fn any_opens_every_port_but_envds() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env
        .sandbox(&origin)
        .token(TOKEN)
        .field("3000", &origin.port().to_string())
        .field("49983", &origin.port().to_string())
        .await;
    let any = with("/", &ticket_of(TOKEN, &sandbox, TicketPort::Any, now() + 60));
    for (port, right) in [(8080, true), (3000, true), (49983, false)] {
        let response = env.get(&sandbox.at_port(port), &any).await;
        assert_eq!(response.status, if right { 200 } else { 404 }, "{port}");
    }
}
