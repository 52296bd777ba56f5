//! An HTTP/1.1 client with every byte in the test's hands.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};

use crate::{Response, Wire, tls, within};

/// A connection that bytes go over.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// One connection to the proxy.
pub struct Client {
    wire: Wire<Box<dyn Io>>,
    begun: Instant,
}

impl Client {
    /// Connects over plain TCP.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = within("a connection", TcpStream::connect(address)).await.expect("a connection");
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    /// Connects from a certain local address.
    pub async fn connect_from(source: &str, address: SocketAddr) -> Self {
        let source: IpAddr = source.parse().expect("an address");
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        Self::over(within("a connection", socket.connect(address)).await.expect("a connection"))
    }

    /// Connects over TLS with ALPN `http/1.1`; `name` is asked for in SNI and checked in the
    /// certificate.
    pub async fn tls(address: SocketAddr, root: &CertificateDer<'static>, name: &str) -> Self {
        Self::over(tls::connect(address, root, name, &["http/1.1"]).await)
    }

    /// ListenerProtocol over any connection.
    pub fn over(io: impl Io + 'static) -> Self {
        Self { wire: Wire::new(Box::new(io)), begun: Instant::now() }
    }

    /// The bytes themselves.
    pub fn wire(&mut self) -> &mut Wire<Box<dyn Io>> {
        &mut self.wire
    }

    /// Writes bytes; that the proxy has closed is noticed when the response is read.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.begun = Instant::now();
        let _ = within("the proxy to read", self.wire.send(bytes)).await;
    }

    /// Writes one chunk of a chunked body.
    pub async fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        within("the proxy to read", self.wire.send_chunk(bytes)).await.expect("an open connection");
    }

    /// Writes a head, header fields exactly as given.
    pub async fn request(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) {
        self.send(head(method, target, headers)).await;
    }

    /// The next response's head, the 1xx responses before it collected.
    pub async fn head(&mut self) -> Response {
        self.try_head().await.expect("a response").expect("a response, not the end of the connection")
    }

    /// The next response's head; `None` when the connection ends instead.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn try_head(&mut self) -> io::Result<Option<Response>> {
        let mut informational = Vec::new();
        loop {
            let Some(head) = within("a response", self.wire.head()).await? else { return Ok(None) };
            let mut response = Response::of_head(head);
            if (100..200).contains(&response.status) && response.status != 101 {
                informational.push(response);
                continue;
            }
            response.informational = informational;
            return Ok(Some(response));
        }
    }

    /// The next chunk of a chunked response; empty for the last one.
    pub async fn next_chunk(&mut self) -> Vec<u8> {
        within("a chunk", self.wire.chunk()).await.expect("a chunk")
    }

    /// Reads the body that belongs to `response`; how it ended is in its `clean`.
    pub async fn body(&mut self, mut response: Response, method: &str) -> Response {
        if method == "HEAD" || response.status < 200 || response.status == 204 || response.status == 304 {
            return self.done(response);
        }
        let coding = response.headers.get("transfer-encoding").unwrap_or_default().to_ascii_lowercase();
        if coding.contains("chunked") {
            loop {
                match within("the body", self.wire.chunk()).await {
                    Ok(piece) if piece.is_empty() => return self.done(response),
                    Ok(piece) => response.body.extend_from_slice(&piece),
                    Err(_) => {
                        response.clean = false;
                        return self.done(response);
                    }
                }
            }
        }
        let length: Option<usize> =
            response.headers.get("content-length").map(|length| length.parse().expect("a length"));
        while length.is_none_or(|length| response.body.len() < length) {
            let most = length.map_or(usize::MAX, |length| length - response.body.len());
            match within("the body", self.wire.some(most)).await {
                Ok(piece) if piece.is_empty() => {
                    response.clean = length.is_none();
                    break;
                }
                Ok(piece) => response.body.extend_from_slice(&piece),
                Err(_) => {
                    response.clean = false;
                    break;
                }
            }
        }
        self.done(response)
    }

    fn done(&self, mut response: Response) -> Response {
        response.took = self.begun.elapsed();
        response
    }

    /// The next response, whole.
    pub async fn response(&mut self, method: &str) -> Response {
        let head = self.head().await;
        self.body(head, method).await
    }

    /// A request and its response; a body gets a Content-Length unless its framing is given.
    pub async fn call(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Response {
        let body = body.as_ref();
        let length = body.len().to_string();
        let mut headers = headers.to_vec();
        let framed = headers.iter().any(|(name, _)| {
            name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding")
        });
        if !body.is_empty() && !framed {
            headers.push(("Content-Length", &length));
        }
        let mut bytes = head(method, target, &headers);
        bytes.extend_from_slice(body);
        let begun = Instant::now();
        self.send(bytes).await;
        self.begun = begun;
        self.response(method).await
    }

    /// Whether the proxy has ended the connection without another byte.
    pub async fn ended(&mut self) -> bool {
        within("the end of the connection", self.wire.some(1)).await.map_or(true, |bytes| bytes.is_empty())
    }
}

fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts::{self, Framing};
    use crate::{Gate, Origin};

    async fn get(origin: &Origin) -> Response {
        Client::connect(origin.address()).await.call("GET", "/", &[], "").await
    }

    #[tokio::test]
    async fn every_framing_is_read_to_its_clean_end() {
        for framing in [Framing::Chunked, Framing::Length, Framing::Close] {
            let gate = Gate::new();
            gate.open();
            gate.open();
            let origin = Origin::scripted(scripts::drip(framing, "text/plain", &["ab", "cd"], &gate)).await;
            let response = get(&origin).await;
            assert_eq!((response.text().as_str(), response.clean), ("abcd", true), "{framing:?}");
        }
    }

    #[tokio::test]
    async fn a_cut_body_is_not_clean() {
        for (framing, reset) in [
            (Framing::Chunked, false),
            (Framing::Length, false),
            (Framing::Chunked, true),
            (Framing::Close, true),
        ] {
            let gate = Gate::new();
            let origin = Origin::scripted(scripts::cut(framing, &gate, reset)).await;
            let mut client = Client::connect(origin.address()).await;
            client.request("GET", "/", &[]).await;
            let head = client.head().await;
            gate.open();
            let response = client.body(head, "GET").await;
            assert!(!response.clean, "{framing:?} {}", response.brief());
        }
    }

    #[tokio::test]
    async fn informational_responses_are_collected() {
        let origin = Origin::raw(
            "HTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
        let response = get(&origin).await;
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        assert_eq!(response.informational[0].headers.get("link"), Some("a"));
    }
}
