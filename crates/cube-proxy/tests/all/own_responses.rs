//! What the client gets back (routing.md, errors.md).

use cube_testkit::{By, Origin, Response, Sandbox, scripts};

use crate::support::cube;

/// The response in some form from an application that answers with these headers; `HOST` and
/// `PREFIX` in them stand for the client's Host and the path prefix.
async fn answered(by: By, status: u16, headers: &[(&str, &str)]) -> (Response, Sandbox, String) {
    let env = cube().await;
    let id = cube_testkit::unique_id("a");
    let sandbox = Sandbox::named(&id);
    let host = env.naming(by, &sandbox, "/").1[0].1.clone();
    let filled: Vec<(String, String)> = headers
        .iter()
        .map(|(n, v)| ((*n).to_owned(), v.replace("HOST", &host).replace("PREFIX", &sandbox.prefix())))
        .collect();
    let filled: Vec<(&str, &str)> = filled.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let origin = Origin::replying(status, &filled, "ok").await;
    let sandbox = env.sandbox(&origin).id(&id).await;
    (env.call(by, &sandbox, "GET", "/x", &[], "").await, sandbox, host)
}

#[tokio::test]
async fn every_status_carries_its_return_code() {
    for status in [200, 201, 204, 302, 304, 404, 500, 503] {
        answered(By::Host, status, &[("X-App", "1")]).await.0.passed(status);
    }
}

#[tokio::test]
async fn a_location_in_the_path_form_is_moved_under_the_prefix() {
    for (name, sent, want) in [
        ("Location", "/login?next=/a#top", "PREFIX/login?next=/a#top"),
        ("Location", "/", "PREFIX/"),
        ("Location", "login", "login"),
        ("Location", "//other.example/x", "//other.example/x"),
        ("Location", "/\\other.example/x", "/\\other.example/x"),
        ("Location", "http://other.example/x", "http://other.example/x"),
        ("Location", "http://HOST/x", "http://HOSTPREFIX/x"),
        // An application that builds URLs with the port that it listens on.
        ("Location", "http://127.0.0.1:8080/x", "http://HOSTPREFIX/x"),
        ("Location", "http://127.0.0.1:8081/x", "http://127.0.0.1:8081/x"),
        ("Location", "PREFIX/x", "PREFIX/x"),
        ("Location", "PREFIX", "PREFIX"),
        ("Location", "PREFIXx", "PREFIXPREFIXx"),
        ("Content-Location", "/doc/1", "PREFIX/doc/1"),
        ("Refresh", "5; url=/next", "5; url=PREFIX/next"),
        ("Set-Cookie", "a=1; Path=/", "a=1; Path=PREFIX/"),
        ("Set-Cookie", "a=1; HttpOnly", "a=1; HttpOnly"),
        ("Set-Cookie", "a=1; Domain=cube.test; path=/q; Secure", "a=1; path=PREFIX/q; Secure"),
    ] {
        let (response, sandbox, host) = answered(By::Path, 302, &[(name, sent)]).await;
        let want = want.replace("PREFIX", &sandbox.prefix()).replace("HOST", &host);
        assert_eq!(response.headers.all(name), [want], "{name}: {sent}");
    }
}

#[tokio::test]
async fn location_and_cookies_of_the_other_forms_are_left_alone() {
    for by in [By::Host, By::Header] {
        let headers = [("Location", "/login"), ("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2")];
        let (response, ..) = answered(by, 302, &headers).await;
        assert_eq!(response.headers.all("Location"), ["/login"]);
        assert_eq!(response.headers.all("Set-Cookie"), ["a=1; Path=/", "b=2"]);
    }
}

#[tokio::test]
async fn hop_by_hop_headers_of_the_response_end_here() {
    let sent = [
        ("Connection", "X-Mine, keep-alive"),
        ("X-Mine", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("X-App", "stays"),
    ];
    for by in By::ALL {
        let (response, ..) = answered(by, 200, &sent).await;
        for name in ["X-Mine", "Keep-Alive", "Proxy-Connection"] {
            assert!(!response.passed(200).headers.has(name), "{name}: {}", response.brief());
        }
        assert_eq!(response.headers.all("X-App"), ["stays"]);
    }
}

#[tokio::test]
async fn the_sandboxs_own_copies_of_our_headers_are_removed() {
    let forged = [("X-Cube-Request-Id", "forged"), ("X-Cube-Retcode", "310507"), ("x-cube-retcode", "1")];
    let (response, ..) = answered(By::Host, 200, &forged).await;
    response.passed(200);
    assert_ne!(response.request_id(), "forged");
}

#[tokio::test]
async fn the_path_form_removes_what_would_bind_a_whole_browser_origin() {
    let sent = [
        ("Clear-Site-Data", "\"*\""),
        ("Alt-Svc", "h3=\":443\""),
        ("Strict-Transport-Security", "max-age=1"),
        ("NEL", "{}"),
        ("Report-To", "{}"),
        ("Reporting-Endpoints", "a=\"/b\""),
        ("Service-Worker-Allowed", "/"),
    ];
    let (response, sandbox, _) = answered(By::Path, 200, &sent).await;
    for (name, _) in &sent[..6] {
        assert!(!response.headers.has(name), "{name}");
    }
    assert_eq!(response.headers.all("Service-Worker-Allowed"), [format!("{}/", sandbox.prefix())]);
    let (response, ..) = answered(By::Host, 200, &sent).await;
    for (name, value) in sent {
        assert_eq!(response.headers.all(name), [value]);
    }
}

#[tokio::test]
async fn answers_without_a_body_leave_the_connection_in_order() {
    let env = cube().await;
    for status in [204, 304] {
        let origin = Origin::replying(status, &[("ETag", "\"1\"")], "").await;
        let sandbox = env.sandbox(&origin).await;
        let mut client = env.client().await;
        for _ in 0..2 {
            let response = client.call("GET", "/", &[("Host", &sandbox.host())], "").await;
            assert!(!response.passed(status).headers.has("Transfer-Encoding"), "{}", response.brief());
        }
    }
}

#[tokio::test]
async fn head_keeps_the_length_and_has_no_body() {
    let env = cube().await;
    let origin = Origin::replying(200, &[], "twelve bytes").await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    let response = client.call("HEAD", "/", &[("Host", &sandbox.host())], "").await;
    assert_eq!(response.passed(200).headers.all("Content-Length"), ["12"]);
    assert_eq!(client.call("GET", "/", &[("Host", &sandbox.host())], "").await.text(), "twelve bytes");
    assert_eq!(client.call("HEAD", "/", &[("Host", &env.nobody().host())], "").await.status, 404);
    assert_eq!(client.call("GET", "/", &[("Host", &sandbox.host())], "").await.text(), "twelve bytes");
}

#[tokio::test]
async fn a_content_length_on_a_204_is_stripped() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange| async move {
        exchange.start(204, &[("Content-Length", "0")]).await?;
        Ok(exchange)
    })
    .await;
    let response = env.get(&env.sandbox(&origin).await, "/").await;
    assert!(!response.passed(204).headers.has("Content-Length"), "{}", response.brief());
}

#[tokio::test]
async fn the_proxys_own_responses_may_be_read_by_scripts_of_any_origin() {
    let env = cube().await;
    let nobody = env.nobody();
    let response = env.get_with(&nobody, "/", &[("Origin", "https://a.example")]).await;
    assert_eq!(response.is_not_found().headers.all("Access-Control-Allow-Origin"), ["*"]);
    let exposed = response.headers.get("Access-Control-Expose-Headers").unwrap_or_default().to_lowercase();
    assert!(exposed.contains("x-cube-request-id") && exposed.contains("x-cube-retcode"), "{exposed}");
    assert!(!env.get(&nobody, "/").await.headers.has("Access-Control-Allow-Origin"));
}

#[tokio::test]
async fn a_preflight_that_the_proxy_answers_is_a_204() {
    let env = cube().await;
    let preflight = [
        ("Origin", "https://a.example"),
        ("Access-Control-Request-Method", "PUT"),
        ("Access-Control-Request-Headers", "x-one"),
    ];
    let response = env.call(By::Host, &env.nobody(), "OPTIONS", "/", &preflight, "").await;
    assert_eq!((response.status, response.retcode()), (204, Some(310_507)), "{}", response.brief());
    for (name, value) in [
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Allow-Methods", "PUT"),
        ("Access-Control-Allow-Headers", "x-one"),
        ("Access-Control-Max-Age", "5"),
    ] {
        assert_eq!(response.headers.all(name), [value]);
    }
    assert!(!response.headers.has("Content-Length"));
}

#[tokio::test]
async fn an_applications_cors_response_is_left_alone() {
    let env = cube().await;
    let origin =
        Origin::scripted(scripts::reply(200, &[("Access-Control-Allow-Origin", "https://app")], "x"));
    let origin = origin.await;
    let sandbox = env.sandbox(&origin).await;
    let response = env.get_with(&sandbox, "/", &[("Origin", "https://app")]).await;
    assert_eq!(response.passed(200).headers.all("Access-Control-Allow-Origin"), ["https://app"]);
}
