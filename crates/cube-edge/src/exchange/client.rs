//! The client's side of one request: its connection, what comes in of the body, what leaves of the
//! response. The hooks see it as a session of Pingora's, [`Down`].

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, Method, StatusCode, Version};
use parking_lot::Mutex;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::custom::{CustomMessageWrite, server};
use pingora::protocols::l4::socket::SocketAddr;
use pingora::{Error, ErrorType, OrErr, Result};

use super::body::Body;
use super::head::{Request, content_length, is_chunked, put_response, without_body};
use super::out::{Framing, Out};
use crate::connection::ClientStream;
use crate::drain::Drain;

/// What the session and the relay share. Only the request's own task uses it.
pub(super) struct Client {
    pub(super) stream: Box<ClientStream>,
    /// What is still to come of the request's body.
    pub(super) body: Body,
    pub(super) out: Out,
    /// The head that is to be put next, as it came in; empty where it did not.
    pub(super) came: Bytes,
    /// How the response's body is framed; none before its head is there.
    framing: Option<Framing>,
    /// The connection ends with this request.
    pub(super) closes: bool,
    drain: Arc<Drain>,
    method: Method,
    version: Version,
}

pub(super) type Shared = Arc<Mutex<Client>>;

impl Client {
    /// Takes a piece of the request's body out of what has come in.
    pub(super) fn next_piece(&mut self) -> Result<Option<(Bytes, bool)>> {
        self.body
            .next(&mut self.stream.ahead().bytes)
            .map_err(|_| Error::explain(ErrorType::InvalidHTTPHeader, "the chunks of a request").into_down())
    }

    /// Puts a response's head, as it leaves.
    fn put_head(&mut self, head: &ResponseHeader) {
        let came = &std::mem::take(&mut self.came);
        let interim = head.status.is_informational() && head.status != StatusCode::SWITCHING_PROTOCOLS;
        if interim {
            // HTTP/1.0 defines no 1xx (RFC 9110, 15.2).
            if self.version >= Version::HTTP_11 {
                put_response(head, came, None, self.out.head());
            }
            return;
        }
        let framing = if head.status == StatusCode::SWITCHING_PROTOCOLS {
            Framing::Close
        } else if without_body(head.status, &self.method) {
            Framing::Length(0)
        } else if is_chunked(&head.headers) {
            Framing::Chunked
        } else {
            content_length(&head.headers).map_or(Framing::Close, Framing::Length)
        };
        // Whoever is told before his request is over may leave the rest of it unsent, and what he sends
        // then would be taken for that rest.
        self.closes |= framing == Framing::Close || !self.body.is_over() || self.drain.closing();
        self.framing = Some(framing);
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            put_response(head, came, None, self.out.head());
            return;
        }
        let upgrade = self.stream.conn().take_nominate_upgrade();
        let connection = match (upgrade, self.closes) {
            (true, true) => "Upgrade, close",
            (true, false) => "Upgrade, keep-alive",
            (false, true) => "close",
            (false, false) => "keep-alive",
        };
        put_response(head, came, Some(connection), self.out.head());
    }

    /// Puts a piece of the response's body.
    pub(super) fn put_body(&mut self, piece: Bytes, end: bool) {
        if let Some(framing) = &mut self.framing {
            self.out.body(piece, end, framing);
        }
    }

    /// Writes what is to be written. Ready when nothing is left.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            ready!(self.stream.poll_out(cx, &mut self.out))?;
        }
        self.stream.poll_flushed(cx)
    }
}

/// Writes all that is to be written.
pub(super) async fn flush(client: &Shared) -> Result<()> {
    poll_fn(|cx| client.lock().poll_flush(cx)).await.or_err(ErrorType::WriteError, "writing a response")
}

/// The client's side as a session of Pingora's: what the hooks read of the request, and where they
/// write the proxy's own responses.
pub(super) struct Down {
    client: Shared,
    request: RequestHeader,
    raw: Bytes,
    empty: bool,
    response: Option<Box<ResponseHeader>>,
}

impl Down {
    /// Both views of one request.
    pub(super) fn new(
        stream: Box<ClientStream>,
        request: Request,
        drain: Arc<Drain>,
        closes: bool,
    ) -> (Self, Shared) {
        let Request { head, raw, body, keep_alive } = request;
        let empty = body.is_over();
        let client = Arc::new(Mutex::new(Client {
            stream,
            body,
            out: Out::default(),
            came: Bytes::new(),
            framing: None,
            closes: closes || !keep_alive,
            drain,
            method: head.method.clone(),
            version: head.version,
        }));
        (Self { client: client.clone(), request: head, raw, empty, response: None }, client)
    }

    fn put_head(&mut self, head: Box<ResponseHeader>) -> Result<()> {
        if self.response.is_some() {
            return Ok(()); // said already
        }
        self.client.lock().put_head(&head);
        if !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS {
            self.response = Some(head);
        }
        Ok(())
    }
}

type Messages = Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

#[async_trait]
impl server::Session for Down {
    fn req_header(&self) -> &RequestHeader {
        &self.request
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        &mut self.request
    }

    /// The relay reads the body; nothing else does.
    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        Ok(())
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, _end: bool) -> Result<()> {
        self.put_head(head)
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, _end: bool) -> Result<()> {
        self.put_head(Box::new(head.clone()))
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.client.lock().put_body(data, end);
        Ok(())
    }

    async fn write_trailers(&mut self, _trailers: HeaderMap) -> Result<()> {
        Ok(())
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let mut over = false;
        for task in tasks {
            over = task.is_end();
            match task {
                HttpTask::Header(head, _) => self.put_head(head)?,
                HttpTask::Body(data, end) | HttpTask::UpgradedBody(data, end) => {
                    self.client.lock().put_body(data.unwrap_or_default(), end);
                }
                HttpTask::Trailer(_) | HttpTask::Done => self.client.lock().put_body(Bytes::new(), true),
                HttpTask::Failed(error) => return Err(error),
            }
        }
        Ok(over)
    }

    // The relay has one time-out for both sides, out of the peer's options.
    fn set_read_timeout(&mut self, _timeout: Option<Duration>) {}

    fn get_read_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_write_timeout(&mut self, _timeout: Option<Duration>) {}

    fn get_write_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_total_drain_timeout(&mut self, _timeout: Option<Duration>) {}

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        None
    }

    fn request_summary(&self) -> String {
        String::new()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.response.as_deref()
    }

    /// Writes what there is, then says the end of the connection.
    async fn shutdown(&mut self, _code: u32, _context: &str) {
        self.client.lock().closes = true;
        // An error says that the client has left meanwhile.
        if flush(&self.client).await.is_ok() {
            let _ = poll_fn(|cx| self.client.lock().stream.poll_end(cx)).await;
        }
    }

    fn is_body_done(&mut self) -> bool {
        self.client.lock().body.is_over()
    }

    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn is_body_empty(&mut self) -> bool {
        self.empty
    }

    async fn read_body_or_idle(&mut self, _no_body_expected: bool) -> Result<Option<Bytes>> {
        Ok(None)
    }

    fn body_bytes_sent(&self) -> usize {
        0
    }

    fn body_bytes_read(&self) -> usize {
        0
    }

    fn digest(&self) -> Option<&Digest> {
        None
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        None
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        None
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        None
    }

    /// The head as it came in.
    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.raw.clone()
    }

    fn enable_retry_buffering(&mut self) {}

    /// Nothing is kept of a body: a request whose body was taken is not sent again.
    fn retry_buffer_truncated(&self) -> bool {
        !self.empty
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        None
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(&mut self) -> Option<Messages> {
        None
    }

    fn restore_custom_message_reader(&mut self, _reader: Messages) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(&mut self, _writer: Box<dyn CustomMessageWrite>) -> Result<()> {
        Ok(())
    }
}
