//! Many connections and many streams over HTTP/2, and large bodies frame by frame
//! (connections.md).

use std::sync::Arc;
use std::time::Duration;

use cube_testkit::{Exchange, Frame, Origin, scripts};
use tokio::sync::Semaphore;

use crate::support::{patient, tls};

/// `connections` with `streams` each; every request is open before the first is answered.
async fn all_at_once(connections: usize, streams: usize) {
    let tls = patient().await;
    let response = Arc::new(Semaphore::new(0));
    let go = Arc::clone(&response);
    let origin = Origin::scripted(move |exchange: Exchange| {
        let go = Arc::clone(&go);
        async move {
            // No bound of its own: the test has one.
            drop(go.acquire().await);
            let target = exchange.request.target.clone();
            exchange.reply(200, &[], target).await
        }
    })
    .await;
    let host = tls.env.sandbox(&origin).await.host();
    let mut open = Vec::new();
    for connection in 0..connections {
        let client = tls.h2().await;
        for stream in 0..streams {
            let target = format!("/{connection}/{stream}");
            open.push((client.ask(&host, &target, &[]).await, target));
        }
    }
    let arrived = async {
        while origin.count() < open.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), arrived).await.expect("all requests open at once");
    response.add_permits(1);
    for (request, target) in open {
        assert_eq!(request.response().await.passed(200).text(), target);
    }
}

#[tokio::test]
async fn five_hundred_connections_with_a_stream_each() {
    all_at_once(500, 1).await;
}

#[tokio::test]
async fn five_connections_with_a_hundred_streams_each() {
    all_at_once(5, 100).await;
}

const MIB: usize = 1 << 20;

/// An empty DATA frame in the middle of a body is taken for its end by some clients.
#[tokio::test]
async fn fifty_megabytes_come_without_an_empty_frame_before_the_end() {
    let tls = tls().await;
    for chunked in [true, false] {
        let origin = Origin::scripted(move |mut exchange: Exchange| async move {
            let framing =
                if chunked { ("Transfer-Encoding", "chunked") } else { ("Content-Length", "52428800") };
            exchange.start(200, &[framing]).await?;
            let piece = vec![7; 100 * 1024];
            for _ in 0..512 {
                if chunked {
                    exchange.chunk(&piece).await?;
                } else {
                    exchange.send(&piece).await?;
                }
            }
            if chunked { exchange.end().await } else { Ok(exchange) }
        })
        .await;
        let host = tls.env.sandbox(&origin).await.host();
        let mut wire = tls.frames().await;
        wire.hello(&[]).await;
        let fields = [(":method", "GET"), (":scheme", "https"), (":authority", &host), (":path", "/")];
        wire.send(Frame::headers(1, &fields, true).bytes()).await;
        let (mut bytes, mut frames) = (0, 0);
        loop {
            let frame = wire.frame().await.expect("a frame");
            match frame.kind {
                Frame::DATA => {
                    bytes += frame.payload.len();
                    frames += 1;
                    let length = u32::try_from(frame.payload.len()).unwrap();
                    assert!(length > 0 || frame.ends(), "empty frame number {frames}, after {bytes} bytes");
                    if frame.ends() {
                        break;
                    }
                    if length > 0 {
                        wire.send(
                            [Frame::window(0, length).bytes(), Frame::window(1, length).bytes()].concat(),
                        )
                        .await;
                    }
                }
                Frame::HEADERS => assert_eq!((frame.status(), frame.ends()), (Some(200), false)),
                kind => assert!(matches!(kind, Frame::SETTINGS | Frame::WINDOW_UPDATE), "{frame:?}"),
            }
        }
        assert_eq!(bytes, 50 * MIB, "chunked: {chunked}");
    }
}

/// Both directions of an exchange may be full at the same time: each goes on as the other does.
#[tokio::test]
async fn a_body_that_comes_back_as_it_goes_does_not_stall() {
    let tls = tls().await;
    let origin = Origin::scripted(scripts::mirror).await;
    let host = tls.env.sandbox(&origin).await.host();
    let mut upload = tls.h2().await.open("POST", &host, "/", &[]).await;
    upload.data("begin", false).await.unwrap();
    let (mut sending, mut response) = upload.split().await;
    let sender = tokio::spawn(async move {
        for _ in 0..640 {
            sending.data(vec![7; 1 << 15], false).await.unwrap();
        }
        sending.data("", true).await.unwrap();
    });
    let mut bytes = 0;
    while let Some(piece) = response.piece().await.expect("no reset") {
        bytes += piece.len();
    }
    sender.await.unwrap();
    assert_eq!(bytes, 20 * MIB + 5);
}
