//! A stream that is merely quiet lives on (connections.md, "Timeouts").

use std::sync::Arc;
use std::time::Duration;

use cube_testkit::tonic::metadata::MetadataMap;
use cube_testkit::{Exchange, GrpcServer, Origin, scripts};
use tokio::sync::{Semaphore, mpsc};

use crate::support::tls;

/// Longer than any of the usual limits of 15, 30 and 50 seconds on the way.
#[tokio::test]
async fn of_51_seconds_ends_nothing() {
    quiet(Duration::from_secs(51)).await;
}

/// Longer than the usual ones of one, two, five minutes. `just long`.
#[tokio::test]
#[ignore = "takes ten minutes"]
async fn of_ten_minutes_ends_nothing() {
    quiet(Duration::from_secs(600)).await;
}

/// One of each kind of stream, all silent for the same `time`.
async fn quiet(time: Duration) {
    let tls = tls().await;
    // No bound of its own: it is opened after the silence.
    let silence = Arc::new(Semaphore::new(0));
    let over = Arc::clone(&silence);
    let answering = Origin::scripted(move |mut exchange: Exchange| {
        let over = Arc::clone(&over);
        async move {
            exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
            exchange.chunk("one").await?;
            drop(over.acquire().await);
            exchange.chunk("two").await?;
            exchange.end().await
        }
    })
    .await;
    let reading = Origin::scripted(|mut exchange: Exchange| async move {
        let length = exchange.drain().await?.to_string();
        exchange.reply(200, &[], length).await
    })
    .await;
    let socket = Origin::scripted(scripts::websocket).await;
    let server = GrpcServer::start().await;
    let answering = tls.env.sandbox(&answering).await.host();
    let reading = tls.env.sandbox(&reading).await.host();
    let socket = tls.env.sandbox(&socket).await;
    let chat = tls.env.sandbox_at(server.address()).await.host();
    let h2 = tls.h2().await;

    let mut h1_response = tls.env.client().await;
    h1_response.request("GET", "/", &[("Host", &answering)]).await;
    h1_response.head().await;
    assert_eq!(h1_response.next_chunk().await, b"one");
    let mut h2_response = h2.ask(&answering, "/", &[]).await.begun().await;
    assert_eq!(h2_response.piece().await.unwrap().unwrap(), "one");
    let mut h1_upload = tls.h1().await;
    h1_upload.request("POST", "/", &[("Host", &reading), ("Transfer-Encoding", "chunked")]).await;
    h1_upload.chunk("abc").await;
    let mut h2_upload = h2.open("POST", &reading, "/", &[]).await;
    h2_upload.data("abc", false).await.unwrap();
    let mut socket = tls.websocket(&socket).await;
    assert_eq!(socket.say("one").await, "one");
    let (say, said) = mpsc::channel(1);
    say.send("one".into()).await.unwrap();
    let mut heard = tls.grpc(&chat).await.chat(MetadataMap::new(), said).await.unwrap().into_inner();
    assert_eq!(heard.message().await.unwrap().unwrap(), "one");

    // What is tested is that nothing happens in this time.
    tokio::time::sleep(time).await;

    silence.add_permits(1);
    assert_eq!(h1_response.next_chunk().await, b"two");
    assert!(h1_response.next_chunk().await.is_empty());
    assert_eq!(h2_response.piece().await.unwrap().unwrap(), "two");
    assert_eq!(h2_response.piece().await.unwrap(), None);
    h1_upload.chunk("def").await;
    h1_upload.send("0\r\n\r\n").await;
    assert_eq!(h1_upload.response("POST").await.passed(200).text(), "6");
    h2_upload.data("def", true).await.unwrap();
    assert_eq!(h2_upload.response().await.passed(200).text(), "6");
    assert_eq!(socket.say("two").await, "two");
    say.send("two".into()).await.unwrap();
    assert_eq!(heard.message().await.unwrap().unwrap(), "two");
}
