//! Tokens never appear (operations.md): not in the logs, at no level and in neither format, not in
//! metrics, not in responses of the proxy itself.
//!
//! Beside this, every test looks: a proxy of the testkit whose output or access log has one of the
//! testkit's secrets in it fails its test.

use std::process::Command;

use cube_testkit::serde_json::json;
use cube_testkit::{By, Client, Env, Origin, RedisServer, SECRETS, Sandbox, eventually, refused_port};

use crate::support::{binary, builder};

/// Where a caller might put a token.
const HEADERS: [(&str, &str); 12] = [
    ("e2b-traffic-access-token", "example-token"),
    ("cube-traffic-access-token", "example-token"),
    ("e2b-traffic-access-token", "example-token-wrong"),
    ("Authorization", "Bearer example-token"),
    ("Proxy-Authorization", "Basic example-token"),
    ("Cookie", "session=example-token; token=example-token"),
    ("X-Access-Token", "example-token"),
    ("X-Cube-Admin-Token", "example-admin-token"),
    ("Referer", "http://a.test/?token=example-token"),
    ("Cookie", "a=1; cube-preview=example-token; __Host-cube-preview=v1.1900000000.any.example-token"),
    ("Referer", "http://a.test/?cube_preview=v1.1900000000.any.example-token"),
    ("Sec-Fetch-Mode", "navigate"),
];

const TARGETS: [&str; 12] = [
    "/?token=example-token",
    "/p?a=1&access_token=example-token&b=2",
    "/p?TOKEN=example-token",
    "/p?%74%6fken=example-token",
    "/p?a;sig=example-token;b",
    "/files?signature=example-token&path=/x",
    "/p?x?token=example-token&key=example-token&secret=example-token&password=example-token&auth=example-token",
    "/p?X-Amz-Signature=example-token",
    "/?cube_preview=example-token",
    "/p?a;%63UBE_preview=v1.1900000000.any.example-token;b?c",
    "/p?a&cube%5Fpreview=example-token&cube_preview=example-token&b",
    "/p?a?cube_preview=v1.1900000000.any.example-token",
];

fn clean(what: &str, text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} in {what}:\n{text}");
    }
}

async fn ask(env: &Env, sandbox: &Sandbox, own: bool) {
    for by in By::ALL {
        for header in HEADERS {
            let response = env.call(by, sandbox, "GET", "/", &[header], "").await;
            if own {
                clean("a response", &format!("{:?} {}", response.headers, response.text()));
            }
        }
        for target in TARGETS {
            let response = env.call(by, sandbox, "POST", target, &[], "example-token").await;
            if own {
                clean("a response", &format!("{:?} {}", response.headers, response.text()));
            }
        }
    }
}

async fn everywhere(format: &str, level: &str, dialect: &str) {
    let redis = RedisServer::with_password("example-token").await;
    let manager = cube_testkit::Manager::start();
    let builder = builder(&json!({
        "errors": { "dialect": dialect },
        "store": { "redis": { "url": redis.url(), "password": "example-token" } },
        "admin": { "token": "example-admin-token" },
        "access_log": { "format": format },
        "log": { "level": level, "format": if format == "json" { "json" } else { "text" } },
    }));
    let token_file = builder.directory().join("token");
    std::fs::write(&token_file, "example-token\n").unwrap();
    let resume = json!({ "resume": { "url": manager.url(), "token_file": token_file, "timeout": "1s" } });
    let env = Env { proxy: builder.config(&resume).start().await, redis };
    let origin = Origin::replying(200, &[], "ok").await;
    let open = env.sandbox(&origin).await;
    let private = env.sandbox(&origin).token("example-token").await;
    let asleep = env.sandbox(&origin).token("example-token").await;
    let refused = env.sandbox_at(([127, 0, 0, 1], refused_port()).into()).token("example-token").await;
    env.push(&asleep, "paused").await;
    ask(&env, &open, false).await;
    ask(&env, &private, false).await;
    for sandbox in [&asleep, &refused, &env.nobody()] {
        ask(&env, sandbox, true).await;
    }
    // Heads that are refused before anybody is asked.
    for bad in ["GET /?token=example-token HTTP/1.1\r\nno colon\r\n\r\n", "GET /?token=example-token\r\n\r\n"]
    {
        let mut client = env.client().await;
        client.send(bad).await;
        clean("a refusal", &String::from_utf8_lossy(&client.wire().rest().await));
    }
    env.get_with(&open, "/", &[("X-Bad", "\u{1}example-token")]).await;
    // The admin API and explain.
    for (method, path, body) in [
        ("GET", format!("/admin/routes/{}", private.id), ""),
        ("GET", format!("/admin/routes/{}", refused.id), ""),
        ("GET", "/admin/healthz".to_owned(), ""),
        ("GET", "/admin/last_active".to_owned(), ""),
        ("POST", "/admin/state".to_owned(), r#"{"sandbox_id":"x","state":"example-token"}"#),
        ("POST", "/admin/state".to_owned(), "example-token"),
    ] {
        clean(&path, &env.proxy.admin(method, &path, body).await.text());
    }
    let mut stranger = Client::connect(env.proxy.admin_address()).await;
    let headers = [("Host", "127.0.0.1"), ("X-Cube-Admin-Token", "example-admin-token-wrong")];
    clean("a refusal", &stranger.call("GET", "/admin/healthz", &headers, "").await.text());
    let question = format!("http://{}/p?token=example-token&cube_preview=example-token", private.host());
    let explained = Command::new(binary())
        .args(["explain", "-c"])
        .arg(env.proxy.directory().join("cube-proxy.yaml"))
        .args(["-H", "e2b-traffic-access-token: example-token", "-H", "Cookie: cube-preview=example-token"])
        .arg(&question)
        .output()
        .unwrap();
    assert!(explained.status.success(), "{}", String::from_utf8_lossy(&explained.stderr));
    clean("explain", &String::from_utf8_lossy(&explained.stdout));
    clean("explain", &String::from_utf8_lossy(&explained.stderr));
    // The configuration read again, with secrets that changed and with one that is misplaced.
    env.proxy
        .reconfigure(&json!({
            "admin": { "token": "example-admin-token-2" }, "store": { "redis": { "password": "example-token-2" } },
        }))
        .await;
    env.proxy.write_config(&json!({ "admin": { "token": ["example-token"] } }));
    assert!(!env.proxy.reload().await);
    clean("metrics", &env.proxy.metrics_text().await);
    let requests = env.proxy.metrics().await.sum("cube_proxy_answers_total", &[]);
    eventually("every line of the access log", || async {
        let metrics = env.proxy.metrics().await;
        (metrics.sum("cube_proxy_access_log_lines_total", &[]) >= requests).then_some(())
    })
    .await;
    let log = env.proxy.access_log();
    assert!(log.contains("=***"), "{log}");
    clean("the access log", &log);
    clean("the output", &env.proxy.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_shows_in_the_default_formats_at_debug() {
    everywhere("cube", "debug", "cube").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_shows_in_json_at_trace_and_in_the_other_dialect() {
    everywhere("json", "trace", "e2b").await;
}

#[tokio::test]
async fn a_password_that_the_store_refuses_is_not_shown() {
    let redis = RedisServer::with_password("example-token").await;
    let url = redis.url().replace("redis://", "redis://default:example-token-wrong@");
    let proxy =
        builder(&json!({ "store": { "redis": { "url": url } }, "log": { "level": "trace" } })).launch();
    eventually("the admin listener", || async { (proxy.probe("/readyz").await == Some(503)).then_some(()) })
        .await;
    proxy.output_line(&["WARN"]).await;
    clean("the output", &proxy.output());
    let check = Command::new(binary())
        .args(["check", "--strict", "-c"])
        .arg(proxy.directory().join("cube-proxy.yaml"))
        .output()
        .unwrap();
    assert!(!check.status.success());
    clean("check", &String::from_utf8_lossy(&check.stdout));
    clean("check", &String::from_utf8_lossy(&check.stderr));
}
