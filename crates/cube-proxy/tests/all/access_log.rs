//! The access log and the counters (operations.md).

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{By, Env, LOG_FIELDS, Origin, unique_id};

use crate::support::{cube, own};

#[tokio::test]
async fn a_line_has_every_field_in_its_place() {
    let env = cube().await;
    let origin = Origin::replying(201, &[], "12345").await;
    let sandbox = env.sandbox(&origin).await;
    let id = unique_id("log");
    let headers = [("X-Cube-Request-Id", id.as_str()), ("User-Agent", "kit/1")];
    env.call(By::Path, &sandbox, "POST", "/a%20b?x=1&y=2", &headers, "hi").await.passed(201);
    let line = env.proxy.log_line(&id).await;
    let time = line.field("access_time");
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000", "{time}");
    for (name, value) in [
        ("host", env.proxy.http().to_string()),
        ("x_real_ip", "127.0.0.1".into()),
        ("x_forwarded_for", "127.0.0.1".into()),
        ("server_addr", "127.0.0.1".into()),
        ("x_forwarded_proto", "http".into()),
        ("method", "POST".into()),
        ("request_uri", format!("{}/a%20b?x=1&y=2", sandbox.prefix())),
        ("args", "x=1&y=2".into()),
        ("protocol", "HTTP/1.1".into()),
        ("uri", "/a%20b".into()),
        ("status", "201".into()),
        ("body_bytes_sent", "5".into()),
        ("connection_requests", "1".into()),
        ("upstream_addr", origin.address().to_string()),
        ("upstream_status", "201".into()),
        ("user_agent", "kit/1".into()),
        ("request_id", id.clone()),
        ("backend_ip", "127.0.0.1".into()),
        ("retcode", "330201".into()),
        ("sandbox_id", sandbox.id.clone()),
        ("port", "8080".into()),
        ("reason", "ok".into()),
    ] {
        assert_eq!(line.field(name), value, "{name}: {}", line.text);
    }
    for name in ["request_time", "upstream_response_time"] {
        assert!(line.field(name).parse::<f64>().is_ok(), "{name}: {}", line.text);
    }
}

#[tokio::test]
async fn an_absent_value_is_a_hyphen_and_a_hyphen_is_not() {
    let env = cube().await;
    let id = unique_id("log");
    env.raw("GET", "/x", &[("Host", "nothing.example"), ("X-Cube-Request-Id", &id)], "")
        .await
        .is_bad_request();
    let line = env.proxy.log_line(&id).await;
    for name in [
        "args",
        "user_agent",
        "upstream_addr",
        "upstream_status",
        "backend_ip",
        "sandbox_id",
        "port",
        "instance_id",
    ] {
        assert_eq!(line.field(name), "-", "{name}");
    }
    assert_eq!((line.field("status"), line.field("reason")), ("400", "bad_target"));
    let id = unique_id("log");
    env.get_with(&env.nobody(), "/", &[("User-Agent", "-"), ("X-Cube-Request-Id", &id)]).await;
    let line = env.proxy.log_line(&id).await;
    assert_eq!((line.field("user_agent"), line.field("reason")), ("\\x2D", "no_record"));
}

#[tokio::test]
async fn a_line_cannot_be_forged() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let id = unique_id("log");
    let agent = "x||200||\"y\"\\ \u{e9}\t|";
    let headers = [("X-Cube-Request-Id", id.as_str()), ("User-Agent", agent)];
    env.get_with(&sandbox, "/a||b?c||d", &headers).await.passed(200);
    let line = env.proxy.log_line(&id).await;
    assert_eq!((line.field("status"), line.field("retcode")), ("200", "310200"));
    assert_eq!(line.field("request_uri"), "/a\\x7C\\x7Cb?c\\x7C\\x7Cd");
    assert_eq!(line.field("user_agent"), "x\\x7C\\x7C200\\x7C\\x7C\\x22y\\x22\\x5C \\xC3\\xA9\\x09\\x7C");
}

#[tokio::test]
async fn secrets_in_a_query_are_not_written() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let id = unique_id("log");
    let target =
        "/p?token=hush1&a=shown&access_token=hush2&PassWord=hush3&to%6ben=hush4&X-Amz-Signature=hush5&key=";
    let response = env.get_with(&sandbox, target, &[("X-Cube-Request-Id", &id)]).await;
    assert_eq!(response.seen().target, target);
    let line = env.proxy.log_line(&id).await;
    assert!(!line.text.contains("hush"), "{}", line.text);
    assert!(line.field("args").contains("a=shown"), "{}", line.text);
    assert!(line.field("request_uri").contains("a=shown"), "{}", line.text);
}

#[tokio::test]
async fn every_request_has_exactly_one_line() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let host = env.sandbox(&origin).await.host();
    let mut client = env.client().await;
    let ids: Vec<String> = (0..3).map(|_| unique_id("log")).collect();
    for id in &ids {
        client.call("GET", "/", &[("Host", &host), ("X-Cube-Request-Id", id)], "").await.passed(200);
    }
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(env.proxy.log_line(id).await.field("connection_requests"), (n + 1).to_string());
        assert_eq!(env.proxy.access_log().matches(id.as_str()).count(), 1);
    }
}

#[tokio::test]
async fn a_request_that_the_parser_refuses_is_counted() {
    let env = own(json!({})).await;
    let mut client = env.client().await;
    client.send("GET / HTTP/1.1\r\nno colon\r\n\r\n").await;
    assert_eq!(client.response("GET").await.status, 400);
    cube_testkit::eventually("the refusal in the metrics", || async {
        let metrics = env.proxy.metrics().await;
        (metrics.sum("cube_proxy_answers_total", &[("retcode", "310400")]) >= 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_is_counted_adds_up() {
    let env = own(json!({})).await;
    let (good, bad) = (Origin::echo().await, Origin::replying(500, &[], "").await);
    let good = env.sandbox(&good).await;
    let bad = env.sandbox(&bad).await;
    let private = env.sandbox_at(([127, 0, 0, 1], 1024).into()).token("example-token").await;
    for (sandbox, times) in [(&good, 5), (&bad, 3), (&private, 2), (&env.nobody(), 4)] {
        for n in 0..times {
            env.call(By::ALL[n % 3], sandbox, "GET", "/", &[], "").await;
        }
    }
    cube_testkit::eventually("all of them in the metrics", || async {
        let metrics = env.proxy.metrics().await;
        let of = |retcode| metrics.sum("cube_proxy_answers_total", &[("retcode", retcode)]);
        (metrics.sum("cube_proxy_answers_total", &[]) >= 14.0).then(|| {
            let all = [of("310200"), of("330500"), of("310403"), of("310507")];
            assert_eq!(all, [5.0, 3.0, 2.0, 4.0]);
        })
    })
    .await;
    let metrics = env.proxy.metrics().await;
    assert_eq!(metrics.sum("cube_proxy_answers_total", &[("retcode", "310200"), ("form", "host")]), 2.0);
    assert_eq!(metrics.sum("cube_proxy_request_total", &[]), 14.0);
}

/// Requests with each byte in each field that is logged, on a connection each; how many were sent.
async fn every_byte_in_every_field(env: &Env, host: &str) -> usize {
    let mut sent = 0;
    for byte in 0..=255_u8 {
        for field in 0..6 {
            let plain = || b"ab".to_vec();
            let odd = [b"a||\"\\", &[byte][..], b"||200||b"].concat();
            let of = |n| if n == field { odd.clone() } else { plain() };
            let host = if field == 5 { [host.as_bytes(), &odd].concat() } else { host.into() };
            let request = [
                b"GET /",
                &of(0)[..],
                b" HTTP/1.1\r\nHost: ",
                &host,
                b"\r\nUser-Agent: ",
                &of(1),
                b"\r\nX-Cube-Instance-Id: ",
                &of(2),
                b"\r\nX-Forwarded-For: ",
                &of(3),
                b"\r\nX-Cube-Request-Id: ",
                &of(4),
                b"\r\nConnection: close\r\n\r\n",
            ]
            .concat();
            let mut client = env.client().await;
            client.send(request).await;
            // Whatever it is: what a line feed makes of a head may be two requests.
            while let Ok(Some(head)) = client.try_head().await {
                client.body(head, "GET").await;
            }
            sent += 1;
        }
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_over_the_wire_forges_a_line_in_either_format() {
    for format in ["cube", "json"] {
        let env = own(json!({
            "access_log": { "format": format }, "routing": { "trusted_proxies": ["127.0.0.0/8"] },
        }))
        .await;
        let origin = Origin::replying(200, &[], "ok").await;
        let host = env.sandbox(&origin).await.host();
        let sent = every_byte_in_every_field(&env, &host).await;
        let counted = cube_testkit::eventually("a line for each request", || async {
            let metrics = env.proxy.metrics().await;
            let counted = metrics.count("cube_proxy_answers_total", &[]);
            (metrics.count("cube_proxy_access_log_lines_total", &[]) == counted).then_some(counted)
        })
        .await;
        assert!(counted >= sent, "{counted} of {sent}");
        let log = std::fs::read(env.proxy.directory().join("access.log")).unwrap();
        let lines: Vec<&[u8]> = log.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len() - 1, counted, "a line for each request");
        for line in &lines[..counted] {
            let text = String::from_utf8_lossy(line);
            if format == "json" {
                let value: Value = cube_testkit::serde_json::from_slice(line).expect(&text);
                // And `trace_id`.
                assert_eq!(value.as_object().unwrap().len(), LOG_FIELDS.len() + 1, "{text}");
            } else {
                assert!(line.iter().all(|byte| (0x20..0x7f).contains(byte)), "{text}");
                assert_eq!(text.split("||").count(), LOG_FIELDS.len(), "{text}");
                assert_eq!(text.matches('|').count(), 2 * (LOG_FIELDS.len() - 1), "{text}");
            }
        }
        println!("{format}: {sent} requests, {counted} lines");
    }
}
