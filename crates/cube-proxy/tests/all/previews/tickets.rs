//! What a right ticket does, what an expired one, and that none goes any further.

use cube_testkit::serde_json::json;
use cube_testkit::{By, Origin, eventually, scripts};

use super::*;
use crate::support::{cube, own, tls, waking, with_tls};

#[tokio::test]
async fn a_ticket_in_a_query_opens_a_sandbox_in_every_form_and_goes_no_further() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let ticket = ticket(&sandbox);
    for by in By::ALL {
        let referer = format!("http://{}{}", sandbox.host(), with("/page?x", &ticket));
        let cookies =
            format!("a=1; cube-preview={ticket}; b=2; __Host-cube-preview=x; __Secure-cube-preview=y");
        let headers = [("Referer", referer.as_str()), ("Cookie", &cookies)];
        let target = format!("/p?a=%20&cube_preview={ticket}&&b");
        let response = env.call(by, &sandbox, "GET", &target, &headers, "").await;
        let seen = response.passed(200).seen();
        assert_eq!(seen.target, "/p?a=%20&&b", "{by:?}");
        assert_eq!(seen.headers.all("cookie"), ["a=1; b=2"]);
        assert_eq!(seen.headers.all("referer"), [format!("http://{}/page?x", sandbox.host())]);
        assert_eq!(response.headers.all("cache-control"), ["private"]);
        assert_eq!(response.headers.all("set-cookie"), [""; 0]);
        let line = env.proxy.log_line(&response.request_id()).await;
        assert!(line.field("request_uri").ends_with("/p?a=%20&cube_preview=-&&b"), "{}", line.text);
        assert!(!line.text.contains(&ticket));
    }
    let posted = env.call(By::Host, &sandbox, "POST", &with("/", &ticket), &[], "body").await;
    assert_eq!(posted.passed(200).seen().body, b"body");
    assert!(!env.proxy.output().contains(&ticket) && !env.proxy.metrics_text().await.contains(&ticket));
    assert!(counted(env, "query").await >= 4.0);
}

#[tokio::test]
async fn a_ticket_opens_a_sandbox_over_http_2() {
    let tls = tls().await;
    let origin = Origin::echo().await;
    let sandbox = tls.env.sandbox(&origin).token(TOKEN).await;
    let (h2, ticket) = (tls.h2().await, ticket(&sandbox));
    let seen = h2.get(&sandbox.host(), &with("/p?a", &ticket), &[]).await.passed(200).seen();
    assert_eq!(seen.target, "/p?a");
    let shown = h2.get(&sandbox.host(), &with("/p?a", &ticket), &NAVIGATION).await;
    assert_eq!((shown.status, shown.retcode()), (303, Some(310_303)), "{}", shown.brief());
    let crumbs = [("cookie", "a=1"), ("cookie", &cookie(&shown)), ("cookie", "b=2"), NAVIGATION[0]];
    let seen = h2.get(&sandbox.host(), "/p?a", &crumbs).await.passed(200).seen();
    assert_eq!(seen.headers.all("cookie"), ["a=1; b=2"]);
}

/// The parameter is taken out and the cookies are, whatever they are worth and whatever lets the request in.
#[tokio::test]
async fn a_ticket_that_is_not_needed_is_taken_out_all_the_same() {
    let env = own(json!({
        "routing": { "forward_credentials": true }, "traffic_token": { "exempt_ports": [9000] },
    }))
    .await;
    let origin = Origin::echo().await;
    let public = env.sandbox(&origin).await;
    let private = env.sandbox(&origin).token(TOKEN).await;
    let exempt = env.sandbox(&origin).token(TOKEN).port(9000).await;
    for (sandbox, token) in [(&public, None), (&private, Some((E2B, TOKEN))), (&exempt, None)] {
        for given in ["", "=", "=x", "=x&cube_preview=y"] {
            let mut headers = NAVIGATION.to_vec();
            headers.push(("Cookie", "cube-preview=z"));
            headers.extend(token);
            let target = format!("/p?cube_preview{given}");
            let response = env.get_with(sandbox, &target, &headers).await;
            let seen = response.passed(200).seen();
            assert_eq!(seen.target, "/p");
            assert_eq!(seen.headers.all("cookie"), [""; 0]);
        }
    }
    // The header is judged alone: a right ticket beside a wrong token opens nothing.
    let right = with("/", &ticket(&private));
    env.get_with(&private, &right, &[(E2B, "wrong")]).await.is_not_found();
    env.get_with(&private, &right, &[(E2B, "")]).await.is_not_found();
}

#[tokio::test]
async fn a_navigation_with_a_ticket_gets_a_cookie_and_the_same_without_it() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let ticket = ticket(&sandbox);
    for (target, location) in [
        ("/", "/"),
        ("/p%2F?a=%20", "/p%2F?a=%20"),
        ("//evil.example/x", "/.//evil.example/x"),
        ("/\\evil.example", "/./\\evil.example"),
    ] {
        let shown = env.get_with(&sandbox, &with(target, &ticket), &NAVIGATION).await;
        assert_eq!((shown.status, shown.retcode()), (303, Some(310_303)), "{}", shown.brief());
        assert_eq!(shown.headers.all("location"), [location]);
        assert_eq!(shown.headers.all("cache-control"), ["no-store"]);
        assert_eq!(shown.headers.all("referrer-policy"), ["no-referrer"]);
        assert_eq!(shown.headers.all("content-length"), ["0"]);
        let line = env.proxy.log_line(&shown.request_id()).await;
        assert_eq!((line.field("retcode"), line.field("reason")), ("310303", "preview_redirect"));
    }
    let shown = env.get_with(&sandbox, &with("/", &ticket), &NAVIGATION).await;
    let all = shown.headers.all("set-cookie");
    let (given, rest) = all[0].split_once(';').unwrap();
    assert_eq!(given, format!("cube-preview={ticket}"));
    let age: u64 = rest.split("Max-Age=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    assert!((590..=600).contains(&age), "{age}");
    assert_eq!(rest, format!(" Path=/; Max-Age={age}; HttpOnly; SameSite=Lax"));
    assert_eq!(origin.count(), 0);

    let cookie = ("Cookie", given);
    let response = env.get_with(&sandbox, "/x?y", &[cookie, NAVIGATION[0]]).await;
    let seen = response.passed(200).seen();
    assert_eq!((seen.target.as_str(), seen.headers.all("cookie").len()), ("/x?y", 0));
    assert_eq!(response.headers.all("content-security-policy"), ["frame-ancestors 'self'"]);
    assert_eq!(response.headers.all("cache-control"), ["private"]);
    assert!(counted(env, "redirected").await >= 1.0 && counted(env, "cookie").await >= 1.0);
    // Elsewhere, the cookie of one sandbox is a wrong one.
    let other = env.sandbox(&origin).token(TOKEN).await;
    env.get_with(&other, "/", &[cookie, ("Sec-Fetch-Site", "same-origin")]).await.is_not_found();
}

#[tokio::test]
async fn over_tls_the_cookie_is_the_hosts_own_and_no_other_is_read() {
    let tls = tls().await;
    let origin = Origin::echo().await;
    let sandbox = tls.env.sandbox(&origin).token(TOKEN).await;
    let (ticket, host) = (ticket(&sandbox), ("Host", sandbox.host()));
    let host = (host.0, host.1.as_str());
    let headers = [host, NAVIGATION[0]];
    let shown = tls.h1().await.call("GET", &with("/", &ticket), &headers, "").await;
    let all = shown.headers.all("set-cookie");
    assert!(all[0].starts_with(&format!("__Host-cube-preview={ticket}; Path=/; Max-Age=")), "{}", all[0]);
    assert!(all[0].ends_with("; HttpOnly; Secure; SameSite=None; Partitioned"), "{}", all[0]);
    for (name, right) in
        [("__Host-cube-preview", true), ("__Secure-cube-preview", false), ("cube-preview", false)]
    {
        let cookie = format!("{name}={ticket}");
        let response = tls.h1().await.call("GET", "/", &[host, NAVIGATION[0], ("Cookie", &cookie)], "").await;
        assert_eq!(response.status, if right { 200 } else { 404 }, "{name}");
    }
    // Of several, the first four are judged.
    for (wrong, right) in [(3, true), (4, false)] {
        let cookies = "__Host-cube-preview=x; ".repeat(wrong) + &format!("__Host-cube-preview={ticket}");
        let response =
            tls.h1().await.call("GET", "/", &[host, NAVIGATION[0], ("Cookie", &cookies)], "").await;
        assert_eq!(response.status, if right { 200 } else { 404 }, "{wrong}");
    }
}

/// A trusted proxy in front ends TLS.
#[tokio::test]
async fn behind_a_trusted_proxy_its_scheme_counts() {
    let env = own(json!({ "routing": { "trusted_proxies": ["127.0.0.1/32"] } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let target = with("/", &ticket(&sandbox));
    for (proto, name) in [("https", "__Host-cube-preview="), ("http", "cube-preview=")] {
        let shown = env.get_with(&sandbox, &target, &[("X-Forwarded-Proto", proto), NAVIGATION[0]]).await;
        assert!(cookie(&shown).starts_with(name), "{proto}: {}", shown.brief());
    }
}

/// In the path form sandboxes share one origin, where no cookie is safe.
#[tokio::test]
async fn the_path_and_the_header_form_set_no_cookie_and_read_none() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let ticket = ticket(&sandbox);
    let cookies =
        format!("cube-preview={ticket}; __Secure-cube-preview={ticket}; __Host-cube-preview={ticket}");
    for by in [By::Path, By::Header] {
        let shown = env.call(by, &sandbox, "GET", &with("/x", &ticket), &NAVIGATION, "").await;
        assert_eq!(shown.passed(200).seen().target, "/x");
        assert_eq!(shown.headers.all("set-cookie"), [""; 0]);
        let headers = [("Cookie", cookies.as_str()), ("Sec-Fetch-Site", "same-origin")];
        env.call(by, &sandbox, "GET", "/", &headers, "").await.is_not_found();
    }
    // The redirect to the slash takes the ticket along.
    let bare = env.call(By::Path, &sandbox, "GET", &format!("?cube_preview={ticket}"), &NAVIGATION, "").await;
    assert_eq!(bare.headers.all("location"), [format!("{}/?cube_preview={ticket}", sandbox.prefix())]);
}

#[tokio::test]
async fn with_path_cookie_the_path_form_has_one_below_its_prefix() {
    let tls = with_tls(&json!({ "previews": { "path_cookie": true } })).await;
    let origin = Origin::echo().await;
    let sandbox = tls.env.sandbox(&origin).token(TOKEN).await;
    let target = format!("/sandbox/{}/8080/x", sandbox.id.to_uppercase());
    let (ticket, host) = (ticket(&sandbox), ("Host", "shared.cube.test"));
    let shown = tls.h1().await.call("GET", &with(&target, &ticket), &[host, NAVIGATION[0]], "").await;
    assert_eq!(shown.headers.all("location"), [target.as_str()]);
    let all = shown.headers.all("set-cookie");
    let path = format!("; Path={};", target.strip_suffix("/x").unwrap());
    assert!(all[0].starts_with("__Secure-cube-preview=") && all[0].contains(&path), "{}", all[0]);
    let headers = [host, NAVIGATION[0], ("Cookie", &cookie(&shown))];
    tls.h1().await.call("GET", &target, &headers, "").await.passed(200);
    let shown = tls.env.call(By::Path, &sandbox, "GET", &with("/", &ticket), &NAVIGATION, "").await;
    assert!(cookie(&shown).starts_with("cube-preview="));
}

#[tokio::test]
async fn without_cookies_a_navigation_is_forwarded_at_once() {
    let env = own(json!({ "previews": { "cookie": false } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let shown = env.get_with(&sandbox, &with("/x", &ticket(&sandbox)), &NAVIGATION).await;
    assert_eq!(shown.passed(200).seen().target, "/x");
    assert_eq!(shown.headers.all("set-cookie"), [""; 0]);
}

#[tokio::test]
async fn switched_off_no_ticket_opens_anything_and_all_are_taken_out() {
    let env = own(json!({ "previews": { "enabled": false } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let ticket = ticket(&sandbox);
    env.get(&sandbox, &with("/", &ticket)).await.is_not_found();
    let cookie = format!("cube-preview={ticket}");
    env.get_with(&sandbox, "/", &[("Cookie", &cookie), ("Sec-Fetch-Site", "same-origin")])
        .await
        .is_not_found();
    let seen = env.get_with(&sandbox, &with("/x", &ticket), &[(E2B, TOKEN), ("Cookie", &cookie)]).await;
    let seen = seen.passed(200).seen();
    assert_eq!((seen.target.as_str(), seen.headers.all("cookie").len()), ("/x", 0));
    // And on again, without a restart.
    env.proxy.reconfigure(&json!({ "previews": { "enabled": true } })).await;
    env.get(&sandbox, &with("/", &ticket)).await.passed(200);
}

#[tokio::test]
async fn a_ticket_that_has_expired_is_told_so_and_wakes_nobody() {
    for dialect in ["cube", "e2b"] {
        let env = own(json!({ "errors": { "dialect": dialect } })).await;
        let origin = Origin::echo().await;
        let sandbox = env.sandbox(&origin).token(TOKEN).await;
        let expired = with("/", &ticket_for(TOKEN, &sandbox, -5));
        let told = env.get(&sandbox, &expired).await;
        assert_eq!((told.status, told.retcode()), (403, Some(310_403)), "{}", told.brief());
        if dialect == "cube" {
            assert_eq!(told.text(), "{\"error\":\"forbidden\"}\n");
        } else {
            assert!(told.text().contains("\"message\":\"This preview link has expired\""), "{}", told.text());
        }
        let line = env.proxy.log_line(&told.request_id()).await;
        assert_eq!((line.field("retcode"), line.field("reason")), ("310403", "preview_expired"));
        let shown = env.get_with(&sandbox, &expired, &NAVIGATION).await;
        assert_eq!(shown.status, 403);
        assert!(shown.text().contains("<h1>This preview link has expired</h1>"), "{}", shown.text());
        let cookie = format!("cube-preview=x; cube-preview={}", ticket_for(TOKEN, &sandbox, -5));
        let shown = env.get_with(&sandbox, "/", &[("Cookie", &cookie), NAVIGATION[0]]).await;
        assert_eq!((shown.status, shown.retcode()), (403, Some(310_403)), "{}", shown.brief());
        // A right one beside it counts.
        let cookie = format!("{cookie}; cube-preview={}", ticket(&sandbox));
        env.get_with(&sandbox, "/", &[("Cookie", &cookie), NAVIGATION[0]]).await.passed(200);
        assert_eq!(origin.count(), 1);
        assert_eq!(counted(&env, "expired").await, 3.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_redirect_wakes_nothing_and_what_follows_does() {
    let env = waking().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    env.push(&sandbox, "paused").await;
    let before = env.manager.calls(&sandbox).len();
    let shown = env.get_with(&sandbox, &with("/", &ticket(&sandbox)), &NAVIGATION).await;
    assert_eq!(shown.status, 303);
    let expired = env.get(&sandbox, &with("/", &ticket_for(TOKEN, &sandbox, -5))).await;
    assert_eq!(expired.status, 403);
    assert_eq!(env.manager.calls(&sandbox).len(), before);
    let cookie = cookie(&shown);
    env.get_with(&sandbox, "/", &[("Cookie", &cookie), NAVIGATION[0]]).await.passed(200);
    assert_eq!(env.manager.calls(&sandbox).len(), before + 1);
}

/// Who was let in stays in, until a kill; who comes later needs a link of the new token.
#[tokio::test]
async fn a_changed_token_ends_all_links_and_no_stream_and_a_kill_ends_both() {
    let env = cube().await;
    let origin = Origin::scripted(|exchange| async move {
        match exchange.request.target.as_str() {
            "/ws" => scripts::websocket(exchange).await,
            _ => scripts::echo(exchange).await,
        }
    })
    .await;
    let sandbox = env.sandbox(&origin).token(TOKEN).await;
    let old = ticket(&sandbox);
    let cookie = format!("cube-preview={old}");
    let own_origin = format!("http://{}", sandbox.host());
    let by_cookie = [("Cookie", cookie.as_str()), ("Origin", own_origin.as_str())];
    let mut streams = Vec::new();
    for (target, headers) in [(with("/ws", &old), &[][..]), ("/ws".to_owned(), &by_cookie[..])] {
        streams.push(env.websocket(By::Host, &sandbox, &target, headers).await.expect("a 101"));
    }
    env.write(&sandbox, &[("TrafficAccessToken", "example-token-that-is-new")]).await;
    eventually("the end of the link", || async {
        (env.get(&sandbox, &with("/", &old)).await.status == 404).then_some(())
    })
    .await;
    env.get_with(&sandbox, "/", &by_cookie).await.is_not_found();
    for refused in [with("/ws", &old), "/ws".to_owned()] {
        assert!(env.websocket(By::Host, &sandbox, &refused, &by_cookie).await.is_err(), "{refused}");
    }
    let new = with("/", &ticket_for("example-token-that-is-new", &sandbox, 60));
    env.get(&sandbox, &new).await.passed(200);
    for stream in &mut streams {
        assert_eq!(stream.say("still").await, "still");
    }
    env.push(&sandbox, "killed").await;
    for mut stream in streams {
        let last = stream.next().await;
        assert!(last.as_ref().is_none_or(Result::is_err), "no clean end: {last:?}");
    }
    // Whose ticket is right learns of it.
    assert_eq!(env.get(&sandbox, &new).await.retcode(), Some(310_410));
    env.get(&sandbox, &with("/", &old)).await.is_not_found();
}

#[tokio::test]
async fn a_sandbox_cannot_set_a_tickets_cookie() {
    let env = cube().await;
    let headers = [
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "cube-preview=x; Path=/"),
        ("Set-Cookie", " __Host-cube-preview =x; Path=/; Secure"),
        ("Set-Cookie", "=__Secure-cube-preview=x"),
        ("Set-Cookie", "b=2; Path=/"),
    ];
    let origin = Origin::replying(200, &headers, "x").await;
    let sandbox = env.sandbox(&origin).await;
    for by in By::ALL {
        let response = env.call(by, &sandbox, "GET", "/", &[], "").await;
        let all = response.passed(200).headers.all("set-cookie");
        assert_eq!(all.len(), 2, "{by:?} {all:?}");
        assert!(all[0].starts_with("a=1") && all[1].starts_with("b=2"), "{all:?}");
    }
}

/// What is private or not stored already stays as it says.
#[tokio::test]
async fn a_response_to_a_ticket_is_private() {
    let env = cube().await;
    for (own, want) in [
        (&[][..], &["private"][..]),
        (&["max-age=60"], &["max-age=60", "private"]),
        (&["public, s-maxage=9"], &["public, s-maxage=9", "private"]),
        (&["private, max-age=60"], &["private, max-age=60"]),
        (&["No-Store"], &["No-Store"]),
        (&["private=\"set-cookie\""], &["private=\"set-cookie\"", "private"]),
    ] {
        let headers: Vec<_> = own.iter().map(|value| ("Cache-Control", *value)).collect();
        let origin = Origin::replying(200, &headers, "x").await;
        let sandbox = env.sandbox(&origin).token(TOKEN).await;
        let response = env.get(&sandbox, &with("/", &ticket(&sandbox))).await;
        assert_eq!(response.passed(200).headers.all("cache-control"), want);
        let response = env.get_with(&sandbox, "/", &[(E2B, TOKEN)]).await;
        assert_eq!(response.passed(200).headers.all("cache-control"), own);
    }
}
