//! What is stored, and what is not.

use cube_testkit::scripts::Framing;

use super::*;

#[tokio::test]
async fn a_public_response_is_stored_and_served_without_the_application() {
    let env = cached().await;
    for by in By::ALL {
        let (origin, sandbox) = sandbox_of(env, &[PUBLIC, ("X-Mine", "a"), ("x-LOWER", "b")]).await;
        let first = get(env, by, &sandbox, "/a?b=c", &[]).await;
        is_miss(&first);
        let second = get(env, by, &sandbox, "/a?b=c", &[]).await;
        is_hit(&second, "1");
        assert_eq!(asked(&origin), 1, "{by:?}");
        // The same head, but for what is the cache's to say.
        let fields = |response: &cube_testkit::Response| {
            let pairs = response.headers.pairs().iter();
            let own = ["Date", "X-Cube-Request-Id", "X-Cube-Cache", "Age"];
            let mut kept: Vec<_> = pairs.filter(|(name, _)| !own.contains(&name.as_str())).cloned().collect();
            kept.sort();
            kept
        };
        assert_eq!(fields(&first), fields(&second));
    }
}

#[tokio::test]
async fn nothing_is_stored_unless_it_is_asked_for() {
    let env = support::cube().await;
    let origin = app(&[PUBLIC, ("X-Cube-Cache", "of the application")]).await;
    let sandbox = env.sandbox(&origin).await;
    for number in ["1", "2", "3"] {
        let response = env.get(&sandbox, "/").await;
        assert_eq!(response.passed(200).text(), number);
        assert_eq!(verdict(&response), Some("of the application"));
    }
}

#[tokio::test]
async fn only_public_responses_with_a_positive_time_are_stored() {
    let env = cached().await;
    for (fields, stored) in [
        (&[("Cache-Control", "public, max-age=600")][..], true),
        (&[("Cache-Control", "public, s-maxage=600")], true),
        (&[("Cache-Control", "Public, Max-Age=\"600\"")], true),
        (&[("Cache-Control", "public"), ("Cache-Control", "max-age=600")], true),
        (&[("Cache-Control", "public, max-age=0, s-maxage=600")], true),
        (&[("Cache-Control", "public, max-age=600, must-revalidate")], true),
        (&[("Cache-Control", "public, max-age=600"), ("Age", "599999")], false),
        (&[("Cache-Control", "public, max-age=600, s-maxage=0")], false),
        (&[("Cache-Control", "public, max-age=0")], false),
        (&[("Cache-Control", "public")], false),
        (&[("Cache-Control", "max-age=600")], false),
        (&[("Cache-Control", "public, max-age=600, private")], false),
        (&[("Cache-Control", "public, max-age=600"), ("Cache-Control", "private")], false),
        (&[("Cache-Control", "public, max-age=600, no-store")], false),
        (&[("Cache-Control", "public, max-age=600, no-cache")], false),
        (&[("Cache-Control", "public, max-age=600, no-cache=\"x\"")], false),
        (&[("Cache-Control", "public, max-age=600, max-age=600")], false),
        (&[("Cache-Control", "public, max-age=soon")], false),
        (&[("Cache-Control", "public"), ("Expires", "Fri, 01 Jan 2100 00:00:00 GMT")], false),
        (&[], false),
        (&[PUBLIC, ("Set-Cookie", "a=b")], false),
        (&[PUBLIC, ("Vary", "*")], false),
        (&[PUBLIC, ("Vary", "Accept, *")], false),
        (&[PUBLIC, ("Vary", "X-Forwarded-Host")], false),
        (&[PUBLIC, ("Vary", "Accept")], true),
        (&[PUBLIC, ("Trailer", "X-Late")], false),
    ] {
        let (_origin, sandbox) = sandbox_of(env, fields).await;
        is_miss(&env.get(&sandbox, "/").await);
        let second = env.get(&sandbox, "/").await;
        if stored {
            is_hit(&second, "1");
        } else {
            is_miss(&second);
            assert_eq!(second.text(), "2", "{fields:?}");
        }
    }
}

#[tokio::test]
async fn only_a_200_is_stored() {
    let env = cached().await;
    for status in [201, 203, 204, 206, 301, 302, 404, 410, 500] {
        let origin =
            scripted(move |exchange| async move { exchange.reply(status, &[PUBLIC], "x").await }).await;
        let sandbox = settled(env, env.sandbox(&origin).await).await;
        for _ in 0..2 {
            let response = env.get(&sandbox, "/").await;
            assert_eq!(verdict(response.passed(status)), Some("MISS"));
        }
        assert_eq!(asked(&origin), 2, "{status}");
    }
}

#[tokio::test]
async fn a_request_for_one_client_or_a_part_is_neither_stored_nor_answered_from_the_store() {
    let env = cached().await;
    let (origin, sandbox) = sandbox_of(env, &[PUBLIC]).await;
    let fields = [
        ("Range", "bytes=0-0"),
        ("If-Range", "\"a\""),
        ("Authorization", "Bearer x"),
        ("Proxy-Authorization", "Basic x"),
        ("Cookie", "a=b"),
        ("X-Access-Token", "x"),
        ("e2b-traffic-access-token", "x"),
        ("Cube-Traffic-Access-Token", "x"),
        ("Upgrade", "x"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-Host", "evil.test"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Port", "99"),
        ("X_Forwarded_Host", "evil.test"),
        ("Forwarded", "for=192.0.2.1"),
        ("If-Match", "\"a\""),
        ("If-Unmodified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"),
        ("X-Original-URL", "/other"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("Cache-Control", "no-store"),
    ];
    // Before there is anything: it leaves nothing.
    for (at, field) in fields.iter().enumerate() {
        is_bypass(&env.get_with(&sandbox, "/", &[*field]).await);
        assert_eq!(asked(&origin), at + 1, "{field:?}");
    }
    let first = env.get(&sandbox, "/").await;
    is_miss(&first);
    is_hit(&env.get(&sandbox, "/").await, &first.text());
    // After: it gets nothing, and what is there stays.
    for field in fields {
        let response = env.get_with(&sandbox, "/", &[field]).await;
        is_bypass(&response);
        assert_ne!(response.text(), first.text(), "{field:?}");
    }
    is_hit(&env.get(&sandbox, "/").await, &first.text());
}

#[tokio::test]
async fn other_methods_and_a_get_with_a_body_have_nothing_to_do_with_it() {
    let env = cached().await;
    let (_origin, sandbox) = sandbox_of(env, &[PUBLIC]).await;
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
        for _ in 0..2 {
            is_bypass(&env.call(By::Host, &sandbox, method, "/", &[], "").await);
        }
    }
    for _ in 0..2 {
        is_bypass(&env.call(By::Host, &sandbox, "GET", "/", &[], "of its own").await);
        let chunked = [("Transfer-Encoding", "chunked")];
        is_bypass(&env.call(By::Host, &sandbox, "GET", "/", &chunked, "1\r\nx\r\n0\r\n\r\n").await);
    }
    is_miss(&env.get(&sandbox, "/").await);
}

#[tokio::test]
async fn a_private_sandbox_is_not_cached_even_where_its_port_needs_no_token() {
    let env = with(json!({ "traffic_token": { "exempt_ports": [8080] } })).await;
    let (origin, sandbox) = sandbox_of(&env, &[PUBLIC]).await;
    is_miss(&env.get(&sandbox, "/").await);
    is_hit(&env.get(&sandbox, "/").await, "1");
    let private = env.sandbox(&origin).token("example-token").await;
    for number in ["2", "3"] {
        let response = env.get(&private, "/").await;
        is_bypass(&response);
        assert_eq!(response.text(), number);
    }
    // One that becomes private.
    env.write(&sandbox, &[("AllowPublicTraffic", "false"), ("TrafficAccessToken", "example-token")]).await;
    cube_testkit::eventually("the change to arrive", || async {
        let response = env.get(&sandbox, "/").await;
        verdict(&response).is_none().then_some(())
    })
    .await;
    is_bypass(&env.get(&sandbox, "/").await);
}

#[tokio::test]
async fn the_port_of_envd_is_not_cached() {
    let env = cached().await;
    let origin = app(&[PUBLIC]).await;
    let port = origin.port().to_string();
    let sandbox = settled(env, env.sandbox(&origin).field("49983", &port).await).await;
    for by in By::ALL {
        for _ in 0..2 {
            is_bypass(&get(env, by, &sandbox.at_port(49983), "/", &[]).await);
        }
    }
    is_miss(&env.get(&sandbox, "/").await);
}

#[tokio::test]
async fn a_response_that_is_cut_short_is_not_stored() {
    let env = cached().await;
    for framing in [Framing::Length, Framing::Chunked] {
        for reset in [true, false] {
            let origin = scripted(move |mut exchange| async move {
                let (field, half) = match framing {
                    Framing::Length => (("Content-Length", "8"), "half"),
                    _ => (("Transfer-Encoding", "chunked"), "4\r\nhalf\r\n"),
                };
                exchange.start(200, &[PUBLIC, field]).await?;
                exchange.send(half).await?;
                if reset { exchange.reset().await } else { exchange.close().await }
            })
            .await;
            let sandbox = settled(env, env.sandbox(&origin).await).await;
            for _ in 0..2 {
                let response = env.get(&sandbox, "/").await;
                // A reset may overtake what was sent before it.
                assert!(!response.clean || response.status == 502, "{framing:?}: {}", response.brief());
                assert!(!hit(&response));
            }
            assert_eq!(asked(&origin), 2, "{framing:?} {reset}");
        }
    }
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_not_stored() {
    let env = cached().await;
    let origin = scripted(|mut exchange| async move {
        exchange.start(200, &[PUBLIC, ("Connection", "close")]).await?;
        exchange.send("whole or not").await?;
        exchange.close().await
    })
    .await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    for _ in 0..2 {
        let response = env.get(&sandbox, "/").await;
        is_miss(&response);
        assert_eq!(response.text(), "whole or not");
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_leaves_nothing_behind() {
    let env = cached().await;
    let before = AtomicUsize::new(0);
    let origin = scripted(move |mut exchange| {
        let first = before.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if !first {
                return exchange.reply(200, &[PUBLIC], "another").await;
            }
            exchange.start(200, &[PUBLIC, ("Content-Length", "8")]).await?;
            exchange.send("half").await?;
            exchange.gone().await;
            exchange.close().await
        }
    })
    .await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host())]).await;
    assert_eq!(verdict(&client.head().await), Some("MISS"));
    let open = origin.open_connections();
    drop(client);
    eventually("the upstream connection to end", || async {
        (origin.open_connections() < open).then_some(())
    })
    .await;
    is_miss(&env.get(&sandbox, "/").await);
    is_hit(&env.get(&sandbox, "/").await, "another");
}
