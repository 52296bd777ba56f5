//! Which sandbox and port a request names (routing.md, "Three ways to name a sandbox").

use cube_testkit::{By, Origin, Sandbox};

use crate::support::{cube, tls};

const TARGETS: [&str; 9] = [
    "/",
    "/a/b?c=d",
    "/a%2Fb/%40/c%20d",
    "//a//b",
    "/../../etc/passwd",
    "/q?b=2&a=1&b=3&c[]=x",
    "/q?b=2&a=%2f&b=3&&=&x",
    "/a[1]/~x;y=,z?u=[::1]",
    "/?",
];

#[tokio::test]
async fn path_and_query_are_byte_exact_in_every_form() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for by in By::ALL {
        for target in TARGETS {
            let response = env.call(by, &sandbox, "GET", target, &[], "").await;
            assert_eq!(response.passed(200).seen().target, target, "{by:?}");
        }
    }
}

#[tokio::test]
async fn the_bare_path_form_reaches_the_root() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for (rest, target) in [("", "/"), ("?x=1", "/?x=1"), ("/", "/")] {
        assert_eq!(env.call(By::Path, &sandbox, "GET", rest, &[], "").await.seen().target, target);
    }
}

#[tokio::test]
async fn a_navigation_to_the_bare_path_form_is_sent_to_the_one_with_a_slash() {
    const NAVIGATES: [(&str, &str); 2] = [("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html")];
    let tls = tls().await;
    let env = &tls.env;
    let origin = Origin::echo().await;
    let open = env.sandbox(&origin).await;
    let closed = env.sandbox(&origin).token("example-token-bare").await;
    let paused = env.sandbox(&origin).await;
    env.push(&paused, "paused").await;
    // All the same, whatever the sandbox is: nothing is told, woken or stamped.
    for sandbox in [&open, &closed, &paused, &env.nobody()] {
        for (rest, want) in [("", "/"), ("?x=1&y=%2F", "/?x=1&y=%2F")] {
            let response = env.call(By::Path, sandbox, "GET", rest, &NAVIGATES, "").await;
            assert_eq!(
                (response.status, response.retcode(), response.text()),
                (302, Some(310_302), String::new())
            );
            assert_eq!(response.headers.all("location"), [format!("{}{want}", sandbox.prefix())]);
            assert_eq!(response.headers.all("cache-control"), ["no-store"]);
            let target = format!("{}{rest}", sandbox.prefix());
            let h2 = tls.h2().await.get("sandbox.cube.test", &target, &NAVIGATES).await;
            assert_eq!((h2.status, h2.headers.all("location")), (302, response.headers.all("location")));
        }
        assert_eq!(env.last_active(sandbox).await, None);
    }
    assert_eq!(origin.count(), 0);
    // What is no navigation, and what has a slash, reaches the sandbox.
    for (method, rest, headers) in [
        ("GET", "", &[][..]),
        ("GET", "", &[("Sec-Fetch-Mode", "cors"), ("Accept", "text/html")]),
        ("GET", "", &[("Accept", "application/json, text/html")]),
        ("POST", "", &NAVIGATES),
        ("GET", "/", &NAVIGATES),
        ("GET", "/?x=1", &NAVIGATES),
    ] {
        env.call(By::Path, &open, method, rest, headers, "").await.passed(200);
    }
}

#[tokio::test]
async fn a_host_names_its_sandbox_with_any_domain_and_port() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let id = env.sandbox(&origin).await.id;
    let upper = id.to_uppercase();
    for host in [
        format!("8080-{id}"),
        format!("8080-{id}.cube.app"),
        format!("8080-{id}.a.b.example.org"),
        format!("8080-{id}.CUBE.App:8081"),
        format!("8080-{id}.cube.app."),
        format!("8080-{upper}.cube.app"),
    ] {
        env.raw("GET", "/", &[("Host", &host)], "").await.passed(200);
    }
}

#[tokio::test]
async fn headers_name_a_sandbox_on_a_shared_host() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for host in ["127.0.0.1", "127.0.0.1:8081", "[::1]:8081", "localhost:8081", "sandbox.cube.app"] {
        let headers = [("Host", host), ("e2b-sandbox-id", sandbox.id.as_str()), ("E2B-SANDBOX-PORT", "8080")];
        env.raw("GET", "/", &headers, "").await.passed(200);
    }
}

#[tokio::test]
async fn a_host_that_names_a_sandbox_wins_over_path_and_headers() {
    let env = cube().await;
    let (one, two) = (Origin::named("one").echo().await, Origin::named("two").echo().await);
    let (first, second) = (env.sandbox(&one).await, env.sandbox(&two).await);
    let target = format!("{}/x?y", second.prefix());
    let headers = [("E2b-Sandbox-Id", second.id.as_str()), ("E2b-Sandbox-Port", "8080")];
    let seen = env.get_with(&first, &target, &headers).await.seen();
    assert_eq!((seen.origin.as_str(), seen.target), ("one", target));
}

#[tokio::test]
async fn the_port_picks_the_mapping() {
    let env = cube().await;
    let (one, two) = (Origin::named("one").echo().await, Origin::named("two").echo().await);
    let sandbox = env.sandbox(&one).field("3000", &two.port().to_string()).await;
    assert_eq!(env.get(&sandbox, "/").await.seen().origin, "one");
    assert_eq!(env.get(&sandbox.at_port(3000), "/").await.seen().origin, "two");
}

#[tokio::test]
async fn a_form_that_applies_but_does_not_parse_is_a_bad_request() {
    let env = cube().await;
    for (target, headers) in [
        ("/sandbox/x/80foo", vec![("Host", "127.0.0.1")]),
        ("/sandbox/x", vec![("Host", "127.0.0.1")]),
        ("/sandbox", vec![("Host", "127.0.0.1")]),
        ("/sandbox//80/", vec![("Host", "127.0.0.1")]),
        ("/sandbox/x/65536/", vec![("Host", "127.0.0.1")]),
        ("/sandbox/a%41/80/", vec![("Host", "127.0.0.1")]),
        ("/", vec![("Host", "127.0.0.1"), ("E2b-Sandbox-Id", "abc")]),
        ("/", vec![("Host", "127.0.0.1"), ("E2b-Sandbox-Port", "80")]),
        ("/", vec![("Host", "127.0.0.1"), ("E2b-Sandbox-Id", "abc"), ("E2b-Sandbox-Port", "080")]),
        (
            "/",
            vec![
                ("Host", "127.0.0.1"),
                ("E2b-Sandbox-Id", "a"),
                ("E2b-Sandbox-Id", "a"),
                ("E2b-Sandbox-Port", "80"),
            ],
        ),
        ("/sandbox/x/80/", vec![("Host", "0-abc.cube.app")]),
        ("/", vec![("Host", "nothing.example")]),
    ] {
        let response = env.raw("GET", target, &headers, "").await;
        assert_eq!(response.status, 400, "{target} {headers:?}");
        response.is_bad_request();
    }
}

#[tokio::test]
async fn an_absolute_target_is_turned_into_origin_form() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let (sandbox, other) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let target = format!("http://{}/a%2Fb?c", sandbox.host());
    assert_eq!(env.raw("GET", &target, &[("Host", &sandbox.host())], "").await.seen().target, "/a%2Fb?c");
    env.raw("GET", &target, &[("Host", &other.host())], "").await.is_bad_request();
}

#[tokio::test]
async fn every_method_passes_with_its_body() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for method in ["PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"] {
        let seen = env.call(By::Host, &sandbox, method, "/m", &[], "hello").await.seen();
        assert_eq!((seen.method.as_str(), seen.body.as_slice()), (method, &b"hello"[..]));
    }
}

#[tokio::test]
async fn an_unknown_sandbox_is_not_found_in_every_form() {
    let env = cube().await;
    let nobody: Sandbox = env.nobody();
    for by in By::ALL {
        env.call(by, &nobody, "GET", "/", &[], "").await.is_not_found();
    }
}
