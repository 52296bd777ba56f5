//! HEAD, conditions, what a request asks of caches, and how old a response may get (RFC 9111).

use super::*;

const ETAG: (&str, &str) = ("ETag", "\"v1\"");
const MODIFIED: (&str, &str) = ("Last-Modified", "Fri, 02 Jan 2026 00:00:00 GMT");

async fn head(env: &Env, sandbox: &Sandbox, target: &str) -> Response {
    env.call(By::Host, sandbox, "HEAD", target, &[], "").await
}

#[tokio::test]
async fn head_is_answered_from_a_stored_get_and_stores_nothing() {
    let env = cached().await;
    let (origin, sandbox) = sandbox_of(env, &[PUBLIC, ETAG]).await;
    for _ in 0..2 {
        is_miss(&head(env, &sandbox, "/").await);
        assert_eq!(origin.last().method, "HEAD", "it is not made a GET");
    }
    let first = env.get(&sandbox, "/").await;
    is_miss(&first);
    for _ in 0..2 {
        let response = head(env, &sandbox, "/").await;
        is_hit(&response, "");
        assert_eq!(response.headers.all("content-length"), [first.text().len().to_string()]);
        assert_eq!(response.headers.all("etag"), ["\"v1\""]);
    }
    // The connection goes on.
    let mut client = env.client().await;
    for method in ["HEAD", "GET", "HEAD", "GET"] {
        assert!(hit(&client.call(method, "/", &[("Host", &sandbox.host())], "").await));
    }
    assert_eq!(asked(&origin), 3);
}

#[tokio::test]
async fn a_condition_is_answered_by_what_is_stored() {
    let env = cached().await;
    let (origin, sandbox) = sandbox_of(env, &[PUBLIC, ETAG, MODIFIED, ("Content-Type", "text/plain")]).await;
    is_miss(&env.get(&sandbox, "/").await);
    let (same, later) = ("Fri, 02 Jan 2026 00:00:00 GMT", "Sat, 03 Jan 2026 00:00:00 GMT");
    let earlier = "Thu, 01 Jan 2026 00:00:00 GMT";
    for (fields, not_modified) in [
        (&[("If-None-Match", "\"v1\"")][..], true),
        (&[("If-None-Match", "W/\"v1\"")], true),
        (&[("If-None-Match", "\"v0\", \"v1\"")], true),
        (&[("If-None-Match", "\"v0\""), ("If-None-Match", "\"v1\"")], true),
        (&[("If-None-Match", "*")], true),
        (&[("If-None-Match", "\"v2\"")], false),
        (&[("If-Modified-Since", same)], true),
        (&[("If-Modified-Since", later)], true),
        (&[("If-Modified-Since", earlier)], false),
        (&[("If-Modified-Since", "no date")], false),
        // If-None-Match decides where both are there.
        (&[("If-None-Match", "\"v2\""), ("If-Modified-Since", later)], false),
        (&[("If-None-Match", "\"v1\""), ("If-Modified-Since", earlier)], true),
    ] {
        for method in ["GET", "HEAD"] {
            let response = env.call(By::Host, &sandbox, method, "/", fields, "").await;
            let status = if not_modified { 304 } else { 200 };
            assert_eq!(verdict(response.passed(status)), Some("HIT"), "{fields:?}");
            assert_eq!(response.headers.all("etag"), ["\"v1\""]);
            assert_eq!(response.headers.all("cache-control"), [PUBLIC.1]);
            assert!(response.headers.has("age"));
            if not_modified {
                assert!(response.body.is_empty() && !response.headers.has("content-length"));
                assert!(!response.headers.has("transfer-encoding"));
            }
        }
    }
    assert_eq!(asked(&origin), 1);
}

#[tokio::test]
async fn where_nothing_is_stored_the_application_sees_what_it_would_see_without_a_cache() {
    let with_cache = cached().await;
    let without = support::cube().await;
    let fields = [
        ("If-None-Match", "\"v1\""),
        ("If-Modified-Since", "Fri, 02 Jan 2026 00:00:00 GMT"),
        ("Cache-Control", "max-age=7"),
        ("Pragma", "no-cache"),
        ("Accept-Encoding", "gzip, br"),
        ("X-Cube-Request-Id", "the-same"),
    ];
    let mut seen = Vec::new();
    for env in [with_cache, without] {
        let origin = app(&[PUBLIC]).await;
        let described = env.sandbox(&origin).id(&format!("same-{}", std::process::id()));
        let sandbox = described.await;
        if std::ptr::eq(env, with_cache) {
            settle(env, &sandbox).await;
        }
        for method in ["GET", "HEAD"] {
            env.call(By::Host, &sandbox, method, &format!("/?{method}"), &fields, "").await.passed(200);
            let mut received = origin.last().headers.pairs().to_vec();
            received.sort();
            seen.push((origin.last().method, origin.last().target, received));
        }
    }
    let (one, other) = seen.split_at(2);
    assert_eq!(one, other);
}

#[tokio::test]
async fn a_response_to_a_condition_is_not_stored_for_those_who_ask_without() {
    let env = cached().await;
    let origin = scripted(|exchange| async move {
        let status = if exchange.request.headers.has("if-none-match") { 304 } else { 200 };
        exchange.reply(status, &[PUBLIC, ETAG], "whole").await
    })
    .await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    for _ in 0..2 {
        let response = env.get_with(&sandbox, "/", &[("If-None-Match", "\"v1\"")]).await;
        assert_eq!(verdict(response.passed(304)), Some("MISS"));
    }
    let response = env.get(&sandbox, "/").await;
    is_miss(&response);
    assert_eq!(response.text(), "whole");
    is_hit(&env.get(&sandbox, "/").await, "whole");
}

#[tokio::test]
async fn a_client_that_wants_a_new_response_gets_one_and_it_takes_the_old_ones_place() {
    let env = cached().await;
    let (_origin, sandbox) = sandbox_of(env, &[PUBLIC, ("Age", "100")]).await;
    is_miss(&env.get(&sandbox, "/").await);
    let mut newest = "1".to_owned();
    for field in [
        ("Cache-Control", "no-cache"),
        ("Cache-Control", "max-age=0"),
        ("Cache-Control", "max-age=50"),
        ("Cache-Control", "min-fresh=550"),
        ("Cache-Control", "what is this"),
        ("Pragma", "no-cache"),
    ] {
        is_hit(&env.get(&sandbox, "/").await, &newest);
        let response = env.get_with(&sandbox, "/", &[field]).await;
        is_miss(&response);
        assert_ne!(response.text(), newest, "{field:?}");
        newest = response.text();
    }
    for control in ["max-age=500", "min-fresh=10", "max-stale", "only-if-cached", "no-transform"] {
        is_hit(&env.get_with(&sandbox, "/", &[("Cache-Control", control)]).await, &newest);
    }
}

#[tokio::test]
async fn age_goes_on_from_what_the_response_came_with_and_nothing_stale_is_served() {
    let env = cached().await;
    let (origin, sandbox) = sandbox_of(
        env,
        &[
            ("Cache-Control", "public, max-age=104, stale-while-revalidate=600, stale-if-error=600"),
            ("Age", "100"),
        ],
    )
    .await;
    let first = env.get(&sandbox, "/").await;
    is_miss(&first);
    assert_eq!(first.headers.all("age"), ["100"], "the application's own");
    let stored = std::time::Instant::now();
    let mut ages = Vec::new();
    let second = loop {
        let response = env.get(&sandbox, "/").await;
        if !hit(&response) {
            break response;
        }
        ages.push(response.headers.all("age").join(","));
        assert!(stored.elapsed() < std::time::Duration::from_secs(60), "it is served for too long");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert!(stored.elapsed() >= std::time::Duration::from_secs(3), "it was fresh for longer");
    ages.dedup();
    // A machine that was away for a second skips a value: what is served only has to grow, from what
    // came with the response, and to end where it is no longer fresh.
    let mut values: Vec<u32> = ages.iter().map(|age| age.parse().expect("one number")).collect();
    assert!(values.is_sorted() && values.first() >= Some(&100) && values.last() < Some(&104), "{ages:?}");
    values.retain(|age| *age > 100);
    assert!(!values.is_empty(), "it never grew: {ages:?}");
    is_miss(&second);
    assert_eq!(second.text(), "2");
    // Not even when there is nothing else to serve.
    origin.stop().await;
    let begun = std::time::Instant::now();
    let refused = loop {
        let response = env.get(&sandbox, "/").await;
        if !hit(&response) {
            break response;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it is served for too long");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert_eq!((refused.status, verdict(&refused)), (502, None));
}
