//! The Connect protocol in JSON, as an application speaks it over HTTP/1.1.

use std::io;

use serde_json::{Value, json};

use crate::Exchange;
use crate::origin::ExchangeResult;

/// Ends a stream; what it carries says how.
const END: u8 = 2;

/// What a call is refused with.
#[derive(Debug)]
pub(super) struct Refusal {
    code: &'static str,
    message: String,
}

impl Refusal {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new("not_found", message)
    }

    fn json(&self) -> Value {
        json!({ "code": self.code, "message": self.message })
    }

    /// The status that the protocol gives the code in a unary response.
    fn status(&self) -> u16 {
        match self.code {
            "invalid_argument" => 400,
            "not_found" => 404,
            "already_exists" => 409,
            "unimplemented" => 501,
            _ => 500,
        }
    }
}

/// Reads the message of a unary call.
pub(super) async fn message(exchange: &mut Exchange) -> io::Result<Value> {
    let body = exchange.body().await?;
    serde_json::from_slice(&body).map_err(io::Error::other)
}

/// Answers a unary call.
pub(super) async fn reply(exchange: Exchange, response: Result<Value, Refusal>) -> ExchangeResult {
    let (status, body) = match response {
        Ok(message) => (200, message),
        Err(refusal) => (refusal.status(), refusal.json()),
    };
    exchange.reply(status, &[("Content-Type", "application/json")], body.to_string()).await
}

/// The messages that a client streams, as they arrive.
#[derive(Default)]
pub(super) struct Incoming {
    buffer: Vec<u8>,
}

impl Incoming {
    /// The next message; `None` at the end of the request.
    pub(super) async fn next(&mut self, exchange: &mut Exchange) -> io::Result<Option<Value>> {
        loop {
            if let Some(head) = self.buffer.first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if let Some(message) = self.buffer.get(5..5 + length) {
                    let message = serde_json::from_slice(message).map_err(io::Error::other)?;
                    self.buffer.drain(..5 + length);
                    return Ok(Some(message));
                }
            }
            let piece = exchange.piece().await?;
            if piece.is_empty() {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
            self.buffer.extend_from_slice(&piece);
        }
    }
}

/// The one message of a call that is answered by a stream.
pub(super) async fn question(exchange: &mut Exchange) -> io::Result<Value> {
    let message = Incoming::default().next(exchange).await?;
    exchange.drain().await?;
    message.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Begins a response that is a stream.
pub(super) async fn open(exchange: &mut Exchange) -> io::Result<()> {
    let headers = [("Content-Type", "application/connect+json"), ("Transfer-Encoding", "chunked")];
    exchange.start(200, &headers).await
}

/// Sends one message of it.
pub(super) async fn send(exchange: &mut Exchange, message: &Value) -> io::Result<()> {
    exchange.chunk(frame(0, message)).await
}

/// Ends it.
pub(super) async fn end(mut exchange: Exchange, refusal: Option<&Refusal>) -> ExchangeResult {
    let message = refusal.map_or_else(|| json!({}), |refusal| json!({ "error": refusal.json() }));
    exchange.chunk(frame(END, &message)).await?;
    exchange.end().await
}

fn frame(flags: u8, message: &Value) -> Vec<u8> {
    let message = message.to_string();
    let length = u32::try_from(message.len()).expect("a short message");
    let mut frame = vec![flags];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(message.as_bytes());
    frame
}
