//! WebSocket and other upgrades (connections.md).

use cube_testkit::tokio_tungstenite::tungstenite::{Error, Message};
use cube_testkit::{By, Origin, scripts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::cube;

#[tokio::test]
async fn messages_pass_both_ways_in_every_form() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::websocket).await;
    let sandbox = env.sandbox(&origin).await;
    for by in By::ALL {
        let protocol = [("Sec-WebSocket-Protocol", "chat")];
        let mut socket = env.websocket(by, &sandbox, "/ws?a=1", &protocol).await.expect("a 101");
        let shaken = socket.handshake.headers();
        assert_eq!(shaken["sec-websocket-protocol"], "chat");
        assert_eq!(socket.say("one").await, "one");
        for size in [0, 70_000, 1 << 20] {
            let message = Message::binary(vec![7; size]);
            socket.send(message.clone()).await;
            assert_eq!(socket.next().await.unwrap().unwrap(), message, "{by:?}");
        }
        socket.close().await;
        assert_eq!(origin.last().target, "/ws?a=1");
    }
}

#[tokio::test]
async fn the_handshake_needs_the_token_of_a_private_sandbox() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::websocket).await;
    let sandbox = env.sandbox(&origin).token("example-token").await;
    let refused = env.websocket(By::Host, &sandbox, "/", &[]).await.err();
    assert!(matches!(&refused, Some(Error::Http(response)) if response.status() == 404), "{refused:?}");
    let token = [("e2b-traffic-access-token", "example-token")];
    let mut socket = env.websocket(By::Path, &sandbox, "/", &token).await.expect("a 101");
    assert_eq!(socket.say("hello").await, "hello");
    assert!(!origin.last().headers.has("e2b-traffic-access-token"));
}

#[tokio::test]
async fn the_application_sees_the_upgrade_and_the_proxys_headers() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::websocket).await;
    let sandbox = env.sandbox(&origin).field("MaskRequestHost", "localhost:${PORT}").await;
    let mut socket = env.websocket(By::Host, &sandbox, "/", &[]).await.expect("a 101");
    assert_eq!(socket.say("x").await, "x");
    let headers = origin.last().headers;
    assert_eq!(headers.all("Upgrade"), ["websocket"]);
    assert_eq!(headers.get("Connection").map(str::to_lowercase).as_deref(), Some("upgrade"));
    assert_eq!(headers.all("Host"), ["localhost:8080"]);
    assert_eq!(headers.all("X-Forwarded-Host"), [sandbox.host()]);
}

#[tokio::test]
async fn an_application_that_does_not_upgrade_answers_as_usual() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let headers = [("Host", host.as_str()), ("Connection", "Upgrade"), ("Upgrade", "websocket")];
    let mut client = env.client().await;
    for _ in 0..2 {
        assert_eq!(client.call("GET", "/ws", &headers, "").await.passed(200).seen().target, "/ws");
    }
}

#[tokio::test]
async fn another_protocol_passes_and_early_bytes_are_not_lost() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::tunnel("raw-echo/1")).await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let headers = [("Host", host.as_str()), ("Connection", "upgrade"), ("Upgrade", "raw-echo/1")];
    let mut client = env.client().await;
    client.request("GET", "/raw", &headers).await;
    let head = client.head().await;
    assert_eq!((head.status, head.headers.get("Upgrade")), (101, Some("raw-echo/1")));
    // The origin wrote these in one go with its 101.
    assert_eq!(
        cube_testkit::within("the greeting", client.wire().line()).await.unwrap().unwrap(),
        b"hello\n"
    );
    client.send("abc").await;
    assert_eq!(cube_testkit::within("the echo", client.wire().exactly(3)).await.unwrap(), b"cba");
}

#[tokio::test]
async fn bytes_that_a_client_sends_with_its_handshake_are_not_lost() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::tunnel("raw-echo/1")).await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client
        .send(format!(
            "GET /raw HTTP/1.1\r\nHost: {}\r\nConnection: upgrade\r\nUpgrade: raw-echo/1\r\n\r\nabc",
            sandbox.host()
        ))
        .await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(
        cube_testkit::within("the greeting", client.wire().line()).await.unwrap().unwrap(),
        b"hello\n"
    );
    assert_eq!(cube_testkit::within("the echo", client.wire().exactly(3)).await.unwrap(), b"cba");
}

#[tokio::test]
async fn an_upgrade_to_h2c_is_never_forwarded() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let headers = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AA")];
    let response = env.get_with(&sandbox, "/", &headers).await;
    assert!(!response.passed(200).seen().headers.has("Upgrade"));
}

#[tokio::test]
async fn either_side_that_goes_ends_the_tunnel() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::websocket).await;
    let sandbox = env.sandbox(&origin).await;
    let mut socket = env.websocket(By::Host, &sandbox, "/", &[]).await.expect("a 101");
    assert_eq!(socket.say("x").await, "x");
    drop(socket);
    cube_testkit::eventually("the upstream side to end", || async {
        (origin.open_connections() == 0).then_some(())
    })
    .await;
    let mut socket = env.websocket(By::Host, &sandbox, "/", &[]).await.expect("a 101");
    assert_eq!(socket.say("x").await, "x");
    drop(origin);
    let end = socket.next().await;
    assert!(end.is_none_or(|end| end.is_err()), "the client side goes on");
}

#[tokio::test]
async fn a_tunnel_whose_upstream_is_quicker_than_the_request_stays_open() {
    let env = cube().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sandbox = env.sandbox_at(listener.local_addr().unwrap()).await;
    let serving = tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                // Its 101 is there before Pingora has ended the request's (empty) body.
                let response = b"HTTP/1.1 101 Go\r\nUpgrade: raw-echo/1\r\nConnection: Upgrade\r\n\r\n";
                tcp.write_all(response).await.unwrap();
                let (mut reader, mut writer) = tcp.split();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(reader.read_u8().await.unwrap());
                }
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    let host = sandbox.host();
    let headers = [("Host", host.as_str()), ("Connection", "upgrade"), ("Upgrade", "raw-echo/1")];
    for _ in 0..30 {
        let mut client = env.client().await;
        client.request("GET", "/raw", &headers).await;
        assert_eq!(client.head().await.status, 101);
        client.send("abc").await;
        assert_eq!(cube_testkit::within("the echo", client.wire().exactly(3)).await.unwrap(), b"abc");
    }
    serving.abort();
}
