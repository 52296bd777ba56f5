//! Responses (RFC 9112 and 9110) as a hostile application writes them: no byte of one reaches a client
//! that did not ask for it, and a broken one never looks whole. The application keeps its connections,
//! so that what is left of a response would be the next one's beginning.

use cube_testkit::{Gate, Origin, Response, eventually, scripts};

use super::fence::Fence;
use crate::support::{cube, own_exchange, tls};

/// What a client must see of a response.
#[derive(Clone, Copy)]
enum Shows {
    /// This status and body.
    Whole(u16, &'static str),
    /// 502, since it is none.
    BadGateway,
    /// 502, or no clean end.
    Broken,
    /// The same, but Pingora's exchange takes it for a whole body, `ok`, and frames it anew
    /// (architecture.md, "What is not there").
    BrokenUnlessPingoras,
    /// This status and body, or 502: the RFC leaves it to the recipient.
    WholeOr502(u16, &'static str),
}
use Shows::{BadGateway, Broken, BrokenUnlessPingoras, Whole, WholeOr502};

// A case a line: the section, the method, what it is, the bytes, and what the client sees.
#[rustfmt::skip]
const RESPONSES: &[(&str, &str, &str, &str, Shows)] = &[
    // 2 to 5: the head
    ("9112 4", "GET", "a status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", BadGateway),
    ("9112 4", "GET", "one of four", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", BadGateway),
    ("9112 4", "GET", "no reason, and no space for it", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", WholeOr502(200, "ok")),
    ("9112 2.3", "GET", "another protocol", "ICY 200 OK\r\nContent-Length: 2\r\n\r\nok", BadGateway),
    ("9112 2.3", "GET", "a version of the future", "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok", BadGateway),
    ("9112 2.2", "GET", "a bare CR in a value", "HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b=c\r\nContent-Length: 2\r\n\r\nok", WholeOr502(200, "ok")),
    ("9112 2.2", "GET", "NUL in a value", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok", WholeOr502(200, "ok")),
    ("9112 2.2", "GET", "NUL in a name", "HTTP/1.1 200 OK\r\nX\0: a\r\nContent-Length: 2\r\n\r\nok", BadGateway),
    ("9112 5.1", "GET", "space before the colon of a length", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", WholeOr502(200, "ok")),
    ("9112 5.2", "GET", "a folded value", "HTTP/1.1 200 OK\r\nX: a\r\n b: c\r\nContent-Length: 2\r\n\r\nok", WholeOr502(200, "ok")),
    ("9112 5.2", "GET", "a folded length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n 2\r\n\r\nok", WholeOr502(200, "ok")),
    // 6: where the body ends
    ("9112 6.2", "GET", "a length with a sign", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", BadGateway),
    ("9112 6.2", "GET", "a negative one", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok", BadGateway),
    ("9112 6.2", "GET", "a length in hexadecimal", "HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nok", BadGateway),
    ("9112 6.2", "GET", "two numbers in one", "HTTP/1.1 200 OK\r\nContent-Length: 2 2\r\n\r\nok", BadGateway),
    ("9112 6.2", "GET", "a length over 64 bits", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551618\r\n\r\nok", BadGateway),
    ("9112 6.3", "GET", "lengths that differ", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 8\r\n\r\nokpoison", BadGateway),
    ("9112 6.3", "GET", "a second response behind the first", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison", Whole(200, "ok")),
    ("9112 6.3", "GET", "one behind chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison", Whole(200, "ok")),
    ("9112 6.3", "HEAD", "a body to HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison", Whole(200, "")),
    ("9112 6.3", "HEAD", "chunks to HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\npoison\r\n0\r\n\r\n", Whole(200, "")),
    ("9112 6.3", "GET", "204 with a length and a body", "HTTP/1.1 204 No\r\nContent-Length: 6\r\n\r\npoison", Whole(204, "")),
    ("9112 6.3", "GET", "204 with chunks", "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n6\r\npoison\r\n0\r\n\r\n", Whole(204, "")),
    ("9112 6.3", "GET", "304 with a body", "HTTP/1.1 304 Same\r\nContent-Length: 6\r\n\r\npoison", Whole(304, "")),
    ("9112 6.3", "GET", "a 1xx with a length and a body", "HTTP/1.1 103 Early\r\nContent-Length: 6\r\n\r\npoisonHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", BadGateway),
    ("9110 15.2", "GET", "a 100 that nobody waits for", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Whole(200, "ok")),
    ("9110 15.2.2", "GET", "a 101 that nobody asked for", "HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", BadGateway),
    // 7: chunks
    ("9112 7.1.1", "GET", "LF in an extension", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a\nb\r\nok\r\n0\r\n\r\n", BrokenUnlessPingoras),
    ("9112 7.1.1", "GET", "NUL in an extension", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a\0b\r\nok\r\n0\r\n\r\n", BrokenUnlessPingoras),
    ("9112 7.1", "GET", "an extension without a size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n;a=b\r\n\r\n", BrokenUnlessPingoras),
    ("9112 7.1", "GET", "an empty line for a size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n\r\n\r\n", BrokenUnlessPingoras),
    ("9112 7.1", "GET", "data that is longer than it says", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokpoison\r\n0\r\n\r\n", Broken),
    ("9112 7.1", "GET", "a size over 64 bits", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n", Broken),
    ("9112 7.1", "GET", "a negative size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nok\r\n0\r\n\r\n", Broken),
    ("9112 7.1", "GET", "lines that end with LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n", Broken),
    ("9112 7.1.2", "GET", "a trailer that is none", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nHTTP/1.1 200 OK\r\n\r\n", BrokenUnlessPingoras),
    ("9112 7.1.2", "GET", "a trailer with a bare LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: a\nSet-Cookie: b\r\n\r\n", Broken),
];

impl Shows {
    /// Whether a client may see this; `none`: the stream was reset before there was a response.
    fn allows(self, response: Option<&Response>) -> bool {
        let Some(response) = response else { return matches!(self, Broken) };
        let got = (response.status, response.text(), response.clean);
        let none = response.status == 502 && response.retcode() == Some(310_509);
        // Lines of the head are lines of ours.
        let head = String::from_utf8_lossy(&response.head).replace("\r\n", "");
        let values = response.headers.pairs().iter().any(|(_, value)| value.contains(['\r', '\n', '\0']));
        if values || head.contains(['\r', '\n', '\0']) || response.headers.has("Set-Cookie") {
            return false;
        }
        match self {
            Whole(status, body) => got == (status, body.to_owned(), true),
            BadGateway => none,
            BrokenUnlessPingoras if !own_exchange() => got == (200, "ok".to_owned(), true),
            Broken | BrokenUnlessPingoras => none || !response.clean,
            WholeOr502(status, body) => none || got == (status, body.to_owned(), true),
        }
    }
}

#[tokio::test]
async fn a_hostile_response_harms_nobody_else_and_never_looks_whole_where_it_is_not() {
    let env = cube().await;
    let mut faults = Vec::new();
    for (section, method, says, bytes, shows) in RESPONSES {
        let case = format!("{section}: {says}");
        let fence = Fence::answering(env, bytes.as_bytes()).await;
        let mut client = fence.told(&format!("{method} /attack HTTP/1.1\r\nHost: {{host}}\r\n\r\n")).await;
        let response = client.response(method).await;
        if !shows.allows(Some(&response)) {
            faults.push(format!("{case}: {response:?}"));
        }
        fence.others_are_served(&case).await;
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The same where the client speaks HTTP/2: a broken body is a reset, and neighbours on its connection
/// go on.
#[tokio::test]
async fn nor_does_it_over_http_2() {
    let tls = tls().await;
    let client = tls.h2().await;
    let mut faults = Vec::new();
    for (section, method, says, bytes, shows) in RESPONSES {
        let case = format!("{section}: {says}");
        let fence = Fence::answering(&tls.env, bytes.as_bytes()).await;
        let mut request = client.open(method, &fence.host, "/attack", &[]).await;
        let _ = request.data("", true).await;
        let response = request.outcome().await.ok();
        if !shows.allows(response.as_ref()) {
            faults.push(format!("{case}: {response:?}"));
        }
        client.get(&fence.host, "/other", &[]).await.passed(200);
        fence.others_are_served(&case).await;
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// RFC 9110, 15.2: any number of 1xx may come. They end with their client, and no other waits for them.
#[tokio::test]
async fn interim_responses_without_end_end_with_their_client() {
    let tls = tls().await;
    let origin = Origin::scripted(|mut exchange| async move {
        if exchange.request.target == "/other" {
            return scripts::echo(exchange).await;
        }
        let many = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(100);
        while exchange.send(&many).await.is_ok() {}
        exchange.close().await
    })
    .await;
    let sandbox = tls.env.sandbox(&origin).await;
    let before = tls.env.proxy.rss();
    let h2 = tls.h2().await;
    let mut first = tls.env.client().await;
    first.request("GET", "/", &[("Host", &sandbox.host())]).await;
    let second = h2.ask(&sandbox.host(), "/", &[]).await;
    origin.wait_for(2).await;
    assert_eq!(tls.env.get(&sandbox, "/other").await.passed(200).seen().target, "/other");
    drop(first);
    second.reset();
    eventually("the end of both upstream requests", || async {
        // What is open is the connection that was kept after the third.
        (origin.open_connections() <= 1).then_some(())
    })
    .await;
    let grown = tls.env.proxy.rss().saturating_sub(before);
    assert!(grown < 64 << 20, "grown by {} KiB", grown / 1024);
}

/// What lies behind a response is nobody's, however much it is.
#[tokio::test]
async fn a_hundred_responses_behind_the_first_reach_nobody() {
    let env = cube().await;
    let poison = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_owned() + &"poison....".repeat(100);
    for first in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 204 No\r\n\r\n",
    ] {
        let fence = Fence::answering(env, format!("{first}{}", poison.repeat(100)).as_bytes()).await;
        let mut client = fence.told("GET /attack HTTP/1.1\r\nHost: {host}\r\n\r\n").await;
        let response = client.response("GET").await;
        assert!(response.clean && response.body.len() <= 2, "{first}");
        fence.others_are_served(first).await;
    }
}

/// Bytes that come while a connection waits for its next request belong to no response
/// (RFC 9112, 6.3 and 9.2).
#[tokio::test]
async fn a_response_that_comes_while_a_connection_is_idle_is_nobodys() {
    let env = cube().await;
    let (gate, sent) = (Gate::new(), Gate::new());
    let (open, told) = (gate.clone(), sent.clone());
    let origin = Origin::scripted(move |exchange| {
        let (gate, sent) = (open.clone(), told.clone());
        async move {
            let first = exchange.request.target == "/attack";
            let mut exchange = scripts::echo(exchange).await?;
            if first {
                gate.pass().await;
                exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison").await?;
                sent.open();
            }
            Ok(exchange)
        }
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    env.get(&sandbox, "/attack").await.passed(200);
    gate.open();
    sent.pass().await;
    for n in 0..3 {
        let target = format!("/other/{n}");
        assert_eq!(env.get(&sandbox, &target).await.passed(200).seen().target, target);
    }
}
