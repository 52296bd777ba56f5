//! Where people are sent to log in (previews.md, "Sending people to log in").

use cube_testkit::serde_json::json;
use cube_testkit::{By, Origin};

use super::*;
use crate::support::own;

#[tokio::test]
async fn who_may_not_enter_is_sent_to_log_in_and_so_is_who_asks_for_nothing() {
    let login = "https://platform.example/login?host={host}&to={path}&id={sandbox}&port={port}";
    for dialect in ["cube", "e2b"] {
        let env = own(json!({ "errors": { "dialect": dialect }, "previews": { "login_url": login } })).await;
        let origin = Origin::echo().await;
        let private = env.sandbox(&origin).token(TOKEN).await;
        let nobody = env.nobody();
        let expired = format!("cube-preview={}", ticket_for(TOKEN, &private, -5));
        for (sandbox, headers) in [
            (&private, &[][..]),
            (&nobody, &[]),
            (&private, &[(E2B, "wrong")]),
            (&private, &[("Cookie", expired.as_str())]),
        ] {
            for method in ["GET", "HEAD"] {
                let mut all = NAVIGATION.to_vec();
                all.extend_from_slice(headers);
                let sent = env
                    .call(By::Host, sandbox, method, "/a b?x=1".replace(' ', "%20").as_str(), &all, "")
                    .await;
                assert_eq!((sent.status, sent.retcode()), (302, Some(310_302)), "{}", sent.brief());
                let want = format!(
                    "https://platform.example/login?host={}&to=%2Fa%2520b%3Fx%3D1&id={}&port=8080",
                    sandbox.host(),
                    sandbox.id
                );
                assert_eq!(sent.headers.all("location"), [want]);
                assert_eq!(sent.headers.all("cache-control"), ["no-store"]);
                assert_eq!(sent.headers.all("content-length"), ["0"]);
                let line = env.proxy.log_line(&sent.request_id()).await;
                assert_eq!((line.field("retcode"), line.field("reason")), ("310302", "preview_login"));
            }
        }
        assert_eq!(counted(&env, "login").await, 8.0);
        // A script, a form that is sent, and one with a ticket in its query are answered as ever.
        let expired = with("/", &ticket_for(TOKEN, &private, -5));
        let shown = env.get_with(&private, &expired, &NAVIGATION).await;
        assert_eq!((shown.status, shown.retcode()), (403, Some(310_403)), "{}", shown.brief());
        for (sandbox, method, target, headers) in [
            (&private, "GET", "/", &[][..]),
            (&private, "POST", "/", &NAVIGATION[..]),
            (&nobody, "GET", "/?cube_preview=x", &NAVIGATION),
            (&private, "GET", "/?cube_preview=x", &NAVIGATION),
        ] {
            let response = env.call(By::Host, sandbox, method, target, headers, "").await;
            assert!(response.headers.all("location").is_empty(), "{}", response.brief());
        }
        // Who may enter does.
        env.get_with(&private, "/", &[(E2B, TOKEN), NAVIGATION[0]]).await.passed(200);
    }
}

#[tokio::test]
async fn while_the_store_cannot_answer_nobody_is_sent_to_log_in() {
    let env = own(json!({
        "errors": { "dialect": "e2b" },
        "previews": { "login_url": "https://platform.example/login?id={sandbox}" },
    }))
    .await;
    let origin = Origin::echo().await;
    let private = env.sandbox(&origin).token(TOKEN).await;
    assert_eq!(env.get_with(&private, "/", &NAVIGATION).await.status, 302);
    env.redis.stop();
    let nobody = env.nobody();
    cube_testkit::eventually("an outage that is known", || async {
        let of_nobody = env.get_with(&nobody, "/", &NAVIGATION).await;
        let of_private = env.get_with(&private, "/", &NAVIGATION).await;
        let codes = (of_nobody.retcode(), of_private.retcode());
        (codes == (Some(310_500), Some(310_500))).then_some(())
    })
    .await;
}
