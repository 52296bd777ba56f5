//! The rules of HTTP/2 (RFC 9113) that a client may break, section by section, frame by frame, on
//! the TLS listener. What docs/http2.md lists as a deviation is listed here too, and nothing else.

use cube_testkit::h2frames::block;
use cube_testkit::{Frame, H2Wire, Origin};

use crate::support::tls;

const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE: u32 = 6;
const COMPRESSION: u32 = 9;

/// What a rule asks for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asks {
    /// GOAWAY with this code and the end of the connection.
    ConnectionError(u32),
    /// RST_STREAM of stream 1 with this code, or a 400 where the request is malformed (8.1.1); a
    /// connection error is allowed in its place (5.4.2).
    StreamError(u32),
    /// Nothing: the connection lives on.
    Nothing,
    /// The request on stream 1 is answered.
    Response,
}
use Asks::{ConnectionError, Nothing, Response, StreamError};

/// What the proxy did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Did {
    GoneAway(u32),
    Closed,
    Reset(u32, u32),
    Answered(u32, Option<u16>),
    LivedOn,
}

impl Asks {
    pub(super) fn allows(self, did: &Did) -> bool {
        match (self, did) {
            (ConnectionError(code) | StreamError(code), Did::GoneAway(got)) => code == *got,
            // The reason may be lost with the connection, when the client is still sending.
            (ConnectionError(_), Did::Closed) => true,
            (StreamError(code), Did::Reset(1, got)) => code == *got,
            (StreamError(PROTOCOL), Did::Answered(1, Some(400))) => true,
            (Nothing, Did::LivedOn) => true,
            (Response, Did::Answered(1, Some(200))) => true,
            _ => false,
        }
    }
}

/// Bytes after the settings, and what is asked for. `{host}` in headers is the sandbox's.
pub(super) struct Rule {
    pub(super) section: &'static str,
    pub(super) says: &'static str,
    bytes: Vec<u8>,
    asks: Asks,
}

fn rule(section: &'static str, says: &'static str, frames: &[Frame], asks: Asks) -> Rule {
    Rule { section, says, bytes: frames.iter().flat_map(Frame::bytes).collect(), asks }
}

fn any(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Frame {
    Frame::new(kind, flags, stream, payload)
}

/// The header fields of a request, with changes: a field of the same name is replaced, one with
/// `-` before its name is left out, others come last.
pub(crate) fn fields<'a>(
    method: &'a str,
    host: &'a str,
    changes: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let mut fields =
        vec![(":method", method), (":scheme", "https"), (":authority", host), (":path", "/hang-never")];
    for (name, value) in changes {
        if let Some(out) = name.strip_prefix('-') {
            fields.retain(|(name, _)| *name != out);
        } else if let Some(field) = fields.iter_mut().find(|(known, _)| known == name) {
            field.1 = value;
        } else {
            fields.push((name, value));
        }
    }
    fields
}

// A table: a rule a line.
#[rustfmt::skip]
pub(super) fn rules(host: &str) -> Vec<Rule> {
    let get = |stream, changes: &[_]| Frame::headers(stream, &fields("GET", host, changes), true);
    let post = |stream, changes: &[_]| Frame::headers(stream, &fields("POST", host, changes), false);
    let get_block = block(&fields("GET", host, &[]));
    let half = |flags: u8| Frame::new(Frame::HEADERS, flags, 1, &get_block[..20]);
    let malformed = |says, changes: &[_]| rule("8.1.1", says, &[get(1, changes)], StreamError(PROTOCOL));
    let mut extra = fields("GET", host, &[]);
    extra.insert(0, ("early", "field"));
    let twice = |name| [fields("GET", host, &[]), vec![(name, "GET")]].concat();
    let mut rules = vec![
        // 4: frames
        rule("4.1", "an unknown frame is ignored", &[any(0x42, 0xff, 0, b"what")], Nothing),
        rule("4.1", "an unknown flag is ignored", &[any(Frame::PING, 0x10, 0, b"12345678")], Nothing),
        rule("4.1", "the reserved bit is ignored", &[any(Frame::PING, 0, 1 << 31, b"12345678")], Nothing),
        rule("4.2", "a frame of 16,384 bytes is taken", &[post(1, &[]), Frame::data(1, &[0; 1 << 14], true)], Response),
        rule("4.2", "a longer one is not", &[post(1, &[]), Frame::data(1, &[0; (1 << 14) + 1], true)], ConnectionError(FRAME_SIZE)),
        rule("4.2", "nor one with headers", &[any(Frame::HEADERS, 5, 1, &[0; (1 << 14) + 1])], ConnectionError(FRAME_SIZE)),
        rule("4.3", "a block that does not decode", &[any(Frame::HEADERS, 5, 1, &[0x80])], ConnectionError(COMPRESSION)),
        rule("4.3", "an index that nobody set", &[any(Frame::HEADERS, 5, 1, &[0xff, 0x40])], ConnectionError(COMPRESSION)),
        rule("4.3", "a block that is cut", &[any(Frame::HEADERS, 5, 1, &get_block[..20])], ConnectionError(COMPRESSION)),
        rule("4.3", "nothing between the parts of a block", &[half(1), any(Frame::PRIORITY, 0, 1, &[0, 0, 0, 0, 9])], ConnectionError(PROTOCOL)),
        rule("4.3", "nor headers of another stream", &[half(1), get(3, &[])], ConnectionError(PROTOCOL)),
        // 5: streams
        rule("5.1", "DATA before headers", &[Frame::data(1, b"x", true)], ConnectionError(PROTOCOL)),
        rule("5.1", "RST_STREAM before headers", &[Frame::reset(1, 8)], ConnectionError(PROTOCOL)),
        rule("5.1", "WINDOW_UPDATE before headers", &[Frame::window(1, 9)], ConnectionError(PROTOCOL)),
        rule("5.1", "CONTINUATION before headers", &[any(Frame::CONTINUATION, 4, 1, &get_block)], ConnectionError(PROTOCOL)),
        rule("5.1", "DATA after the end of the request", &[get(1, &[(":path", "/hang")]), Frame::data(1, b"x", true)], StreamError(STREAM_CLOSED)),
        rule("5.1", "headers after the end of the request", &[get(1, &[(":path", "/hang")]), get(1, &[])], StreamError(STREAM_CLOSED)),
        rule("5.1", "CONTINUATION after the end of the request", &[get(1, &[(":path", "/hang")]), any(Frame::CONTINUATION, 4, 1, &get_block)], ConnectionError(PROTOCOL)),
        rule("5.1", "WINDOW_UPDATE and PRIORITY after it are fine", &[get(1, &[(":path", "/hang")]), Frame::window(1, 9), any(Frame::PRIORITY, 0, 1, &[0, 0, 0, 3, 9])], Nothing),
        rule("5.1", "DATA that a reset has overtaken", &[post(1, &[(":path", "/hang")]), Frame::reset(1, 8), Frame::data(1, b"x", true)], StreamError(STREAM_CLOSED)),
        rule("5.1", "headers that one has overtaken", &[post(1, &[(":path", "/hang")]), Frame::reset(1, 8), get(1, &[])], StreamError(STREAM_CLOSED)),
        rule("5.1", "CONTINUATION that one has overtaken", &[post(1, &[(":path", "/hang")]), Frame::reset(1, 8), any(Frame::CONTINUATION, 4, 1, &get_block)], ConnectionError(PROTOCOL)),
        rule("5.1", "RST_STREAM after the end of the request", &[get(1, &[(":path", "/hang")]), Frame::reset(1, 8)], Nothing),
        rule("5.1", "PRIORITY of a stream that is not there", &[any(Frame::PRIORITY, 0, 1, &[0, 0, 0, 0, 255])], Nothing),
        rule("5.1.1", "an even number is a server's", &[get(2, &[])], ConnectionError(PROTOCOL)),
        rule("5.1.1", "a number that was passed over", &[get(5, &[(":path", "/hang")]), get(3, &[])], ConnectionError(PROTOCOL)),
        rule("5.3.2", "a stream that depends on itself", &[post(1, &[(":path", "/hang")]), any(Frame::PRIORITY, 0, 1, &[0, 0, 0, 1, 9])], StreamError(PROTOCOL)),
        rule("5.3.2", "headers that say so", &[any(Frame::HEADERS, 0x25, 1, &[&[0, 0, 0, 1, 9], &get_block[..]].concat())], StreamError(PROTOCOL)),
        rule("5.5", "an unknown frame within a block", &[half(1), any(0x42, 0, 0, b"what")], ConnectionError(PROTOCOL)),
        // 6: what each frame looks like
        rule("6.1", "DATA of the connection", &[Frame::data(0, b"x", false)], ConnectionError(PROTOCOL)),
        rule("6.1", "padding that is longer than its frame", &[post(1, &[]), any(Frame::DATA, 9, 1, b"\x09abc")], ConnectionError(PROTOCOL)),
        rule("6.1", "padding is no body", &[post(1, &[("content-length", "1")]), any(Frame::DATA, 9, 1, b"\x03x\0\0\0")], Response),
        rule("6.1", "DATA in pieces", &[post(1, &[("content-length", "3")]), Frame::data(1, b"a", false), Frame::data(1, b"", false), Frame::data(1, b"bc", true)], Response),
        rule("6.2", "headers of the connection", &[get(0, &[])], ConnectionError(PROTOCOL)),
        rule("6.2", "padding that is longer than its frame", &[any(Frame::HEADERS, 0xd, 1, b"\x09abc")], ConnectionError(PROTOCOL)),
        rule("6.2", "padding", &[any(Frame::HEADERS, 0xd, 1, &[&[3], &get_block[..], &[0; 3]].concat())], Response),
        rule("6.2", "a priority", &[any(Frame::HEADERS, 0x25, 1, &[&[0x80, 0, 0, 3, 9], &get_block[..]].concat())], Response),
        rule("6.3", "PRIORITY of the connection", &[any(Frame::PRIORITY, 0, 0, &[0, 0, 0, 1, 9])], ConnectionError(PROTOCOL)),
        rule("6.3", "PRIORITY of every kind", &[any(Frame::PRIORITY, 0, 3, &[0; 5]), any(Frame::PRIORITY, 0, 3, &[0, 0, 0, 9, 255]), any(Frame::PRIORITY, 0, 5, &[0x80, 0, 0, 3, 9]), get(1, &[])], Response),
        rule("6.3", "PRIORITY of four bytes", &[post(1, &[(":path", "/hang")]), any(Frame::PRIORITY, 0, 1, &[0, 0, 0, 3])], StreamError(FRAME_SIZE)),
        rule("6.4", "RST_STREAM of the connection", &[Frame::reset(0, 8)], ConnectionError(PROTOCOL)),
        rule("6.4", "RST_STREAM of three bytes", &[post(1, &[]), any(Frame::RST_STREAM, 0, 1, &[0, 0, 8])], ConnectionError(FRAME_SIZE)),
        rule("6.5", "an acknowledgement that says something", &[any(Frame::SETTINGS, 1, 0, &[0; 6])], ConnectionError(FRAME_SIZE)),
        rule("6.5", "settings of a stream", &[any(Frame::SETTINGS, 0, 1, &[])], ConnectionError(PROTOCOL)),
        rule("6.5", "settings of five bytes", &[any(Frame::SETTINGS, 0, 0, &[0; 5])], ConnectionError(FRAME_SIZE)),
        rule("6.5.2", "ENABLE_PUSH 2", &[Frame::settings(&[(2, 2)])], ConnectionError(PROTOCOL)),
        rule("6.5.2", "a window over 2^31-1", &[Frame::settings(&[(4, 1 << 31)])], ConnectionError(FLOW_CONTROL)),
        rule("6.5.2", "frames below 16,384", &[Frame::settings(&[(5, (1 << 14) - 1)])], ConnectionError(PROTOCOL)),
        rule("6.5.2", "frames above 2^24-1", &[Frame::settings(&[(5, 1 << 24)])], ConnectionError(PROTOCOL)),
        rule("6.5.2", "an unknown setting is ignored", &[Frame::settings(&[(0xff, 1)])], Nothing),
        rule("6.6", "a client promises nothing", &[post(1, &[]), any(Frame::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2])], ConnectionError(PROTOCOL)),
        rule("6.7", "PING of a stream", &[any(Frame::PING, 0, 1, &[0; 8])], ConnectionError(PROTOCOL)),
        rule("6.7", "PING of six bytes", &[any(Frame::PING, 0, 0, &[0; 6])], ConnectionError(FRAME_SIZE)),
        rule("6.7", "an acknowledgement that nobody waits for", &[any(Frame::PING, 1, 0, &[0; 8])], Nothing),
        rule("6.8", "GOAWAY of a stream", &[any(Frame::GOAWAY, 0, 1, &[0; 8])], ConnectionError(PROTOCOL)),
        rule("6.8", "a client that goes away still gets its response", &[get(1, &[]), any(Frame::GOAWAY, 0, 0, &[0; 8])], Response),
        rule("6.9", "more window of both", &[post(1, &[]), Frame::window(0, 9), Frame::window(1, 9), Frame::data(1, b"x", true)], Response),
        rule("6.9", "no more window of the connection", &[Frame::window(0, 0)], ConnectionError(PROTOCOL)),
        rule("6.9", "no more window of a stream", &[post(1, &[(":path", "/hang")]), Frame::window(1, 0)], StreamError(PROTOCOL)),
        rule("6.9", "WINDOW_UPDATE of three bytes", &[any(Frame::WINDOW_UPDATE, 0, 0, &[0, 0, 1])], ConnectionError(FRAME_SIZE)),
        rule("6.9.1", "a window of the connection over 2^31-1", &[Frame::window(0, i32::MAX as u32), Frame::window(0, i32::MAX as u32)], ConnectionError(FLOW_CONTROL)),
        rule("6.9.1", "one of a stream", &[post(1, &[(":path", "/hang")]), Frame::window(1, i32::MAX as u32), Frame::window(1, i32::MAX as u32)], StreamError(FLOW_CONTROL)),
        rule("6.9.2", "settings that push a window over it", &[post(1, &[(":path", "/hang")]), Frame::window(1, 1 << 30), Frame::settings(&[(4, i32::MAX as u32)])], ConnectionError(FLOW_CONTROL)),
        rule("6.10", "a block in parts", &[half(1), any(Frame::CONTINUATION, 0, 1, &get_block[20..30]), any(Frame::CONTINUATION, 4, 1, &get_block[30..])], Response),
        rule("6.10", "CONTINUATION of the connection", &[half(1), any(Frame::CONTINUATION, 4, 0, &get_block[20..])], ConnectionError(PROTOCOL)),
        rule("6.10", "CONTINUATION of a whole block", &[post(1, &[(":path", "/hang")]), any(Frame::CONTINUATION, 4, 1, &get_block)], ConnectionError(PROTOCOL)),
        rule("6.10", "CONTINUATION behind one that was the last", &[half(0), any(Frame::CONTINUATION, 4, 1, &get_block[20..]), any(Frame::CONTINUATION, 4, 1, &get_block)], ConnectionError(PROTOCOL)),
        rule("6.10", "CONTINUATION behind DATA", &[post(1, &[(":path", "/hang")]), Frame::data(1, b"x", false), any(Frame::CONTINUATION, 4, 1, &get_block)], ConnectionError(PROTOCOL)),
        // 7: codes
        rule("7", "RST_STREAM with a code that nobody knows", &[get(1, &[(":path", "/hang")]), Frame::reset(1, 0xff)], Nothing),
        rule("7", "GOAWAY with one", &[get(1, &[]), Frame::go_away(0, 0xff)], Response),
        rule("6.10", "DATA within a block", &[half(0), Frame::data(1, b"x", true)], ConnectionError(PROTOCOL)),
        // 8: requests
        rule("8.1", "headers in the middle that are not the last", &[post(1, &[]), post(1, &[])], StreamError(PROTOCOL)),
        rule("8.1", "trailers with a pseudo field", &[post(1, &[]), Frame::headers(1, &[(":path", "/")], true)], StreamError(PROTOCOL)),
        rule("8.1", "trailers", &[post(1, &[]), Frame::data(1, b"x", false), Frame::headers(1, &[("x-end", "1")], true)], Response),
        rule("8.1.1", "a body that is shorter than it says", &[post(1, &[("content-length", "5")]), Frame::data(1, b"abc", true)], StreamError(PROTOCOL)),
        rule("8.1.1", "a body that is longer than it says", &[post(1, &[("content-length", "2")]), Frame::data(1, b"ab", false), Frame::data(1, b"c", true)], StreamError(PROTOCOL)),
        rule("8.1.1", "a body in pieces that are less than it says", &[post(1, &[("content-length", "5")]), Frame::data(1, b"ab", false), Frame::data(1, b"cd", true)], StreamError(PROTOCOL)),
        rule("8.1.1", "a body where none is said", &[get(1, &[("content-length", "2")])], StreamError(PROTOCOL)),
        rule("8.3.1", "a method twice", &[Frame::headers(1, &twice(":method"), true)], StreamError(PROTOCOL)),
        rule("8.3.1", "a path twice", &[Frame::headers(1, &twice(":path"), true)], StreamError(PROTOCOL)),
        rule("8.3.1", "a scheme twice", &[Frame::headers(1, &twice(":scheme"), true)], StreamError(PROTOCOL)),
        rule("8.1", "HEAD", &[get(1, &[(":method", "HEAD")])], Response),
        rule("8.1", "GET", &[get(1, &[])], Response),
        rule("8.3", "a pseudo field after a field", &[Frame::headers(1, &extra, true)], StreamError(PROTOCOL)),
        rule("8.4", "CONNECT with a path", &[get(1, &[(":method", "CONNECT")])], StreamError(PROTOCOL)),
    ];
    rules.extend([
        malformed("8.2.1: an upper-case name", &[("X-Upper", "1")]),
        malformed("8.2.1: a name with a space", &[("a b", "1")]),
        malformed("8.2.1: a value with a line feed", &[("x-line", "a\nb")]),
        malformed("8.2.2: Connection", &[("connection", "keep-alive")]),
        malformed("8.2.2: Keep-Alive", &[("keep-alive", "timeout=5")]),
        malformed("8.2.2: Proxy-Connection", &[("proxy-connection", "keep-alive")]),
        malformed("8.2.2: Transfer-Encoding", &[("transfer-encoding", "chunked")]),
        malformed("8.2.2: Upgrade", &[("upgrade", "websocket")]),
        malformed("8.2.2: TE of anything but trailers", &[("te", "trailers, deflate")]),
        malformed("8.3: an unknown pseudo field", &[(":what", "1")]),
        malformed("8.3: a pseudo field of responses", &[(":status", "200")]),
        malformed("8.3.1: no method", &[("-:method", "")]),
        malformed("8.3.1: no scheme", &[("-:scheme", "")]),
        malformed("8.3.1: no path", &[("-:path", "")]),
        malformed("8.3.1: an empty path", &[(":path", "")]),
        malformed("8.3.1: a path without its slash", &[(":path", "x")]),
        malformed("8.3.1: an authority with a user", &[(":authority", "user@a.cube.test")]),
        malformed("8.3.1: Host against the authority", &[("host", "other.test")]),
        malformed("8.3.1: neither of them", &[("-:authority", "")]),
    ]);
    rules
}

/// Where the connection ends as it must, but with PROTOCOL_ERROR for a code that would say more.
pub(super) const VAGUE: &[(&str, &str)] = &[
    ("4.3", "a block that does not decode"),
    ("4.3", "an index that nobody set"),
    ("4.3", "a block that is cut"),
    ("5.1", "DATA after the end of the request"),
    ("5.1", "headers after the end of the request"),
    ("5.1", "headers that one has overtaken"),
    ("6.3", "PRIORITY of four bytes"),
    ("6.4", "RST_STREAM of three bytes"),
    ("6.5", "an acknowledgement that says something"),
    ("6.5", "settings of five bytes"),
    ("6.5.2", "a window over 2^31-1"),
    ("6.7", "PING of six bytes"),
    ("6.9", "WINDOW_UPDATE of three bytes"),
];

/// What does not hold: the field is dropped, and the request passes.
pub(super) const DEVIATIONS: &[(&str, &str)] = &[("8.1", "trailers with a pseudo field")];

/// Reads until it shows what the proxy made of it.
pub(super) async fn watch(wire: &mut H2Wire) -> Did {
    // Comes back when nothing of what was said before it ended the connection.
    let probe = *b"probe it";
    wire.send(Frame::new(Frame::PING, 0, 0, probe).bytes()).await;
    let mut lived_on = false;
    loop {
        let Some(frame) = wire.frame().await else { return Did::Closed };
        match frame.kind {
            Frame::GOAWAY if frame.code() != Some(0) => return Did::GoneAway(frame.code().unwrap()),
            Frame::RST_STREAM => return Did::Reset(frame.stream, frame.code().unwrap()),
            Frame::HEADERS => return Did::Answered(frame.stream, frame.status()),
            // The response to a request comes from further away than the one to a probe.
            Frame::PING if frame.payload == probe && lived_on => return Did::LivedOn,
            Frame::PING if frame.payload == probe => {
                lived_on = true;
                tokio::time::sleep(std::time::Duration::from_millis(250)).await;
                wire.send(Frame::new(Frame::PING, 0, 0, probe).bytes()).await;
            }
            _ => {}
        }
    }
}

/// An application that answers, but for `/hang`.
pub(crate) async fn application() -> Origin {
    Origin::scripted(|mut exchange| async move {
        if exchange.request.target == "/hang" {
            exchange.gone().await;
            return exchange.close().await;
        }
        cube_testkit::scripts::echo(exchange).await
    })
    .await
}

#[tokio::test]
async fn every_rule_holds_but_for_the_deviations_that_are_written_down() {
    let tls = tls().await;
    let origin = application().await;
    let sandbox = tls.env.sandbox(&origin).await;
    let host = sandbox.host();
    let (mut deviating, mut vague) = (Vec::new(), Vec::new());
    for rule in rules(&host) {
        let mut wire = tls.frames().await;
        wire.hello(&[]).await;
        wire.send(&rule.bytes).await;
        let did = watch(&mut wire).await;
        let must_end = matches!(rule.asks, ConnectionError(_) | StreamError(_));
        if rule.asks.allows(&did) {
            continue;
        }
        if must_end && did == Did::GoneAway(PROTOCOL) {
            vague.push((rule.section, rule.says));
        } else {
            deviating.push((rule.section, rule.says, rule.asks, did));
        }
    }
    let found: Vec<_> = deviating.iter().map(|(section, says, ..)| (*section, *says)).collect();
    assert_eq!(found, DEVIATIONS, "{deviating:#?}");
    assert_eq!(vague, VAGUE);
    // And nobody else has noticed anything.
    tls.h2().await.get(&host, "/after", &[]).await.passed(200);
}
