//! gRPC calls that their server says it did not process go out again (connections.md, "Retries"; RFC
//! 9113, 6.8 and 8.7), others do not.

use std::net::SocketAddr;
use std::time::Duration;

use cube_testkit::futures_util::future::join_all;
use cube_testkit::tonic::Request;
use cube_testkit::{Frame, GrpcServer, H2Client, H2Upload, H2Wire, Response, Sandbox, within};
use tokio::net::TcpListener;

use crate::support::{Tls, patient, tls};

const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

/// Error codes (RFC 9113, 7).
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A server whose frames are the test's.
pub(crate) struct Server(TcpListener);

impl Server {
    pub(crate) async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// The proxy's next connection.
    pub(crate) async fn accept(&self) -> H2Wire {
        let (stream, _) = within("a connection of the proxy", self.0.accept()).await.unwrap();
        H2Wire::serve(stream).await
    }

    /// Whether another connection has been made.
    async fn has_another(&self) -> bool {
        tokio::time::timeout(Duration::from_millis(200), self.0.accept()).await.is_ok()
    }
}

/// A call through the h2c listener, whose body the test writes.
async fn call(tls: &Tls, sandbox: &Sandbox) -> H2Upload {
    let client = H2Client::plain(tls.env.proxy.grpc()).await;
    client.open("POST", &sandbox.host(), "/kit.Echo/Unary", &GRPC).await
}

/// Reads the head of the next call: its stream.
async fn head(wire: &mut H2Wire) -> u32 {
    wire.until(|frame| frame.kind == Frame::HEADERS).await.expect("a call").stream
}

/// Reads a call to its end: its stream and its body.
async fn whole(wire: &mut H2Wire) -> (u32, Vec<u8>) {
    let head = wire.until(|frame| frame.kind == Frame::HEADERS).await.expect("a call");
    let body = if head.ends() { Vec::new() } else { data(wire, 0, true).await };
    (head.stream, body)
}

/// Reads DATA until so many bytes have come, or the end of the stream where `end`.
async fn data(wire: &mut H2Wire, count: usize, end: bool) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        if data.len() >= count && !end {
            return data;
        }
        let frame = wire.until(|frame| frame.kind == Frame::DATA).await.expect("more of the body");
        data.extend(&frame.payload);
        if frame.ends() {
            return data;
        }
    }
}

/// Answers a call with the bytes that it sent.
async fn echo(wire: &mut H2Wire, stream: u32, body: &[u8]) {
    let head = [(":status", "200"), ("content-type", "application/grpc")];
    let frames = [
        Frame::headers(stream, &head, false),
        Frame::data(stream, body, false),
        Frame::headers(stream, &[("grpc-status", "0")], true),
    ];
    wire.send(frames.map(|frame| frame.bytes()).concat()).await;
}

/// The call came back as it was sent, and the log says that it took two upstreams.
async fn is_echoed(tls: &Tls, response: &Response, body: &[u8]) {
    assert_eq!((response.passed(200).trailers.get("grpc-status"), response.clean), (Some("0"), true));
    assert!(response.body == body, "{} bytes came back", response.body.len());
    let line = tls.env.proxy.log_line(&response.request_id()).await;
    assert_eq!((line.field("retcode"), line.field("reason")), ("310200", "ok"));
    assert_eq!(line.field("upstream_addr").split(", ").count(), 2, "{}", line.field("upstream_addr"));
}

/// How a server says that it did not process a stream.
fn refusals(stream: u32) -> [(&'static str, Frame); 4] {
    [
        ("GOAWAY below the stream", Frame::go_away(0, NO_ERROR)),
        ("GOAWAY with an error", Frame::go_away(0, ENHANCE_YOUR_CALM)),
        ("GOAWAY of a broken server", Frame::go_away(0, INTERNAL_ERROR)),
        ("a refused stream", Frame::reset(stream, REFUSED_STREAM)),
    ]
}

#[tokio::test]
async fn a_call_that_was_not_processed_goes_out_again_with_all_of_its_body() {
    let tls = tls().await;
    for at in 0..refusals(1).len() {
        for (before, after) in [(&b"abc"[..], &b"def"[..]), (b"", b"late"), (b"early", b""), (b"", b"")] {
            let server = Server::start().await;
            let sandbox = tls.env.sandbox_at(server.address()).await;
            let mut call = call(&tls, &sandbox).await;
            let mut first = server.accept().await;
            let stream = head(&mut first).await;
            if !before.is_empty() {
                call.data(before, false).await.unwrap();
                assert_eq!(data(&mut first, before.len(), false).await, before);
            }
            let (what, refusal) = refusals(stream).into_iter().nth(at).unwrap();
            first.send(refusal.bytes()).await;
            let mut second = server.accept().await;
            let stream = head(&mut second).await;
            call.data(after, true).await.unwrap();
            let whole = [before, after].concat();
            assert_eq!(data(&mut second, 0, true).await, whole, "{what}");
            echo(&mut second, stream, &whole).await;
            is_echoed(&tls, &call.response().await, &whole).await;
        }
    }
}

/// A body that ended before its refusal came is replayed, and ends again.
#[tokio::test]
async fn a_whole_call_goes_out_again() {
    let tls = tls().await;
    for body in [&b"whole"[..], b""] {
        let server = Server::start().await;
        let sandbox = tls.env.sandbox_at(server.address()).await;
        let mut call = call(&tls, &sandbox).await;
        call.data(body, true).await.unwrap();
        let mut first = server.accept().await;
        assert_eq!(whole(&mut first).await.1, body);
        first.send(Frame::go_away(0, NO_ERROR).bytes()).await;
        let mut second = server.accept().await;
        let (stream, again) = whole(&mut second).await;
        assert_eq!(again, body);
        echo(&mut second, stream, body).await;
        is_echoed(&tls, &call.response().await, body).await;
    }
}

#[tokio::test]
async fn a_call_that_may_have_been_processed_is_not_sent_again() {
    let tls = tls().await;
    for how in ["goaway", "reset", "cancel", "close"] {
        let server = Server::start().await;
        let sandbox = tls.env.sandbox_at(server.address()).await;
        let mut call = call(&tls, &sandbox).await;
        call.data("pay", true).await.unwrap();
        let mut first = server.accept().await;
        let (stream, _) = whole(&mut first).await;
        match how {
            "goaway" => first.send(Frame::go_away(stream, NO_ERROR).bytes()).await,
            "reset" => first.send(Frame::reset(stream, INTERNAL_ERROR).bytes()).await,
            "cancel" => first.send(Frame::reset(stream, CANCEL).bytes()).await,
            _ => {}
        }
        if how != "reset" && how != "cancel" {
            drop(first);
        }
        let response = call.response().await;
        assert_eq!(response.retcode(), Some(310_509), "{how}: {}", response.brief());
        assert!(!server.has_another().await, "{how}: sent again");
    }
}

#[tokio::test]
async fn a_call_is_sent_twice_at_most() {
    let tls = tls().await;
    let server = Server::start().await;
    let sandbox = tls.env.sandbox_at(server.address()).await;
    let mut call = call(&tls, &sandbox).await;
    call.data("hello", true).await.unwrap();
    for _ in 0..2 {
        let mut wire = server.accept().await;
        head(&mut wire).await;
        wire.send(Frame::go_away(0, NO_ERROR).bytes()).await;
    }
    let response = call.response().await;
    assert_eq!((response.retcode(), response.headers.get("grpc-status")), (Some(310_509), Some("14")));
    assert!(!server.has_another().await, "sent a third time");
}

/// What was taken and cannot be repeated ends the matter: nothing of a body may be lost.
#[tokio::test]
async fn a_call_with_a_body_too_large_to_keep_is_not_sent_again() {
    let tls = tls().await;
    let server = Server::start().await;
    let sandbox = tls.env.sandbox_at(server.address()).await;
    let mut call = call(&tls, &sandbox).await;
    let mut first = server.accept().await;
    let stream = head(&mut first).await;
    let room = [Frame::window(stream, 1 << 20), Frame::window(0, 1 << 20)].map(|frame| frame.bytes());
    first.send(room.concat()).await;
    call.data(vec![7; 80 << 10], false).await.unwrap();
    data(&mut first, 80 << 10, false).await;
    first.send(Frame::reset(stream, REFUSED_STREAM).bytes()).await;
    let response = call.response().await;
    assert_eq!(response.retcode(), Some(310_509), "{}", response.brief());
    assert!(!server.has_another().await, "sent again");
}

/// A real server whose connections end all the time: no call is lost.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_lost_to_a_server_that_ends_its_connections() {
    let tls = patient().await;
    let server = GrpcServer::with_connection_age(Duration::from_millis(10)).await;
    let sandbox = tls.env.sandbox_at(server.address()).await;
    let client = tls.h2c(&sandbox.host()).await;
    let callers = (0..16).map(|caller: usize| {
        let client = client.clone();
        async move {
            let mut failed = Vec::new();
            for n in 0..100 {
                let id = format!("age-{caller:02}-{n:03}");
                let mut request = Request::new(id.clone().into());
                request.metadata_mut().insert("x-cube-request-id", id.parse().unwrap());
                match client.unary("Unary", request).await {
                    Ok(response) => assert_eq!(response.into_inner(), id),
                    Err(_) => failed.push(id),
                }
            }
            failed
        }
    });
    let failed = join_all(callers).await.concat();
    // On a busy machine a connection may end on a call twice, and a third sending is not promised.
    for id in &failed {
        let line = tls.env.proxy.log_line(id).await;
        assert!(line.field("upstream_addr").contains(", "), "sent once: {}", line.text);
    }
    assert!(failed.len() < 80, "{} of 1600 calls", failed.len());
    assert_eq!(server.calls().len() + failed.len(), 1600, "each call once, those that failed never");
    assert!(server.connections() > 3, "{} connections", server.connections());
}
