//! Clients and applications that mean harm, or behave as if: each of these once got through.

use cube_testkit::{Client, Exchange, Origin, eventually, refused_port, scripts};

use crate::support::{cube, limits, tls};

/// A client with one connection, and the Host of a sandbox whose application sends `bytes`.
async fn asked(bytes: &str) -> (Client, String) {
    let env = cube().await;
    let origin = Origin::raw(bytes).await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    // The origin lives as long as the test binary.
    std::mem::forget(origin);
    (env.client().await, host)
}

#[tokio::test]
async fn nothing_of_ours_gets_into_a_tunnel_that_breaks() {
    let env = cube().await;
    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        exchange.send("HTTP/1.1 101 X\r\nUpgrade: raw/1\r\nConnection: Upgrade\r\n\r\nhi").await.unwrap();
        let _ = exchange.wire().exactly(3).await;
        exchange.reset().await
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let mut client = env.client().await;
    let headers = [("Host", host.as_str()), ("Connection", "upgrade"), ("Upgrade", "raw/1")];
    client.request("GET", "/", &headers).await;
    let head = client.head().await;
    assert_eq!(head.status, 101);
    assert_eq!(client.wire().exactly(2).await.unwrap(), b"hi");
    client.send("go!").await;
    let rest = client.wire().some(1024).await.unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&rest), "", "bytes of the proxy's own in the tunnel");
    let line = env.proxy.log_line(&head.request_id()).await;
    assert_eq!((line.field("retcode"), line.field("reason")), ("330101", "upstream_cut"));
}

#[tokio::test]
async fn an_own_response_without_a_body_ends_its_http2_stream() {
    let tls = tls().await;
    let sandbox = tls.env.sandbox_at(([127, 0, 0, 1], refused_port()).into()).await;
    let client = tls.h2().await;
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    for (method, headers, status) in [("HEAD", &[][..], 502), ("POST", &grpc[..], 200)] {
        let mut request = client.open(method, &sandbox.host(), "/", headers).await;
        request.data("", true).await.unwrap();
        let response = request.outcome().await.expect("a whole response");
        assert_eq!((response.status, response.retcode()), (status, Some(310_509)), "{method}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_behind_its_next_requests_is_noticed() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::hang).await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    let one = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.host());
    client.send(one.repeat(200)).await;
    origin.wait_for(1).await;
    drop(client);
    eventually("the end of the upstream request", || async {
        (origin.open_connections() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_head_is_refused_while_it_comes_in() {
    let env = limits().await; // head 4 KiB, target 512
    for (begin, status) in [("GET / HTTP/1.1\r\nHost: x\r\nX-A: ", 431), ("GET /", 414)] {
        let mut client = env.client().await;
        client.send(begin).await;
        client.send(vec![b'a'; 40 * 1024]).await;
        let response = client.response("GET").await;
        assert_eq!((response.status, response.retcode()), (status, Some(310_000 + u32::from(status))));
    }
}

#[tokio::test]
async fn more_headers_than_pingora_takes_are_a_431_too() {
    let env = cube().await;
    let mut client = env.client().await;
    client.send(format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(300))).await;
    let response = client.response("GET").await;
    assert_eq!((response.status, response.retcode()), (431, Some(310_431)));
}

#[tokio::test]
async fn a_101_that_nobody_asked_for_is_no_response() {
    let (mut client, host) =
        asked("HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nHTTP/1.1 200 OK\r\n\r\n").await;
    client.call("GET", "/", &[("Host", &host)], "").await.is_bad_gateway(310_509);
}

#[tokio::test]
async fn a_response_whose_length_is_ambiguous_is_no_response() {
    for framing in [
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Content-Length: 2, 3",
    ] {
        let (mut client, host) = asked(&format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\nhi")).await;
        let response = client.call("GET", "/", &[("Host", &host)], "").await;
        assert_eq!((response.status, response.retcode()), (502, Some(310_509)), "{framing}");
    }
}

#[tokio::test]
async fn a_length_said_twice_is_said_once() {
    for framing in ["Content-Length: 2, 2", "Content-Length: 2\r\nContent-Length: 2"] {
        let (mut client, host) = asked(&format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\nhi")).await;
        let response = client.call("GET", "/", &[("Host", &host)], "").await;
        response.passed(200);
        assert_eq!(
            (response.headers.all("Content-Length"), &response.body[..]),
            (vec!["2"], &b"hi"[..]),
            "{framing}"
        );
    }
}

#[tokio::test]
async fn an_early_response_says_nothing_in_our_name() {
    let (mut client, host) = asked(
        "HTTP/1.1 103 E\r\nLink: </a>\r\nX-Cube-Retcode: 310200\r\nTransfer-Encoding: chunked\r\n\r\n\
         HTTP/1.1 204 N\r\nTransfer-Encoding: chunked\r\n\r\n",
    )
    .await;
    let response = client.call("GET", "/", &[("Host", &host)], "").await;
    response.passed(204);
    assert!(!response.headers.has("Transfer-Encoding"), "{:?}", response.headers);
    let early = &response.informational[0];
    assert_eq!(early.headers.all("Link"), ["</a>"]);
    assert!(!early.headers.has("X-Cube-Retcode") && !early.headers.has("Transfer-Encoding"));
}

#[tokio::test]
async fn a_target_that_would_arrive_changed_is_refused() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    for target in ["/a b", "/a\tb", "/a\x01b", "/a\x7fb", "/a\rb", "/a#b"] {
        let mut client = env.client().await;
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.host())).await;
        let response = client.response("GET").await;
        assert_eq!((response.status, response.retcode()), (400, Some(310_400)), "{target:?}");
    }
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn empty_lines_before_a_request_are_ignored() {
    let env = cube().await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    for _ in 0..2 {
        client.send(format!("\r\nGET /x HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.host())).await;
        assert_eq!(client.response("GET").await.passed(200).seen().target, "/x");
    }
}
