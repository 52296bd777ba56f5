//! Upgrades under load lose nothing (operations.md, "Hot restart").

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cube_testkit::bytes::Bytes;
use cube_testkit::serde_json::json;
use cube_testkit::tonic::Request;
use cube_testkit::tonic::metadata::MetadataMap;
use cube_testkit::{By, Client, Exchange, ExchangeResult, GrpcClient, GrpcServer, Origin, Sandbox, within};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::{Tls, with_tls};

/// Between two pieces of a stream.
const TICK: Duration = Duration::from_millis(50);

/// The load that runs across the upgrades. What fails panics in its task.
struct Load {
    tls: Arc<Tls>,
    sandbox: Sandbox,
    over: Arc<AtomicBool>,
    running: Vec<(&'static str, JoinHandle<usize>)>,
}

impl Load {
    /// Runs `work` again and again; it counts.
    fn run<W, F>(&mut self, name: &'static str, work: W)
    where
        W: FnOnce(Arc<Tls>, Sandbox, Arc<AtomicBool>) -> F,
        F: Future<Output = usize> + Send + 'static,
    {
        let work = work(self.tls.clone(), self.sandbox.clone(), self.over.clone());
        self.running.push((name, tokio::spawn(work)));
    }

    /// Ends it and says how much was done; each kind must have got something done.
    async fn end(self) -> Vec<String> {
        self.over.store(true, Ordering::SeqCst);
        let mut done = Vec::new();
        for (name, running) in self.running {
            let count = running.await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(count > 0, "{name}: nothing happened");
            done.push(format!("{name}: {count}, none failed"));
        }
        done
    }
}

/// One connection after the other, each for as many requests as the proxy lets it have.
async fn keep_alive(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        let mut client = tls.env.client().await;
        while !over.load(Ordering::SeqCst) {
            let response = client.call("GET", "/", &[("Host", &sandbox.host())], "").await;
            assert!(response.status == 200 && response.clean, "{response:?}");
            count += 1;
            if response.headers.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
                break;
            }
        }
    }
    count
}

/// A connection a request, plain and TLS in turn.
async fn new_connections(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        let mut client = if count % 8 == 0 { tls.h1().await } else { tls.env.client().await };
        let response = client.call("POST", "/", &[("Host", &sandbox.host())], "body").await;
        assert!(response.status == 200 && response.clean, "{response:?}");
        count += 1;
    }
    count
}

/// Requests one after the other on HTTP/2 connections that are idle in between.
async fn h2_requests(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        let client = tls.h2().await;
        while !over.load(Ordering::SeqCst) {
            let Some(response) = client.try_get(&sandbox.host(), "/", &[]).await else { break };
            assert!(response.status == 200 && response.clean, "{response:?}");
            count += 1;
        }
    }
    count
}

/// Requests on an HTTP/2 connection that always has an open stream, which nothing may end.
async fn h2_beside_a_stream(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    let client = tls.h2().await;
    let (mut upload, mut mirrored) = client.open("POST", &sandbox.host(), "/stream", &[]).await.split().await;
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        upload.data(format!("{count}"), false).await.expect("an open stream");
        let piece = mirrored.piece().await.expect("an open stream").expect("a piece");
        assert_eq!(piece, format!("{count}"));
        count += 1;
        let response = client.get(&sandbox.host(), "/", &[]).await;
        assert!(response.status == 200 && response.clean, "{response:?}");
        tokio::time::sleep(TICK).await;
    }
    upload.data("", true).await.expect("an open stream");
    assert_eq!(mirrored.piece().await.expect("a clean end"), None);
    count
}

/// A gRPC call that streams both ways over TLS, with short ones beside it.
async fn grpc_over_tls(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    let client = tls.grpc(&sandbox.host()).await;
    grpc(client, true, &over).await
}

/// One over the h2c listener, which announces its end at once.
async fn grpc_over_h2c(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    let client = tls.h2c(&sandbox.host()).await;
    grpc(client, false, &over).await
}

async fn grpc(client: GrpcClient, short_ones: bool, over: &AtomicBool) -> usize {
    let (say, said) = mpsc::channel(1);
    let mut heard = client.chat(MetadataMap::new(), said).await.expect("a stream").into_inner();
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        say.send(format!("{count}").into()).await.expect("an open stream");
        let echo = within("an echo", heard.message()).await.expect("an open stream").expect("a message");
        assert_eq!(echo, format!("{count}"));
        count += 1;
        if short_ones {
            let response = client.unary("Unary", Request::new(Bytes::from_static(b"hello"))).await;
            assert_eq!(response.expect("a response").into_inner(), "hello");
        }
        tokio::time::sleep(TICK).await;
    }
    drop(say);
    assert_eq!(within("the end", heard.message()).await.expect("a clean end"), None);
    count
}

/// One chunked response, from before the first upgrade to the end.
async fn chunked_stream(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    let mut client: Client = tls.env.client().await;
    let host = sandbox.host();
    client.request("POST", "/stream", &[("Host", &host), ("Transfer-Encoding", "chunked")]).await;
    assert_eq!(client.head().await.status, 200);
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        client.chunk(format!("{count}")).await;
        assert_eq!(client.next_chunk().await, format!("{count}").as_bytes());
        count += 1;
        tokio::time::sleep(TICK).await;
    }
    client.send("0\r\n\r\n").await;
    assert!(client.next_chunk().await.is_empty(), "a clean end");
    count
}

async fn websocket(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    let mut socket = tls.env.websocket(By::Host, &sandbox, "/ws", &[]).await.expect("a 101");
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        assert_eq!(socket.say("tick").await, "tick");
        count += 1;
        tokio::time::sleep(TICK).await;
    }
    socket.close().await;
    count
}

/// `/stream` sends back piece by piece what comes in, `/ws` is a WebSocket, everything else an
/// echo.
async fn application(mut exchange: Exchange) -> ExchangeResult {
    match exchange.request.target.as_str() {
        "/ws" => cube_testkit::scripts::websocket(exchange).await,
        "/count" => {
            let got = exchange.body().await?.len();
            exchange.reply(200, &[], got.to_string()).await
        }
        "/stream" => cube_testkit::scripts::mirror(exchange).await,
        _ => cube_testkit::scripts::echo(exchange).await,
    }
}

/// A MiB at a time, HTTP/1.1 and HTTP/2 in turn, a connection each.
async fn uploads(tls: Arc<Tls>, sandbox: Sandbox, over: Arc<AtomicBool>) -> usize {
    const PIECES: usize = 64;
    let host = sandbox.host();
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        let text = if count % 2 == 0 {
            let client = tls.h2().await;
            let mut upload = client.open("POST", &host, "/count", &[]).await;
            for _ in 0..PIECES {
                upload.data(vec![7; 1 << 14], false).await.expect("an open stream");
            }
            upload.data("", true).await.expect("an open stream");
            upload.response().await.passed(200).text()
        } else {
            let mut client = tls.env.client().await;
            client.request("POST", "/count", &[("Host", &host), ("Transfer-Encoding", "chunked")]).await;
            for _ in 0..PIECES {
                client.chunk(vec![7; 1 << 14]).await;
            }
            client.send("0\r\n\r\n").await;
            client.response("POST").await.passed(200).text()
        };
        assert_eq!(text, (PIECES << 14).to_string());
        count += 1;
    }
    count
}

/// So many upgrades in a row with everything under way, each `apart` after the one before.
async fn upgrades(upgrades: usize, apart: Duration) -> Vec<String> {
    let tls = Arc::new(
        with_tls(&json!({ "registry": { "enabled": true, "proxy_id": "one", "interval": "1s" } })).await,
    );
    let origin = Origin::scripted(application).await;
    let sandbox = tls.env.sandbox(&origin).await;
    tls.env.get(&sandbox, "/").await.passed(200);
    let mut load = Load { tls: tls.clone(), sandbox, over: Arc::default(), running: Vec::new() };
    load.run("HTTP/1.1 requests on kept connections", keep_alive);
    load.run("requests on new connections", new_connections);
    load.run("HTTP/2 requests", h2_requests);
    load.run("HTTP/2 requests beside a stream", h2_beside_a_stream);
    load.run("pieces of a chunked stream", chunked_stream);
    load.run("WebSocket messages", websocket);
    load.run("uploads", uploads);
    let server = GrpcServer::start().await;
    load.sandbox = tls.env.sandbox_at(server.address()).await;
    load.run("gRPC messages over TLS", grpc_over_tls);
    load.run("gRPC messages over h2c", grpc_over_h2c);
    let mut seen = Vec::new();
    for round in 0..=upgrades {
        if round > 0 {
            tls.env.proxy.upgrade().await;
        }
        tokio::time::sleep(apart).await;
        seen.push((tls.env.proxy.files().len(), tls.env.proxy.rss()));
        for (name, running) in &load.running {
            assert!(!running.is_finished(), "{name}: failed after {round} upgrades");
        }
    }
    let mut done = load.end().await;
    done.push(format!("open files and bytes of memory at first and after each upgrade: {seen:?}"));
    // Their streams have ended, so they have.
    tls.env.proxy.old_ended(0).await;
    // Two more with nothing under way: what a process has open at its end does not grow.
    let quiet = async || {
        cube_testkit::eventually("connections to close", || async {
            let open = tls.env.proxy.metrics().await.sum("cube_proxy_client_connections", &[]);
            (open == 0.0).then_some(())
        })
        .await;
        tls.env.proxy.files().len()
    };
    let before = quiet().await;
    for _ in 0..2 {
        tls.env.proxy.upgrade().await;
        tls.env.proxy.old_ended(0).await;
    }
    let after = quiet().await;
    assert!(after <= before, "{before} open files, then {after}: {:?}", tls.env.proxy.files());
    // Memory does not either; some slack for what load leaves behind.
    let (first, last) = (seen[0].1, seen[upgrades].1);
    assert!(last < first * 2 + (16 << 20), "{first} bytes of memory, then {last}");
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_upgrades_in_a_row_lose_nothing() {
    println!("{:#?}", upgrades(3, Duration::from_secs(1)).await);
}

/// More of them, with streams of more than a minute: `just upgrades`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes more than a minute"]
async fn ten_upgrades_in_a_row_lose_nothing() {
    println!("{:#?}", upgrades(10, Duration::from_secs(6)).await);
}
