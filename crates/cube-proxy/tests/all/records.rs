//! Records as strangers write them, and the route they give (metadata.md).

use cube_testkit::serde_json::json;
use cube_testkit::{Env, OUTSIDE, Origin, Sandbox};

use crate::support::{cube, own};

#[tokio::test]
async fn a_local_sandbox_is_dialled_at_its_own_address_and_port() {
    let env = cube().await;
    let inside = Origin::named("inside").on("127.0.0.21").echo().await;
    let mapped = Origin::named("mapped").echo().await;
    let port = inside.port().to_string();
    let sandbox = env.sandbox(&inside).local().field(&port, &mapped.port().to_string()).await;
    assert_eq!(env.get(&sandbox, "/").await.seen().origin, "inside");
}

#[tokio::test]
async fn a_remote_sandbox_is_dialled_at_its_node_and_mapped_port() {
    let env = cube().await;
    let node = Origin::named("node").on("127.0.0.22").echo().await;
    let sandbox = env.sandbox(&node).without("SandboxIP").await;
    assert_eq!(env.get(&sandbox, "/").await.seen().origin, "node");
}

#[tokio::test]
async fn a_node_may_have_an_ipv6_address() {
    let env = cube().await;
    let node = Origin::named("six").on("::1").echo().await;
    env.get(&env.sandbox(&node).await, "/").await.passed(200);
    let inside = env.sandbox(&node).local().await;
    env.get(&inside, "/").await.passed(200);
}

#[tokio::test]
async fn the_first_key_that_is_not_empty_is_the_record() {
    let env = cube().await;
    let prefixes = ["cube:v1:shared:sandbox:proxy:", "sandbox:proxy:", "bypass_host_proxy:"];
    for first in 0..prefixes.len() {
        let sandbox = env.nobody();
        let mut origins = Vec::new();
        for prefix in &prefixes[first..] {
            let origin = Origin::named(prefix).echo().await;
            let fields = [("HostIP", "127.0.0.1".to_owned()), ("8080", origin.port().to_string())];
            env.redis.hset(&format!("{prefix}{}", sandbox.id), &fields).await;
            origins.push(origin);
        }
        assert_eq!(env.get(&sandbox, "/").await.seen().origin, prefixes[first]);
    }
}

/// What a record with one field changed gives, and that the proxy is none the worse for it.
async fn with(env: &Env, origin: &Origin, local: bool, name: &str, value: &str) -> cube_testkit::Response {
    let sandbox = env.sandbox(origin);
    let sandbox = if local { sandbox.local() } else { sandbox };
    let sandbox = sandbox.field(name, value).await;
    let response = env.get(&sandbox, "/").await;
    let healthy = env.sandbox(origin).await;
    env.get(&healthy, "/").await.passed(200);
    response
}

const RUBBISH: [&str; 14] = [
    "localhost",
    "127.0.0.1:80",
    "127.0.0.256",
    "127.0.0",
    "0x7f.0.0.1",
    "fe80:::1",
    "[::1]",
    " 127.0.0.1",
    "127.0.0.1\r\nHost: evil",
    "\0",
    "é",
    "${PORT}",
    "-",
    "http://127.0.0.1",
];

#[tokio::test]
async fn rubbish_in_an_address_that_is_needed_is_a_bad_gateway() {
    let env = cube().await;
    let origin = Origin::echo().await;
    for value in RUBBISH {
        with(env, &origin, false, "HostIP", value).await.is_bad_gateway(310_508);
        with(env, &origin, true, "SandboxIP", value).await.is_bad_gateway(310_508);
        with(env, &origin, false, "SandboxIP", value).await.passed(200);
    }
}

#[tokio::test]
async fn rubbish_in_a_port_mapping_is_a_bad_gateway() {
    let env = cube().await;
    let origin = Origin::echo().await;
    for value in [
        "0",
        "65536",
        "http",
        "-1",
        "+8080",
        " 8080",
        "8080 ",
        "080",
        "8080,9",
        "99999999999999999999",
        "1e3",
    ] {
        with(env, &origin, false, "8080", value).await.is_bad_gateway(310_508);
    }
    // A well-known port of the node is none of a sandbox's.
    with(env, &origin, false, "8080", "22").await.is_bad_gateway(310_508);
}

#[tokio::test]
async fn a_missing_or_empty_field_that_is_needed_is_not_found() {
    let env = cube().await;
    let origin = Origin::echo().await;
    for (name, local) in [("HostIP", false), ("8080", false), ("SandboxIP", true)] {
        let sandbox = env.sandbox(&origin);
        let sandbox = if local { sandbox.local() } else { sandbox };
        env.get(&sandbox.without(name).await, "/").await.is_not_found();
        with(env, &origin, local, name, "").await.is_not_found();
    }
}

#[tokio::test]
async fn rubbish_in_a_field_that_is_not_needed_harms_nothing() {
    let env = cube().await;
    let origin = Origin::echo().await;
    for (name, value) in [
        ("3000", "rubbish"),
        ("99999", "1"),
        ("CreatedAt", "yesterday"),
        ("CreatedAt", ""),
        ("Status", "sleepwalking"),
        ("Flavour", "\0\r\n"),
        ("hostip", "1.2.3.4"),
        ("", "x"),
    ] {
        with(env, &origin, false, name, value).await.passed(200);
    }
    for value in ["a b", "x\r\nEvil: 1", "http://x/", "a/b", "${PORT", "é", "\0"] {
        let response = with(env, &origin, false, "MaskRequestHost", value).await;
        // No mask that holds: the request must not reach the application under a forged name.
        if response.status == 200 {
            assert_eq!(response.seen().headers.all("Host").len(), 1);
            assert!(!response.seen().headers.has("Evil"));
        } else {
            response.is_bad_gateway(310_508);
        }
    }
}

#[tokio::test]
async fn a_record_that_is_no_hash_is_an_error_of_the_store() {
    let env = cube().await;
    let sandbox = env.nobody();
    env.redis.command(&["SET", &sandbox.key(), "text"]).await;
    env.get(&sandbox, "/").await.is_own(503, 310_500, r#"{"error":"service unavailable"}"#);
}

#[tokio::test]
async fn an_address_outside_the_allowed_ones_is_never_dialled() {
    let env = cube().await;
    let outside = Origin::named("outside").on(OUTSIDE).echo().await;
    env.get(&env.sandbox(&outside).await, "/").await.is_bad_gateway(310_508);
    env.get(&env.sandbox(&outside).local().await, "/").await.is_bad_gateway(310_508);
    let mapped = format!("::ffff:{OUTSIDE}");
    env.get(&env.sandbox(&outside).field("HostIP", &mapped).await, "/").await.is_bad_gateway(310_508);
    for address in ["169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "0.0.0.0", "::"] {
        let sandbox = env.sandbox(&outside).field("HostIP", address).await;
        env.get(&sandbox, "/").await.is_bad_gateway(310_508);
    }
    assert_eq!(outside.connections(), 0);
}

#[tokio::test]
async fn the_proxys_own_listeners_are_never_dialled() {
    let env = cube().await;
    for listener in [env.proxy.http(), env.proxy.admin_address()] {
        env.get(&env.sandbox_at(listener).await, "/").await.is_bad_gateway(310_508);
    }
}

#[tokio::test]
async fn by_default_loopback_is_not_dialled() {
    let env = own(json!({ "upstream": { "cidrs": null } })).await;
    for host in ["127.0.0.1", "::1"] {
        let origin = Origin::named("loopback").on(host).echo().await;
        env.get(&env.sandbox(&origin).await, "/").await.is_bad_gateway(310_508);
        env.get(&env.sandbox(&origin).local().await, "/").await.is_bad_gateway(310_508);
        assert_eq!(origin.connections(), 0, "{host}");
    }
}

#[tokio::test]
async fn a_node_in_the_faulty_set_is_refused_until_it_leaves_it() {
    let env = cube().await;
    let origin = Origin::named("faulty").on("127.0.0.41").echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.get(&sandbox, "/").await.passed(200);
    env.redis.command(&["SADD", "faulty_backend_set", "127.0.0.41"]).await;
    wait_for_status(env, &sandbox, 500).await;
    let before = origin.count();
    env.get(&sandbox, "/").await.is_own(500, 340_500, r#"{"error":"backend unavailable"}"#);
    assert_eq!(origin.count(), before);
    env.redis.command(&["SREM", "faulty_backend_set", "127.0.0.41"]).await;
    wait_for_status(env, &sandbox, 200).await;
}

async fn wait_for_status(env: &Env, sandbox: &Sandbox, status: u16) {
    cube_testkit::eventually(&format!("status {status}"), || async {
        (env.get(sandbox, "/").await.status == status).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_paused_or_killed_sandbox_is_refused_by_its_record() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let paused = env.sandbox(&origin).field("Status", "paused").await;
    let response = env.get(&paused, "/").await;
    response.is_own(503, 310_503, r#"{"error":"service unavailable"}"#);
    assert_eq!(response.headers.all("Retry-After"), ["5"]);
    let killed = env.sandbox(&origin).field("Status", "killed").await;
    env.get(&killed, "/").await.is_own(410, 310_410, r#"{"error":"gone"}"#);
    let hidden = env.sandbox(&origin).field("Status", "paused").token("example-token").await;
    env.get(&hidden, "/").await.is_not_found();
    assert_eq!(origin.count(), 0);
}
