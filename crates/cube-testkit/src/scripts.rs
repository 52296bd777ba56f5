//! What an origin can be told to do with a request. Each is a script for
//! [`crate::Origin::scripted`].

use std::future::Future;
use std::io;
use std::pin::Pin;

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::origin::ExchangeResult;
use crate::{Exchange, Gate};

type Doing = Pin<Box<dyn Future<Output = ExchangeResult> + Send>>;

/// Answers with what arrived, as JSON; [`crate::Response::seen`] reads it.
///
/// # Errors
/// What the connection says.
pub async fn echo(mut exchange: Exchange) -> ExchangeResult {
    let body = exchange.body().await?;
    let request = &exchange.request;
    let seen = serde_json::json!({
        "origin": exchange.origin(),
        "connection": request.connection,
        "method": request.method,
        "target": request.target,
        "headers": request.headers.pairs(),
        "body": body,
    });
    exchange.reply(200, &[("Content-Type", "application/json")], seen.to_string()).await
}

/// Always the same response.
pub fn reply(
    status: u16,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> impl Fn(Exchange) -> Doing + Send + Sync + 'static {
    let headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let body = body.as_ref().to_vec();
    move |exchange| {
        let (headers, body) = (headers.clone(), body.clone());
        Box::pin(async move {
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            exchange.reply(status, &headers, body).await
        })
    }
}

/// Sends back what comes in, piece by piece as it comes, until the body ends.
///
/// # Errors
/// What the connection says.
pub async fn mirror(mut exchange: Exchange) -> ExchangeResult {
    exchange.start(200, &[("Transfer-Encoding", "chunked")]).await?;
    loop {
        let piece = exchange.piece().await?;
        if piece.is_empty() {
            return exchange.end().await;
        }
        exchange.chunk(piece).await?;
    }
}

/// Opens the gate for each piece that comes in, and sends all of them back at the end.
pub fn collect(arrived: &Gate) -> impl Fn(Exchange) -> Doing + Send + Sync + 'static {
    let arrived = arrived.clone();
    move |mut exchange| {
        let arrived = arrived.clone();
        Box::pin(async move {
            let mut all = Vec::new();
            loop {
                let piece = exchange.piece().await?;
                if piece.is_empty() {
                    return exchange.reply(200, &[], all).await;
                }
                all.extend(piece);
                arrived.open();
            }
        })
    }
}

/// These bytes for a response, whatever they are, then a FIN.
pub fn raw(bytes: impl AsRef<[u8]>) -> impl Fn(Exchange) -> Doing + Send + Sync + 'static {
    let bytes = bytes.as_ref().to_vec();
    move |mut exchange| {
        let bytes = bytes.clone();
        Box::pin(async move {
            exchange.body().await?;
            exchange.send(bytes).await?;
            exchange.close().await
        })
    }
}

/// Never a response; the connection stays until the other side ends it.
///
/// # Errors
/// Never.
pub async fn hang(mut exchange: Exchange) -> ExchangeResult {
    exchange.gone().await;
    exchange.close().await
}

/// How the length of a response is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// `Content-Length`.
    Length,
    /// The end of the connection.
    Close,
}

impl Framing {
    async fn start(self, exchange: &mut Exchange, length: usize, kind: &str) -> io::Result<()> {
        let length = length.to_string();
        let framing = match self {
            Framing::Chunked => ("Transfer-Encoding", "chunked"),
            Framing::Length => ("Content-Length", length.as_str()),
            Framing::Close => ("Connection", "close"),
        };
        exchange.start(200, &[framing, ("Content-Type", kind)]).await
    }

    async fn send(self, exchange: &mut Exchange, piece: &[u8]) -> io::Result<()> {
        if self == Framing::Chunked { exchange.chunk(piece).await } else { exchange.send(piece).await }
    }
}

/// The head at once, then each piece when the gate is opened once more.
pub fn drip(
    framing: Framing,
    kind: &str,
    pieces: &[&str],
    gate: &Gate,
) -> impl Fn(Exchange) -> Doing + Send + Sync + 'static {
    let pieces: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
    let (kind, gate) = (kind.to_owned(), gate.clone());
    move |mut exchange| {
        let (kind, pieces, gate) = (kind.clone(), pieces.clone(), gate.clone());
        Box::pin(async move {
            exchange.body().await?;
            framing.start(&mut exchange, pieces.iter().map(String::len).sum(), &kind).await?;
            for piece in &pieces {
                gate.pass().await;
                framing.send(&mut exchange, piece.as_bytes()).await?;
            }
            match framing {
                Framing::Chunked => exchange.end().await,
                Framing::Length => Ok(exchange),
                Framing::Close => exchange.close().await,
            }
        })
    }
}

/// `half`, and when the gate opens the connection dies with the rest unsent: by a RST, or by a FIN.
pub fn cut(framing: Framing, gate: &Gate, reset: bool) -> impl Fn(Exchange) -> Doing + Send + Sync + 'static {
    let gate = gate.clone();
    move |mut exchange| {
        let gate = gate.clone();
        Box::pin(async move {
            exchange.body().await?;
            framing.start(&mut exchange, 1000, "text/plain").await?;
            framing.send(&mut exchange, b"half").await?;
            gate.pass().await;
            if reset { exchange.reset().await } else { exchange.close().await }
        })
    }
}

/// A WebSocket that sends every message back; a request that is no handshake gets a 400.
///
/// # Errors
/// What the connection says.
pub async fn websocket(mut exchange: Exchange) -> ExchangeResult {
    let headers = &exchange.request.headers;
    let upgrade = headers.get("upgrade").unwrap_or_default().eq_ignore_ascii_case("websocket");
    let named = headers.get("connection").unwrap_or_default().to_ascii_lowercase().contains("upgrade");
    let (true, true, Some(key)) = (upgrade, named, headers.get("sec-websocket-key")) else {
        return exchange.reply(400, &[], "no handshake").await;
    };
    let accept = derive_accept_key(key.as_bytes());
    let protocol = headers.get("sec-websocket-protocol").map(str::to_owned);
    let mut response =
        vec![("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept.as_str())];
    response.extend(protocol.as_deref().map(|protocol| ("Sec-WebSocket-Protocol", protocol)));
    exchange.start(101, &response).await?;
    let (stream, early) = exchange.into_wire().into_parts();
    let mut socket = WebSocketStream::from_partially_read(stream, early.to_vec(), Role::Server, None).await;
    while let Some(Ok(message)) = socket.next().await {
        // Pings and closes are answered by the library.
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            break;
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// A tunnel of another protocol: a greeting together with the 101, then every piece reversed.
pub fn tunnel(protocol: &str) -> impl Fn(Exchange) -> Doing + Send + Sync + 'static {
    let protocol = protocol.to_owned();
    move |mut exchange| {
        let protocol = protocol.clone();
        Box::pin(async move {
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: {protocol}\r\nConnection: Upgrade\r\n\r\nhello\n"
            );
            exchange.send(head).await?;
            loop {
                let mut piece = exchange.wire().some(4096).await?;
                if piece.is_empty() {
                    return exchange.close().await;
                }
                piece.reverse();
                exchange.send(piece).await?;
            }
        })
    }
}
