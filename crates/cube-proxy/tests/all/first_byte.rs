//! The first byte of every kind of streaming response is at the client while the application still
//! waits, and the first byte of every upload at the application while the client does: all forms,
//! HTTP/1.1 and HTTP/2 (connections.md, "Streaming").

use cube_testkit::scripts::{self, Framing};
use cube_testkit::{By, Client, Env, Gate, H2Client, H2Response, Origin, Sandbox, within};

use crate::support::{cube, tls};

/// What the ways to stream have in common: how the end is told, and what is said to be in it.
const KINDS: [(Framing, &str); 6] = [
    (Framing::Chunked, "application/octet-stream"),
    (Framing::Length, "application/json"),
    (Framing::Close, "text/plain"),
    (Framing::Chunked, "text/event-stream"),
    (Framing::Chunked, "application/connect+json"),
    // Over HTTP/1.1 nothing but a content type.
    (Framing::Chunked, "application/grpc-web+proto"),
];
const PIECES: [&str; 3] = ["data: 0\n\n", "data: 1\n\n", "data: 2\n\n"];

/// What is left to read of a response.
enum Reader {
    Chunked(Client),
    Plain(Client),
    H2(H2Response),
}

impl Reader {
    async fn next(&mut self) -> Vec<u8> {
        match self {
            Reader::Chunked(client) => client.next_chunk().await,
            Reader::Plain(client) => {
                within("a piece", client.wire().exactly(PIECES[0].len())).await.expect("a piece")
            }
            Reader::H2(response) => {
                response.piece().await.expect("no reset").expect("a piece, not the end").to_vec()
            }
        }
    }

    async fn is_over(&mut self) -> bool {
        match self {
            Reader::Chunked(client) => client.next_chunk().await.is_empty(),
            // The length says it.
            Reader::Plain(_) => true,
            Reader::H2(response) => response.piece().await.expect("no reset").is_none(),
        }
    }
}

/// The authority, target and fields that name a sandbox over HTTP/2.
fn naming(
    env: &Env,
    by: By,
    sandbox: &Sandbox,
    target: &str,
) -> (String, String, Vec<(&'static str, String)>) {
    let (target, named) = env.naming(by, sandbox, target);
    let authority = if by == By::Host { sandbox.host() } else { "sandbox.cube.test".to_owned() };
    let named = named.into_iter().filter(|(name, _)| *name != "Host").collect();
    (authority, target, named)
}

fn pairs<'a>(named: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    named.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

async fn h1(env: &Env, by: By, sandbox: &Sandbox) -> Reader {
    let (target, named) = env.naming(by, sandbox, "/s");
    let mut client = env.client().await;
    client.request("GET", &target, &pairs(&named)).await;
    let head = client.head().await;
    assert_eq!(head.status, 200);
    if head.headers.has("Transfer-Encoding") { Reader::Chunked(client) } else { Reader::Plain(client) }
}

async fn h2(env: &Env, client: &H2Client, by: By, sandbox: &Sandbox) -> Reader {
    let (authority, target, named) = naming(env, by, sandbox, "/s");
    let response = client.ask(&authority, &target, &pairs(&named)).await.begun().await;
    assert_eq!(response.head.status, 200);
    Reader::H2(response)
}

#[tokio::test]
async fn of_every_response() {
    let tls = tls().await;
    for (framing, kind) in KINDS {
        let gate = Gate::new();
        let origin = Origin::scripted(scripts::drip(framing, kind, &PIECES, &gate)).await;
        let sandbox = tls.env.sandbox(&origin).await;
        let client = tls.h2().await;
        for by in By::ALL {
            for over_h2 in [false, true] {
                // The head is here before any of the body was written.
                let mut reader = if over_h2 {
                    h2(&tls.env, &client, by, &sandbox).await
                } else {
                    h1(&tls.env, by, &sandbox).await
                };
                for piece in PIECES {
                    // Nor is the next piece written before this one was seen.
                    gate.open();
                    let got = reader.next().await;
                    assert_eq!(got, piece.as_bytes(), "{kind} {framing:?} {by:?}, HTTP/2: {over_h2}");
                }
                assert!(reader.is_over().await, "{kind} {framing:?} {by:?}, HTTP/2: {over_h2}");
            }
        }
    }
}

/// An application that says when a piece has come, and answers with all of them at the end.
async fn listener(arrived: &Gate) -> Origin {
    Origin::scripted(scripts::collect(arrived)).await
}

#[tokio::test]
async fn of_every_upload_over_http_2() {
    let tls = tls().await;
    let arrived = Gate::new();
    let origin = listener(&arrived).await;
    let sandbox = tls.env.sandbox(&origin).await;
    let client = tls.h2().await;
    for by in By::ALL {
        for length in [false, true] {
            let (authority, target, mut named) = naming(&tls.env, by, &sandbox, "/up");
            let whole = PIECES.concat();
            if length {
                named.push(("content-length", whole.len().to_string()));
            }
            let mut upload = client.open("POST", &authority, &target, &pairs(&named)).await;
            for piece in PIECES {
                upload.data(piece, false).await.unwrap();
                arrived.pass().await;
            }
            upload.data("", true).await.unwrap();
            assert_eq!(upload.response().await.passed(200).text(), whole, "{by:?}, length: {length}");
        }
    }
}

/// A head alone, whose body comes later, is at the application at once.
#[tokio::test]
async fn of_an_upload_is_its_head() {
    let env = cube().await;
    let arrived = Gate::new();
    let origin = listener(&arrived).await;
    let sandbox = env.sandbox(&origin).await;
    let mut client = env.client().await;
    client.request("POST", "/", &[("Host", &sandbox.host()), ("Content-Length", "2")]).await;
    origin.wait_for(1).await;
    client.send("ok").await;
    assert_eq!(client.response("POST").await.text(), "ok");
}
