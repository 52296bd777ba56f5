//! The traffic token, and that a refused caller cannot tell a sandbox from none (metadata.md).

use cube_testkit::{By, Env, Origin, Response, Sandbox};

use crate::support::cube;

const E2B: &str = "e2b-traffic-access-token";
const CUBE: &str = "cube-traffic-access-token";

#[tokio::test]
async fn either_header_opens_a_private_sandbox_and_nothing_else_does() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token").await;
    for (headers, right) in [
        (&[][..], false),
        (&[(E2B, "example-token")], true),
        (&[(CUBE, "example-token")], true),
        (&[(E2B, "wrong"), (CUBE, "example-token")], true),
        (&[(E2B, "example-token"), (CUBE, "wrong")], true),
        (&[(E2B, "")], false),
        (&[(E2B, "example-toke")], false),
        (&[(E2B, "example-token-")], false),
        (&[(E2B, "Example-Token")], false),
        (&[(E2B, "example-token"), (E2B, "wrong")], false),
        (&[("Authorization", "Bearer example-token")], false),
    ] {
        for _ in ["cold", "warm"] {
            let before = origin.count();
            let response = env.get_with(&sandbox, "/", headers).await;
            let response = if right { response.passed(200) } else { response.is_not_found() };
            assert_eq!(origin.count() - before, usize::from(right), "{headers:?}: {}", response.brief());
        }
    }
}

#[tokio::test]
async fn who_may_pass_fails_closed() {
    let env = cube().await;
    let origin = Origin::echo().await;
    for (fields, public) in [
        (&[][..], true),
        (&[("AllowPublicTraffic", "true"), ("TrafficAccessToken", "example-token")], true),
        (&[("TrafficAccessToken", "example-token")], false),
        (&[("AllowPublicTraffic", "False"), ("TrafficAccessToken", "example-token")], false),
        (&[("AllowPublicTraffic", "TRUE"), ("TrafficAccessToken", "example-token")], false),
        (&[("AllowPublicTraffic", ""), ("TrafficAccessToken", "example-token")], false),
        (&[("AllowPublicTraffic", "0"), ("TrafficAccessToken", "example-token")], false),
    ] {
        let mut sandbox = env.sandbox(&origin);
        for (name, value) in fields {
            sandbox = sandbox.field(name, value);
        }
        let sandbox = sandbox.await;
        if public {
            env.get(&sandbox, "/").await.passed(200);
        } else {
            env.get(&sandbox, "/").await.is_not_found();
            env.get_with(&sandbox, "/", &[(CUBE, "example-token")]).await.passed(200);
        }
    }
}

#[tokio::test]
async fn a_record_that_needs_a_token_and_has_none_is_open_to_nobody() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).field("AllowPublicTraffic", "false").await;
    for token in ["", "x", "false"] {
        env.get_with(&sandbox, "/", &[(E2B, token)]).await.is_not_found();
    }
}

#[tokio::test]
async fn the_token_of_one_sandbox_is_nothing_at_another() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let one = env.sandbox(&origin).token("example-token-1").await;
    let two = env.sandbox(&origin).token("example-token-2").await;
    env.get_with(&one, "/", &[(E2B, "example-token-1")]).await.passed(200);
    env.get_with(&two, "/", &[(E2B, "example-token-1")]).await.is_not_found();
}

async fn ask(env: &Env, by: By, sandbox: &Sandbox, method: &str, headers: &[(&str, &str)]) -> Response {
    let mut all = vec![("X-Cube-Request-Id", "the-same")];
    all.extend_from_slice(headers);
    env.call(by, sandbox, method, "/p?q", &all, if method == "POST" { "body" } else { "" }).await
}

#[tokio::test]
async fn a_refused_token_is_byte_for_byte_the_response_of_an_unknown_sandbox() {
    let env = cube().await;
    let origin = Origin::echo().await;
    for by in By::ALL {
        for (method, headers) in [
            ("GET", &[][..]),
            ("GET", &[(E2B, "wrong")]),
            ("POST", &[]),
            ("HEAD", &[]),
            ("OPTIONS", &[("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT")]),
            ("GET", &[("Upgrade", "websocket"), ("Connection", "Upgrade")]),
        ] {
            let (unknown, private) = (env.nobody(), env.sandbox(&origin).token("example-token").await);
            for state in ["cold", "warm"] {
                let refused = ask(env, by, &private, method, headers).await;
                let missing = ask(env, by, &unknown, method, headers).await;
                assert_eq!(refused.identity(), missing.identity(), "{state} {method} {by:?} {headers:?}");
                assert_eq!(refused.retcode(), Some(310_507));
            }
        }
    }
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn the_log_and_the_metrics_tell_a_refused_token_from_an_unknown_sandbox() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token").await;
    let refused = env.get_with(&sandbox, "/", &[(E2B, "example-wrong")]).await.request_id();
    let line = env.proxy.log_line(&refused).await;
    assert_eq!((line.field("retcode"), line.field("reason")), ("310403", "token_wrong"));
    assert_eq!(line.field("sandbox_id"), sandbox.id);
    assert!(!line.text.contains("example-"), "{}", line.text);
    let missing = env.get(&sandbox, "/").await.request_id();
    assert_eq!(env.proxy.log_line(&missing).await.field("reason"), "token_missing");
    let metrics = env.proxy.metrics().await;
    let counted =
        metrics.sum("cube_proxy_answers_total", &[("retcode", "310403"), ("reason", "token_wrong")]);
    assert!(counted >= 1.0);
}

#[tokio::test]
async fn no_token_is_ever_printed() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token-unprinted").await;
    env.get_with(&sandbox, "/", &[(E2B, "example-token-unprinted")]).await.passed(200);
    let refused = env.get_with(&sandbox, "/", &[(CUBE, "example-other-unprinted")]).await;
    env.proxy.log_line(&refused.request_id()).await;
    for text in [env.proxy.output(), env.proxy.access_log(), refused.text()] {
        assert!(!text.contains("unprinted"));
    }
}
