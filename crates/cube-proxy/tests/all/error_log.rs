//! The process's own log (operations.md): a fault that every request meets does not flood it, and
//! its level follows the configuration.

use std::os::unix::fs::MetadataExt;

use cube_testkit::serde_json::json;
use cube_testkit::{Client, Origin, Resume};

use crate::support::{waking_with, with_tls};

#[tokio::test]
async fn a_fault_that_every_request_meets_writes_few_lines() {
    const REQUESTS: usize = 300;
    /// Lines of one kind in ten seconds.
    const MOST: usize = 50;
    let env = waking_with(json!({})).await;
    let origin = Origin::echo().await;
    let begun = std::time::Instant::now();
    for _ in 0..REQUESTS {
        let sandbox = env.sandbox(&origin).await;
        env.manager.plan(&sandbox, Resume::Status(500));
        env.push(&sandbox, "paused").await;
        assert_eq!(env.get(&sandbox, "/").await.retcode(), Some(310_503));
    }
    let windows = usize::try_from(begun.elapsed().as_secs()).unwrap() / 10 + 2;
    let output = env.proxy.output();
    let lines = output.matches("the manager did not resume").count();
    println!("{lines} lines of {REQUESTS} within {:?}", begun.elapsed());
    assert!(lines >= MOST && lines <= MOST * windows, "{lines} lines");
    if lines < REQUESTS && windows > 2 {
        assert!(output.contains("lines of one kind were left out"), "{output}");
    }
}

#[tokio::test]
async fn the_level_follows_the_configuration() {
    let tls = with_tls(&json!({})).await;
    let proxy = &tls.env.proxy;
    let spoil = async || {
        let mut client = Client::connect(proxy.https()).await;
        client.send("GET / HTTP/1.1\r\n\r\n").await;
        client.wire().rest().await;
    };
    spoil().await;
    proxy.reconfigure(&json!({ "log": { "level": "debug" } })).await;
    assert!(!proxy.output().contains("DEBUG"), "{}", proxy.output());
    spoil().await;
    proxy.output_line(&["DEBUG", "TLS handshake failed"]).await;
    proxy.reconfigure(&json!({ "log": { "level": "error" } })).await;
    // What is said at `info` is not written any more: this is all there is of it.
    let said = proxy.output().matches("read again").count();
    proxy.reconfigure(&json!({ "log": { "level": "error" }, "limits": { "headers": 50 } })).await;
    assert_eq!(proxy.output().matches("read again").count(), said);
}

/// As systemd starts it: standard error is the stream that `JOURNAL_STREAM` names.
#[tokio::test]
async fn the_journal_gets_priorities_and_no_second_time() {
    let builder = crate::support::builder(&json!({}));
    let output = builder.directory().join("output");
    let stream = std::fs::File::create(&output).unwrap().metadata().unwrap();
    let env = cube_testkit::Env::start_with(
        builder.environment("JOURNAL_STREAM", &format!("{}:{}", stream.dev(), stream.ino())),
    )
    .await;
    env.proxy.output_line(&["<6> INFO", "serving"]).await;
    env.proxy.output_line(&["<4> WARN", "envd_control_from"]).await;
    env.proxy.write_config_text("no_such_key: 1\n");
    assert!(!env.proxy.reload().await);
    env.proxy.output_line(&["<3>ERROR", "no_such_key"]).await;
    for line in env.proxy.output().lines() {
        let said = line.strip_prefix('<').and_then(|line| line.get(2..));
        let begun = said
            .unwrap_or_else(|| panic!("no priority: {line}"))
            .trim_start()
            .starts_with(char::is_alphabetic);
        assert!(begun, "{line}");
    }
}
