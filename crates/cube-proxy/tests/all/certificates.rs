//! Certificates of the TLS listener (operations.md): which one a client gets, and how new ones come
//! in while it serves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::{
    Authority, Client, Env, Metrics, Origin, TlsClient, certificate_in, eventually, free_port, never,
};

use crate::support::{binary, builder};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A proxy with certificates of the test's own in its directory.
struct Served {
    env: Env,
    authority: Authority,
}

impl Served {
    /// One certificate for each of these host names, in files named `0`, `1`, ...
    async fn with(hosts: &[&str], reload_interval: &str) -> Self {
        let authority = Authority::new();
        let builder = builder(&json!({}));
        let pairs: Vec<_> = hosts
            .iter()
            .enumerate()
            .map(|(n, host)| authority.issue(builder.directory(), &n.to_string(), &[host]))
            .map(|(cert, key)| json!({ "cert": cert, "key": key }))
            .collect();
        let listen = format!("127.0.0.1:{}", free_port("127.0.0.1"));
        let builder = builder.config(&json!({
            "listen": { "https": [listen] },
            "tls": { "certificates": pairs, "reload_interval": reload_interval },
        }));
        Self { env: Env::start_with(builder).await, authority }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.env.proxy.directory().join(name)
    }

    /// The certificate that a new client gets.
    async fn served(&self, name: &str) -> Vec<u8> {
        let session = TlsClient::of("1.3").connect(self.env.proxy.https(), name).await;
        session.unwrap().certificate
    }

    /// Puts another pair in the place of `0`, one file after the other, each by a rename; its
    /// certificate.
    fn replace(&self, hosts: &[&str]) -> Vec<u8> {
        let (cert, key) = self.authority.issue(self.env.proxy.directory(), "new", hosts);
        let certificate = certificate_in(&cert);
        std::fs::rename(cert, self.file("0.pem")).unwrap();
        std::fs::rename(key, self.file("0.key")).unwrap();
        certificate
    }

    async fn metrics(&self) -> Metrics {
        self.env.proxy.metrics().await
    }

    fn lines(&self, words: &str) -> usize {
        self.env.proxy.output().lines().filter(|line| line.contains(words)).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_pair_is_served_within_the_interval_and_no_handshake_fails() {
    const INTERVAL: Duration = Duration::from_secs(2);
    let served = Arc::new(Served::with(&["a.cube.test"], "2s").await);
    let origin = Origin::replying(200, &[], "ok").await;
    let host = served.env.sandbox(&origin).await.host();
    let (over, handshakes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut load = Vec::new();
    for version in ["1.2", "1.3", "1.3"] {
        let (served, over, handshakes) = (served.clone(), over.clone(), handshakes.clone());
        let host = host.clone();
        load.push(tokio::spawn(async move {
            while !over.load(Ordering::SeqCst) {
                // A new client each time, so that nothing is resumed.
                let session = TlsClient::of(version).connect(served.env.proxy.https(), "a.cube.test").await;
                let mut client = session.expect("a handshake").client;
                client.call("GET", "/", &[("Host", &host)], "").await.passed(200);
                handshakes.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    for round in 0..3 {
        let new = served.replace(&["a.cube.test"]);
        let replaced = Instant::now();
        eventually("the new certificate", || async {
            (served.served("a.cube.test").await == new).then_some(())
        })
        .await;
        let took = replaced.elapsed();
        println!("round {round}: served after {took:?}");
        assert!(took < INTERVAL, "{took:?}");
    }
    over.store(true, Ordering::SeqCst);
    for load in load {
        load.await.unwrap();
    }
    let handshakes = handshakes.load(Ordering::SeqCst);
    println!("{handshakes} handshakes under load");
    assert!(handshakes > 20);
    let metrics = served.metrics().await;
    assert_eq!(metrics.sum("cube_proxy_tls_handshakes_total", &[("outcome", "failed")]), 0.0);
    assert!(metrics.sum("cube_proxy_tls_handshakes_total", &[("outcome", "ok")]) >= handshakes as f64);
}

#[tokio::test]
async fn a_pair_that_does_not_hold_leaves_the_old_one_there_and_is_spoken_of_once() {
    let served = Served::with(&["a.cube.test"], "100ms").await;
    let old = served.served("a.cube.test").await;
    let (cert, key) = (served.file("0.pem"), served.file("0.key"));
    let (_, strange) = served.authority.issue(served.env.proxy.directory(), "other", &["a.cube.test"]);
    let secret = std::fs::read_to_string(&strange).unwrap();
    // By a rename, so that nothing else is met on the way.
    let put = |path: &Path, text: &str| {
        let draft = served.file("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, path).unwrap();
    };
    let good = (std::fs::read_to_string(&cert).unwrap(), std::fs::read_to_string(&key).unwrap());
    let complaint = "the old certificate stays in force";
    for (n, (file, text, words)) in [
        (&key, secret.as_str(), "is not the key of"),
        (&key, &good.1[..good.1.len() / 2], "the PEM form is cut off"),
        (&key, "nothing", "holds no private key"),
        (&cert, &good.0[..good.0.len() / 2], "the PEM form is cut off"),
        (&cert, "nothing", "holds no certificate"),
    ]
    .into_iter()
    .enumerate()
    {
        put(file, text);
        served.env.proxy.output_line(&[complaint, words]).await;
        eventually("a word on it", || async { (served.lines(complaint) > n).then_some(()) }).await;
        never("a second word on it", Duration::from_millis(300), || served.lines(complaint) > n + 1).await;
        assert!(served.served("a.cube.test").await == old, "{words}");
    }
    std::fs::remove_file(&cert).unwrap();
    served.env.proxy.output_line(&[complaint, "No such file"]).await;
    assert!(served.served("a.cube.test").await == old);
    // It would be waited for, and nothing be looked at after it.
    assert!(std::process::Command::new("mkfifo").arg(&cert).status().unwrap().success());
    served.env.proxy.output_line(&[complaint, "no regular file"]).await;
    std::fs::remove_file(&cert).unwrap();
    // It is mended, and taken.
    let new = served.replace(&["a.cube.test"]);
    eventually("the mended pair", || async { (served.served("a.cube.test").await == new).then_some(()) })
        .await;
    let output = served.env.proxy.output();
    for line in secret.lines().filter(|line| !line.starts_with("-----")) {
        assert!(!output.contains(line), "a line of a key in the log:\n{output}");
    }
}

#[tokio::test]
async fn a_client_gets_the_exact_name_before_a_wildcard_before_the_default() {
    let served = Served::with(&["default.test", "*.cube.test", "b.cube.test"], "10s").await;
    let [default, wildcard, exact] =
        ["0.pem", "1.pem", "2.pem"].map(|name| certificate_in(&served.file(name)));
    for (name, want, which) in [
        ("b.cube.test", &exact, "exact"),
        ("B.Cube.Test", &exact, "exact, in another case"),
        ("c.cube.test", &wildcard, "wildcard"),
        ("c.d.cube.test", &default, "a wildcard stands for one label"),
        ("cube.test", &default, "and for no fewer"),
        ("other.example", &default, "unknown"),
        ("127.0.0.1", &default, "none asked for"),
    ] {
        assert!(served.served(name).await == *want, "{name}: {which}");
    }
}

#[tokio::test]
async fn a_session_is_taken_up_again_in_both_versions_and_after_a_new_certificate() {
    let served = Served::with(&["a.cube.test"], "100ms").await;
    let origin = Origin::replying(200, &[], "ok").await;
    let host = served.env.sandbox(&origin).await.host();
    let ask = async |client: &TlsClient| {
        let mut session = client.connect(served.env.proxy.https(), "a.cube.test").await.unwrap();
        // Tickets come behind the handshake.
        session.client.call("GET", "/", &[("Host", &host)], "").await.passed(200);
        session.resumed
    };
    let clients = [TlsClient::of("1.2"), TlsClient::of("1.3")];
    for client in &clients {
        assert!(!ask(client).await, "there is no session yet");
        assert!(ask(client).await, "the session is taken up again");
    }
    let new = served.replace(&["a.cube.test"]);
    eventually("the new certificate", || async { (served.served("a.cube.test").await == new).then_some(()) })
        .await;
    for client in &clients {
        assert!(ask(client).await, "after a new certificate too");
    }
}

#[tokio::test]
async fn an_end_that_is_near_or_past_is_told_by_check_in_the_log_and_as_a_metric() {
    let authority = Authority::new();
    let builder = builder(&json!({}));
    let soon = authority.issue_for(builder.directory(), "soon", &["a.cube.test"], 5 * DAY + DAY / 2);
    let short = authority.issue_for(builder.directory(), "short", &["b.cube.test"], Duration::from_secs(4));
    let far = authority.issue(builder.directory(), "far", &["c.cube.test"]);
    let pairs: Vec<_> =
        [&soon, &short, &far].iter().map(|(cert, key)| json!({ "cert": cert, "key": key })).collect();
    let listen = format!("127.0.0.1:{}", free_port("127.0.0.1"));
    let builder = builder.config(&json!({
        "listen": { "https": [listen] },
        "tls": { "certificates": pairs, "reload_interval": "200ms" },
    }));
    let env = Env::start_with(builder).await;
    let proxy = &env.proxy;
    proxy.output_line(&["soon.pem", "expires in 5 days"]).await;
    proxy.output_line(&["short.pem", "expires within a day"]).await;
    let metrics = proxy.metrics().await;
    let expiry = |cert: &Path| {
        let label = cert.to_str().unwrap();
        metrics.sum("cube_proxy_tls_certificate_expiry_timestamp_seconds", &[("certificate", label)])
    };
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!((expiry(&soon.0) - now - 5.5 * 86_400.0).abs() < 60.0);
    assert!((expiry(&far.0) - now - 365.0 * 86_400.0).abs() < 60.0);
    // As time passes.
    proxy.output_line(&["short.pem", "has expired"]).await;
    assert!(!proxy.output().contains("far.pem"), "{}", proxy.output());

    let check = Command::new(binary())
        .args(["check", "-c"])
        .arg(proxy.directory().join("cube-proxy.yaml"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{said}");
    assert!(said.contains("expires in 5 days") && said.contains("has expired"), "{said}");
    std::fs::copy(&far.1, &soon.1).unwrap();
    let check = Command::new(binary())
        .args(["check", "-c"])
        .arg(proxy.directory().join("cube-proxy.yaml"))
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(64));
}

/// RFC 7301, 3.2, and RFC 8446, 6.2: who offers only protocols that are not spoken here is told so.
#[tokio::test]
async fn a_handshake_that_fails_ends_with_its_alert_in_both_versions() {
    let served = Served::with(&["a.cube.test"], "10s").await;
    for version in ["1.2", "1.3"] {
        for offered in [&["http/1.0"][..], &["foo"], &["h2c", "http/0.9"], &["spdy/3.1"]] {
            let client = TlsClient::of(version).offering(offered);
            let error = client.connect(served.env.proxy.https(), "a.cube.test").await.err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("NoApplicationProtocol"), "TLS {version}, {offered:?}: {error}");
        }
        for offered in [&["http/1.0", "http/1.1"][..], &["foo", "h2"], &[]] {
            let client = TlsClient::of(version).offering(offered);
            let session = client.connect(served.env.proxy.https(), "a.cube.test").await;
            assert!(session.is_ok(), "TLS {version}, {offered:?}: {:?}", session.err());
        }
    }
    let failed = [("outcome", "failed")];
    assert_eq!(served.metrics().await.sum("cube_proxy_tls_handshakes_total", &failed), 8.0);
}

/// What is no TLS at all gets an alert too, also where it sends more than is read of it.
#[tokio::test]
async fn plain_http_on_the_tls_listener_gets_an_alert() {
    let served = Served::with(&["a.cube.test"], "10s").await;
    let mut client = Client::connect(served.env.proxy.https()).await;
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(100_000))).await;
    // A record of type alert, level fatal.
    let mut alert = Vec::new();
    while alert.len() < 7 {
        let piece = client.wire().some(7).await.expect("an alert, and no reset before it");
        assert!(!piece.is_empty(), "the end instead of an alert: {alert:?}");
        alert.extend(piece);
    }
    assert_eq!((alert[0], alert[1], alert[5]), (21, 3, 2), "{alert:?}");
}
