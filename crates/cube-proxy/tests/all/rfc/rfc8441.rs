//! WebSocket over HTTP/2 (RFC 8441), which is not offered.

use cube_testkit::Frame;

use super::fence::Fence;
use super::rfc9113::{Did, watch};
use crate::support::tls;

/// 3 and 4: without SETTINGS_ENABLE_CONNECT_PROTOCOL a client must not use `:protocol`; one that does is
/// refused, and nothing of it reaches the application.
#[tokio::test]
async fn extended_connect_is_neither_offered_nor_taken() {
    const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    let tls = tls().await;
    let fence = Fence::behind(&tls.env).await;
    let headers = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/"),
        (":authority", fence.host.as_str()),
        ("sec-websocket-version", "13"),
    ];
    let mut wire = tls.frames().await;
    wire.send(cube_testkit::h2frames::PREFACE).await;
    wire.send(Frame::settings(&[(ENABLE_CONNECT_PROTOCOL, 1)]).bytes()).await;
    let settings = wire.frame().await.expect("settings");
    let offered: Vec<u16> =
        settings.payload.chunks(6).map(|one| u16::from_be_bytes([one[0], one[1]])).collect();
    assert!(!offered.contains(&ENABLE_CONNECT_PROTOCOL), "{offered:?}");
    wire.send(Frame::headers(1, &headers, false).bytes()).await;
    wire.send(Frame::data(1, b"GET /smuggled HTTP/1.1\r\n\r\n", false).bytes()).await;
    let did = watch(&mut wire).await;
    let refused = matches!(did, Did::GoneAway(_) | Did::Closed | Did::Reset(1, _))
        || matches!(did, Did::Answered(1, Some(400 | 405)));
    assert!(refused, "{did:?}");
    assert!(fence.arrived().is_empty() && fence.origin.count() == 0);
    fence.others_are_served("extended CONNECT").await;
}
