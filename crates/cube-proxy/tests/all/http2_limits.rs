//! What an HTTP/2 client gets no further with than it may: the beginning of a connection, streams,
//! windows, floods (RFC 9113; docs/http2.md).

use cube_testkit::h2frames::block;
use cube_testkit::{Frame, H2Wire, Origin, eventually};

use crate::rfc::rfc9113::{application, fields};
use crate::support::{Tls, own_exchange, patient, tls};

const REFUSED: u32 = 7;

/// Preface and first frame, before anything else may be said (3.4).
#[tokio::test]
async fn a_connection_begins_with_the_preface_and_settings() {
    let tls = tls().await;
    for bytes in [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), b"PRI * HTTP/2.0\r\n\r\nSX\r\n\r\n".to_vec()]
    {
        let mut wire = tls.frames().await;
        wire.send(&bytes).await;
        let mut answered = false;
        while let Some(frame) = wire.frame().await {
            answered |= frame.kind == Frame::HEADERS || frame.kind == Frame::PING;
        }
        assert!(!answered, "{}", bytes.escape_ascii());
    }
}

async fn get(tls: &Tls, host: &str, streams: u32, path: &str) -> H2Wire {
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    let fields = fields("GET", host, &[(":path", path)]);
    for n in 0..streams {
        wire.send(Frame::headers(n * 2 + 1, &fields, true).bytes()).await;
    }
    wire
}

/// 5.1.2: one stream more than the settings allow is refused, and the others go on.
#[tokio::test]
async fn a_stream_over_the_limit_is_refused() {
    let tls = tls().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let mut wire = get(&tls, &host, 101, "/hang").await;
    let refused = wire.until(|frame| frame.kind == Frame::RST_STREAM).await.unwrap();
    assert_eq!((refused.stream, refused.code()), (201, Some(REFUSED)));
    assert!(wire.lives().await);
}

/// 6.5.3 and 6.9: settings hold for streams that are open, and no byte goes out beyond a window.
#[tokio::test]
async fn nothing_is_sent_beyond_the_clients_windows() {
    let tls = tls().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let mut wire = tls.frames().await;
    wire.hello(&[(4, 1)]).await;
    wire.send(Frame::headers(1, &fields("GET", &host, &[]), true).bytes()).await;
    let first = wire.until(|frame| frame.kind == Frame::DATA).await.unwrap();
    assert_eq!(first.payload.len(), 1, "a window of one byte");
    // No other before there is room; then as much as there is.
    assert!(wire.lives().await);
    wire.send(Frame::settings(&[(4, 11)]).bytes()).await;
    let mut got = 0;
    let acknowledged = wire.until(|frame| {
        if frame.kind == Frame::DATA {
            got += frame.payload.len();
        }
        got == 10
    });
    assert!(acknowledged.await.is_some());
    // 6.9.2: a window may become negative; what is given then only pays the debt.
    wire.send(Frame::settings(&[(4, 0)]).bytes()).await;
    wire.until(|frame| frame.kind == Frame::SETTINGS && frame.flags == 1).await.unwrap();
    wire.send(Frame::window(1, 11).bytes()).await;
    let mut early = 0;
    wire.send(Frame::new(Frame::PING, 0, 0, *b"in order").bytes()).await;
    wire.until(|frame| {
        early += usize::from(frame.kind == Frame::DATA);
        frame.kind == Frame::PING
    })
    .await
    .unwrap();
    assert_eq!(early, 0, "DATA on a window of nothing");
    wire.send(Frame::window(1, 1 << 16).bytes()).await;
    assert!(wire.until(Frame::ends).await.is_some());
}

/// A client that makes work without end (10.5): each flood ends with its connection or passes, and
/// another client does not notice.
#[tokio::test]
async fn floods_end_with_their_connection() {
    let tls = patient().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let opened = |stream| Frame::headers(stream, &fields("GET", &host, &[(":path", "/hang")]), true).bytes();
    let before = tls.env.proxy.rss();

    // Requests that are reset at once ("rapid reset").
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    let resets: Vec<u8> =
        (0..20_000).flat_map(|n| [opened(n * 2 + 1), Frame::reset(n * 2 + 1, 8).bytes()].concat()).collect();
    let _ = wire.push(&resets).await;
    let end = wire.until(|frame| frame.kind == Frame::GOAWAY).await;
    assert!(end.is_none_or(|end| end.code() == Some(11)), "rapid reset is not let go on");
    assert!(origin.count() < 5_000, "{} requests reached the application", origin.count());

    // A header block that does not end.
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    let part = block(&[("x-more", &"m".repeat(1000))]);
    let begin = Frame::new(Frame::HEADERS, 1, 1, block(&fields("GET", &host, &[]))).bytes();
    wire.send(begin).await;
    let more = Frame::new(Frame::CONTINUATION, 0, 1, part).bytes().repeat(16);
    let mut parts = 0;
    while parts < 2000 && wire.push(&more).await.is_ok() {
        parts += 1;
    }
    assert!(parts < 2000, "32 MB of one header block were taken");

    // Empty DATA, PING and SETTINGS: cheap, and nothing of them is kept.
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    wire.send(Frame::headers(1, &fields("POST", &host, &[(":path", "/hang")]), false).bytes()).await;
    for frame in [Frame::data(1, b"", false), Frame::new(Frame::PING, 1, 0, [0; 8]), Frame::settings(&[])] {
        let _ = wire.push(frame.bytes().repeat(5_000)).await;
    }
    drop(wire);
    tls.h2().await.get(&host, "/after", &[]).await.passed(200);
    let grown = tls.env.proxy.rss().saturating_sub(before);
    assert!(grown < 64 << 20, "grown by {} KiB", grown / 1024);
}

/// A client whose windows take anything, and who reads nothing, has little kept for it.
#[tokio::test]
async fn what_a_client_does_not_read_is_not_kept() {
    const LARGE: usize = 8 << 20;
    let tls = patient().await;
    let origin = Origin::scripted(|mut exchange| async move {
        exchange.start(200, &[("content-length", &LARGE.to_string())]).await?;
        exchange.send(vec![b'x'; LARGE]).await?;
        exchange.close().await
    });
    let origin = origin.await;
    let host = tls.env.sandbox(&origin).await.host();
    let before = tls.env.proxy.rss();
    let mut wire = tls.frames().await;
    wire.hello(&[(4, i32::MAX as u32)]).await;
    wire.send(Frame::window(0, 1 << 30).bytes()).await;
    let fields = fields("GET", &host, &[]);
    for n in 0..100 {
        wire.send(Frame::headers(n * 2 + 1, &fields, true).bytes()).await;
    }
    origin.wait_for(100).await;
    // Full is whatever does not grow any more: nobody says so.
    let (mut most, mut same) = (0, 0);
    let full = eventually("what is kept to be all", || {
        let now = tls.env.proxy.rss();
        same = if now > most { 0 } else { same + 1 };
        most = most.max(now);
        std::future::ready((same == 30).then_some(most))
    });
    let grown = full.await.saturating_sub(before);
    // Pingora's own proxy has pieces on their way between its two sides too.
    let bound = if own_exchange() { 24 << 20 } else { 80 << 20 };
    assert!(grown < bound, "grown by {} KiB", grown / 1024);
}
