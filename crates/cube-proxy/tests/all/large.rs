//! A body of any size passes in flat memory (connections.md).

use cube_testkit::serde_json::json;
use cube_testkit::{Env, Exchange, Origin, Sandbox};

use crate::support::own;

const MIB: usize = 1 << 20;
const PIECE: usize = 256 * 1024;

/// `size` bytes from the application; the client throws them away.
async fn download(env: &Env, sandbox: &Sandbox, size: usize) {
    let mut client = env.client().await;
    client.request("GET", &format!("/{size}"), &[("Host", &sandbox.host())]).await;
    assert_eq!(client.head().await.status, 200);
    let mut left = size;
    while left > 0 {
        let piece = cube_testkit::within("the body", client.wire().some(left)).await.unwrap();
        assert!(!piece.is_empty(), "cut with {left} bytes to go");
        left -= piece.len();
    }
}

/// `size` bytes from the client; the application counts them.
async fn upload(env: &Env, sandbox: &Sandbox, size: usize) {
    let mut client = env.client().await;
    let length = size.to_string();
    client.request("POST", "/", &[("Host", &sandbox.host()), ("Content-Length", &length)]).await;
    let piece = vec![7; PIECE];
    for _ in 0..size / PIECE {
        client.send(&piece).await;
    }
    assert_eq!(client.response("POST").await.passed(200).text(), length);
}

#[tokio::test]
async fn a_gibibyte_up_and_down_passes_in_flat_memory() {
    // 1 GiB is over the body limit of the dialect.
    let env = own(json!({ "limits": { "body": 0 } })).await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        if exchange.request.method == "POST" {
            let length = exchange.drain().await?.to_string();
            return exchange.reply(200, &[], length).await;
        }
        let size: usize = exchange.request.target[1..].parse().unwrap();
        exchange.start(200, &[("Content-Length", &size.to_string())]).await?;
        let piece = vec![7; PIECE];
        for _ in 0..size / PIECE {
            exchange.send(&piece).await?;
        }
        Ok(exchange)
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    // The first use of buffers and allocator arenas is no growth.
    download(&env, &sandbox, 32 * MIB).await;
    upload(&env, &sandbox, 32 * MIB).await;
    let before = env.proxy.rss();
    download(&env, &sandbox, 1024 * MIB).await;
    upload(&env, &sandbox, 1024 * MIB).await;
    let grown = env.proxy.rss().saturating_sub(before);
    assert!(grown < 16 * MIB as u64, "grown by {} KiB", grown / 1024);
}
