//! Hosts and ids that were made to do harm (routing.md).

use cube_testkit::Origin;
use cube_testkit::serde_json::json;

use crate::support::{cube, own};

const MALFORMED: [&[u8]; 44] = [
    b"",
    b" ",
    b".",
    b"-",
    b":",
    b"@",
    b"8080-",
    b"8080-.cube.test",
    b"0-abc.cube.test",
    b"00-abc.cube.test",
    b"65536-abc.cube.test",
    b"08080-abc.cube.test",
    b"99999999999999999999-abc.cube.test",
    b"+8080-abc.cube.test",
    b"-8080-abc.cube.test",
    b"8080_abc.cube.test",
    b"8080abc.cube.test",
    b"8080-a b.cube.test",
    b"8080-a\tb.cube.test",
    b"8080-a\x01b.cube.test",
    b"8080-a\x7fb.cube.test",
    b"8080-a%41.cube.test",
    b"8080-a%00.cube.test",
    b"8080-a{b}.cube.test",
    b"8080-a*.cube.test",
    b"8080-a/b.cube.test",
    b"8080-a\\b.cube.test",
    b"8080-a?b.cube.test",
    b"8080-a#b.cube.test",
    b"8080-a@b.cube.test",
    b"user@8080-abc.cube.test",
    b"8080-a,8080-b",
    b"8080-abc..cube.test",
    b"8080-abc.cube.test:80:80",
    b"8080-abc.cube.test:http",
    b"8080-abc.cube.test:-1",
    b"8080-abc.cube.test:99999",
    b"http://8080-abc.cube.test",
    b"[8080-abc]",
    b"[::1",
    b"8080-\xc3\xa9.cube.test",
    b"8080-\xff\xfe.cube.test",
    b"\xef\xbc\x98080-abc.cube.test",
    b"8080-'or'1'='1.cube.test",
];

async fn status_for(raw: &[u8]) -> (u16, Option<u32>) {
    let mut client = cube().await.client().await;
    client.send(raw).await;
    let response = client.response("GET").await;
    (response.status, response.retcode())
}

#[tokio::test]
async fn a_malformed_host_is_a_bad_request_and_the_next_request_is_right() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for host in MALFORMED {
        let raw = [&b"GET / HTTP/1.1\r\nHost: "[..], host, b"\r\n\r\n"].concat();
        let (status, retcode) = status_for(&raw).await;
        assert_eq!(status, 400, "{}", host.escape_ascii());
        // Pingora's own refusals carry no code.
        assert!(retcode.is_none_or(|code| code == 310_400), "{retcode:?} for {}", host.escape_ascii());
        env.get(&sandbox, "/").await.passed(200);
    }
}

#[tokio::test]
async fn a_host_that_is_too_long_missing_or_given_twice_is_a_bad_request() {
    let id = "a".repeat(129);
    for head in [
        format!("GET / HTTP/1.1\r\nHost: 8080-{id}.cube.test\r\n\r\n"),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: 8080-a.cube.test\r\nHost: 8080-b.cube.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: 8080-a.cube.test\r\nHost: 8080-a.cube.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost : 8080-a.cube.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: 8080-a\r\n .cube.test\r\n\r\n".to_owned(),
    ] {
        assert_eq!(status_for(head.as_bytes()).await.0, 400, "{head:?}");
    }
}

#[tokio::test]
async fn a_malformed_target_is_a_bad_request() {
    for target in ["a/b", "*", "http:///x", "/<", "/a>", "/#x", "/?\"", "/`"] {
        let raw = format!("GET {target} HTTP/1.1\r\nHost: 8080-abc.cube.test\r\n\r\n");
        assert_eq!(status_for(raw.as_bytes()).await.0, 400, "{target:?}");
    }
    let raw = b"GET /\xff\xfe HTTP/1.1\r\nHost: 8080-abc.cube.test\r\n\r\n";
    assert_eq!(status_for(raw).await.0, 400);
}

/// Pingora writes such bytes as `%20` and so on before anybody else sees them. Harmless as long as
/// what is forwarded is one well-formed target.
#[tokio::test]
async fn a_space_or_control_byte_in_a_target_is_refused_or_arrives_encoded() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for (byte, encoded) in [(" ", "%20"), ("\x01", "%01"), ("\x7f", "%7F"), ("\t", "%09")] {
        let response = env.get(&sandbox, &format!("/a{byte}b")).await;
        assert!([200, 400].contains(&response.status), "{byte:?}: {}", response.brief());
        if response.status == 200 {
            assert_eq!(response.seen().target, format!("/a{encoded}b"));
        }
    }
}

#[tokio::test]
async fn an_id_that_was_made_to_inject_a_key_is_never_looked_up() {
    let env = own(json!({})).await;
    let mut monitor = env.redis.monitor().await;
    let proof = env.nobody();
    env.get(&proof, "/").await.is_not_found();
    let lines = monitor.lines().await;
    assert!(lines.iter().any(|line| line.contains(&proof.id)), "a lookup is seen: {lines:?}");

    for id in [
        "injected:x",
        "cube:v1:shared:sandbox:proxy:injected",
        "{injected}",
        "injected}{",
        "injected*",
        "injected?",
        "injected[a-z]",
        "../injected",
        "injected/..",
        "%69njected",
        "injected%3ax",
        "injected%00",
        "injected\\r\\nDEL x",
        "injected\"",
        "injected'",
        "injected x",
        "injected\tx",
        "injected\x01",
        "inj\u{e9}cted",
        "injected;",
        "injected$(id)",
    ] {
        let headers = [("Host", "127.0.0.1"), ("E2b-Sandbox-Id", id), ("E2b-Sandbox-Port", "8080")];
        assert_eq!(env.raw("GET", "/", &headers, "").await.status, 400, "header form {id:?}");
        let host = format!("8080-{id}");
        assert_eq!(env.raw("GET", "/", &[("Host", &host)], "").await.status, 400, "host form {id:?}");
        let target = format!("/sandbox/{id}/8080/");
        let response = env.raw("GET", &target, &[("Host", "127.0.0.1")], "").await;
        assert_eq!(response.status, 400, "path form {id:?}");
    }
    let lines = monitor.lines().await;
    // What is cached is read again now and then, and that is the proof alone.
    let looked_up = |line: &&String| line.contains("sandbox:proxy:") && !line.contains(&proof.id);
    let lookups: Vec<_> = lines.iter().filter(looked_up).collect();
    assert!(lookups.is_empty(), "{lookups:?}");
}
