//! The cases of h2spec (as of 2022, after 2.6.0), the suite that servers of HTTP/2 are measured with, each with what holds it
//! here: a rule of [`super::rfc9113`] or a test. docs/http2.md shows them with their results.

use std::collections::BTreeSet;
use std::fs;

use cube_testkit::h2frames::block;
use cube_testkit::{Frame, H2Wire};

use super::rfc9113::{DEVIATIONS, VAGUE, application, fields, rules};
use crate::documents::{root, rust_tests};
use crate::support::{Tls, tls};

const BEGIN: &str = "http2_limits::a_connection_begins_with_the_preface_and_settings";
const WINDOWS: &str = "http2_limits::nothing_is_sent_beyond_the_clients_windows";
const STREAMS: &str = "http2_limits::a_stream_over_the_limit_is_refused";
const FORMS: &str = "rfc::rfc7541::every_form_of_a_header_arrives_as_what_it_says";
const TABLE: &str = "rfc::rfc7541::the_table_lives_as_long_as_its_connection_and_its_size";
/// Whose connection error is PROTOCOL_ERROR where COMPRESSION_ERROR would be the word.
const DECODE: &str = "rfc::rfc7541::what_does_not_decode_ends_the_connection";
const CLOSED: &str = "rfc::h2spec::a_stream_whose_response_is_over_takes_nothing_more";
const ACKNOWLEDGED: &str = "rfc::h2spec::settings_and_pings_are_acknowledged_and_the_last_value_counts";
const ENDS: &str = "rfc::h2spec::a_connection_error_is_told_and_ends_the_connection";

// A group a line or two, its cases in h2spec's order.
#[rustfmt::skip]
const CASES: &[(&str, &[&str])] = &[
    ("generic/1", &[BEGIN]),
    ("generic/2", &["5.1: PRIORITY of a stream that is not there", "5.1: WINDOW_UPDATE and PRIORITY after it are fine", "5.1: WINDOW_UPDATE and PRIORITY after it are fine", "5.1: RST_STREAM after the end of the request", CLOSED]),
    ("generic/3.1", &["4.2: a frame of 16,384 bytes is taken", "6.1: DATA in pieces", "6.1: padding is no body"]),
    ("generic/3.2", &["8.1: GET", "6.2: padding", "6.2: a priority"]),
    ("generic/3.3", &["6.3: PRIORITY of every kind", "6.3: PRIORITY of every kind", "6.3: PRIORITY of every kind", "6.3: PRIORITY of every kind", "6.3: PRIORITY of every kind"]),
    ("generic/3.4", &["5.1: RST_STREAM after the end of the request"]),
    ("generic/3.5", &[ACKNOWLEDGED]),
    ("generic/3.7", &[ACKNOWLEDGED]),
    ("generic/3.8", &["6.8: a client that goes away still gets its response"]),
    ("generic/3.9", &["6.9: more window of both", "6.9: more window of both"]),
    ("generic/3.10", &["6.10: a block in parts", "6.10: a block in parts"]),
    ("generic/4", &["8.1: GET", "8.1: HEAD", "6.1: DATA in pieces", "8.1: trailers"]),
    ("generic/5", &[FORMS, FORMS, FORMS, FORMS, FORMS, FORMS, FORMS, FORMS, FORMS, FORMS, FORMS, FORMS, FORMS, TABLE, TABLE]),
    ("http2/3.5", &[BEGIN, BEGIN]),
    ("http2/4.1", &["4.1: an unknown frame is ignored", "4.1: an unknown flag is ignored", "4.1: the reserved bit is ignored"]),
    ("http2/4.2", &["4.2: a frame of 16,384 bytes is taken", "4.2: a longer one is not", "4.2: nor one with headers"]),
    ("http2/4.3", &["4.3: a block that does not decode", "4.3: nothing between the parts of a block", "4.3: nor headers of another stream"]),
    ("http2/5.1", &[
        "5.1: DATA before headers", "5.1: RST_STREAM before headers", "5.1: WINDOW_UPDATE before headers", "5.1: CONTINUATION before headers",
        "5.1: DATA after the end of the request", "5.1: headers after the end of the request", "5.1: CONTINUATION after the end of the request",
        "5.1: DATA that a reset has overtaken", "5.1: headers that one has overtaken", "5.1: CONTINUATION that one has overtaken",
        CLOSED, CLOSED, CLOSED,
    ]),
    ("http2/5.1.1", &["5.1.1: an even number is a server's", "5.1.1: a number that was passed over"]),
    ("http2/5.1.2", &[STREAMS]),
    ("http2/5.3.1", &["5.3.2: headers that say so", "5.3.2: a stream that depends on itself"]),
    ("http2/5.4.1", &[ENDS, ENDS]),
    ("http2/5.5", &["4.1: an unknown frame is ignored", "5.5: an unknown frame within a block"]),
    ("http2/6.1", &["6.1: DATA of the connection", "5.1: DATA after the end of the request", "6.1: padding that is longer than its frame"]),
    ("http2/6.2", &["4.3: nothing between the parts of a block", "4.3: nor headers of another stream", "6.2: headers of the connection", "6.2: padding that is longer than its frame"]),
    ("http2/6.3", &["6.3: PRIORITY of the connection", "6.3: PRIORITY of four bytes"]),
    ("http2/6.4", &["6.4: RST_STREAM of the connection", "5.1: RST_STREAM before headers", "6.4: RST_STREAM of three bytes"]),
    ("http2/6.5", &["6.5: an acknowledgement that says something", "6.5: settings of a stream", "6.5: settings of five bytes"]),
    ("http2/6.5.2", &["6.5.2: ENABLE_PUSH 2", "6.5.2: a window over 2^31-1", "6.5.2: frames below 16,384", "6.5.2: frames above 2^24-1", "6.5.2: an unknown setting is ignored"]),
    ("http2/6.5.3", &[ACKNOWLEDGED, ACKNOWLEDGED]),
    ("http2/6.7", &[ACKNOWLEDGED, "6.7: an acknowledgement that nobody waits for", "6.7: PING of a stream", "6.7: PING of six bytes"]),
    ("http2/6.8", &["6.8: GOAWAY of a stream"]),
    ("http2/6.9", &["6.9: no more window of the connection", "6.9: no more window of a stream", "6.9: WINDOW_UPDATE of three bytes"]),
    ("http2/6.9.1", &[WINDOWS, "6.9.1: a window of the connection over 2^31-1", "6.9.1: one of a stream"]),
    ("http2/6.9.2", &[WINDOWS, WINDOWS, "6.5.2: a window over 2^31-1"]),
    ("http2/6.10", &["6.10: a block in parts", "4.3: nothing between the parts of a block", "6.10: CONTINUATION of the connection", "6.10: CONTINUATION of a whole block", "6.10: CONTINUATION behind one that was the last", "6.10: CONTINUATION behind DATA"]),
    ("http2/7", &["7: GOAWAY with one", "7: RST_STREAM with a code that nobody knows"]),
    ("http2/8.1", &["8.1: headers in the middle that are not the last"]),
    ("http2/8.1.2", &["8.1.1: 8.2.1: an upper-case name"]),
    ("http2/8.1.2.1", &["8.1.1: 8.3: an unknown pseudo field", "8.1.1: 8.3: a pseudo field of responses", "8.1: trailers with a pseudo field", "8.3: a pseudo field after a field"]),
    ("http2/8.1.2.2", &["8.1.1: 8.2.2: Connection", "8.1.1: 8.2.2: TE of anything but trailers"]),
    ("http2/8.1.2.3", &["8.1.1: 8.3.1: an empty path", "8.1.1: 8.3.1: no method", "8.1.1: 8.3.1: no scheme", "8.1.1: 8.3.1: no path", "8.3.1: a method twice", "8.3.1: a scheme twice", "8.3.1: a path twice"]),
    ("http2/8.1.2.6", &["8.1.1: a body that is shorter than it says", "8.1.1: a body in pieces that are less than it says"]),
    ("http2/8.2", &["6.6: a client promises nothing"]),
    ("hpack/2.3.3", &["4.3: an index that nobody set", DECODE]),
    ("hpack/4.2", &[DECODE]),
    ("hpack/5.2", &[DECODE, DECODE, DECODE]),
    ("hpack/6.1", &[DECODE]),
    ("hpack/6.3", &[DECODE]),
];

/// `2` or `2 and 3`, of the cases that `like` says it of; none where there is none.
fn numbers(cases: &[&str], like: impl Fn(&str) -> bool) -> Option<String> {
    let all = cases.iter().enumerate().filter(|(_, held)| like(held));
    let all: Vec<String> = all.map(|(at, _)| (at + 1).to_string()).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[test]
fn every_case_is_held_and_the_page_shows_its_result() {
    let rules: BTreeSet<String> =
        rules("a.test").iter().map(|rule| format!("{}: {}", rule.section, rule.says)).collect();
    let tests = rust_tests();
    let named =
        |list: &[(&str, &str)], held: &str| list.iter().any(|(s, says)| format!("{s}: {says}") == held);
    let page = fs::read_to_string(root().join("docs/http2.md")).unwrap();
    let mut missing = Vec::new();
    for (group, cases) in CASES {
        for held in *cases {
            assert!(rules.contains(*held) || tests.contains(*held), "{group}: no rule or test {held}");
        }
        let vague = numbers(cases, |held| named(VAGUE, held) || held == DECODE);
        let deviating = numbers(cases, |held| named(DEVIATIONS, held));
        let result = match (vague, deviating) {
            (None, None) => "hold".to_owned(),
            (Some(vague), None) => format!("hold; {vague} with PROTOCOL_ERROR"),
            (_, Some(deviating)) => format!("hold but for {deviating}"),
        };
        let row = format!("| {group} | {} | {result} |", cases.len());
        if !page.contains(&row) {
            missing.push(row);
        }
    }
    assert!(missing.is_empty(), "docs/http2.md has no\n{}", missing.join("\n"));
    assert_eq!(CASES.iter().map(|(_, cases)| cases.len()).sum::<usize>(), 147);
}

/// A connection whose stream 1 has had its whole response.
async fn served(tls: &Tls, host: &str) -> H2Wire {
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    wire.send(Frame::headers(1, &fields("GET", host, &[]), true).bytes()).await;
    assert!(wire.until(Frame::ends).await.is_some());
    wire
}

/// RFC 9113, 5.1, "closed".
#[tokio::test]
async fn a_stream_whose_response_is_over_takes_nothing_more() {
    let tls = tls().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let again = fields("GET", &host, &[]);
    for frame in [
        Frame::data(1, b"x", true),
        Frame::headers(1, &again, true),
        Frame::new(Frame::CONTINUATION, 4, 1, block(&again)),
    ] {
        let mut wire = served(&tls, &host).await;
        let before = origin.count();
        wire.send(frame.bytes()).await;
        wire.send(Frame::new(Frame::PING, 0, 0, [0; 8]).bytes()).await;
        let end = wire.until(|got| matches!(got.kind, Frame::RST_STREAM | Frame::GOAWAY)).await;
        // STREAM_CLOSED, or PROTOCOL_ERROR of the connection (http2.md).
        assert!(end.is_none_or(|end| matches!(end.code(), Some(1 | 5))), "{frame:?}");
        assert_eq!(origin.count(), before, "{frame:?}");
    }
    let mut wire = served(&tls, &host).await;
    wire.send(Frame::new(Frame::PRIORITY, 0, 1, [0, 0, 0, 3, 9]).bytes()).await;
    assert!(wire.lives().await);
}

/// RFC 9113, 6.5.3 and 6.7.
#[tokio::test]
async fn settings_and_pings_are_acknowledged_and_the_last_value_counts() {
    let tls = tls().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    wire.until(|frame| frame.kind == Frame::SETTINGS && frame.flags == 1).await.expect("an acknowledgement");
    wire.send(Frame::settings(&[(4, 100), (4, 1)]).bytes()).await;
    let settled = wire.until(|frame| frame.kind == Frame::SETTINGS && frame.flags == 1).await;
    assert!(settled.expect("an acknowledgement").payload.is_empty());
    assert!(wire.lives().await);
    wire.send(Frame::headers(1, &fields("GET", &host, &[]), true).bytes()).await;
    let first = wire.until(|frame| frame.kind == Frame::DATA).await.expect("a body");
    assert_eq!(first.payload.len(), 1);
}

/// RFC 9113, 5.4.1: GOAWAY with its reason and the last stream that was taken, then the end.
#[tokio::test]
async fn a_connection_error_is_told_and_ends_the_connection() {
    let tls = tls().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let mut wire = served(&tls, &host).await;
    wire.send(Frame::new(Frame::PING, 0, 1, [0; 8]).bytes()).await;
    let told = wire.until(|frame| frame.kind == Frame::GOAWAY).await.expect("GOAWAY");
    assert_eq!((told.code(), &told.payload[..4]), (Some(1), &[0, 0, 0, 1][..]));
    assert!(wire.until(|_| false).await.is_none());
}
