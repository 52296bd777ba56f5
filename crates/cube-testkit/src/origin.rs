//! A server behind the proxy that does as it is told and records what it sees.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::{Headers, Wire, eventually, scripts};

/// A request as it arrived, byte for byte.
#[derive(Debug, Clone)]
pub struct Received {
    /// Which connection of the origin it came on, from 1.
    pub connection: usize,
    /// When its head had arrived.
    pub at: Instant,
    /// The head with its empty line.
    pub head: Vec<u8>,
    /// Its method.
    pub method: String,
    /// Its target.
    pub target: String,
    /// Its header fields, in order.
    pub headers: Headers,
    /// What of its body the script asked to be recorded ([`Exchange::body`]).
    pub body: Vec<u8>,
}

impl Received {
    fn parse(head: Vec<u8>, connection: usize) -> Self {
        let (line, headers) = Headers::parse(&head);
        let mut parts = line.split(' ').map(str::to_owned);
        let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        Self { connection, at: Instant::now(), method, target, headers, head, body: Vec::new() }
    }
}

struct Shared {
    name: String,
    connections: AtomicUsize,
    open: AtomicUsize,
    received: Mutex<Vec<Received>>,
}

/// One request at an origin: the script reads its body and writes the response.
pub struct Exchange {
    /// The request's head.
    pub request: Received,
    wire: Wire<TcpStream>,
    shared: Arc<Shared>,
    index: usize,
    body: Body,
    over: bool,
}

#[derive(Clone, Copy)]
enum Body {
    Left(usize),
    Chunked,
    Done,
}

/// What a script gives back: the exchange, so that its connection can carry the next one.
pub type ExchangeResult = io::Result<Exchange>;
type Script = Arc<dyn Fn(Exchange) -> Pin<Box<dyn Future<Output = ExchangeResult> + Send>> + Send + Sync>;

impl Exchange {
    /// The name of the origin.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.shared.name
    }

    /// The requests that came on this connection before this one.
    #[must_use]
    pub fn earlier_on_this_connection(&self) -> usize {
        let received = self.shared.received.lock().unwrap();
        received.iter().filter(|one| one.connection == self.request.connection).count() - 1
    }

    /// The connection itself.
    pub fn wire(&mut self) -> &mut Wire<TcpStream> {
        &mut self.wire
    }

    /// The connection for a tunnel: no further request is read from it.
    #[must_use]
    pub fn into_wire(self) -> Wire<TcpStream> {
        self.wire
    }

    /// The next piece of the request's body as it arrives; empty at its end.
    ///
    /// # Errors
    /// When the connection ends before the body does.
    pub async fn piece(&mut self) -> io::Result<Vec<u8>> {
        match self.body {
            Body::Done | Body::Left(0) => {
                self.body = Body::Done;
                Ok(Vec::new())
            }
            Body::Left(left) => {
                let piece = self.wire.some(left).await?;
                if piece.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.body = Body::Left(left - piece.len());
                Ok(piece)
            }
            Body::Chunked => {
                let piece = self.wire.chunk().await?;
                if piece.is_empty() {
                    self.body = Body::Done;
                }
                Ok(piece)
            }
        }
    }

    /// Reads the whole body and records it with the request.
    ///
    /// # Errors
    /// When the connection ends before the body does.
    pub async fn body(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let piece = self.piece().await?;
            if piece.is_empty() {
                return Ok(self.request.body.clone());
            }
            self.request.body.extend_from_slice(&piece);
            self.shared.received.lock().unwrap()[self.index].body.extend_from_slice(&piece);
        }
    }

    /// Reads the whole body and forgets it; its length.
    ///
    /// # Errors
    /// When the connection ends before the body does.
    pub async fn drain(&mut self) -> io::Result<usize> {
        let mut length = 0;
        loop {
            match self.piece().await?.len() {
                0 => return Ok(length),
                piece => length += piece,
            }
        }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.wire.send(bytes).await
    }

    /// Writes a status line and header fields.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn start(&mut self, status: u16, headers: &[(&str, &str)]) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {status} Scripted\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.wire.send(head).await
    }

    /// Writes one chunk of a chunked response.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn chunk(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.wire.send_chunk(bytes).await
    }

    /// Ends a chunked response.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn end(mut self) -> ExchangeResult {
        self.wire.send("0\r\n\r\n").await?;
        Ok(self)
    }

    /// Reads what is left of the request and answers it, with a Content-Length where one belongs.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn reply(
        mut self,
        status: u16,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]> + Send,
    ) -> ExchangeResult {
        self.body().await?;
        let length = body.as_ref().len().to_string();
        let mut headers = headers.to_vec();
        let bare = status == 204 || status == 304;
        if !bare {
            headers.push(("Content-Length", &length));
        }
        self.start(status, &headers).await?;
        if !bare && self.request.method != "HEAD" {
            self.send(body.as_ref()).await?;
        }
        Ok(self)
    }

    /// Ends the connection with a FIN.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn close(mut self) -> ExchangeResult {
        self.wire.finish().await?;
        self.over = true;
        Ok(self)
    }

    /// Ends the connection with a RST.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn reset(mut self) -> ExchangeResult {
        self.wire.io().set_zero_linger()?;
        self.over = true;
        Ok(self)
    }

    /// Waits until the other side ends the connection.
    pub async fn gone(&mut self) {
        while let Ok(piece) = self.wire.some(4096).await {
            if piece.is_empty() {
                return;
            }
        }
    }
}

/// An origin that is being described.
pub struct OriginBuilder {
    host: IpAddr,
    port: u16,
    name: String,
}

impl OriginBuilder {
    /// The loopback address to listen on; 127.0.0.1 by default.
    #[must_use]
    pub fn on(mut self, host: &str) -> Self {
        self.host = host.parse().expect("an address");
        self
    }

    /// The port to listen on; a free one by default.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Opens the port and answers each request with `script`.
    pub async fn serve<F, Fut>(self, script: F) -> Origin
    where
        F: Fn(Exchange) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ExchangeResult> + Send + 'static,
    {
        let socket = if self.host.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind((self.host, self.port).into()).expect("a port for the origin");
        let listener = socket.listen(1024).expect("a listener");
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            name: self.name,
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            received: Mutex::new(Vec::new()),
        });
        let script: Script = Arc::new(move |exchange| Box::pin(script(exchange)));
        let task = tokio::spawn(accept(listener, Arc::clone(&shared), script)).abort_handle();
        Origin { address, shared, task }
    }

    /// Opens the port and answers with what arrived ([`scripts::echo`]).
    pub async fn echo(self) -> Origin {
        self.serve(scripts::echo).await
    }
}

/// A running origin; its port and connections close when it is dropped.
pub struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Origin {
    /// Describes one, with the name that its echoes carry.
    #[must_use]
    pub fn named(name: &str) -> OriginBuilder {
        OriginBuilder { host: [127, 0, 0, 1].into(), port: 0, name: name.to_owned() }
    }

    /// One on 127.0.0.1 that answers with what arrived.
    pub async fn echo() -> Self {
        Self::named("origin").echo().await
    }

    /// One on 127.0.0.1 that always gives the same response.
    pub async fn replying(status: u16, headers: &[(&str, &str)], body: &str) -> Self {
        Self::named("origin").serve(scripts::reply(status, headers, body)).await
    }

    /// One on 127.0.0.1 that answers with these bytes, whatever they are, and closes.
    pub async fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self::named("origin").serve(scripts::raw(bytes)).await
    }

    /// One on 127.0.0.1 that follows a script.
    pub async fn scripted<F, Fut>(script: F) -> Self
    where
        F: Fn(Exchange) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ExchangeResult> + Send + 'static,
    {
        Self::named("origin").serve(script).await
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Every request received so far, in order of arrival.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// The number of requests received so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.received.lock().unwrap().len()
    }

    /// The latest request.
    #[must_use]
    pub fn last(&self) -> Received {
        self.received().pop().expect("a request at the origin")
    }

    /// Waits until so many requests have arrived in all.
    pub async fn wait_for(&self, count: usize) {
        eventually(&format!("{count} requests at the origin"), || async {
            (self.count() >= count).then_some(())
        })
        .await;
    }

    /// Closes the port and every connection, and waits until the port refuses.
    pub async fn stop(self) {
        let address = self.address;
        drop(self);
        eventually("the origin's port to close", || async move {
            TcpStream::connect(address).await.is_err().then_some(())
        })
        .await;
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, script: Script) {
    // Dropped with this task, and the connections with it.
    let mut serving = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let (shared, script) = (Arc::clone(&shared), Arc::clone(&script));
        serving.spawn(async move {
            shared.open.fetch_add(1, Ordering::SeqCst);
            let _closed = OnDrop(Arc::clone(&shared));
            // What breaks a connection is what the test is about; it looks at its own side.
            let _ = serve(stream, number, &shared, &script).await;
        });
    }
}

struct OnDrop(Arc<Shared>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(stream: TcpStream, number: usize, shared: &Arc<Shared>, script: &Script) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut wire = Wire::new(stream);
    while let Some(head) = wire.head().await? {
        let request = Received::parse(head, number);
        let length = request.headers.get("content-length").and_then(|length| length.parse().ok());
        let coding = request.headers.get("transfer-encoding").unwrap_or_default().to_ascii_lowercase();
        let body = match (coding.contains("chunked"), length) {
            (true, _) => Body::Chunked,
            (false, Some(length)) => Body::Left(length),
            (false, None) => Body::Done,
        };
        let index = {
            let mut received = shared.received.lock().unwrap();
            received.push(request.clone());
            received.len() - 1
        };
        let exchange = Exchange { request, wire, shared: Arc::clone(shared), index, body, over: false };
        let mut exchange = script(exchange).await?;
        if exchange.over {
            return Ok(());
        }
        exchange.body().await?;
        wire = exchange.wire;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[tokio::test]
    async fn a_request_is_recorded_byte_for_byte() {
        let origin = Origin::echo().await;
        let mut client = Client::connect(origin.address()).await;
        client.send(b"POST /a%2Fb?x HTTP/1.1\r\nhOsT:  a \r\nContent-Length: 2\r\n\r\nhi").await;
        let seen = client.response("POST").await.seen();
        assert_eq!((seen.target.as_str(), seen.body.as_slice()), ("/a%2Fb?x", &b"hi"[..]));
        let got = origin.last();
        assert_eq!(got.head, b"POST /a%2Fb?x HTTP/1.1\r\nhOsT:  a \r\nContent-Length: 2\r\n\r\n");
        assert_eq!((got.body.as_slice(), got.headers.get("host")), (&b"hi"[..], Some("a")));
    }

    #[tokio::test]
    async fn a_stray_terminator_is_recorded_as_a_request_of_its_own() {
        let origin = Origin::echo().await;
        let mut client = Client::connect(origin.address()).await;
        client.send(b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n").await;
        client.response("GET").await;
        client.response("GET").await;
        assert_eq!(origin.received()[0].head, b"0\r\n\r\n");
        assert_eq!(origin.connections(), 1);
    }

    #[tokio::test]
    async fn a_reset_is_seen_as_one() {
        let origin = Origin::scripted(Exchange::reset).await;
        let mut client = Client::connect(origin.address()).await;
        client.send(b"GET / HTTP/1.1\r\n\r\n").await;
        let error = client.wire().some(1).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_stopped_origin_refuses_and_drops_its_connections() {
        let origin = Origin::echo().await;
        let mut client = Client::connect(origin.address()).await;
        client.call("GET", "/", &[], "").await;
        origin.stop().await;
        assert!(client.ended().await);
    }
}
