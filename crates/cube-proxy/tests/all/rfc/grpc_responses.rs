//! gRPC servers that break HTTP/2 towards the proxy (RFC 9113, 8.1.1 for responses, and 5 to 6): no call looks
//! whole that is not, and the next one is served.

use std::net::SocketAddr;

use cube_testkit::{Frame, H2Client, H2Wire, Response};
use tokio::net::TcpListener;

use crate::support::tls;

/// What a call gets to see of a broken response.
#[derive(Clone, Copy)]
enum Shows {
    /// The proxy's own error, no clean end, or none at all.
    Broken,
    /// The library drops what is wrong (http2.md), and the rest is as it was: the body `ok`.
    Mended,
}
use Shows::{Broken, Mended};

const HEAD: &[(&str, &str)] = &[(":status", "200"), ("content-type", "application/grpc")];
const END: &[(&str, &str)] = &[("grpc-status", "0")];

/// HEAD with more fields.
fn head(more: &[(&str, &str)]) -> Frame {
    Frame::headers(1, &[HEAD, more].concat(), false)
}

// A case a line: what it is, and the frames on stream 1.
#[rustfmt::skip]
fn cases() -> Vec<(&'static str, Vec<Frame>, Shows)> {
    let (ok, end) = (|| Frame::data(1, b"ok", false), || Frame::headers(1, END, true));
    let any = |kind, flags, stream, payload: &[u8]| Frame::new(kind, flags, stream, payload);
    vec![
        ("8.1.1: a body that is longer than it says", vec![head(&[("content-length", "1")]), ok(), end()], Broken),
        ("8.1.1: one that is shorter", vec![head(&[("content-length", "9")]), ok(), end()], Broken),
        ("8.3.2: no status", vec![Frame::headers(1, &HEAD[1..], false), ok(), end()], Broken),
        ("8.3.2: a status of letters", vec![Frame::headers(1, &[(":status", "abc")], false), ok(), end()], Broken),
        ("8.3.2: a status of four digits", vec![Frame::headers(1, &[(":status", "2000")], false), ok(), end()], Broken),
        ("8.3: a pseudo field of requests", vec![head(&[(":path", "/")]), ok(), end()], Broken),
        ("8.3: a pseudo field after a field", vec![Frame::headers(1, &[("a", "b"), (":status", "200")], false), ok(), end()], Broken),
        ("8.2.1: an upper-case name", vec![head(&[("X-Upper", "1")]), ok(), end()], Broken),
        ("8.2.1: a line in a value", vec![head(&[("x", "a\r\nset-cookie: b=c")]), ok(), end()], Broken),
        ("8.2.2: Connection", vec![head(&[("connection", "x")]), ok(), end()], Broken),
        ("8.2.2: Transfer-Encoding", vec![head(&[("transfer-encoding", "chunked")]), ok(), end()], Broken),
        ("8.1: DATA before a head", vec![ok(), head(&[]), end()], Broken),
        ("8.1: an interim response that ends the stream", vec![Frame::headers(1, &[(":status", "103")], true)], Broken),
        ("8.1: headers in the middle that are not the last", vec![head(&[]), ok(), Frame::headers(1, END, false), ok(), end()], Broken),
        ("8.1: a pseudo field in trailers", vec![head(&[]), ok(), Frame::headers(1, &[(":status", "500"), END[0]], true)], Mended),
        ("8.6: a 101", vec![Frame::headers(1, &[(":status", "101")], false), head(&[]), ok(), end()], Mended),
        ("8.4: a promise", vec![head(&[]), any(Frame::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82, 0x84, 0x87]), ok(), end()], Broken),
        ("4.2: a frame that is too long", vec![head(&[]), Frame::data(1, &[0; (1 << 20) + 1], false), end()], Broken),
        ("4.3: a block that does not decode", vec![any(Frame::HEADERS, 4, 1, &[0x80]), ok(), end()], Broken),
        ("5.1: DATA of a stream that nobody opened", vec![head(&[]), Frame::data(9, b"poison", true), ok(), end()], Broken),
        ("5.1: headers of one", vec![head(&[]), Frame::headers(9, HEAD, true), ok(), end()], Broken),
        ("6.5.2: a setting that servers must not send", vec![head(&[]), Frame::settings(&[(2, 1)]), ok(), end()], Mended),
        ("6.4: a reset without an error before the end", vec![head(&[]), ok(), Frame::reset(1, 0)], Broken),
        ("6.8: GOAWAY that leaves the call out, after its head", vec![head(&[]), ok(), Frame::go_away(0, 0)], Broken),
        ("6.9: a window of nothing more", vec![head(&[]), Frame::window(0, 0), ok(), end()], Broken),
    ]
}

/// A server whose first call is answered with these frames, each other one with `other`.
async fn server(frames: Vec<Frame>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut attack = Some(frames);
        while let Ok((stream, _)) = listener.accept().await {
            let frames = attack.take();
            tokio::spawn(serve(H2Wire::serve(stream).await, frames));
        }
    });
    address
}

async fn serve(mut wire: H2Wire, mut attack: Option<Vec<Frame>>) {
    while let Some(call) = wire.until(|frame| frame.kind == Frame::HEADERS).await {
        let stream = call.stream;
        let frames = attack.take().unwrap_or_else(|| {
            vec![
                Frame::headers(stream, HEAD, false),
                Frame::data(stream, b"other", false),
                Frame::headers(stream, END, true),
            ]
        });
        wire.send(frames.iter().flat_map(Frame::bytes).collect::<Vec<u8>>()).await;
    }
}

async fn call(client: &H2Client, host: &str) -> Option<Response> {
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let mut request = client.open("POST", host, "/kit.Echo/Unary", &grpc).await;
    let _ = request.data("hi", true).await;
    request.outcome().await.ok()
}

#[tokio::test]
async fn a_broken_response_never_looks_whole_and_the_next_call_is_served() {
    let tls = tls().await;
    let mut faults = Vec::new();
    for (case, frames, shows) in cases() {
        let sandbox = tls.env.sandbox_at(server(frames).await).await;
        let client = H2Client::plain(tls.env.proxy.grpc()).await;
        let response = call(&client, &sandbox.host()).await;
        let right = response.as_ref().is_none_or(|response| match shows {
            Broken => {
                response.retcode().is_some_and(|code| code < 330_000 && code != 310_200) || !response.clean
            }
            Mended => response.clean && response.body == b"ok",
        });
        let split = response.as_ref().is_some_and(|response| response.headers.has("set-cookie"));
        if !right || split {
            faults.push(format!("{case}: {response:?}"));
        }
        let next = call(&client, &sandbox.host()).await.expect("a response");
        assert_eq!((next.passed(200).text().as_str(), next.clean), ("other", true), "{case}");
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
