//! How an HTTP/2 connection ends, frame by frame (connections.md, Draining; connections.md, Timeouts).

use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::{
    By, Env, Exchange, Frame, Gate, H2Wire, Origin, Sandbox, eventually, scripts, unique_id, within,
};

use crate::rfc::rfc9113::fields;
use crate::support::{A_SECOND, Tls, with_tls};

const INTERNAL_ERROR: u32 = 2;
/// Settings of a client that takes any amount without a word: a window of 64 MiB.
const WIDE: &[(u16, u32)] = &[(4, 64 << 20)];

/// A connection with one GET under way, after which nothing is said.
async fn asked(tls: &Tls, host: &str, path: &str, id: &str) -> H2Wire {
    let mut wire = tls.frames().await;
    wire.hello(WIDE).await;
    wire.send(Frame::window(0, 64 << 20).bytes()).await;
    let fields = fields("GET", host, &[(":path", path), ("x-cube-request-id", id)]);
    wire.send(Frame::headers(1, &fields, true).bytes()).await;
    wire
}

/// What a client read until its connection ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    bytes: usize,
    /// The response was whole when GOAWAY came, or the end of the connection.
    whole: bool,
    /// Frames of the stream that came after GOAWAY.
    after: usize,
    told: bool,
}

/// Reads to the end of the connection, a frame each `pause`, and answers PING.
async fn read(wire: &mut H2Wire, pause: Duration) -> Read {
    let mut read = Read::default();
    while let Some(frame) = wire.frame().await {
        match frame.kind {
            Frame::GOAWAY => read.told = true,
            Frame::PING if frame.flags == 0 => {
                wire.send(Frame::new(Frame::PING, 1, 0, frame.payload).bytes()).await;
            }
            Frame::DATA => {
                read.after += usize::from(read.told);
                read.bytes += frame.payload.len();
                read.whole |= frame.ends() && !read.told;
                tokio::time::sleep(pause).await;
            }
            _ => {}
        }
    }
    read
}

/// How a process comes to drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drains {
    Stops,
    IsReplaced,
}

impl Drains {
    async fn begin(self, env: &Env) {
        match self {
            Drains::Stops => {
                env.proxy.terminate();
                eventually("the listener to close", || async {
                    tokio::net::TcpStream::connect(env.proxy.https()).await.is_err().then_some(())
                })
                .await;
            }
            Drains::IsReplaced => env.proxy.upgrade().await,
        }
    }

    async fn ended(self, env: &Env) {
        match self {
            Drains::Stops => assert!(env.proxy.ended().await.success()),
            Drains::IsReplaced => env.proxy.old_ended(0).await,
        }
    }
}

/// An application that sends one piece at once, and a last one when the gate is opened.
async fn two_pieces(gate: &Gate) -> Origin {
    let gate = gate.clone();
    Origin::scripted(move |mut exchange: Exchange| {
        let gate = gate.clone();
        async move {
            exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
            exchange.chunk("first").await?;
            gate.pass().await;
            exchange.chunk("last").await?;
            exchange.end().await
        }
    })
    .await
}

#[tokio::test]
async fn goaway_comes_behind_the_last_frame_of_the_last_response() {
    const CONNECTIONS: usize = 24;
    for drains in [Drains::Stops, Drains::IsReplaced] {
        let tls = with_tls(&json!({ "drain": { "delay": "100ms" } })).await;
        let gate = Gate::new();
        let origin = two_pieces(&gate).await;
        let host = tls.env.sandbox(&origin).await.host();
        let mut wires = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut wire = asked(&tls, &host, "/", &unique_id("goaway")).await;
            wire.until(|frame| frame.kind == Frame::DATA).await.expect("a stream");
            wires.push(wire);
        }
        drains.begin(&tls.env).await;
        (0..CONNECTIONS).for_each(|_| gate.open());
        for mut wire in wires {
            let read = read(&mut wire, Duration::ZERO).await;
            let expected = Read { bytes: 4, whole: true, after: 0, told: true };
            assert_eq!(read, expected, "{drains:?}");
        }
        drains.ended(&tls.env).await;
    }
}

#[tokio::test]
async fn a_client_that_asks_again_and_again_is_told_in_a_quiet_moment() {
    let tls = with_tls(&json!({})).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let host = tls.env.sandbox(&origin).await.host();
    let mut wire = served(&tls, &host).await;
    tls.env.proxy.upgrade().await;
    let begun = Instant::now();
    let mut stream = 1;
    while begun.elapsed() < Duration::from_secs(4) {
        stream += 2;
        wire.send(Frame::headers(stream, &fields("GET", &host, &[]), true).bytes()).await;
        let next = wire.until(|frame| frame.ends() || frame.kind == Frame::GOAWAY).await;
        assert_eq!(next.expect("a response").kind, Frame::DATA, "told while it asks");
    }
    assert_eq!(read(&mut wire, Duration::ZERO).await, Read { told: true, ..Read::default() });
    drop(wire);
    tls.env.proxy.old_ended(0).await;
}

#[tokio::test]
async fn a_client_that_asks_steadily_is_told_after_its_requests_and_none_fails() {
    /// Shorter than the quiet that is waited for at first, longer than the one after a tenth more.
    const EVERY: Duration = Duration::from_millis(450);
    let tls = with_tls(&json!({ "limits": { "keepalive_requests": 10 } })).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let host = tls.env.sandbox(&origin).await.host();
    let mut wire = served(&tls, &host).await;
    let mut served = 1;
    let told = loop {
        if served >= 10 {
            let goaway = wire.until(|frame| frame.kind == Frame::GOAWAY);
            if let Ok(goaway) = tokio::time::timeout(EVERY, goaway).await {
                break goaway;
            }
        }
        let stream = 2 * served + 1;
        wire.send(Frame::headers(stream, &fields("GET", &host, &[]), true).bytes()).await;
        let next = wire.until(|frame| frame.ends() || frame.kind == Frame::GOAWAY).await;
        assert_eq!(next.expect("a response").kind, Frame::DATA, "told while it asks");
        served += 1;
        assert!(served < 20, "not told");
    };
    assert_eq!(told.expect("GOAWAY").code(), Some(0));
    assert_eq!(served, 11);
    assert_eq!(read(&mut wire, Duration::ZERO).await, Read::default());
}

/// More than the sockets hold, and what the protocol library holds.
const LARGE: usize = 16 << 20;

/// An application that sends so many bytes.
async fn large(bytes: usize) -> Origin {
    Origin::scripted(move |exchange: Exchange| async move { exchange.reply(200, &[], vec![7; bytes]).await })
        .await
}

#[tokio::test]
async fn a_slow_reader_has_its_response_whole_before_it_is_told() {
    for drains in [Drains::Stops, Drains::IsReplaced] {
        let tls = with_tls(&json!({ "drain": { "delay": "100ms" } })).await;
        let origin = large(LARGE).await;
        let host = tls.env.sandbox(&origin).await.host();
        let mut wire = asked(&tls, &host, "/", &unique_id("slow")).await;
        drains.begin(&tls.env).await;
        // Longer than an idle connection has.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let read = read(&mut wire, Duration::from_millis(3)).await;
        drop(wire);
        assert_eq!(read, Read { bytes: LARGE, whole: true, after: 0, told: true }, "{drains:?}");
        drains.ended(&tls.env).await;
    }
}

/// A client that was served a request, and reads no more.
async fn served(tls: &Tls, host: &str) -> H2Wire {
    let mut wire = asked(tls, host, "/", &unique_id("served")).await;
    wire.until(Frame::ends).await.expect("a response");
    wire
}

#[tokio::test]
async fn no_idle_client_holds_the_process_up() {
    const DELAY: Duration = Duration::from_millis(500);
    let tls = with_tls(&json!({ "drain": { "delay": "500ms" } })).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let host = tls.env.sandbox(&origin).await.host();
    // One that does not read, one in the middle of a frame of headers, one that has not said a word.
    let _silent = served(&tls, &host).await;
    let mut half = served(&tls, &host).await;
    let head = Frame::headers(3, &fields("GET", &host, &[]), true).bytes();
    half.send(&head[..head.len() / 2]).await;
    let _wordless = tls.frames().await;
    // One that asks for an acknowledgement before the one before was acknowledged.
    let mut pinging = served(&tls, &host).await;
    tokio::spawn(async move {
        for _ in 0..2_000 {
            if pinging.push(Frame::new(Frame::PING, 0, 0, [7; 8]).bytes()).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    // And over HTTP/1.1.
    let mut half_h1 = tls.env.client().await;
    half_h1.send("GET / HTTP/1.1\r\nHost: ").await;
    tls.env.proxy.terminate();
    let asked = Instant::now();
    assert!(tls.env.proxy.ended().await.success());
    let took = asked.elapsed();
    println!("ended {:?} after its delay", took.saturating_sub(DELAY));
    assert!(took < DELAY + A_SECOND, "{took:?}");
}

#[tokio::test]
async fn what_the_drain_cuts_is_a_reset_and_says_why() {
    let tls = with_tls(&json!({ "drain": { "delay": "0s", "stop_timeout": "1s" } })).await;
    let env = &tls.env;
    let gate = Gate::new();
    let origin = two_pieces(&gate).await;
    let sandbox = env.sandbox(&origin).await;
    let hangs = Origin::scripted(scripts::hang).await;
    let hangs = env.sandbox(&hangs).await;
    let ids: Vec<String> = (0..4).map(|_| unique_id("drained")).collect();
    let mut streaming = asked(&tls, &sandbox.host(), "/", &ids[0]).await;
    streaming.until(|frame| frame.kind == Frame::DATA).await.expect("a stream");
    let mut waiting = asked(&tls, &hangs.host(), "/", &ids[1]).await;
    let mut h1 = env.client().await;
    h1.request("GET", "/", &[("Host", &sandbox.host()), ("X-Cube-Request-Id", &ids[2])]).await;
    assert_eq!(h1.head().await.status, 200);
    h1.next_chunk().await;
    let socket = Origin::scripted(scripts::websocket).await;
    let socket = env.sandbox(&socket).await;
    let mut socket =
        env.websocket(By::Host, &socket, "/", &[("X-Cube-Request-Id", &ids[3])]).await.expect("a 101");
    assert_eq!(socket.say("x").await, "x");
    env.proxy.terminate();
    for wire in [&mut streaming, &mut waiting] {
        let end = wire.until(|frame| frame.kind == Frame::RST_STREAM).await;
        assert_eq!(end.expect("a reset").code(), Some(INTERNAL_ERROR));
    }
    assert!(h1.wire().chunk().await.is_err(), "cut, not ended");
    assert!(!matches!(socket.next().await, Some(Ok(_))), "cut, not ended");
    assert!(env.proxy.ended().await.success());
    for (id, retcode) in ids.iter().zip(["310200", "310503", "310200", "330101"]) {
        let line = env.proxy.log_line(id).await;
        assert_eq!((line.field("retcode"), line.field("reason")), (retcode, "drain_timeout"), "{line:?}");
    }
}

#[tokio::test]
async fn a_client_that_stops_reading_for_longer_than_the_idle_limit_has_its_response_whole() {
    let tls = with_tls(&json!({ "limits": { "keepalive_idle": "500ms" } })).await;
    let origin = large(LARGE).await;
    let host = tls.env.sandbox(&origin).await.host();
    let id = unique_id("late");
    let mut wire = asked(&tls, &host, "/", &id).await;
    let mut bytes = 0;
    // The request is over in the proxy while much of the response is still to be written.
    while !tls.env.proxy.access_log().contains(&id) {
        let data = wire.until(|frame| frame.kind == Frame::DATA).await.expect("the response");
        bytes += data.payload.len();
        if bytes > LARGE - (4 << 20) {
            // The rest fits into buffers: the log is now due.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let rest = read(&mut wire, Duration::ZERO).await;
    assert_eq!(rest, Read { bytes: LARGE - bytes, whole: true, after: 0, told: true });
}

/// Waits until no client connection is open.
async fn no_connection(env: &Env) {
    eventually("the connection to be closed", || async {
        let open = env.proxy.metrics().await.sum("cube_proxy_client_connections", &[]);
        (open == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up_after_the_silence_limit() {
    let config = json!({
        "limits": { "keepalive_idle": "200ms" },
        "upstream": { "silence_timeout": "2s" },
    });
    let tls = with_tls(&config).await;
    let origin = large(LARGE).await;
    let host = tls.env.sandbox(&origin).await.host();
    let _wire = asked(&tls, &host, "/", &unique_id("never")).await;
    no_connection(&tls.env).await;
}

/// A proxy where a head is due within a second.
async fn hurried() -> (Tls, Origin, Sandbox) {
    let tls = with_tls(&json!({ "limits": { "header_timeout": "1s" } })).await;
    let origin = Origin::scripted(scripts::hang).await;
    let sandbox = tls.env.sandbox(&origin).await;
    (tls, origin, sandbox)
}

#[tokio::test]
async fn a_head_that_drips_ends_its_connection_beside_an_open_stream_too() {
    let (tls, origin, sandbox) = hurried().await;
    let host = sandbox.host();
    for beside in [false, true] {
        let mut wire = tls.frames().await;
        wire.hello(&[]).await;
        if beside {
            wire.send(Frame::headers(1, &fields("GET", &host, &[]), true).bytes()).await;
            origin.wait_for(1).await;
        }
        let head = Frame::headers(3, &fields("GET", &host, &[]), true).bytes();
        let begun = Instant::now();
        let mut told = None;
        // A byte each 50 ms: the head takes longer than it may.
        for byte in head {
            wire.send([byte]).await;
            let goaway = wire.until(|frame| frame.kind == Frame::GOAWAY);
            if let Ok(frame) = tokio::time::timeout(Duration::from_millis(50), goaway).await {
                told = frame.map(|frame| frame.code());
                break;
            }
        }
        let took = begun.elapsed();
        assert_eq!(told, Some(Some(11)), "beside an open stream: {beside}");
        assert!(took >= Duration::from_millis(900) && took < A_SECOND, "{took:?}");
        while wire.frame().await.is_some() {}
    }
    let metrics = tls.env.proxy.metrics().await;
    assert_eq!(metrics.sum("cube_proxy_answers_total", &[("retcode", "310408")]), 2.0);
}

#[tokio::test]
async fn a_body_that_drips_is_not_a_head() {
    let (tls, origin, sandbox) = hurried().await;
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    wire.send(Frame::headers(1, &fields("POST", &sandbox.host(), &[]), false).bytes()).await;
    origin.wait_for(1).await;
    for byte in Frame::data(1, &[7; 20], false).bytes() {
        wire.send([byte]).await;
        // Slow enough that the head of the frame alone takes longer than a request's may.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert!(within("the connection", wire.lives()).await);
}
