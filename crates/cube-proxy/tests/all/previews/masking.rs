//! A ticket that opens nothing tells nothing of the sandbox.

use cube_route::Port;
use cube_route::preview::TicketPort;
use cube_testkit::serde_json::{Value, json};
use cube_testkit::{By, Env, H2Client, Monitor, Origin, Sandbox, eventually};

use super::*;
use crate::support::{Tls, own, with_tls};

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

/// Which protocol a client speaks: HTTP/1.1 without TLS, HTTP/2 over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Http1,
    Http2,
}

/// A proxy, and how requests go to it.
struct Front {
    tls: Tls,
    h2: H2Client,
    speaks: Speaks,
}

/// All that a client sees of a response but its date: the id that it asked for is written `ID`.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    head: String,
    body: String,
}

impl Front {
    async fn new(speaks: Speaks, previews: Value) -> Self {
        let tls = with_tls(&json!({ "previews": previews })).await;
        let h2 = tls.h2().await;
        Self { tls, h2, speaks }
    }

    /// What a request for `sandbox` gets, and its return code. The request has an id of ours: the response's
    /// would differ.
    async fn ask(
        &self,
        by: By,
        sandbox: &Sandbox,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> (Shown, Option<u32>) {
        let mut all = vec![("x-cube-request-id", "the-same")];
        all.extend_from_slice(headers);
        let env = &self.tls.env;
        let (response, head) = match self.speaks {
            Speaks::Http1 => {
                let response = env.call(by, sandbox, method, target, &all, "").await;
                let head = response.identity().0;
                (response, head)
            }
            Speaks::Http2 => {
                let (target, named) = env.naming(by, sandbox, target);
                let (host, named) = named.split_first().unwrap();
                all.extend(named.iter().map(|(name, value)| (*name, value.as_str())));
                let response = self.h2.bare(method, &host.1, &target, &all).await;
                let fields = response.headers.pairs().iter().filter(|(name, _)| name != "date");
                let head = fields.map(|(name, value)| format!("{name}: {value}\r\n")).collect::<String>();
                let head = format!("{}\r\n{head}", response.status);
                (response, head)
            }
        };
        // What names the sandbox is the request's own.
        let anonymous = |text: &str| text.replace(&sandbox.id, "ID");
        (Shown { head: anonymous(&head), body: anonymous(&response.text()) }, response.retcode())
    }

    /// What both get, which must be the same.
    async fn same(
        &self,
        by: By,
        pair: [&Sandbox; 2],
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Option<u32> {
        let (refused, retcode) = self.ask(by, pair[0], method, target, headers).await;
        let (missing, _) = self.ask(by, pair[1], method, target, headers).await;
        assert_eq!(refused, missing, "{:?} {by:?} {method} {target} {headers:?}", self.speaks);
        retcode
    }
}

/// Ids of one length, so that not even lengths differ.
async fn pair(env: &Env, origin: &Origin) -> (Sandbox, Sandbox) {
    let private = env.sandbox(origin).token(TOKEN).await;
    let mut unknown = private.clone();
    unknown.id.replace_range(0..1, "u");
    (private, unknown)
}

/// A cookie of every name, twice.
fn cookies(ticket: &str) -> String {
    let all = ["cube-preview", "__Host-cube-preview", "__Secure-cube-preview"];
    all.map(|name| format!("{name}={ticket}; {name}={ticket}")).join("; ")
}

async fn all_look_like_an_unknown_sandbox(front: &Front, login: bool, path_cookie: bool) {
    let env = &front.tls.env;
    let origin = Origin::echo().await;
    let (private, unknown) = pair(env, &origin).await;
    let both = [&private, &unknown];
    let other = env.sandbox(&origin).token("example-token-of-another").await;
    let mut asked = 0.0;
    for (what, ticket) in wrong(&private, &other) {
        let doubled = format!("{ticket}&cube_preview={ticket}");
        let escaped_name = format!("{ticket}&%63ube_preview={ticket}");
        let cookies = cookies(&ticket);
        for by in By::ALL {
            for navigation in [false, true] {
                let shown: &[(&str, &str)] = if navigation { &NAVIGATION } else { &[] };
                for presented in [&ticket, &doubled, &escaped_name] {
                    let retcode = front.same(by, both, "GET", &with("/p?q", presented), shown).await;
                    // A ticket in the query is answered as itself, login page or none.
                    assert_eq!(retcode, Some(310_507), "{what} {by:?} {navigation}");
                    asked += 2.0;
                }
                for site in ["same-origin", "cross-site"] {
                    let mut headers = shown.to_vec();
                    headers.extend([("Cookie", cookies.as_str()), ("Sec-Fetch-Site", site)]);
                    let retcode = front.same(by, both, "GET", "/p?q", &headers).await;
                    let want = if login && navigation { 310_302 } else { 310_507 };
                    assert_eq!(retcode, Some(want), "{what} {by:?} {navigation} {site}");
                    let read = by == By::Host || (by == By::Path && path_cookie);
                    // A navigation always passes; what is sent to log in is counted as that.
                    if read && (site == "same-origin" || navigation) && want == 310_507 {
                        asked += 2.0;
                    }
                }
            }
            for method in ["POST", "HEAD"] {
                front.same(by, both, method, &with("/p", &ticket), &[]).await;
                asked += 2.0;
            }
        }
    }
    assert_eq!(origin.count(), 0);
    // Each was judged as a ticket, in the cookies that the form has.
    assert_eq!(counted(env, "wrong").await, asked);
}

const LOGIN: &str = "https://platform.example/login?to={path}&h={host}&s={sandbox}&p={port}";

#[tokio::test]
async fn a_wrong_ticket_is_byte_for_byte_an_unknown_sandbox() {
    let front = Front::new(Speaks::Http1, json!({})).await;
    all_look_like_an_unknown_sandbox(&front, false, false).await;
}

#[tokio::test]
async fn a_wrong_ticket_is_byte_for_byte_an_unknown_sandbox_where_people_log_in() {
    let front = Front::new(Speaks::Http1, json!({ "login_url": LOGIN, "path_cookie": true })).await;
    all_look_like_an_unknown_sandbox(&front, true, true).await;
}

#[tokio::test]
async fn a_wrong_ticket_is_an_unknown_sandbox_over_http_2() {
    let front = Front::new(Speaks::Http2, json!({ "path_cookie": true })).await;
    all_look_like_an_unknown_sandbox(&front, false, true).await;
}

#[tokio::test]
async fn a_wrong_ticket_is_an_unknown_sandbox_over_http_2_where_people_log_in() {
    let front = Front::new(Speaks::Http2, json!({ "login_url": LOGIN })).await;
    all_look_like_an_unknown_sandbox(&front, true, false).await;
}

/// What the store was asked about a sandbox since the last call. The record's first key is left out: the proxy
/// reads that of a record it has in memory now and then, to see that pushes come. Whoever looks a sandbox up
/// asks for all keys at once.
async fn asked_about(monitor: &mut Monitor<'_>, sandbox: &Sandbox) -> Vec<String> {
    let lines = monitor.lines().await;
    let mut asked: Vec<String> = lines
        .iter()
        .filter(|line| line.contains(&sandbox.id) && !line.contains(&sandbox.key()))
        .filter_map(|line| Some(line[line.find('"')?..].replace(&sandbox.id, "ID")))
        .collect();
    asked.sort();
    asked
}

#[tokio::test]
async fn a_wrong_ticket_costs_the_store_what_an_unknown_sandbox_costs() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let other = env.sandbox(&origin).token("example-token-of-another").await;
    let mut sandboxes = Vec::new();
    for _ in 0..2 * wrong(&other, &other).len() {
        sandboxes.push((pair(&env, &origin).await, pair(&env, &origin).await));
    }
    // Pushes come in order: when this one has come, all have.
    let marker = env.nobody();
    env.get(&marker, "/").await.is_not_found();
    env.sandbox_at(([127, 0, 0, 1], 1).into()).id(&marker.id).await;
    eventually("the pushes of before", || async {
        (env.get(&marker, "/").await.status == 502).then_some(())
    })
    .await;
    let mut monitor = env.redis.monitor().await;
    for (at, ((cold, unknown), (cached, of_cached))) in sandboxes.into_iter().enumerate() {
        // A route that is in memory since somebody was let in; then one that nobody has asked for.
        env.get_with(&cached, "/", &[(E2B, TOKEN)]).await.passed(200);
        for (private, unknown) in [(cached, of_cached), (cold, unknown)] {
            let (what, ticket) = &wrong(&private, &other)[at / 2];
            let cookie = format!("cube-preview={ticket}");
            let headers = [("Sec-Fetch-Site", "same-origin"), ("Cookie", cookie.as_str())];
            let (target, headers) =
                if at % 2 == 0 { (with("/", ticket), &[][..]) } else { ("/".to_owned(), &headers[..]) };
            let _ = asked_about(&mut monitor, &private).await;
            for time in ["first", "second"] {
                env.get_with(&private, &target, headers).await.is_not_found();
                let refused = asked_about(&mut monitor, &private).await;
                env.get_with(&unknown, &target, headers).await.is_not_found();
                let missing = asked_about(&mut monitor, &unknown).await;
                assert_eq!(refused, missing, "{what}, {time}");
                assert_eq!(refused.is_empty(), time == "second", "{what}, {time}: {refused:?}");
            }
        }
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
