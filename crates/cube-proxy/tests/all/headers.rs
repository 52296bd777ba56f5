//! What the sandbox sees (routing.md).

use cube_testkit::{By, Exchange, Origin, scripts};

use crate::support::{cube, own};

#[tokio::test]
async fn the_sandbox_sees_the_clients_host_and_the_forwarding_headers() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for by in By::ALL {
        let host = env.naming(by, &sandbox, "/").1[0].1.clone();
        let seen = env.call(by, &sandbox, "GET", "/", &[], "").await.seen();
        for (name, value) in [
            ("Host", host.as_str()),
            ("X-Forwarded-Host", &host),
            ("X-Forwarded-Proto", "http"),
            ("X-Forwarded-For", "127.0.0.1"),
            ("X-Real-IP", "127.0.0.1"),
        ] {
            assert_eq!(seen.headers.all(name), [value], "{name} {by:?}");
        }
        let prefix: &[String] = if by == By::Path { &[sandbox.prefix()] } else { &[] };
        assert_eq!(seen.headers.all("X-Forwarded-Prefix"), prefix, "{by:?}");
    }
}

#[tokio::test]
async fn a_mask_replaces_host_but_not_on_the_port_of_envd() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let mask = "x-${PORT}.internal:${PORT}";
    let sandbox = env.sandbox(&origin).field("MaskRequestHost", mask).await;
    let seen = env.get(&sandbox, "/").await.seen();
    assert_eq!(seen.headers.all("Host"), ["x-8080.internal:8080"]);
    assert_eq!(seen.headers.all("X-Forwarded-Host"), [sandbox.host()]);
    let envd = env.sandbox(&origin).port(49983).field("MaskRequestHost", mask).await;
    assert_eq!(env.get(&envd, "/").await.seen().headers.all("Host"), [envd.host()]);
}

#[tokio::test]
async fn with_a_mask_the_clients_own_origin_is_the_masked_one_and_no_other_is() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let masked = env.sandbox(&origin).field("MaskRequestHost", "localhost:${PORT}").await;
    let plain = env.sandbox(&origin).await;
    for by in By::ALL {
        for (sandbox, mask) in [(&masked, Some("localhost:8080")), (&plain, None)] {
            let host = env.naming(by, sandbox, "/").1[0].1.clone();
            let mask = mask.unwrap_or(&host);
            for (sent, want) in [
                (format!("http://{host}"), format!("http://{mask}")),
                (format!("https://{host}:1"), format!("https://{host}:1")),
                (format!("http://evil-{host}"), format!("http://evil-{host}")),
                ("http://other.example".to_owned(), "http://other.example".to_owned()),
                ("null".to_owned(), "null".to_owned()),
            ] {
                let referer = format!("{sent}/a?b=c");
                let headers = [("Origin", sent.as_str()), ("Referer", &referer)];
                let seen = env.call(by, sandbox, "GET", "/", &headers, "").await.seen();
                assert_eq!(seen.headers.all("Origin"), [want.as_str()], "{by:?}");
                assert_eq!(seen.headers.all("Referer"), [format!("{want}/a?b=c")], "{by:?}");
            }
        }
    }
    // An application that compares the two takes its own WebSocket.
    let same_origin = |exchange: Exchange| async move {
        let headers = &exchange.request.headers;
        let own = headers.get("Origin").and_then(|origin| origin.strip_prefix("http://"));
        if own == headers.get("Host") {
            scripts::websocket(exchange).await
        } else {
            exchange.reply(403, &[], "").await
        }
    };
    let strict = Origin::scripted(same_origin).await;
    let sandbox = env.sandbox(&strict).field("MaskRequestHost", "localhost:${PORT}").await;
    for by in [By::Host, By::Path] {
        let origin = format!("http://{}", env.naming(by, &sandbox, "/").1[0].1);
        let mut socket = env.websocket(by, &sandbox, "/", &[("Origin", &origin)]).await.expect("a 101");
        assert_eq!(socket.say("hello").await, "hello");
        let foreign = env.websocket(by, &sandbox, "/", &[("Origin", "http://evil.example")]).await;
        assert!(foreign.is_err(), "{by:?}: a foreign origin passed");
    }
}

#[tokio::test]
async fn a_destination_under_the_prefix_is_one_in_the_sandbox() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let plain = env.sandbox(&origin).await;
    let masked = env.sandbox(&origin).field("MaskRequestHost", "dav.internal").await;
    for (sandbox, mask) in [(&plain, None), (&masked, Some("dav.internal"))] {
        let host = env.naming(By::Path, sandbox, "/").1[0].1.clone();
        let (prefix, known) = (sandbox.prefix(), mask.unwrap_or(&host));
        for (sent, want) in [
            (format!("http://{host}{prefix}/b%20c"), format!("http://{known}/b%20c")),
            (format!("{prefix}/b"), "/b".to_owned()),
            (format!("http://{host}/b"), format!("http://{host}/b")),
            (format!("http://other.example{prefix}/b"), format!("http://other.example{prefix}/b")),
        ] {
            let seen = env.call(By::Path, sandbox, "MOVE", "/a", &[("Destination", &sent)], "").await.seen();
            assert_eq!(seen.headers.all("Destination"), [want], "{sent}");
        }
    }
}

#[tokio::test]
async fn what_a_stranger_claims_about_itself_does_not_arrive() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let forged = [
        ("X-Forwarded-For", "203.0.113.7"),
        ("X-Real-IP", "203.0.113.7"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-Prefix", "/evil"),
        ("X-Forwarded-Port", "99"),
        ("Forwarded", "for=203.0.113.7"),
        ("X_Real_IP", "203.0.113.7"),
        ("X_Forwarded_For", "203.0.113.7"),
        ("Connection", "x-real-ip, X-Forwarded-For"),
    ];
    let seen = env.get_with(&sandbox, "/", &forged).await.seen();
    let all = seen.headers.pairs();
    assert!(!all.iter().any(|(_, value)| value.contains("203.0.113") || value.contains("evil")), "{all:?}");
    for name in ["X-Forwarded-Port", "Forwarded", "X-Forwarded-Prefix", "Connection", "X_Real_IP"] {
        assert!(!seen.headers.has(name), "{name}: {all:?}");
    }
    assert_eq!(seen.headers.all("X-Real-IP"), ["127.0.0.1"]);
    assert_eq!(seen.headers.all("X-Forwarded-For"), ["127.0.0.1"]);
    assert_eq!(seen.headers.all("X-Forwarded-Proto"), ["http"]);
}

#[tokio::test]
async fn the_proxys_credentials_stay_with_the_proxy_and_the_applications_pass() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).token("example-token").await;
    let headers = [
        ("e2b-traffic-access-token", "example-token"),
        ("cube-traffic-access-token", "example-token"),
        ("X-Access-Token", "app-1"),
        ("Authorization", "Bearer app-2"),
        ("Cookie", "a=b"),
    ];
    let seen = env.call(By::Header, &sandbox, "GET", "/", &headers, "").await.seen();
    for name in
        ["e2b-traffic-access-token", "cube-traffic-access-token", "E2b-Sandbox-Id", "E2b-Sandbox-Port"]
    {
        assert!(!seen.headers.has(name), "{name}");
    }
    for (name, value) in &headers[2..] {
        assert_eq!(seen.headers.all(name), [*value]);
    }
}

#[tokio::test]
async fn everything_else_arrives_as_sent_and_nothing_is_added() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let sent = [
        ("Accept-Encoding", "br;q=1.0, gzip"),
        ("X-Multi", "one"),
        ("X_Under", "u"),
        ("X-Multi", "two"),
        ("X-Empty", ""),
    ];
    let seen = env.get_with(&sandbox, "/", &sent).await.seen();
    for (name, _) in sent {
        let values: Vec<&str> = sent.iter().filter(|(n, _)| *n == name).map(|(_, v)| *v).collect();
        assert_eq!(seen.headers.all(name), values, "{name}");
    }
    let ours = [
        "host",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-for",
        "x-real-ip",
        "x-cube-request-id",
    ];
    let known = |name: &str| {
        ours.iter().any(|n| name.eq_ignore_ascii_case(n))
            || sent.iter().any(|(n, _)| name.eq_ignore_ascii_case(n))
    };
    let added: Vec<_> = seen.headers.pairs().iter().filter(|(name, _)| !known(name)).collect();
    assert!(added.is_empty(), "{added:?}");
}

#[tokio::test]
async fn a_good_request_id_is_kept_and_a_bad_one_replaced() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let (longest, too_long) = ("r".repeat(128), "r".repeat(129));
    for (sent, kept) in [("req-1/abc:def", true), (&longest, true), (&too_long, false), ("a b", false)] {
        let response = env.get_with(&sandbox, "/", &[("X-Cube-Request-Id", sent)]).await;
        let id = response.request_id();
        assert_eq!(id == sent, kept, "{sent}");
        assert!(!id.is_empty() && id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic()), "{id}");
        assert_eq!(response.seen().headers.all("X-Cube-Request-Id"), [id]);
    }
}

#[tokio::test]
async fn connection_and_upgrade_are_hop_by_hop() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for headers in [
        &[("Connection", "keep-alive")][..],
        &[("Connection", "upgrade")],
        &[("Connection", "X-Mine"), ("X-Mine", "1")],
        &[("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")],
    ] {
        let seen = env.get_with(&sandbox, "/", headers).await.seen();
        for name in ["Connection", "Upgrade", "X-Mine", "HTTP2-Settings"] {
            assert!(!seen.headers.has(name), "{name} after {headers:?}");
        }
    }
}

#[tokio::test]
async fn a_trusted_proxy_is_believed() {
    use cube_testkit::serde_json::json;
    let env = own(json!({ "routing": { "trusted_proxies": ["127.0.0.1/32", "10.0.0.0/8"] } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let headers =
        [("X-Forwarded-For", "203.0.113.7, 198.51.100.2, 10.1.1.1"), ("X-Forwarded-Proto", "https")];
    let seen = env.get_with(&sandbox, "/", &headers).await.seen();
    let chain = seen.headers.all("X-Forwarded-For").join(",").replace(' ', "");
    assert_eq!(chain, "203.0.113.7,198.51.100.2,10.1.1.1,127.0.0.1");
    assert_eq!(seen.headers.all("X-Real-IP"), ["198.51.100.2"]);
    assert_eq!(seen.headers.all("X-Forwarded-Proto"), ["https"]);
}
