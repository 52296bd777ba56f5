//! SIGHUP (operations.md, Configuration): what takes effect in a running process, what does not,
//! and what a file that does not hold leaves alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{By, Env, Manager, Origin, Sandbox, TlsClient, certificate_in, eventually, unique_id};
use tokio::task::JoinHandle;

use crate::support::{own, waking_with};

/// Requests without a pause, on one connection that is kept and on new ones, until it is told to
/// stop. A request without its response fails the test.
struct Load {
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<usize>>,
}

impl Load {
    fn on(env: &Env, sandbox: &Sandbox) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let clients = [true, false].map(|keep| {
            let (address, host, over) = (env.proxy.http(), sandbox.host(), over.clone());
            tokio::spawn(async move {
                let mut client = cube_testkit::Client::connect(address).await;
                let mut requests = 0;
                while !over.load(Ordering::SeqCst) {
                    if !keep {
                        client = cube_testkit::Client::connect(address).await;
                    }
                    client.call("GET", "/", &[("Host", &host)], "").await.passed(200);
                    requests += 1;
                }
                requests
            })
        });
        Self { over, clients: clients.into() }
    }

    async fn stop(self) -> usize {
        self.over.store(true, Ordering::SeqCst);
        let mut requests = 0;
        for client in self.clients {
            requests += client.await.expect("every request is answered");
        }
        requests
    }
}

/// The words of the last line that says which keys are in force.
fn changed(env: &Env) -> String {
    let output = env.proxy.output();
    output.lines().rfind(|line| line.contains("read again")).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_running_process_can_take_is_in_force_at_once_and_no_request_is_dropped() {
    let env = own(json!({ "admin": { "token": "example-token-1" } })).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let good = env.sandbox(&origin).await;
    let private = env.sandbox(&origin).token("example-token").await;
    let envd = env.sandbox(&origin).port(49983).await;
    let outside = env.sandbox_at(([127, 99, 0, 1], origin.port()).into()).await;
    let load = Load::on(&env, &good);
    let mut all = json!({});
    let mut step = async |overrides: Value| {
        cube_testkit::merge(&mut all, &overrides);
        env.proxy.reconfigure(&all).await;
        changed(&env)
    };

    env.raw("GET", "/", &[("Host", &format!("8080-{}.other.test", good.id))], "").await.passed(200);
    let said = step(json!({ "routing": { "domains": ["cube.test"] } })).await;
    assert!(said.contains("\"routing.domains\""), "{said}");
    env.raw("GET", "/", &[("Host", &format!("8080-{}.other.test", good.id))], "").await.is_bad_request();

    let fields: Vec<(String, String)> = (0..20).map(|n| (format!("X-{n}"), "1".to_owned())).collect();
    let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    env.get_with(&good, "/", &fields).await.passed(200);
    step(json!({ "limits": { "headers": 15, "body": "1KiB", "requests_per_sandbox": 900 } })).await;
    assert_eq!(env.get_with(&good, "/", &fields).await.status, 431);
    assert_eq!(env.post(&good, "/", "x".repeat(1025)).await.status, 413);

    assert_eq!(env.get(&private, "/").await.status, 404);
    step(json!({ "errors": { "mask_existence": false } })).await;
    assert_eq!(env.get(&private, "/").await.status, 403);
    step(json!({ "traffic_token": { "exempt_ports": [8080] } })).await;
    env.get(&private, "/").await.passed(200);

    env.get(&envd, "/init").await.passed(200);
    step(json!({ "routing": { "envd_control_from": [] } })).await;
    assert_eq!(env.get(&envd, "/init").await.retcode(), Some(310_404));

    let forwarded = [("X-Forwarded-For", "192.0.2.7")];
    env.get_with(&good, "/", &forwarded).await.passed(200);
    step(json!({ "routing": { "trusted_proxies": ["127.0.0.0/8"] } })).await;
    let id = unique_id("reload");
    let both = [forwarded[0], ("X-Cube-Request-Id", id.as_str())];
    env.get_with(&good, "/", &both).await.passed(200);
    assert!(env.proxy.log_line(&id).await.field("x_forwarded_for").starts_with("192.0.2.7"));

    assert_eq!(env.get(&outside, "/").await.retcode(), Some(310_508));
    step(json!({ "upstream": { "cidrs": ["127.0.0.0/8"], "connect_timeout": "2s" } })).await;
    assert_ne!(env.get(&outside, "/").await.retcode(), Some(310_508));

    let planes = Origin::named("plane").echo().await;
    let target = format!("http://{}", planes.address());
    step(json!({ "routing": { "control_plane": { "url": target, "hosts": ["api.cube.test"] } } })).await;
    let response = env.raw("GET", "/sandboxes", &[("Host", "api.cube.test")], "").await;
    assert_eq!(response.passed(200).seen().origin, "plane");

    let with = |token: &'static str| {
        let address = env.proxy.admin_address();
        async move {
            let headers = [("Host", "127.0.0.1"), ("X-Cube-Admin-Token", token)];
            let mut client = cube_testkit::Client::connect(address).await;
            client.call("GET", "/admin/healthz", &headers, "").await.status
        }
    };
    assert_eq!((with("example-token-1").await, with("example-token-2").await), (200, 403));
    let said = step(json!({ "admin": { "token": "example-token-2" } })).await;
    assert_eq!((with("example-token-1").await, with("example-token-2").await), (403, 200));
    assert!(said.contains("\"admin.token\""), "{said}");
    assert!(!env.proxy.output().contains("example-token"), "{}", env.proxy.output());

    step(json!({ "access_log": { "redact_query": ["ticket"], "format": "json" } })).await;
    let id = unique_id("reload");
    env.get_with(&good, "/?ticket=hush&token=shown", &[("X-Cube-Request-Id", &id)]).await.passed(200);
    eventually("the line in its new form", || async {
        let log = env.proxy.access_log();
        let line = log.lines().find(|line| line.contains(&id))?.to_owned();
        let line: Value = cube_testkit::serde_json::from_str(&line).ok()?;
        assert_eq!(line["args"], "ticket=***&token=shown");
        Some(())
    })
    .await;

    let requests = load.stop().await;
    println!("{requests} requests while the configuration changed eleven times");
    assert!(requests > 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_of_routes_and_the_log_level_follow() {
    let blind = json!({
        "store": { "redis": { "tracking": false } },
        "cache": { "ttl_min": "60s", "ttl_max": "60s", "untracked_ttl": "60s" },
    });
    let env = own(blind).await;
    let (old, new) = (Origin::named("old").echo().await, Origin::named("new").echo().await);
    let sandbox = env.sandbox(&old).await;
    let other = env.sandbox(&old).await;
    assert_eq!(env.get(&sandbox, "/").await.seen().origin, "old");
    let load = Load::on(&env, &other);
    env.proxy
        .reconfigure(&json!({ "cache": { "untracked_ttl": "100ms" }, "log": { "level": "debug" } }))
        .await;
    env.write(&sandbox, &[("8080", &new.port().to_string())]).await;
    eventually("the new route", || async {
        (env.get(&sandbox, "/").await.seen().origin == "new").then_some(())
    })
    .await;
    let mut client = env.client().await;
    client.send("\r\n").await;
    drop(client);
    load.stop().await;
    assert!(changed(&env).contains("cache.untracked_ttl, log.level"), "{}", changed(&env));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_manager_wakes_sandboxes_and_waits_have_their_new_length() {
    let env = waking_with(json!({})).await;
    let second = Manager::start();
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let good = env.sandbox(&origin).await;
    let load = Load::on(&env, &good);
    env.proxy
        .reconfigure(&json!({ "resume": { "url": second.url() }, "lifecycle": { "pause_wait": "0s" } }))
        .await;
    env.push(&sandbox, "paused").await;
    env.get(&sandbox, "/").await.passed(200);
    assert_eq!((env.manager.calls(&sandbox).len(), second.calls(&sandbox).len()), (0, 1));
    env.push(&sandbox, "pausing").await;
    assert_eq!(env.get(&sandbox, "/").await.retcode(), Some(310_503));
    load.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_keeps_the_settings_it_began_with_and_a_connection_its_limits() {
    let env = own(json!({})).await;
    let gate = cube_testkit::Gate::new();
    let drip = cube_testkit::scripts::drip(
        cube_testkit::scripts::Framing::Chunked,
        "text/plain",
        &["1", "2"],
        &gate,
    );
    let origin = Origin::scripted(drip).await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host())]).await;
    gate.open();
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.next_chunk().await, b"1");
    let overrides = json!({
        "limits": { "requests_per_sandbox": 1, "headers": 1 },
        "routing": { "domains": ["nowhere.test"] }, "upstream": { "silence_timeout": "1ms" },
    });
    env.proxy.reconfigure(&overrides).await;
    gate.open();
    assert_eq!(client.next_chunk().await, b"2");
    assert!(client.next_chunk().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_certificates_are_served() {
    let authority = cube_testkit::Authority::new();
    let builder = crate::support::builder(&json!({}));
    let pair = |name: &str| authority.issue(builder.directory(), name, &[name]);
    let as_json =
        |(cert, key): &(std::path::PathBuf, std::path::PathBuf)| json!({ "cert": cert, "key": key });
    let (one, two) = (pair("one.test"), pair("two.test"));
    let listen = format!("127.0.0.1:{}", cube_testkit::free_port("127.0.0.1"));
    let builder = builder.config(&json!({
        "listen": { "https": [listen] }, "tls": { "certificates": [as_json(&one)] },
    }));
    let env = Env::start_with(builder).await;
    let served =
        async |name: &str| TlsClient::of("1.3").connect(env.proxy.https(), name).await.unwrap().certificate;
    assert!(served("two.test").await == certificate_in(&one.0));
    env.proxy.reconfigure(&json!({ "tls": { "certificates": [as_json(&two), as_json(&one)] } })).await;
    assert!(served("two.test").await == certificate_in(&two.0));
    assert!(served("one.test").await == certificate_in(&one.0));
    assert!(served("other.test").await == certificate_in(&two.0), "the first is the default");
    let metrics = env.proxy.metrics().await;
    assert_eq!(metrics.labels("cube_proxy_tls_certificate_expiry_timestamp_seconds", "certificate").len(), 2);
    env.proxy.reconfigure(&json!({ "tls": { "certificates": [] } })).await;
    assert!(served("one.test").await == certificate_in(&one.0), "the listener is open and keeps them");
    env.proxy.output_line(&["upgrade or a restart", "tls.certificates"]).await;
}

#[tokio::test]
async fn a_file_that_does_not_hold_changes_nothing_and_the_log_says_where() {
    let env = own(json!({})).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    let file = env.proxy.directory().join("cube-proxy.yaml");
    for (text, words) in [
        // What is right beside it is not taken either.
        (
            "routing: {domains: [nowhere.test]}\nlimits:\n  heads: 1KiB\n",
            "cube-proxy.yaml:3:3: limits.heads: unknown key",
        ),
        ("limits: {header_timeout: soon}\n", "cube-proxy.yaml:1:10: limits.header_timeout: "),
        ("limits: [\n", "cube-proxy.yaml:2:1: "),
        ("admin: {token_file: /nowhere/token}\n", "admin.token_file: /nowhere/token: No such file"),
        // One that is being written.
        ("", "no regular file, or empty"),
    ] {
        env.proxy.write_config_text(text);
        assert!(!env.proxy.reload().await, "{text}");
        env.proxy.output_line(&["the old one stays in force", words]).await;
        env.get(&sandbox, "/").await.passed(200);
    }
    std::fs::remove_file(&file).unwrap();
    assert!(!env.proxy.reload().await);
    env.proxy.output_line(&["the old one stays in force", "cannot be read"]).await;
    let fifo = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(fifo.success());
    assert!(!env.proxy.reload().await);
    env.get(&sandbox, "/").await.passed(200);
    std::fs::remove_file(&file).unwrap();
    let metrics = env.proxy.metrics().await;
    let of = |outcome| metrics.sum("cube_proxy_config_reloads_total", &[("outcome", outcome)]);
    assert_eq!((of("refused"), of("applied")), (7.0, 0.0));
    env.proxy.reconfigure(&json!({})).await;
    assert!(changed(&env).contains("nothing has changed"), "{}", changed(&env));
}

#[tokio::test]
async fn keys_that_need_an_upgrade_are_named_and_nothing_follows_from_them() {
    let env = own(json!({})).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    let free = format!("127.0.0.1:{}", cube_testkit::free_port("127.0.0.1"));
    let overrides = json!({
        "listen": { "http": [free] },
        "errors": { "dialect": "e2b" },
        "store": { "redis": { "password": "example-token" } },
        "server": { "threads": 1 },
        "upstream": { "pool_size": 7 },
        "limits": { "headers": 9 },
    });
    env.proxy.reconfigure(&overrides).await;
    let line = env.proxy.output_line(&["upgrade or a restart"]).await;
    assert!(
        line.contains(
            "\"listen.http, errors.dialect, store.redis.password, upstream.pool_size, server.threads\""
        ),
        "{line}"
    );
    // Not even a default that hangs on the dialect.
    env.get(&env.nobody(), "/").await.is_own(404, 310_507, r#"{"error":"not found"}"#);
    let private = env.sandbox(&origin).token("example-token").await;
    assert_eq!(env.get(&private, "/").await.status, 404, "mask_existence is the cube dialect's");
    let said = changed(&env);
    assert!(said.contains("\"limits.headers\""), "{said}");
    // What is live beside them is.
    let fields = ["1", "2", "3", "4", "5", "6", "7", "8", "9"].map(|n| (n, "x"));
    assert_eq!(env.call(By::Host, &sandbox, "GET", "/", &fields, "").await.status, 431);
    assert!(tokio::net::TcpStream::connect(&free).await.is_err());
    assert!(!env.proxy.output().contains("example-token"));
    // Asked again, it still says what waits.
    env.proxy.reconfigure(&overrides).await;
    assert_eq!(env.proxy.output().matches("upgrade or a restart").count(), 2);
}
