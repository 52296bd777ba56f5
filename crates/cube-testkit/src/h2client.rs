//! An HTTP/2 client: several requests on one connection, frames as the test wants them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::client::Io;
use crate::{Headers, Response, tls, within};

/// One HTTP/2 connection.
#[derive(Clone)]
pub struct H2Client {
    requests: SendRequest<Bytes>,
    connection: AbortHandle,
    scheme: &'static str,
}

/// A response whose body the test reads piece by piece.
pub struct H2Response {
    /// Its head.
    pub head: Response,
    body: h2::RecvStream,
    stream: Option<h2::SendStream<Bytes>>,
}

/// The rest of a request's body.
pub struct H2Body(h2::SendStream<Bytes>);

impl H2Body {
    /// One DATA frame, or several where the window asks for it.
    ///
    /// # Errors
    /// What the stream says, a reset by the proxy for example.
    pub async fn data(&mut self, bytes: impl Into<Bytes>, end: bool) -> Result<(), h2::Error> {
        send(&mut self.0, bytes.into(), end).await
    }
}

async fn send(stream: &mut h2::SendStream<Bytes>, mut bytes: Bytes, end: bool) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = within("room in the window", std::future::poll_fn(|cx| stream.poll_capacity(cx)));
        let Some(room) = room.await.transpose()? else { break };
        let piece = bytes.split_to(room.min(bytes.len()));
        let last = end && bytes.is_empty();
        stream.send_data(piece, last)?;
        if last {
            return Ok(());
        }
    }
    if end { stream.send_data(Bytes::new(), true) } else { Ok(()) }
}

/// A request whose body the test writes frame by frame.
pub struct H2Upload {
    stream: h2::SendStream<Bytes>,
    response: ResponseFuture,
    begun: Instant,
}

impl H2Client {
    /// Over TLS with ALPN `h2`; `name` is asked for in SNI and checked in the certificate.
    pub async fn tls(address: SocketAddr, root: &CertificateDer<'static>, name: &str) -> Self {
        let stream = tls::connect(address, root, name, &["h2"]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "ALPN");
        Self::over(stream, "https").await
    }

    /// Plaintext with prior knowledge.
    pub async fn plain(address: SocketAddr) -> Self {
        let stream = within("a connection", TcpStream::connect(address)).await.expect("a connection");
        stream.set_nodelay(true).unwrap();
        Self::over(stream, "http").await
    }

    async fn over(io: impl Io + 'static, scheme: &'static str) -> Self {
        let handshake = within("an HTTP/2 handshake", h2::client::handshake(io)).await;
        let (requests, connection) = handshake.expect("an HTTP/2 handshake");
        // Ends with the connection; how it ended is seen by the requests on it.
        let connection = tokio::spawn(connection).abort_handle();
        Self { requests, connection, scheme }
    }

    /// Closes the connection, whatever runs on it.
    pub fn abort(self) {
        self.connection.abort();
    }

    /// Whether it takes new requests: the server has neither said that it leaves (GOAWAY) nor left.
    pub async fn takes_requests(&self) -> bool {
        within("room for a stream", self.requests.clone().ready()).await.is_ok()
    }

    /// Sends a head and leaves the body to the test.
    pub async fn open(
        &self,
        method: &str,
        authority: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> H2Upload {
        self.start(method, authority, target, headers, false).await
    }

    async fn start(
        &self,
        method: &str,
        authority: &str,
        target: &str,
        headers: &[(&str, &str)],
        end: bool,
    ) -> H2Upload {
        let started = self.try_start(method, authority, target, headers, end).await;
        started.expect("a connection that takes requests")
    }

    /// `None`: the connection takes no further request, and none was sent.
    async fn try_start(
        &self,
        method: &str,
        authority: &str,
        target: &str,
        headers: &[(&str, &str)],
        end: bool,
    ) -> Option<H2Upload> {
        let mut request =
            Request::builder().method(method).uri(format!("{}://{authority}{target}", self.scheme));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        let ready = within("room for a stream", self.requests.clone().ready()).await;
        let (response, stream) = ready.ok()?.send_request(request, end).ok()?;
        Some(H2Upload { stream, response, begun: Instant::now() })
    }

    /// The same as [`H2Client::get`] on a connection that may be about to end: `None` when it takes
    /// no further request.
    pub async fn try_get(&self, authority: &str, target: &str, headers: &[(&str, &str)]) -> Option<Response> {
        let started = self.try_start("GET", authority, target, headers, true).await?;
        Some(started.response().await)
    }

    /// Sends a whole request without a body; its response is left to the test.
    pub async fn ask(&self, authority: &str, target: &str, headers: &[(&str, &str)]) -> H2Upload {
        self.start("GET", authority, target, headers, true).await
    }

    /// A request without body, and its response.
    pub async fn get(&self, authority: &str, target: &str, headers: &[(&str, &str)]) -> Response {
        self.start("GET", authority, target, headers, true).await.response().await
    }

    /// A request that ends with its head, whatever its method, and its response.
    pub async fn bare(
        &self,
        method: &str,
        authority: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Response {
        self.start(method, authority, target, headers, true).await.response().await
    }

    /// The same with HEAD.
    pub async fn head(&self, authority: &str, target: &str, headers: &[(&str, &str)]) -> Response {
        self.start("HEAD", authority, target, headers, true).await.response().await
    }
}

impl H2Upload {
    /// One DATA frame, or several where the window asks for it.
    ///
    /// # Errors
    /// What the stream says, a reset by the proxy for example.
    pub async fn data(&mut self, bytes: impl Into<Bytes>, end: bool) -> Result<(), h2::Error> {
        send(&mut self.stream, bytes.into(), end).await
    }

    /// Sends so many bytes, unless the window stays shut for a moment: then nothing, and `false`.
    pub async fn fill(&mut self, count: usize) -> bool {
        self.stream.reserve_capacity(count);
        let room = std::future::poll_fn(|cx| self.stream.poll_capacity(cx));
        match tokio::time::timeout(Duration::from_millis(300), room).await {
            Ok(Some(Ok(room))) => self.stream.send_data(vec![7; room.min(count)].into(), false).is_ok(),
            _ => false,
        }
    }

    /// The response's head; its body, and the rest of the request's, are left to the test.
    pub async fn begun(self) -> H2Response {
        let Self { stream, response, begun } = self;
        let (head, body) = within("a response", response).await.expect("a response").into_parts();
        let head = Response {
            version: "HTTP/2.0".to_owned(),
            status: head.status.as_u16(),
            headers: pairs(&head.headers),
            took: begun.elapsed(),
            ..Response::default()
        };
        H2Response { head, body, stream: Some(stream) }
    }

    /// The response's head, with the two directions apart: what is left to send, and to read.
    pub async fn split(self) -> (H2Body, H2Response) {
        let H2Response { head, body, stream } = self.begun().await;
        (H2Body(stream.expect("not split yet")), H2Response { head, body, stream: None })
    }

    /// Gives the request up with RST_STREAM.
    pub fn reset(mut self) {
        self.stream.send_reset(h2::Reason::CANCEL);
    }

    /// The response, whole; it is not `clean` when the stream was reset.
    pub async fn response(self) -> Response {
        self.outcome().await.expect("a response")
    }

    /// The same where there may be none.
    ///
    /// # Errors
    /// What the stream says that was reset before the response's head.
    pub async fn outcome(self) -> Result<Response, h2::Error> {
        let Self { stream: _open, response, begun } = self;
        let (head, mut body) = within("a response", response).await?.into_parts();
        let mut response = Response {
            version: "HTTP/2.0".to_owned(),
            status: head.status.as_u16(),
            headers: pairs(&head.headers),
            clean: true,
            ..Response::default()
        };
        while let Some(piece) = within("the body", body.data()).await {
            let Ok(piece) = piece else {
                response.clean = false;
                break;
            };
            let _ = body.flow_control().release_capacity(piece.len());
            response.body.extend_from_slice(&piece);
        }
        if response.clean {
            match within("the trailers", body.trailers()).await {
                Ok(trailers) => response.trailers = trailers.as_ref().map(pairs).unwrap_or_default(),
                Err(_) => response.clean = false,
            }
        }
        response.took = begun.elapsed();
        Ok(response)
    }
}

impl H2Response {
    /// The next piece of the body as it arrives; `None` at its clean end.
    ///
    /// # Errors
    /// What the stream says, a reset by the proxy for example.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, h2::Error> {
        loop {
            let Some(piece) = within("a piece", self.body.data()).await.transpose()? else {
                return Ok(None);
            };
            let _ = self.body.flow_control().release_capacity(piece.len());
            // An empty one is the end, and says so next.
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    /// Gives the request up with RST_STREAM.
    pub fn reset(self) {
        self.stream.expect("not split").send_reset(h2::Reason::CANCEL);
    }
}

fn pairs(headers: &HeaderMap) -> Headers {
    let text = |value: &http::HeaderValue| value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
    Headers::new(headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_arrives_frame_by_frame_and_the_response_comes_back() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((mut request, mut respond))) = connection.accept().await {
                tokio::spawn(async move {
                    let mut frames = Vec::new();
                    while let Some(Ok(piece)) = request.body_mut().data().await {
                        frames.push(piece.len());
                    }
                    let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                    let text = format!("{} {frames:?}", request.uri());
                    stream.send_data(text.into(), false).unwrap();
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    stream.send_trailers(trailers).unwrap();
                });
            }
        });
        let client = H2Client::plain(address).await;
        let mut upload = client.open("POST", "a.test", "/x", &[]).await;
        upload.data("abc", false).await.unwrap();
        upload.data("", true).await.unwrap();
        let response = upload.response().await;
        assert_eq!(response.text(), "http://a.test/x [3, 0]");
        assert_eq!((response.clean, response.trailers.get("grpc-status")), (true, Some("0")));
        serving.abort();
    }
}
