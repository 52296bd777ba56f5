//! The proxies that tests share, one a configuration. A test that changes more than its own
//! sandboxes takes [`own`].

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{
    Authority, Client, Env, GrpcClient, Guarded, H2Client, H2Wire, Manager, Proxy, ProxyBuilder, Sandbox,
    WebSocket,
};
use tokio::sync::OnceCell;

/// The contract's second, and what a busy machine takes besides; what does not work at all takes
/// much longer.
pub(crate) const A_SECOND: Duration = Duration::from_secs(3);

/// Says that a test cannot be done here, and why. Where everything must be done (`CUBE_TESTS_MUST`, which
/// the checks of a change set where they have the means), the test fails.
#[track_caller]
pub(crate) fn cannot(why: &str) {
    let must = std::env::var("CUBE_TESTS_MUST").is_ok_and(|must| must == "1");
    assert!(!must, "cannot be tested here: {why}");
    // Past the capture of a test's output: a test that does nothing is seen as such.
    let _ = writeln!(std::io::stderr(), "not tested: {}: {why}", std::panic::Location::caller());
}

/// The binary under test: the one that cargo built for these tests, or another (a release build)
/// that `PROXY_UNDER_TEST` names.
pub(crate) fn binary() -> String {
    std::env::var("PROXY_UNDER_TEST").unwrap_or_else(|_| env!("CARGO_BIN_EXE_cube-proxy").to_owned())
}

/// Whether this proxy's own exchange drives HTTP/1.1 in the proxies under test, and not Pingora's: what
/// `CUBE_EXCHANGE` says, else the default.
pub(crate) fn own_exchange() -> bool {
    let default = || {
        let shipped = include_str!("../../../../conf/cube-proxy.yaml");
        shipped.lines().find_map(|line| line.trim().strip_prefix("exchange: ")).map(str::to_owned)
    };
    std::env::var("CUBE_EXCHANGE").ok().or_else(default).is_some_and(|exchange| exchange == "own")
}

/// The defaults: `cube` dialect, masking on.
pub(crate) async fn cube() -> &'static Env {
    static ENV: OnceCell<Env> = OnceCell::const_new();
    ENV.get_or_init(|| own(json!({}))).await
}

/// Small limits and short times.
pub(crate) async fn limits() -> &'static Env {
    static ENV: OnceCell<Env> = OnceCell::const_new();
    let limits = json!({
        "limits": {
            "body": "1KiB", "head": "4KiB", "headers": 20, "target": 512, "header_timeout": "1s",
            "keepalive_idle": "1s", "keepalive_requests": 3, "requests_per_sandbox": 2,
        },
        "upstream": { "silence_timeout": "1s", "connect_timeout": "300ms" },
    });
    ENV.get_or_init(|| own(limits)).await
}

/// No invalidation from the store and long lives: a stale entry stays until something makes the
/// proxy read again.
pub(crate) async fn blind() -> &'static Env {
    static ENV: OnceCell<Env> = OnceCell::const_new();
    let blind = json!({
        "store": { "redis": { "tracking": false } },
        "cache": { "ttl_min": "60s", "ttl_max": "60s", "untracked_ttl": "60s" },
    });
    ENV.get_or_init(|| own(blind)).await
}

/// A proxy with a TLS and an h2c listener.
pub(crate) struct Tls {
    pub(crate) env: Env,
    authority: Authority,
}

impl Tls {
    /// An HTTP/1.1 connection to it.
    pub(crate) async fn h1(&self) -> Client {
        Client::tls(self.env.proxy.https(), &self.authority.root(), "a.cube.test").await
    }

    /// A WebSocket over it, in the host form.
    pub(crate) async fn websocket(&self, sandbox: &Sandbox) -> WebSocket {
        let (address, root) = (self.env.proxy.https(), self.authority.root());
        WebSocket::open_tls(address, &root, "a.cube.test", &sandbox.host()).await.expect("a 101")
    }

    /// An HTTP/2 connection whose frames are the test's; nothing is said yet.
    pub(crate) async fn frames(&self) -> H2Wire {
        H2Wire::tls(self.env.proxy.https(), &self.authority.root(), "a.cube.test").await
    }

    /// A gRPC client on the TLS listener.
    pub(crate) async fn grpc(&self, authority: &str) -> GrpcClient {
        GrpcClient::tls(self.env.proxy.https(), &self.authority.root(), "a.cube.test", authority).await
    }

    /// A gRPC client on the h2c listener.
    pub(crate) async fn h2c(&self, authority: &str) -> GrpcClient {
        GrpcClient::plain(self.env.proxy.grpc(), authority).await
    }

    /// An HTTP/2 connection to it.
    pub(crate) async fn h2(&self) -> H2Client {
        H2Client::tls(self.env.proxy.https(), &self.authority.root(), "a.cube.test").await
    }
}

/// The defaults, a TLS and an h2c listener.
pub(crate) async fn tls() -> Arc<Tls> {
    static ENV: OnceCell<Arc<Tls>> = OnceCell::const_new();
    Arc::clone(ENV.get_or_init(|| async { Arc::new(with_tls(&json!({})).await) }).await)
}

/// For one test alone that makes so many requests at once that a busy machine takes its time.
pub(crate) async fn patient() -> Tls {
    with_tls(&json!({ "upstream": { "connect_timeout": "20s" } })).await
}

/// A TLS and an h2c listener beside the plain one.
pub(crate) async fn with_tls(overrides: &Value) -> Tls {
    over_tls(builder(overrides)).await
}

/// The same in a process that may open no more than so many files.
pub(crate) async fn with_open_files(most: u32) -> Tls {
    let builder = builder(&json!({}));
    let script = builder.directory().join("few-files");
    let text = format!("#!/bin/sh\nulimit -n {most}\nexec {} \"$@\"\n", binary());
    std::fs::write(&script, text).expect("a writable directory");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).expect("a file of ours");
    over_tls(builder.binary(&script)).await
}

async fn over_tls(builder: ProxyBuilder) -> Tls {
    let authority = Authority::new();
    let (chain, key) = authority.issue(builder.directory(), "server", &["*.cube.test"]);
    let listen = || format!("127.0.0.1:{}", cube_testkit::free_port("127.0.0.1"));
    let builder = builder.config(&json!({
        "listen": { "https": [listen()], "grpc": [listen()] },
        "tls": { "certificates": [{ "cert": chain, "key": key }] },
    }));
    Tls { env: Env::start_with(builder).await, authority }
}

/// A proxy that has a manager to wake sandboxes.
pub(crate) struct Waking {
    pub(crate) tls: Tls,
    pub(crate) manager: Manager,
}

impl std::ops::Deref for Waking {
    type Target = Env;
    fn deref(&self) -> &Env {
        &self.tls.env
    }
}

/// A manager, a token for the admin API, and short times: a change is waited for 400 ms, a resume
/// for 1.5 s.
pub(crate) async fn waking() -> &'static Waking {
    static ENV: OnceCell<Waking> = OnceCell::const_new();
    ENV.get_or_init(|| waking_with(json!({}))).await
}

/// The same for one test alone.
pub(crate) async fn waking_with(overrides: Value) -> Waking {
    let manager = Manager::start();
    let mut config = json!({
        "admin": { "token": "example-admin-token" },
        "lifecycle": { "pause_wait": "400ms" },
        "resume": { "url": manager.url(), "timeout": "1500ms" },
    });
    cube_testkit::merge(&mut config, &overrides);
    Waking { tls: with_tls(&config).await, manager }
}

/// A proxy and a Redis for one test alone.
pub(crate) async fn own(overrides: Value) -> Env {
    Env::start(&binary(), &overrides).await
}

/// A proxy that is still to be started.
pub(crate) fn builder(overrides: &Value) -> ProxyBuilder {
    Proxy::builder(&binary()).config(overrides)
}

/// A browser without a window that shows `url` until it is dropped. Names below `cube.localhost` lead
/// to this machine.
#[must_use]
pub(crate) fn browser(url: &str) -> Guarded {
    browser_for("cube.localhost", url, &[])
}

/// As [`browser`], for names below `domain`, and with further arguments.
#[must_use]
pub(crate) fn browser_for(domain: &str, url: &str, more: &[&str]) -> Guarded {
    let directory = std::env::temp_dir().join(cube_testkit::unique_id("cube-browser-"));
    std::fs::create_dir(&directory).unwrap();
    let mut browser = Command::new("chromium");
    browser
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", &format!("--host-resolver-rules=MAP *.{domain} 127.0.0.1")])
        .args(more)
        .arg("--remote-debugging-port=0")
        .arg(format!("--user-data-dir={}", directory.display()))
        .arg(url)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Guarded::spawn(&mut browser, Some(&directory))
}
