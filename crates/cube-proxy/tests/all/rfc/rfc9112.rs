//! HTTP/1.1 messages (RFC 9112) as an attacker writes them: requests that two recipients could read
//! differently. One request in is one out or none, and nobody else's response changes hands.
//! Lengths and chunks that contradict themselves are in [`crate::http1`].

use super::fence::Fence;
use crate::support::cube;

/// What must become of a request.
enum Asks {
    /// It is refused with its connection, and nothing of it arrives whole.
    Refused,
    /// It is refused, and where it ends is beyond doubt: the next one is served.
    RefusedAlone,
    /// Exactly these arrive, each with its response.
    Passes(&'static [&'static str]),
    /// Either: the RFC leaves it to the recipient. The connection ends in both cases or stays in order.
    PassesOrRefused(&'static [&'static str]),
}
use Asks::{Passes, PassesOrRefused, Refused, RefusedAlone};

/// Behind each case: what a recipient that reads it otherwise would take for a request.
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: {host}\r\n\r\n";

// A case a line: the section, what it is, and the bytes before NEXT.
#[rustfmt::skip]
const REQUESTS: &[(&str, &str, &str, Asks)] = &[
    // 2.2: lines
    ("2.2", "lines that end with LF alone", "GET / HTTP/1.1\nHost: {host}\n\n", PassesOrRefused(&["GET /", "GET /next"])),
    ("2.2", "some that do", "GET / HTTP/1.1\r\nHost: {host}\nX: a\r\n\r\n", PassesOrRefused(&["GET /", "GET /next"])),
    ("2.2", "a bare CR in a value", "GET / HTTP/1.1\r\nHost: {host}\r\nX: a\rGET /smuggled HTTP/1.1\r\n\r\n", Refused),
    ("2.2", "a bare CR for the end of a line", "GET / HTTP/1.1\rHost: {host}\r\r", Refused),
    ("2.2", "a bare CR before the end of a line", "GET / HTTP/1.1\r\nHost: {host}\r\r\n\r\n", Refused),
    ("2.2", "space before the first header", "GET / HTTP/1.1\r\n X: a\r\nHost: {host}\r\n\r\n", Refused),
    ("2.2", "NUL in a target", "GET /\0 HTTP/1.1\r\nHost: {host}\r\n\r\n", RefusedAlone),
    ("2.2", "NUL in a name", "GET / HTTP/1.1\r\nHost: {host}\r\nX\0: a\r\n\r\n", Refused),
    ("2.2", "NUL in a value", "GET / HTTP/1.1\r\nHost: {host}\r\nX: a\0b\r\n\r\n", Refused),
    // 2.3 and 3: the request line
    ("2.3", "no version", "GET /\r\nHost: {host}\r\n\r\n", Refused),
    ("2.3", "another case", "GET / http/1.1\r\nHost: {host}\r\n\r\n", Refused),
    ("2.3", "a version without its point", "GET / HTTP/11\r\nHost: {host}\r\n\r\n", Refused),
    ("2.3", "HTTP/2.0", "GET / HTTP/2.0\r\nHost: {host}\r\n\r\n", Refused),
    ("3", "a word after the version", "GET / HTTP/1.1 x\r\nHost: {host}\r\n\r\n", Refused),
    ("3", "a word after the version that is one", "GET / HTTP/1.1 HTTP/1.1\r\nHost: {host}\r\n\r\n", Refused),
    ("3", "two spaces", "GET  / HTTP/1.1\r\nHost: {host}\r\n\r\n", RefusedAlone),
    ("3", "tabs", "GET\t/\tHTTP/1.1\r\nHost: {host}\r\n\r\n", Refused),
    ("3", "a space before the method", " GET / HTTP/1.1\r\nHost: {host}\r\n\r\n", Refused),
    ("3.1", "a method that is no token", "G@T / HTTP/1.1\r\nHost: {host}\r\n\r\n", Refused),
    ("3.1", "a method with a colon", "GET: / HTTP/1.1\r\nHost: {host}\r\n\r\n", Refused),
    ("3.2", "the authority alone", "GET {host} HTTP/1.1\r\nHost: {host}\r\n\r\n", RefusedAlone),
    // 5: headers
    ("3.2", "no Host", "GET / HTTP/1.1\r\n\r\n", RefusedAlone),
    ("3.2", "two of them", "GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n", Refused),
    ("5", "a line without a colon", "GET / HTTP/1.1\r\nHost: {host}\r\nwhat\r\n\r\n", Refused),
    ("5", "no name", "GET / HTTP/1.1\r\nHost: {host}\r\n: a\r\n\r\n", Refused),
    ("5", "a name that is no token", "GET / HTTP/1.1\r\nHost: {host}\r\nX(Y): a\r\n\r\n", Refused),
    ("5", "a name with a letter that is not ASCII", "GET / HTTP/1.1\r\nHost: {host}\r\nX\u{e9}: a\r\n\r\n", Refused),
    ("5.1", "space before a colon", "GET / HTTP/1.1\r\nHost: {host}\r\nX : a\r\n\r\n", Refused),
    ("5.1", "space before the colon of a length", "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length : 37\r\n\r\n", Refused),
    ("5.1", "a tab before the colon of a coding", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", Refused),
    ("5.1", "space before the colon of Host", "GET / HTTP/1.1\r\nHost : {host}\r\n\r\n", Refused),
    ("5.1", "no space and much of it around a value", "POST / HTTP/1.1\r\nHost:{host}\r\nContent-Length: \t 2\t \r\n\r\nab", Passes(&["POST / ab", "GET /next"])),
    ("5.2", "a folded value", "GET / HTTP/1.1\r\nHost: {host}\r\nX: a\r\n b\r\n\r\n", Refused),
    ("5.2", "a folded length", "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length:\r\n 2\r\n\r\nab", Refused),
    ("5.2", "a folded coding", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", Refused),
    ("5.2", "a coding in the fold of another header", "POST / HTTP/1.1\r\nHost: {host}\r\nX: a\r\n\tTransfer-Encoding: chunked\r\n\r\n", Refused),
    // 6: where a body ends
    ("6.1", "a coding in other letters", "POST / HTTP/1.1\r\nHost: {host}\r\nTRANSFER-encoding: Chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", Passes(&["POST / ab", "GET /next"])),
    ("6.1", "a vertical tab before a coding", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", Refused),
    ("6.1", "a vertical tab behind it", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n", Refused),
    ("6.1", "a coding with a parameter", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", Refused),
    ("6.1", "an empty coding", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n", Refused),
    ("6.1", "chunked twice in one", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", Refused),
    ("6.1", "an empty element behind chunked", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", PassesOrRefused(&["POST /", "GET /next"])),
    ("6.1", "an empty element before it", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n", PassesOrRefused(&["POST /", "GET /next"])),
    ("6.1", "a length that is nominated as hop-by-hop", "POST / HTTP/1.1\r\nHost: {host}\r\nConnection: content-length\r\nContent-Length: 2\r\n\r\nab", PassesOrRefused(&["POST / ab", "GET /next"])),
    ("6.1", "a coding that is nominated", "POST / HTTP/1.1\r\nHost: {host}\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", PassesOrRefused(&["POST / ab", "GET /next"])),
    ("6.2", "a length with a form feed", "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\x0c\r\n\r\nab", Refused),
    ("6.2", "two numbers in one length", "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2 2\r\n\r\nab", Refused),
    ("6.2", "a length with a point", "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2.0\r\n\r\nab", Refused),
    ("6.2", "a length that another header repeats by its letters", "POST / HTTP/1.1\r\nHost: {host}\r\nContent_Length: 99\r\nContent-Length: 2\r\n\r\nab", Passes(&["POST / ab", "GET /next"])),
    ("6.2", "a length with zeros before it", "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0002\r\n\r\nab", PassesOrRefused(&["POST / ab", "GET /next"])),
    ("6.3", "the same length in a list", "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2, 2\r\n\r\nab", PassesOrRefused(&["POST / ab", "GET /next"])),
    ("6.3", "GET with a body", "GET / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\nab", Passes(&["GET / ab", "GET /next"])),
    ("6.3", "DELETE with chunks", "DELETE / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", Passes(&["DELETE / ab", "GET /next"])),
    ("6.3", "OPTIONS with a body", "OPTIONS / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\nab", Passes(&["OPTIONS / ab", "GET /next"])),
    ("6.3", "POST without a length", "POST / HTTP/1.1\r\nHost: {host}\r\n\r\n", Passes(&["POST /", "GET /next"])),
    // 7: chunks
    ("7.1", "a size in either case, with zeros", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n00a\r\n0123456789\r\nB\r\n0123456789a\r\n000\r\n\r\n", Passes(&["POST / 01234567890123456789a", "GET /next"])),
    ("7.1", "a size over 64 bits that wraps to 2", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nab\r\n0\r\n\r\n", Refused),
    ("7.1", "a size with 0x", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n", Refused),
    ("7.1", "a size with a sign", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n+2\r\nab\r\n0\r\n\r\n", Refused),
    ("7.1.1", "extensions, quoted too", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n2;a=1;b=\"x;\\\"y\"\r\nab\r\n0;c\r\n\r\n", Passes(&["POST / ab", "GET /next"])),
    ("7.1.2", "trailers that would be framing or a name", "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nContent-Length: 99\r\nTransfer-Encoding: x\r\nHost: other.test\r\n\r\n", PassesOrRefused(&["POST / ab", "GET /next"])),
];

/// What is wrong with what became of one case.
async fn fault(fence: &Fence, bytes: &str, asks: &Asks) -> Option<String> {
    let mut client = fence.told(&format!("{bytes}{NEXT}")).await;
    let first = client.response("GET").await;
    let passes: &[&str] = match asks {
        Passes(passes) => passes,
        PassesOrRefused(passes) if first.status == 200 => passes,
        RefusedAlone => &["GET /next"],
        Refused | PassesOrRefused(_) => &[],
    };
    let refused = passes.is_empty() || matches!(asks, RefusedAlone);
    if refused && (first.status, first.retcode()) != (400, Some(310_400)) {
        return Some(format!("{}, and {:?} arrived", first.status, fence.arrived()));
    }
    if passes.is_empty() {
        if !client.ended().await {
            return Some("what follows is read".to_owned());
        }
    } else {
        for _ in usize::from(!refused)..passes.len() {
            let Ok(Some(next)) = client.try_head().await else {
                return Some(format!("{}, then the end; {:?} arrived", first.status, fence.arrived()));
            };
            client.body(next, "GET").await;
        }
    }
    let arrived = fence.arrived();
    (arrived != passes).then(|| format!("{}, and {arrived:?} arrived", first.status))
}

#[tokio::test]
async fn one_request_in_is_one_request_out_or_none() {
    let fence = Fence::behind(cube().await).await;
    let mut faults = Vec::new();
    for (section, says, bytes, asks) in REQUESTS {
        let case = format!("{section}: {says}");
        if let Some(fault) = fault(&fence, bytes, asks).await {
            faults.push(format!("{case}: {fault}"));
        }
        fence.others_are_served(&case).await;
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// 6.1: a coding from a client that knows none is faulty framing. Its connection ends in any case.
#[tokio::test]
async fn an_http_1_0_request_in_chunks_ends_its_connection() {
    let fence = Fence::behind(cube().await).await;
    let head =
        "POST / HTTP/1.0\r\nHost: {host}\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut client = fence.told(&format!("{head}0\r\n\r\n{NEXT}")).await;
    client.response("POST").await;
    assert!(client.ended().await);
    assert!(fence.arrived().iter().all(|request| request == "POST /"));
    fence.others_are_served("HTTP/1.0 with chunks").await;
}

/// 9.3.2: requests that were sent ahead of a refused one are answered, those behind it are not read.
#[tokio::test]
async fn behind_a_refused_request_nothing_is_read() {
    let fence = Fence::behind(cube().await).await;
    for refused in [
        "GET / HTTP/1.1\r\nHost: {host}\r\nX : a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        "GET / HTTP/1.2 x\r\nHost: {host}\r\n\r\n",
    ] {
        let first = NEXT.replace("/next", "/first");
        let mut client = fence.told(&format!("{first}{refused}{NEXT}")).await;
        client.response("GET").await.passed(200);
        assert_eq!(client.response("GET").await.status, 400, "{refused:?}");
        assert!(client.ended().await, "{refused:?}");
        assert_eq!(fence.arrived(), ["GET /first"], "{refused:?}");
        fence.others_are_served(refused).await;
    }
}

/// 9.6: after `Connection: close` nothing more is read.
#[tokio::test]
async fn behind_a_request_that_closes_nothing_is_read() {
    let fence = Fence::behind(cube().await).await;
    for close in ["close", "Close", "x, close", "keep-alive, close", "close\r\nConnection: keep-alive"] {
        let closing = format!("GET / HTTP/1.1\r\nHost: {{host}}\r\nConnection: {close}\r\n\r\n");
        let mut client = fence.told(&format!("{closing}{NEXT}")).await;
        client.response("GET").await.passed(200);
        assert!(client.ended().await, "{close:?}");
        assert_eq!(fence.arrived(), ["GET /"], "{close:?}");
    }
}
