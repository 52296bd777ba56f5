//! The end of a process (connections.md, Draining): SIGTERM, a second one, and SIGQUIT.

use std::time::{Duration, Instant};

use cube_testkit::rustix::process::Signal;
use cube_testkit::serde_json::json;
use cube_testkit::{By, Client, Env, Exchange, Gate, H2Client, Origin, Sandbox, eventually, scripts};
use tokio::net::TcpStream;

use crate::support::{own, with_tls};

/// Waits until nobody listens there any more.
async fn closed(address: std::net::SocketAddr) {
    eventually("the listener to close", || async {
        TcpStream::connect(address).await.is_err().then_some(())
    })
    .await;
}

/// An application that sends these pieces, each when the gate is opened for it.
async fn dripping(env: &Env, pieces: &[&str], gate: &Gate) -> Sandbox {
    let drip = scripts::drip(scripts::Framing::Chunked, "text/plain", pieces, gate);
    // It has to outlive this function; the runtime of the test ends it.
    let origin = Box::leak(Box::new(Origin::scripted(drip).await));
    env.sandbox(origin).await
}

/// A stream on a connection of its own that has had its first piece.
async fn begun(env: &Env, sandbox: &Sandbox, gate: &Gate) -> Client {
    let mut client = env.client().await;
    client.request("GET", "/", &[("Host", &sandbox.host())]).await;
    gate.open();
    assert_eq!(client.head().await.status, 200);
    client.next_chunk().await;
    client
}

#[tokio::test]
async fn readiness_goes_first_and_an_idle_process_ends_within_a_second_of_the_delay() {
    const DELAY: Duration = Duration::from_secs(2);
    let tls = with_tls(&json!({ "drain": { "delay": "2s" } })).await;
    let env = &tls.env;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let (mut kept, mut silent) = (env.client().await, env.client().await);
    let (mut kept_tls, h2) = (tls.h1().await, tls.h2().await);
    kept.call("GET", "/", &[("Host", &host)], "").await.passed(200);
    kept_tls.call("GET", "/", &[("Host", &host)], "").await.passed(200);
    h2.get(&host, "/", &[]).await.passed(200);
    env.proxy.terminate();
    let asked = Instant::now();
    eventually("/readyz to say 503", || async {
        (env.proxy.probe("/readyz").await == Some(503)).then_some(())
    })
    .await;
    assert_eq!(env.proxy.probe("/healthz").await, Some(200));
    // Everything is still served, and kept.
    let response = env.get(&sandbox, "/").await;
    assert_ne!(response.passed(200).headers.get("Connection"), Some("close"), "{}", response.brief());
    kept.call("GET", "/", &[("Host", &host)], "").await.passed(200);
    kept_tls.call("GET", "/", &[("Host", &host)], "").await.passed(200);
    h2.get(&host, "/", &[]).await.passed(200);
    assert!(h2.takes_requests().await);
    assert!(asked.elapsed() < DELAY, "too slow a machine to tell");
    assert!(env.proxy.ended().await.success());
    let took = asked.elapsed();
    println!(
        "an idle process ended {took:?} after SIGTERM, {:?} after its delay",
        took.saturating_sub(DELAY)
    );
    assert!(took >= DELAY && took < DELAY + Duration::from_secs(1), "{took:?}");
    assert!(kept.ended().await && kept_tls.ended().await && silent.ended().await);
    assert!(!h2.takes_requests().await);
}

#[tokio::test]
async fn what_is_under_way_is_finished_and_its_connection_closed() {
    let tls = with_tls(&json!({ "drain": { "delay": "100ms" } })).await;
    let env = &tls.env;
    let gate = Gate::new();
    let waiting = gate.clone();
    let origin = Origin::scripted(move |exchange: Exchange| {
        let gate = waiting.clone();
        async move {
            gate.pass().await;
            exchange.reply(200, &[], "at last").await
        }
    })
    .await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    let (mut plain, mut secure, h2) = (env.client().await, tls.h1().await, tls.h2().await);
    plain.request("GET", "/", &[("Host", &host)]).await;
    secure.request("GET", "/", &[("Host", &host)]).await;
    let over_h2 = tokio::spawn({
        let host = host.clone();
        async move { h2.get(&host, "/", &[]).await }
    });
    let socket = Origin::scripted(scripts::websocket).await;
    let socket = env.sandbox(&socket).await;
    let mut socket = env.websocket(By::Host, &socket, "/", &[]).await.expect("a 101");
    origin.wait_for(3).await;
    env.proxy.terminate();
    closed(env.proxy.http()).await;
    closed(env.proxy.https()).await;
    assert_eq!(socket.say("still there").await, "still there");
    (0..3).for_each(|_| gate.open());
    for client in [&mut plain, &mut secure] {
        let response = client.response("GET").await;
        assert_eq!(response.passed(200).text(), "at last");
        assert_eq!(response.headers.get("Connection").map(str::to_lowercase).as_deref(), Some("close"));
        assert!(client.ended().await);
    }
    assert_eq!(over_h2.await.unwrap().passed(200).text(), "at last");
    assert!(env.proxy.lives(), "a WebSocket is open");
    socket.close().await;
    let closed = Instant::now();
    assert!(env.proxy.ended().await.success());
    println!("ended {:?} after its last stream", closed.elapsed());
    assert!(closed.elapsed() < Duration::from_secs(1));
}

/// A stream over HTTP/2 that has its first piece and waits for more.
async fn h2_stream(
    client: &H2Client,
    origin: &Sandbox,
    gate: &Gate,
    env: &Env,
) -> tokio::task::JoinHandle<cube_testkit::Response> {
    let (client, host) = (client.clone(), origin.host());
    gate.open();
    let stream = tokio::spawn(async move { client.open("GET", &host, "/", &[]).await.response().await });
    eventually("the stream to be open", || async {
        (env.proxy.metrics().await.sum("cube_proxy_open_streams", &[]) >= 1.0).then_some(())
    })
    .await;
    stream
}

#[tokio::test]
async fn an_http_2_connection_with_a_stream_is_told_at_half_of_the_time_and_cut_at_its_end() {
    let tls = with_tls(&json!({ "drain": { "delay": "100ms", "stop_timeout": "6s" } })).await;
    let env = &tls.env;
    let gate = Gate::new();
    let dripping = dripping(env, &["1", "2", "3"], &gate).await;
    let quick = Origin::replying(200, &[], "ok").await;
    let quick = env.sandbox(&quick).await.host();
    let (busy, idle) = (tls.h2().await, tls.h2().await);
    let mut upload = busy.open("POST", &dripping.host(), "/", &[]).await;
    upload.data("x", true).await.unwrap();
    let stream = tokio::spawn(upload.response());
    gate.open();
    idle.get(&quick, "/", &[]).await.passed(200);
    env.proxy.terminate();
    closed(env.proxy.https()).await;
    let closing = Instant::now();
    eventually("the idle connection to be told", || async { (!idle.takes_requests().await).then_some(()) })
        .await;
    // With a stream open, it is as before.
    busy.get(&quick, "/", &[]).await.passed(200);
    assert!(busy.takes_requests().await);
    assert!(closing.elapsed() < Duration::from_secs(2), "too slow a machine to tell");
    eventually("the busy connection to be told", || async { (!busy.takes_requests().await).then_some(()) })
        .await;
    let told = closing.elapsed();
    println!("told after {told:?} of 6 s");
    assert!(told > Duration::from_secs(2), "{told:?}");
    // Its stream runs on, until the time is over.
    gate.open();
    assert!(!stream.is_finished());
    let response = stream.await.unwrap();
    assert_eq!((response.text().as_str(), response.clean), ("12", false));
    assert!(env.proxy.ended().await.success());
}

/// An application that speaks HTTP/2 only, and sends these pieces, each when the gate is opened.
async fn h2c_dripping(pieces: &'static [&'static str], gate: &Gate) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, gate) = (listener.local_addr().unwrap(), gate.clone());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = cube_testkit::h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let gate = gate.clone();
            tokio::spawn(async move {
                let response = cube_testkit::http::Response::new(());
                let mut body = respond.send_response(response, false).unwrap();
                for piece in pieces {
                    gate.pass().await;
                    body.send_data((*piece).into(), false).unwrap();
                }
                body.send_data("".into(), true).unwrap();
            });
        }
    });
    address
}

#[tokio::test]
async fn on_the_grpc_listener_a_connection_is_told_at_once_and_its_stream_runs_on() {
    let listen = format!("127.0.0.1:{}", cube_testkit::free_port("127.0.0.1"));
    let env = own(json!({ "listen": { "grpc": [listen] }, "drain": { "delay": "100ms" } })).await;
    let gate = Gate::new();
    let sandbox = env.sandbox_at(h2c_dripping(&["1", "2"], &gate).await).await;
    let client = H2Client::plain(env.proxy.grpc()).await;
    let stream = h2_stream(&client, &sandbox, &gate, &env).await;
    env.proxy.terminate();
    eventually("the connection to be told", || async { (!client.takes_requests().await).then_some(()) })
        .await;
    assert!(!stream.is_finished());
    gate.open();
    let response = stream.await.unwrap();
    assert_eq!((response.text().as_str(), response.clean), ("12", true));
    assert!(env.proxy.ended().await.success());
}

#[tokio::test]
async fn tunnels_and_streams_are_ended_when_the_time_is_over() {
    let env = own(json!({ "drain": { "delay": "0s", "stop_timeout": "1s" } })).await;
    let gate = Gate::new();
    let sandbox = dripping(&env, &["1", "2"], &gate).await;
    let mut stream = begun(&env, &sandbox, &gate).await;
    let origin = Origin::scripted(scripts::websocket).await;
    let socket = env.sandbox(&origin).await;
    let mut socket = env.websocket(By::Host, &socket, "/", &[]).await.expect("a 101");
    assert_eq!(socket.say("x").await, "x");
    env.proxy.terminate();
    assert!(!matches!(socket.next().await, Some(Ok(_))), "the tunnel is cut");
    assert!(stream.wire().chunk().await.is_err(), "the stream is cut, not ended");
    assert!(env.proxy.ended().await.success());
    env.proxy.output_line(&["drain.stop_timeout is over"]).await;
}

#[tokio::test]
async fn a_second_sigterm_ends_at_once() {
    let env = own(json!({ "drain": { "delay": "5m", "stop_timeout": "5m" } })).await;
    let gate = Gate::new();
    let sandbox = dripping(&env, &["1", "2"], &gate).await;
    let mut stream = begun(&env, &sandbox, &gate).await;
    env.proxy.terminate();
    env.proxy.output_line(&["draining"]).await;
    env.proxy.terminate();
    let again = Instant::now();
    assert!(env.proxy.ended().await.success());
    println!("ended {:?} after the second SIGTERM", again.elapsed());
    assert!(stream.wire().chunk().await.is_err(), "cut, not ended");
    env.proxy.output_line(&["asked twice"]).await;
}

#[tokio::test]
async fn sigquit_alone_changes_nothing() {
    let env = own(json!({})).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    let mut kept = env.client().await;
    kept.call("GET", "/", &[("Host", &sandbox.host())], "").await.passed(200);
    env.proxy.signal(Signal::QUIT);
    env.proxy.output_line(&["SIGQUIT"]).await;
    assert_eq!(env.proxy.probe("/readyz").await, Some(200));
    kept.call("GET", "/", &[("Host", &sandbox.host())], "").await.passed(200);
    env.get(&sandbox, "/").await.passed(200);
    assert!(env.proxy.lives());
}

#[tokio::test]
async fn a_refused_upload_that_is_never_sent_does_not_hold_up_the_end() {
    let env = own(json!({ "drain": { "delay": "200ms" } })).await;
    let host = env.nobody().host();
    let mut client = env.client().await;
    client.send(format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 500\r\n\r\n")).await;
    let response = client.response("POST").await;
    assert_eq!(response.status, 404);
    env.proxy.terminate();
    let begun = Instant::now();
    assert!(env.proxy.ended().await.success());
    assert!(begun.elapsed() < Duration::from_millis(1_700), "{:?}", begun.elapsed());
}
