//! gRPC by tonic, client and server, over the h2c listener and over TLS (connections.md, "HTTP/2
//! and gRPC"; errors.md for what the proxy says itself).

use std::time::{Duration, Instant};

use cube_testkit::bytes::Bytes;
use cube_testkit::futures_util::future::join_all;
use cube_testkit::futures_util::stream;
use cube_testkit::tonic::metadata::{MetadataMap, MetadataValue};
use cube_testkit::tonic::{Code, Request, Status};
use cube_testkit::{
    Frame, GrpcClient, GrpcServer, H2Wire, Origin, Sandbox, eventually, refused_port, within,
};
use tokio::sync::mpsc;

use crate::grpc_retries::Server;
use crate::support::{A_SECOND, Tls, patient, tls, with_tls};

/// A server behind a sandbox, and a client on each listener.
struct Both {
    server: GrpcServer,
    sandbox: Sandbox,
    clients: [(&'static str, GrpcClient); 2],
}

async fn both(tls: &Tls) -> Both {
    let server = GrpcServer::start().await;
    let sandbox = tls.env.sandbox_at(server.address()).await;
    let clients = clients(tls, &sandbox).await;
    Both { server, sandbox, clients }
}

/// On the h2c listener a bare label is enough to name a sandbox.
async fn clients(tls: &Tls, sandbox: &Sandbox) -> [(&'static str, GrpcClient); 2] {
    let bare = format!("{}-{}", sandbox.port, sandbox.id);
    [("h2c", tls.h2c(&bare).await), ("tls", tls.grpc(&sandbox.host()).await)]
}

/// What a client sends along, text and bytes.
fn metadata() -> MetadataMap {
    let mut metadata = MetadataMap::new();
    metadata.insert("x-own-text", "plain words".parse().unwrap());
    metadata.append("x-own-text", "twice".parse().unwrap());
    metadata.insert_bin("x-own-bin", MetadataValue::from_bytes(&[0, 255, 128, 10, 13]));
    metadata
}

fn is_whole(metadata: &MetadataMap) -> bool {
    let texts: Vec<_> = metadata.get_all("x-own-text").iter().map(|v| v.to_str().unwrap()).collect();
    let bytes = metadata.get_bin("x-own-bin").map(|value| value.to_bytes().unwrap());
    texts == ["plain words", "twice"] && bytes.as_deref() == Some(&[0, 255, 128, 10, 13])
}

#[tokio::test]
async fn a_message_and_its_metadata_pass_both_ways() {
    let tls = tls().await;
    let Both { server, sandbox, clients } = both(&tls).await;
    for (listener, client) in clients {
        let mut request = Request::new(Bytes::from_static(b"hello"));
        *request.metadata_mut() = metadata();
        let response = client.unary("Unary", request).await.expect(listener);
        assert!(is_whole(response.metadata()), "{listener}: {response:?}");
        assert_eq!(response.into_inner(), "hello");
        let call = server.calls().pop().unwrap();
        assert_eq!(call.method, "/kit.Echo/Unary");
        assert!(is_whole(&call.metadata), "{listener}: {call:?}");
        let expected = if listener == "h2c" {
            sandbox.host().split_once('.').unwrap().0.to_owned()
        } else {
            sandbox.host()
        };
        assert_eq!(call.authority, expected);
        assert_eq!(call.metadata.get("te").unwrap(), "trailers");
    }
}

#[tokio::test]
async fn the_client_streams() {
    let tls = tls().await;
    for (listener, client) in both(&tls).await.clients {
        let messages = (0..500).map(|n| Bytes::from(vec![7; n]));
        let sum = client.upload("Sum", stream::iter(messages)).await.expect(listener);
        assert_eq!(sum.into_inner(), "500 124750");
        let none = client.upload("Sum", stream::empty()).await.expect(listener);
        assert_eq!(none.into_inner(), "0 0");
    }
}

#[tokio::test]
async fn the_server_streams() {
    let tls = tls().await;
    for (listener, client) in both(&tls).await.clients {
        let mut messages = client.download("Count", "500 300").await.expect(listener).into_inner();
        for _ in 0..500 {
            let message = within("a message", messages.message()).await.expect(listener);
            assert_eq!(message.map(|message| message.len()), Some(300), "{listener}");
        }
        assert_eq!(messages.message().await.expect(listener), None);
    }
}

/// Each message is answered before the next one is sent: nothing waits for anything else. The last
/// one fails, and its metadata comes in the trailers.
#[tokio::test]
async fn both_stream_at_once_and_a_failure_comes_in_trailers() {
    let tls = tls().await;
    for (listener, client) in both(&tls).await.clients {
        let (say, said) = mpsc::channel(1);
        let mut heard = client.chat(metadata(), said).await.expect(listener).into_inner();
        for n in 0..50 {
            say.send(format!("message {n}").into()).await.unwrap();
            let echo = within("an echo", heard.message()).await.expect(listener).expect("a message");
            assert_eq!(echo, format!("message {n}"));
        }
        say.send("fail".into()).await.unwrap();
        let status = within("the end", heard.message()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), GrpcServer::FAILURE, "{listener}");
        assert!(is_whole(status.metadata()), "{listener}: {status:?}");
    }
}

/// The header and the path form name a sandbox for gRPC too.
#[tokio::test]
async fn every_form_names_a_sandbox() {
    let tls = tls().await;
    let Both { server: _serving, sandbox, .. } = both(&tls).await;
    let mut named = MetadataMap::new();
    named.insert("e2b-sandbox-id", sandbox.id.parse().unwrap());
    named.insert("e2b-sandbox-port", "8080".parse().unwrap());
    for by in ["header", "path"] {
        for client in [tls.h2c("sandbox.cube.test").await, tls.grpc("sandbox.cube.test").await] {
            let (client, metadata) = match by {
                "header" => (client, named.clone()),
                _ => (client.under(&sandbox.prefix()), MetadataMap::new()),
            };
            let (say, said) = mpsc::channel(1);
            say.send("hello".into()).await.unwrap();
            let mut heard = client.chat(metadata, said).await.expect(by).into_inner();
            assert_eq!(within("an echo", heard.message()).await.expect(by).unwrap(), "hello");
        }
    }
}

#[tokio::test]
async fn a_status_without_a_message_passes_as_it_is() {
    let tls = tls().await;
    for (listener, client) in both(&tls).await.clients {
        let mut request = Request::new(Bytes::new());
        *request.metadata_mut() = metadata();
        let status = client.unary("Fail", request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), GrpcServer::FAILURE, "{listener}");
        assert!(is_whole(status.metadata()), "{listener}: {status:?}");
    }
}

#[tokio::test]
async fn a_large_message_passes_in_both_directions() {
    let tls = tls().await;
    for (listener, client) in both(&tls).await.clients {
        let large: Bytes = (0..20 << 20).map(|n: u32| n.to_le_bytes()[1]).collect::<Vec<_>>().into();
        let response = client.unary("Unary", Request::new(large.clone())).await.expect(listener);
        assert!(response.into_inner() == large, "{listener}: not the same bytes");
    }
}

/// 1,000 calls open at once, each answered while all the others are open: on ten connections of a
/// client, and over as many upstream connections as it takes (100 streams each).
#[tokio::test]
async fn a_thousand_streams_run_at_the_same_time() {
    let tls = patient().await;
    let Both { server, sandbox, .. } = both(&tls).await;
    let bare = format!("{}-{}", sandbox.port, sandbox.id);
    let mut clients = Vec::new();
    for n in 0..10 {
        clients.push(if n % 2 == 0 { tls.h2c(&bare).await } else { tls.grpc(&sandbox.host()).await });
    }
    let chats = (0..1000).map(|n: usize| {
        let client = &clients[n % clients.len()];
        async move {
            let (say, said) = mpsc::channel(1);
            say.send(format!("hello {n}").into()).await.unwrap();
            let mut heard = client.chat(MetadataMap::new(), said).await.unwrap().into_inner();
            assert_eq!(heard.message().await.unwrap().unwrap(), format!("hello {n}"));
            (say, heard)
        }
    });
    let open = tokio::time::timeout(Duration::from_secs(60), join_all(chats)).await.expect("1,000 streams");
    assert_eq!((open.len(), server.running()), (1000, 1000));
    assert!((10..=100).contains(&server.connections()), "{} upstream connections", server.connections());
    for (n, (say, mut heard)) in open.into_iter().enumerate() {
        say.send("bye".into()).await.unwrap();
        assert_eq!(within("an echo", heard.message()).await.unwrap().unwrap(), "bye", "{n}");
        drop(say);
        assert_eq!(within("the end", heard.message()).await.unwrap(), None, "{n}");
    }
}

#[tokio::test]
async fn a_deadline_travels_and_its_end_ends_the_call_at_the_server() {
    let tls = tls().await;
    let Both { server, clients, .. } = both(&tls).await;
    for (listener, client) in clients {
        let mut request = Request::new(Bytes::new());
        request.set_timeout(Duration::from_millis(300));
        let call = tokio::spawn(async move { client.unary("Hang", request).await });
        let status = within("the deadline", call).await.unwrap().unwrap_err();
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{listener}: {status:?}");
        let sent = server.calls().pop().unwrap().metadata;
        assert_eq!(sent.get("grpc-timeout").unwrap(), "300000u");
        eventually("the call to end at the server", || async { (server.running() == 0).then_some(()) }).await;
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_at_the_server_within_a_second() {
    let tls = tls().await;
    let Both { server, clients, .. } = both(&tls).await;
    for (listener, client) in clients {
        for method in ["Hang", "Chat"] {
            let (say, said) = mpsc::channel(1);
            let caller = client.clone();
            let call = tokio::spawn(async move {
                if method == "Hang" {
                    let _ = caller.unary("Hang", Request::new(Bytes::new())).await;
                } else {
                    let mut heard = caller.chat(MetadataMap::new(), said).await.unwrap().into_inner();
                    while let Ok(Some(_)) = heard.message().await {}
                }
            });
            if method == "Chat" {
                say.send("hello".into()).await.unwrap();
            }
            eventually("the call at the server", || async { (server.running() == 1).then_some(()) }).await;
            let given_up = Instant::now();
            call.abort();
            // The end of what the client says, as long as nobody hears it, is no response either.
            drop(say);
            eventually("the call to end at the server", || async { (server.running() == 0).then_some(()) })
                .await;
            assert!(given_up.elapsed() < A_SECOND, "{listener} {method}: {:?}", given_up.elapsed());
        }
    }
}

/// What the proxy says itself is a status in trailers alone: no message, no body.
async fn refused(client: &GrpcClient, code: Code) -> Status {
    let status = client.unary("Unary", Request::new(Bytes::from_static(b"x"))).await.unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.metadata().contains_key("x-cube-retcode"), "not the proxy's own: {status:?}");
    let (say, said) = mpsc::channel(1);
    say.send("x".into()).await.unwrap();
    let status = match client.chat(MetadataMap::new(), said).await {
        Err(status) => status,
        Ok(mut open) => open.get_mut().message().await.unwrap_err(),
    };
    assert_eq!(status.code(), code, "{status:?}");
    status
}

/// The kind of response that gRPC calls "Trailers-Only": one header block, which ends the stream.
#[tokio::test]
async fn a_refusal_is_one_frame() {
    let tls = tls().await;
    let host = tls.env.nobody().host();
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    let request = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", host.as_str()),
        (":path", "/kit.Echo/Unary"),
        ("content-type", "application/grpc+proto"),
        ("te", "trailers"),
    ];
    wire.send(Frame::headers(1, &request, true).bytes()).await;
    let response = wire.until(|frame| frame.stream == 1).await.expect("a response");
    assert_eq!((response.kind, response.status(), response.ends()), (Frame::HEADERS, Some(200), true));
    assert!(wire.lives().await);
    let response =
        tls.h2().await.ask(&host, "/", &[("content-type", "application/grpc")]).await.response().await;
    assert_eq!(response.headers.all("grpc-status"), ["5"]);
    assert!(!response.headers.has("content-length") && !response.trailers.has("grpc-status"));
}

/// A media type that only begins like gRPC's is an ordinary request: it goes upstream as HTTP/1.1,
/// and gets the proxy's own responses as JSON.
#[tokio::test]
async fn grpc_web_is_an_ordinary_request() {
    let tls = tls().await;
    let origin = Origin::echo().await;
    let (sandbox, nobody) = (tls.env.sandbox(&origin).await, tls.env.nobody());
    let client = tls.h2().await;
    for kind in ["application/grpc-web+proto", "application/grpc-web", "application/grpcfoo"] {
        let headers = [("content-type", kind)];
        let seen = client.get(&sandbox.host(), "/kit.Echo/Unary", &headers).await.seen();
        assert_eq!(seen.headers.all("content-type"), [kind]);
        let response = client.get(&nobody.host(), "/kit.Echo/Unary", &headers).await;
        response.is_not_found();
        assert!(!response.headers.has("grpc-status"), "{kind}: {}", response.brief());
    }
}

#[tokio::test]
async fn an_unknown_sandbox_is_not_found() {
    let tls = tls().await;
    for (_, client) in clients(&tls, &tls.env.nobody()).await {
        refused(&client, Code::NotFound).await;
    }
}

#[tokio::test]
async fn a_closed_port_is_unavailable() {
    let tls = tls().await;
    let sandbox = tls.env.sandbox_at(([127, 0, 0, 1], refused_port()).into()).await;
    for (_, client) in clients(&tls, &sandbox).await {
        refused(&client, Code::Unavailable).await;
    }
}

#[tokio::test]
async fn a_server_that_dies_is_an_error_and_never_a_clean_end() {
    let tls = tls().await;
    for listener in [0, 1] {
        let Both { server, clients, .. } = both(&tls).await;
        let (say, said) = mpsc::channel(1);
        say.send("hello".into()).await.unwrap();
        let mut heard = clients[listener].1.chat(MetadataMap::new(), said).await.unwrap().into_inner();
        assert_eq!(heard.message().await.unwrap().unwrap(), "hello");
        server.kill();
        let died = Instant::now();
        let status = within("the end", heard.message()).await.unwrap_err();
        assert_ne!(status.code(), Code::Ok);
        assert!(died.elapsed() < A_SECOND, "{:?}", died.elapsed());
    }
}

/// A server streams as fast as it may to a client that does not read: the proxy takes what its
/// windows hold, and no more.
#[tokio::test]
async fn a_reader_that_is_slow_holds_the_server_back_and_not_its_messages_in_memory() {
    const MIB: usize = 1 << 20;
    // Of its own: memory is measured.
    let tls = with_tls(&cube_testkit::serde_json::json!({})).await;
    let Both { server, clients, .. } = both(&tls).await;
    // The first use of buffers is no growth.
    for (_, client) in &clients {
        client.unary("Unary", Request::new(vec![0; 4 * MIB].into())).await.unwrap();
    }
    let before = tls.env.proxy.rss();
    for (listener, client) in clients {
        let sent = server.sent();
        let mut stalled = client.download("Count", "3200 65536").await.expect(listener).into_inner();
        // The server stands still when every buffer on the way is full.
        let mut last = server.sent();
        eventually("the server to be held back", || {
            let now = server.sent();
            let still = now > sent && now == std::mem::replace(&mut last, now);
            async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                still.then_some(())
            }
        })
        .await;
        let ahead = server.sent() - sent;
        assert!(ahead < 64 * MIB, "{listener}: {} MiB on the way", ahead / MIB);
        let grown = tls.env.proxy.rss().saturating_sub(before);
        assert!(grown < 48 * MIB as u64, "{listener}: grown by {} MiB", grown / MIB as u64);
        // And it goes on where it stood.
        let mut bytes = 0;
        while let Some(message) = within("a message", stalled.message()).await.expect(listener) {
            bytes += message.len();
        }
        assert_eq!(bytes, 3200 * 65536, "{listener}");
    }
}

/// The client resets its streams in the moment that their trailers come: whichever is first, the call
/// ended well or its client left it. It is no fault of the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_as_its_trailers_come_was_left_by_its_client() {
    const CALLS: u32 = 60;
    const CANCEL: u32 = 8;
    // Of its own: its log is counted.
    let tls = with_tls(&cube_testkit::serde_json::json!({})).await;
    let server = Server::start().await;
    let host = tls.env.sandbox_at(server.address()).await.host();
    let mut client = H2Wire::plain(tls.env.proxy.grpc()).await;
    client.hello(&[]).await;
    let request = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", host.as_str()),
        (":path", "/kit.Echo/Chat"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let head = [(":status", "200"), ("content-type", "application/grpc")];
    let mut upstream = None;
    for round in 0..10 {
        let streams: Vec<u32> = (round * CALLS..(round + 1) * CALLS).map(|call| 2 * call + 1).collect();
        let mut open = streams.iter().map(|stream| Frame::headers(*stream, &request, false).bytes());
        // One first, so that all share its connection.
        client.send(open.next().unwrap()).await;
        let upstream = match &mut upstream {
            Some(upstream) => upstream,
            none => none.insert(server.accept().await),
        };
        let mut calls = Vec::new();
        for n in 0..CALLS {
            let call = upstream.until(|frame| frame.kind == Frame::HEADERS).await.expect("a call").stream;
            upstream.send(Frame::headers(call, &head, false).bytes()).await;
            client.until(|frame| frame.kind == Frame::HEADERS).await.expect("a head");
            calls.push(call);
            if n + 1 < CALLS {
                client.send(open.next().unwrap()).await;
            }
        }
        let trailers = calls.iter().map(|call| Frame::headers(*call, &[("grpc-status", "0")], true).bytes());
        let resets = streams.iter().map(|stream| Frame::reset(*stream, CANCEL).bytes());
        let (trailers, resets) = (trailers.collect::<Vec<_>>().concat(), resets.collect::<Vec<_>>().concat());
        tokio::join!(upstream.send(trailers), client.send(resets));
        let lines = usize::try_from((round + 1) * CALLS).unwrap();
        eventually("all calls in the log", || async {
            (tls.env.proxy.access_log().lines().count() == lines).then_some(())
        })
        .await;
    }
    for line in tls.env.proxy.access_log().lines() {
        let reason = line.rsplit("||").next().unwrap_or_default();
        assert!(matches!(reason, "ok" | "client_closed"), "{line}");
    }
}
