//! gRPC by a real library (tonic), its messages plain bytes: a server with one method of each kind,
//! and a client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tower::service_fn;

use crate::client::Io;
use crate::{tls, within};

/// Messages are the bytes that they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A call as it arrived.
#[derive(Debug, Clone)]
pub struct GrpcCall {
    /// `/kit.Echo/Unary`, for example.
    pub method: String,
    /// Its authority.
    pub authority: String,
    /// What came with it.
    pub metadata: MetadataMap,
}

#[derive(Default)]
struct Shared {
    calls: Mutex<Vec<GrpcCall>>,
    sockets: Mutex<Vec<OwnedFd>>,
    running: AtomicUsize,
    sent: AtomicUsize,
}

/// Counts a call that runs for as long as it does.
struct Running(Arc<Shared>);

impl Running {
    fn of(shared: &Arc<Shared>) -> Self {
        shared.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A gRPC server, plaintext HTTP/2 with prior knowledge. Its methods, under `/kit.Echo/`:
///
/// - `Unary`: the message, and the metadata whose names begin with `x-`, come back.
/// - `Sum`: the number and the bytes of the messages that the client streams, `<n> <bytes>`.
/// - `Count`: for `<n> <bytes>`, so many messages of that size, as fast as they are taken.
/// - `Chat`: each message comes back at once; after one that says `fail` the call ends as
///   [`GrpcServer::FAILURE`], with the metadata of the call in its trailers.
/// - `Fail`: that status at once.
/// - `Hang`: nothing, until the call is given up.
pub struct GrpcServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl GrpcServer {
    /// How `Fail` and a failed `Chat` end.
    pub const FAILURE: (Code, &'static str) = (Code::DataLoss, "100 % lost, ümlaut");

    /// Opens a port on 127.0.0.1.
    pub async fn start() -> Self {
        Self::serving(Server::builder()).await
    }

    /// The same; a connection is told to end (GOAWAY) when it is that old.
    pub async fn with_connection_age(age: Duration) -> Self {
        Self::serving(Server::builder().max_connection_age(age)).await
    }

    async fn serving(server: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::<Shared>::default();
        let counted = Arc::clone(&shared);
        let incoming = stream::unfold(listener, move |listener| {
            let counted = Arc::clone(&counted);
            async move {
                let accepted = listener.accept().await.and_then(|(tcp, _)| {
                    counted.sockets.lock().unwrap().push(tcp.as_fd().try_clone_to_owned()?);
                    Ok(tcp)
                });
                Some((accepted, listener))
            }
        });
        let state = Arc::clone(&shared);
        let service = service_fn(move |request| {
            let state = Arc::clone(&state);
            async move { Ok::<_, Infallible>(serve(state, request).await) }
        });
        let serving = server.tcp_nodelay(true).serve_with_incoming(service, incoming);
        Self { address, shared, task: tokio::spawn(serving).abort_handle() }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every call so far.
    #[must_use]
    pub fn calls(&self) -> Vec<GrpcCall> {
        self.shared.calls.lock().unwrap().clone()
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.sockets.lock().unwrap().len()
    }

    /// Calls of `Hang`, `Chat` and `Count` that run now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::SeqCst)
    }

    /// Bytes that `Count` has handed out so far.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }
}

impl GrpcServer {
    /// Dies: its port closes and every connection ends, in the middle of whatever it carries.
    pub fn kill(self) {}
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        self.task.abort();
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
    }
}

async fn serve(
    shared: Arc<Shared>,
    request: http::Request<tonic::body::Body>,
) -> http::Response<tonic::body::Body> {
    let method = request.uri().path().to_owned();
    shared.calls.lock().unwrap().push(GrpcCall {
        method: method.clone(),
        authority: request.uri().authority().map(ToString::to_string).unwrap_or_default(),
        metadata: MetadataMap::from_headers(request.headers().clone()),
    });
    let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(usize::MAX);
    match method.rsplit('/').next().unwrap_or_default() {
        "Unary" => grpc.unary(service_fn(unary), request).await,
        "Sum" => grpc.client_streaming(service_fn(sum), request).await,
        "Count" => {
            let count = move |request| std::future::ready(Ok(count(&shared, &request)));
            grpc.server_streaming(service_fn(count), request).await
        }
        "Chat" => {
            let chat = move |request| std::future::ready(Ok(chat(&shared, request)));
            grpc.streaming(service_fn(chat), request).await
        }
        "Hang" => {
            let hang = move |_: Request<Bytes>| {
                let running = Running::of(&shared);
                async move {
                    std::future::pending::<()>().await;
                    drop(running);
                    Err::<Response<Bytes>, _>(failure(&MetadataMap::new()))
                }
            };
            grpc.unary(service_fn(hang), request).await
        }
        _ => {
            let fail = |request: Request<Bytes>| async move {
                Err::<Response<Bytes>, _>(failure(request.metadata()))
            };
            grpc.unary(service_fn(fail), request).await
        }
    }
}

/// The metadata of the test's own.
fn own(metadata: &MetadataMap) -> MetadataMap {
    let headers = metadata.clone().into_headers();
    let own = headers.iter().filter(|(name, _)| name.as_str().starts_with("x-own"));
    MetadataMap::from_headers(own.map(|(name, value)| (name.clone(), value.clone())).collect())
}

fn failure(metadata: &MetadataMap) -> Status {
    let (code, message) = GrpcServer::FAILURE;
    Status::with_metadata(code, message, own(metadata))
}

async fn unary(request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
    let metadata = own(request.metadata());
    let mut response = Response::new(request.into_inner());
    *response.metadata_mut() = metadata;
    Ok(response)
}

async fn sum(request: Request<Streaming<Bytes>>) -> Result<Response<Bytes>, Status> {
    let mut messages = request.into_inner();
    let (mut count, mut bytes) = (0, 0);
    while let Some(message) = messages.message().await? {
        count += 1;
        bytes += message.len();
    }
    Ok(Response::new(format!("{count} {bytes}").into()))
}

type Messages = BoxStream<'static, Result<Bytes, Status>>;

fn count(shared: &Arc<Shared>, request: &Request<Bytes>) -> Response<Messages> {
    let text = String::from_utf8_lossy(request.get_ref()).into_owned();
    let (count, size) = text.split_once(' ').expect("two numbers");
    let (count, size): (usize, usize) = (count.parse().expect("a number"), size.parse().expect("a number"));
    let running = Running::of(shared);
    let message = Bytes::from(vec![b'c'; size]);
    let messages = stream::iter(0..count).map(move |_| {
        running.0.sent.fetch_add(size, Ordering::SeqCst);
        Ok(message.clone())
    });
    Response::new(messages.boxed())
}

fn chat(shared: &Arc<Shared>, request: Request<Streaming<Bytes>>) -> Response<Messages> {
    let running = Running::of(shared);
    let metadata = own(request.metadata());
    let said =
        stream::unfold((request.into_inner(), metadata, running), |(mut from, metadata, running)| async {
            match from.message().await {
                Ok(Some(message)) if message == "fail" => {
                    Some((Err(failure(&metadata)), (from, metadata, running)))
                }
                Ok(Some(message)) => Some((Ok(message), (from, metadata, running))),
                Ok(None) => None,
                Err(status) => Some((Err(status), (from, metadata, running))),
            }
        });
    Response::new(said.boxed())
}

/// A gRPC client on one connection.
#[derive(Clone)]
pub struct GrpcClient {
    grpc: tonic::client::Grpc<Channel>,
    prefix: String,
}

/// What a streaming call gives.
pub type GrpcStream = Result<Response<Streaming<Bytes>>, Status>;

impl GrpcClient {
    /// Plaintext with prior knowledge; calls go to `authority`.
    pub async fn plain(address: SocketAddr, authority: &str) -> Self {
        let stream = within("a connection", TcpStream::connect(address)).await.expect("a connection");
        stream.set_nodelay(true).unwrap();
        Self::over(Box::new(stream), "http", authority).await
    }

    /// Over TLS; `name` is asked for in SNI and checked in the certificate.
    pub async fn tls(
        address: SocketAddr,
        root: &CertificateDer<'static>,
        name: &str,
        authority: &str,
    ) -> Self {
        let stream = tls::connect(address, root, name, &["h2"]).await;
        Self::over(Box::new(stream), "https", authority).await
    }

    async fn over(io: Box<dyn Io>, scheme: &str, authority: &str) -> Self {
        let io = Arc::new(Mutex::new(Some(TokioIo::new(io))));
        // Once: what ends a connection is not to be hidden by another one.
        let connector = service_fn(move |_| {
            let io = io.lock().unwrap().take();
            async { io.ok_or(std::io::Error::from(std::io::ErrorKind::NotConnected)) }
        });
        let endpoint = Endpoint::from_shared(format!("http://{authority}")).expect("an authority");
        let endpoint = endpoint.origin(format!("{scheme}://{authority}").parse().expect("an authority"));
        let channel =
            within("a channel", endpoint.connect_with_connector(connector)).await.expect("a channel");
        let grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
        Self { grpc, prefix: String::new() }
    }

    /// The same with a path before that of its methods.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    fn path(&self, method: &str) -> PathAndQuery {
        PathAndQuery::try_from(format!("{}/kit.Echo/{method}", self.prefix)).expect("a method")
    }

    async fn ready(&self) -> tonic::client::Grpc<Channel> {
        let mut grpc = self.grpc.clone();
        within("a channel", grpc.ready()).await.expect("an open channel");
        grpc
    }

    /// A message for a message.
    ///
    /// # Errors
    /// The status that is not OK.
    pub async fn unary(&self, method: &str, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.ready().await.unary(request, self.path(method), Raw).await
    }

    /// Messages for a message.
    ///
    /// # Errors
    /// The status that is not OK.
    pub async fn upload(
        &self,
        method: &str,
        messages: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Response<Bytes>, Status> {
        self.ready().await.client_streaming(Request::new(messages), self.path(method), Raw).await
    }

    /// A message for messages.
    ///
    /// # Errors
    /// The status that is not OK.
    pub async fn download(&self, method: &str, message: impl Into<Bytes>) -> GrpcStream {
        self.ready().await.server_streaming(Request::new(message.into()), self.path(method), Raw).await
    }

    /// Messages both ways, those of the client as they are put into the channel.
    ///
    /// # Errors
    /// The status that is not OK.
    pub async fn chat(&self, metadata: MetadataMap, messages: mpsc::Receiver<Bytes>) -> GrpcStream {
        let messages = stream::unfold(messages, |mut from| async { from.recv().await.map(|m| (m, from)) });
        let request = Request::from_parts(metadata, tonic::Extensions::default(), messages);
        self.ready().await.streaming(request, self.path("Chat"), Raw).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_kind_of_call_works_without_a_proxy() {
        let server = GrpcServer::start().await;
        let client = GrpcClient::plain(server.address(), "a.test").await;
        let response = client.unary("Unary", Request::new("hi".into())).await.unwrap();
        assert_eq!(response.into_inner(), "hi");
        let sum = client.upload("Sum", stream::iter(["ab", "c"].map(Bytes::from))).await.unwrap();
        assert_eq!(sum.into_inner(), "2 3");
        let mut counted = client.download("Count", "3 5").await.unwrap().into_inner();
        for _ in 0..3 {
            assert_eq!(counted.message().await.unwrap().unwrap(), "ccccc");
        }
        assert_eq!(counted.message().await.unwrap(), None);
        let (say, said) = mpsc::channel(1);
        let mut heard = client.chat(MetadataMap::new(), said).await.unwrap().into_inner();
        say.send("x".into()).await.unwrap();
        assert_eq!(heard.message().await.unwrap().unwrap(), "x");
        say.send("fail".into()).await.unwrap();
        let status = heard.message().await.unwrap_err();
        assert_eq!((status.code(), status.message()), GrpcServer::FAILURE);
        assert_eq!(server.calls().len(), 4);
    }
}
