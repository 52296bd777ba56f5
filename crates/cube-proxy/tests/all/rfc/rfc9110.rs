//! Semantics of HTTP (RFC 9110) where a body and a response cross: expectations and early responses.

use cube_testkit::{Exchange, Origin};

use crate::support::{cube, tls};

/// A body that would be a request for the same sandbox.
fn smuggled(host: &str) -> String {
    format!("GET /smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// An application that responds to `/early` before it has read the body, and keeps its connection as if it
/// had: what comes then is told as a request.
async fn early(status: u16) -> Origin {
    Origin::scripted(move |mut exchange: Exchange| async move {
        if exchange.request.target != "/early" {
            return cube_testkit::scripts::echo(exchange).await;
        }
        exchange.start(status, &[("Content-Length", "2")]).await?;
        exchange.send("no").await?;
        Ok(exchange)
    })
    .await
}

async fn others(origin: &Origin, host: &str, case: &str) {
    for n in 0..3 {
        let target = format!("/other/{n}");
        let mut client = cube().await.client().await;
        let response = client.call("GET", &target, &[("Host", host)], "").await;
        assert_eq!(response.passed(200).seen().target, target, "{case}");
    }
    let strange: Vec<_> = origin.received().into_iter().map(|request| request.target).collect();
    let known = |target: &String| target == "/early" || target.starts_with("/other/");
    assert!(strange.iter().all(known), "{case}: {strange:?}");
}

/// 9.3 and 10.1.1: a final response before the body, with and without the expectation of a 100. The rest of
/// the body, whatever it looks like, is no request for anybody: neither where it comes nor where it does
/// not.
#[tokio::test]
async fn a_body_that_is_not_waited_for_is_no_request() {
    let env = cube().await;
    for status in [200, 413, 417, 500] {
        let origin = early(status).await;
        let host = env.sandbox(&origin).await.host();
        let body = smuggled(&host);
        let length = format!("Content-Length: {}", body.len());
        for expects in ["", "Expect: 100-continue\r\n"] {
            for framing in [length.as_str(), "Transfer-Encoding: chunked"] {
                let case = format!("{status}, {expects:?}, {framing}");
                let mut client = env.client().await;
                client
                    .send(format!("POST /early HTTP/1.1\r\nHost: {host}\r\n{expects}{framing}\r\n\r\n"))
                    .await;
                client.response("POST").await.passed(status);
                client.send(&body).await;
                client.send(format!("GET /other/next HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
                // The connection ends, with or without a refusal, or the next request is the next one.
                if let Ok(Some(head)) = client.try_head().await {
                    let next = client.body(head, "GET").await;
                    let own = next.status == 400 || next.status == 200 && next.seen().target == "/other/next";
                    assert!(own, "{case}: {}", next.brief());
                }
                others(&origin, &host, &case).await;
            }
        }
    }
}

/// The same over HTTP/2, where the stream goes on after its response.
#[tokio::test]
async fn a_body_that_is_not_waited_for_is_no_request_over_http_2() {
    let tls = tls().await;
    let origin = early(413).await;
    let host = tls.env.sandbox(&origin).await.host();
    let smuggled = smuggled(&host);
    for _ in 0..5 {
        let client = tls.h2().await;
        let mut upload = client.open("POST", &host, "/early", &[]).await;
        let _ = upload.data(smuggled.clone(), false).await;
        let (mut body, response) = upload.split().await;
        assert_eq!(response.head.status, 413);
        let _ = body.data(smuggled.clone(), true).await;
        for n in 0..3 {
            let target = format!("/other/{n}");
            let response = client.get(&host, &target, &[]).await;
            assert_eq!(response.passed(200).seen().target, target);
        }
    }
    assert!(origin.received().iter().all(|request| request.target != "/smuggled"));
}
