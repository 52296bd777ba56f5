//! A client that leaves ends its request at the application within a second, whatever the request
//! is doing; an application that dies is seen by the client as soon, and never as a clean end
//! (connections.md, "Streaming"; errors.md, "When a response is cut").

use std::time::Instant;

use cube_testkit::scripts::{self, Framing};
use cube_testkit::{
    Client, Env, Exchange, Gate, H2Client, H2Response, H2Upload, Origin, eventually, unique_id,
};

use crate::support::{A_SECOND, Tls, tls};

/// What a request is doing when its client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing of the response has come.
    BeforeHead,
    /// The application is waiting for more of the body.
    Uploading,
    /// The application takes no more of the body, and the buffers on the way are full.
    UploadBlocked,
    /// A piece of the response has come, and the next is late.
    Downloading,
    /// The client takes no more of the response, and the buffers on the way are full.
    DownloadBlocked,
    /// Both at once.
    BothWays,
}

const PHASES: [Phase; 6] = [
    Phase::BeforeHead,
    Phase::Uploading,
    Phase::UploadBlocked,
    Phase::Downloading,
    Phase::DownloadBlocked,
    Phase::BothWays,
];

impl Phase {
    fn uploads(self) -> bool {
        matches!(self, Phase::Uploading | Phase::UploadBlocked | Phase::BothWays)
    }
}

/// How a client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// HTTP/1.1: it closes.
    H1,
    /// HTTP/2: it resets the stream and stays.
    Stream,
    /// HTTP/2: it closes the connection.
    Connection,
}

/// An application in that phase. `stuck` opens when the phase is reached; a blocked one reads on
/// when `look` opens.
async fn application(phase: Phase, stuck: &Gate, look: &Gate) -> Origin {
    let (stuck, look) = (stuck.clone(), look.clone());
    Origin::scripted(move |mut exchange: Exchange| {
        let (stuck, look) = (stuck.clone(), look.clone());
        async move {
            match phase {
                Phase::BeforeHead => stuck.open(),
                Phase::Uploading => {
                    exchange.piece().await?;
                    stuck.open();
                    loop {
                        exchange.piece().await?;
                    }
                }
                Phase::UploadBlocked => {
                    stuck.open();
                    look.pass().await;
                    loop {
                        exchange.piece().await?;
                    }
                }
                Phase::Downloading => {
                    exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
                    exchange.chunk("first").await?;
                    stuck.open();
                }
                Phase::DownloadBlocked => {
                    exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
                    stuck.open();
                    loop {
                        exchange.chunk(vec![7; 1 << 16]).await?;
                    }
                }
                Phase::BothWays => {
                    exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
                    exchange.chunk("first").await?;
                    exchange.piece().await?;
                    stuck.open();
                    loop {
                        exchange.piece().await?;
                    }
                }
            }
            exchange.gone().await;
            exchange.close().await
        }
    })
    .await
}

/// A request under way, from whichever client.
enum Request {
    H1(Client),
    Asked(H2Client, H2Upload),
    Begun(H2Client, H2Response),
}

async fn begin(tls: &Tls, leaves: Leaves, phase: Phase, host: &str, id: &str) -> Request {
    let method = if phase.uploads() { "POST" } else { "GET" };
    if leaves == Leaves::H1 {
        let mut client = tls.h1().await;
        let mut headers = vec![("Host", host), ("X-Cube-Request-Id", id)];
        if phase.uploads() {
            headers.push(("Transfer-Encoding", "chunked"));
        }
        client.request(method, "/", &headers).await;
        if phase.uploads() {
            client.chunk("first").await;
        }
        if phase == Phase::UploadBlocked {
            // Until nothing more goes.
            let piece = vec![7; 1 << 16];
            while tokio::time::timeout(
                std::time::Duration::from_millis(300),
                client.wire().send_chunk(&piece),
            )
            .await
            .is_ok()
            {}
        }
        if phase == Phase::Downloading {
            client.head().await;
        }
        return Request::H1(client);
    }
    let client = tls.h2().await;
    let headers = [("x-cube-request-id", id)];
    if !phase.uploads() {
        let asked = client.ask(host, "/", &headers).await;
        if phase == Phase::Downloading {
            let mut response = asked.begun().await;
            assert_eq!(response.piece().await.unwrap().unwrap(), "first");
            return Request::Begun(client, response);
        }
        return Request::Asked(client, asked);
    }
    let mut upload = client.open(method, host, "/", &headers).await;
    upload.data("first", false).await.unwrap();
    if phase == Phase::UploadBlocked {
        // Until nothing more goes.
        while upload.fill(1 << 16).await {}
    }
    Request::Asked(client, upload)
}

/// The request has ended in the proxy, and at the application as soon as it looks.
async fn ended(env: &Env, origin: &Origin, look: &Gate, id: &str, what: &str) {
    let left = Instant::now();
    let line = env.proxy.log_line(id).await;
    assert!(left.elapsed() < A_SECOND, "{what}: {:?}", left.elapsed());
    assert!(matches!(line.field("retcode"), "310499" | "310200"), "{what}: {line:?}");
    assert_eq!(line.field("reason"), "client_closed", "{what}");
    look.open();
    eventually(&format!("{what}: the end at the application"), || async {
        (origin.open_connections() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ends_the_request_at_the_application_in_every_phase() {
    let tls = tls().await;
    for leaves in [Leaves::H1, Leaves::Stream, Leaves::Connection] {
        for phase in PHASES {
            let what = format!("{leaves:?} {phase:?}");
            let (stuck, look) = (Gate::new(), Gate::new());
            let origin = application(phase, &stuck, &look).await;
            let sandbox = tls.env.sandbox(&origin).await;
            let id = unique_id("leaves");
            let request = begin(&tls, leaves, phase, &sandbox.host(), &id).await;
            stuck.pass().await;
            match request {
                Request::H1(client) => drop(client),
                Request::Asked(client, upload) if leaves == Leaves::Stream => {
                    upload.reset();
                    // The connection stays, and serves others.
                    ended(&tls.env, &origin, &look, &id, &what).await;
                    client.get(&tls.env.nobody().host(), "/", &[]).await.is_not_found();
                    continue;
                }
                Request::Begun(client, response) if leaves == Leaves::Stream => {
                    response.reset();
                    ended(&tls.env, &origin, &look, &id, &what).await;
                    client.get(&tls.env.nobody().host(), "/", &[]).await.is_not_found();
                    continue;
                }
                Request::Asked(client, _) => client.abort(),
                Request::Begun(client, _) => client.abort(),
            }
            ended(&tls.env, &origin, &look, &id, &what).await;
        }
    }
}

#[tokio::test]
async fn an_application_that_dies_is_never_a_clean_end() {
    let tls = tls().await;
    let client = tls.h2().await;
    for (framing, reset) in [
        (Framing::Chunked, false),
        (Framing::Chunked, true),
        (Framing::Length, false),
        (Framing::Length, true),
        (Framing::Close, true),
    ] {
        let what = format!("{framing:?}, reset: {reset}");
        let gate = Gate::new();
        let origin = Origin::scripted(scripts::cut(framing, &gate, reset)).await;
        let host = tls.env.sandbox(&origin).await.host();
        // Over TLS with HTTP/1.1 and over HTTP/2; plain HTTP/1.1 is with the other upstream faults.
        let mut h1 = tls.h1().await;
        h1.request("GET", "/", &[("Host", &host)]).await;
        let head = h1.head().await;
        gate.open();
        let died = Instant::now();
        assert!(!h1.body(head, "GET").await.clean, "HTTP/1.1 {what}");
        assert!(died.elapsed() < A_SECOND, "HTTP/1.1 {what}: {:?}", died.elapsed());
        let mut h2 = client.ask(&host, "/", &[]).await.begun().await;
        assert_eq!(h2.piece().await.unwrap().unwrap(), "half", "{what}");
        gate.open();
        let died = Instant::now();
        assert!(h2.piece().await.is_err(), "HTTP/2 {what}");
        assert!(died.elapsed() < A_SECOND, "HTTP/2 {what}: {:?}", died.elapsed());
    }
}
