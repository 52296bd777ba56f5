//! HTTP/2 requests that become HTTP/1.1 ones (RFC 9113, 8.2 and 10.3): what a client writes into a
//! header, a path or a body is never a line or the end of a request there.

use cube_testkit::Frame;

use super::fence::Fence;
use super::rfc9113::{Did, fields, watch};
use crate::support::tls;

/// What must become of a request on stream 1.
enum Asks {
    /// It is refused, and nothing of it arrives whole.
    Refused,
    /// Exactly this arrives.
    Passes(&'static str),
    /// Either.
    PassesOrRefused(&'static str),
}
use Asks::{Passes, PassesOrRefused, Refused};

/// Changes to the headers, and the body.
type Case = (&'static str, &'static [(&'static str, &'static str)], Option<&'static str>, Asks);

// A case a line.
#[rustfmt::skip]
const CASES: &[Case] = &[
    ("8.2.1: a line in a value", &[("x", "a\r\nTransfer-Encoding: chunked")], None, Refused),
    ("8.2.1: LF in a value", &[("x", "a\nb: c")], None, Refused),
    ("8.2.1: CR in a value", &[("x", "a\rb")], None, Refused),
    ("8.2.1: NUL in a value", &[("x", "a\0b")], None, Refused),
    ("8.2.1: a line in a name", &[("x: a\r\ny", "b")], None, Refused),
    ("8.2.1: a colon in a name", &[("transfer-encoding: chunked, x", "b")], None, Refused),
    ("8.2.1: space in a name", &[("content-length ", "9")], None, Refused),
    ("8.2.1: NUL in a name", &[("x\0", "b")], None, Refused),
    ("8.2.1: an empty name", &[("", "b")], None, Refused),
    ("8.2.1: space around a value", &[("x", " a ")], None, PassesOrRefused("POST /")),
    ("8.2.2: a coding, and a body in chunks", &[("transfer-encoding", "chunked")], Some("0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"), Refused),
    ("8.2.2: a coding behind space", &[("transfer-encoding", " chunked")], Some("0\r\n\r\n"), Refused),
    ("8.2.2: Connection", &[("connection", "x")], None, Refused),
    ("8.2.2: Upgrade", &[("upgrade", "websocket")], None, Refused),
    ("8.2.3: a line in a cookie", &[("cookie", "a=b\r\nX: y")], None, Refused),
    ("8.3.1: a request line in a path", &[(":path", "/ HTTP/1.1\r\nX: y\r\n\r\nGET /smuggled")], None, Refused),
    ("8.3.1: space in a path", &[(":path", "/a HTTP/1.1")], None, Refused),
    ("8.3.1: a tab in a path", &[(":path", "/a\tb")], None, Refused),
    ("8.3.1: NUL in a path", &[(":path", "/a\0b")], None, Refused),
    ("8.3.1: DEL in a path", &[(":path", "/a\x7fb")], None, Refused),
    ("8.3.1: a URL for a path", &[(":path", "http://other.test/")], None, Refused),
    ("8.3.1: a line in a method", &[(":method", "GET / HTTP/1.1\r\nX")], None, Refused),
    ("8.3.1: space in a method", &[(":method", "GET /smuggled")], None, Refused),
    ("8.3.1: an empty method", &[(":method", "")], None, Refused),
    ("8.3.1: a line in an authority", &[(":authority", "8080-a.cube.test\r\nX: y")], None, Refused),
    ("8.3.1: space in an authority", &[(":authority", "8080-a.cube.test x")], None, Refused),
    ("8.3.1: a path in an authority", &[(":authority", "8080-a.cube.test/x")], None, Refused),
    ("8.3.1: a line in a scheme", &[(":scheme", "https\r\nX: y")], None, Refused),
    ("8.3.1: a URL for a scheme", &[(":scheme", "https://other.test")], None, Refused),
    ("8.1.1: a body that is shorter than it says", &[("content-length", "5")], Some("abc"), Refused),
    ("8.1.1: a body that is longer", &[("content-length", "1")], Some("aGET /smuggled HTTP/1.1\r\n\r\n"), Refused),
    ("8.1.1: a length with a sign", &[("content-length", "+3")], Some("abc"), Refused),
    ("8.1.1: lengths in a list", &[("content-length", "3, 3")], Some("abc"), PassesOrRefused("POST / abc")),
    ("8.1: a body that looks like chunks", &[], Some("0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"), Passes(r"POST / 0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")),
    ("8.1: one with its length", &[("content-length", "5")], Some("0\r\n\r\n"), Passes(r"POST / 0\r\n\r\n")),
    ("8.2.2: TE: trailers", &[("te", "trailers")], Some("a"), Passes("POST / a")),
];

#[tokio::test]
async fn nothing_of_an_http_2_request_becomes_a_line_of_http_1() {
    let tls = tls().await;
    let fence = Fence::behind(&tls.env).await;
    let mut faults = Vec::new();
    for (case, changes, body, asks) in CASES {
        let mut all = vec![(":path", "/")];
        all.extend_from_slice(changes);
        // The last one of a name counts.
        let headers = fields("POST", &fence.host, &all);
        let mut wire = tls.frames().await;
        wire.hello(&[]).await;
        wire.send(Frame::headers(1, &headers, body.is_none()).bytes()).await;
        if let Some(body) = body {
            wire.send(Frame::data(1, body.as_bytes(), true).bytes()).await;
        }
        let did = watch(&mut wire).await;
        let passed = did == Did::Answered(1, Some(200));
        let refused = matches!(did, Did::GoneAway(_) | Did::Closed | Did::Reset(1, _))
            || matches!(did, Did::Answered(1, Some(400 | 405)));
        let arrived = fence.arrived();
        let right = match asks {
            Refused => refused && arrived.is_empty(),
            Passes(what) => passed && arrived == [*what],
            PassesOrRefused(what) => (refused && arrived.is_empty()) || (passed && arrived == [*what]),
        };
        if !right {
            faults.push(format!("{case}: {did:?}, and {arrived:?} arrived"));
        }
        fence.others_are_served(case).await;
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// 8.1: what is wrong behind the body is the request's fault too: the application never has it whole.
#[tokio::test]
async fn a_request_with_malformed_trailers_does_not_arrive_whole() {
    let tls = tls().await;
    let fence = Fence::behind(&tls.env).await;
    for trailer in [("x", "a\r\nGET /smuggled HTTP/1.1"), ("x y", "a"), ("transfer-encoding", "chunked")] {
        let mut wire = tls.frames().await;
        wire.hello(&[]).await;
        let headers = fields("POST", &fence.host, &[(":path", "/")]);
        wire.send(Frame::headers(1, &headers, false).bytes()).await;
        wire.send(Frame::data(1, b"a", false).bytes()).await;
        wire.send(Frame::headers(1, &[trailer], true).bytes()).await;
        let did = watch(&mut wire).await;
        assert!(did != Did::Answered(1, Some(200)), "{trailer:?}: {did:?}");
        assert!(fence.arrived().is_empty(), "{trailer:?}");
        fence.others_are_served(trailer.1).await;
    }
}

/// 8.1.1: where the head says that there is no body, what comes behind it is nobody's.
#[tokio::test]
async fn a_body_where_none_is_said_goes_nowhere() {
    let tls = tls().await;
    let fence = Fence::behind(&tls.env).await;
    let headers = fields("POST", &fence.host, &[(":path", "/"), ("content-length", "0")]);
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    wire.send(Frame::headers(1, &headers, false).bytes()).await;
    fence.origin.wait_for(1).await;
    wire.send(Frame::data(1, b"GET /smuggled HTTP/1.1\r\n\r\n", true).bytes()).await;
    watch(&mut wire).await;
    fence.whole("POST /").await;
    fence.others_are_served("a body where none is said").await;
}
