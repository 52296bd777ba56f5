//! Handshakes of WebSocket (RFC 6455) that are none: nobody but the application's 101 opens a tunnel,
//! and without one everything that follows is read as HTTP.

use cube_testkit::{Exchange, Origin};

use super::fence::Fence;
use crate::support::cube;

const NEXT: &str = "GET /next HTTP/1.1\r\nHost: {host}\r\n\r\n";

/// 4.2.2: a handshake that the application refuses leaves no tunnel: what the client sends next is a
/// request, judged as any.
#[tokio::test]
async fn a_refused_handshake_leaves_no_tunnel() {
    let fence = Fence::behind(cube().await).await;
    for version in ["13", "777"] {
        let handshake = format!(
            "GET /ws HTTP/1.1\r\nHost: {{host}}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: {version}\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        let mut client = fence.told(&handshake).await;
        client.response("GET").await.passed(200);
        // Where the proxy keeps the connection it reads requests from it.
        client.send(fence.bytes(&NEXT.replace("{host}", "8080-nobody.cube.test"))).await;
        if let Ok(Some(next)) = client.try_head().await {
            assert_eq!(next.status, 404, "{version}: something but the proxy answered");
        }
        assert_eq!(fence.arrived(), ["GET /ws"], "{version}");
        fence.others_are_served(version).await;
    }
}

/// 4.1: an Upgrade that is not nominated, or nominated and not there, asks for nothing.
#[tokio::test]
async fn half_a_handshake_asks_for_no_tunnel() {
    let fence = Fence::answering(
        cube().await,
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    )
    .await;
    for half in ["Upgrade: websocket", "Connection: upgrade", "Connection: x\r\nUpgrade: websocket", "X: a"] {
        let request = format!("GET /attack HTTP/1.1\r\nHost: {{host}}\r\n{half}\r\n\r\n");
        let response = fence.told(&request).await.response("GET").await;
        assert_eq!((response.status, response.retcode()), (502, Some(310_509)), "{half}");
        fence.others_are_served(half).await;
    }
}

/// A tunnel's connection carries nothing else afterwards: neither side's last bytes are a response or
/// a request of somebody else.
#[tokio::test]
async fn a_tunnel_ends_with_both_its_connections() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        if exchange.request.target != "/ws" {
            return cube_testkit::scripts::echo(exchange).await;
        }
        exchange
            .send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await?;
        exchange.wire().exactly(3).await?;
        exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison").await?;
        exchange.close().await
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let mut client = env.client().await;
    client
        .request("GET", "/ws", &[("Host", &host), ("Connection", "upgrade"), ("Upgrade", "websocket")])
        .await;
    assert_eq!(client.head().await.status, 101);
    client.send("bye").await;
    assert!(client.wire().rest().await.ends_with(b"poison"));
    for n in 0..3 {
        let target = format!("/other/{n}");
        assert_eq!(env.get(&sandbox, &target).await.passed(200).seen().target, target);
    }
}
