//! How Pingora serves these listeners: one request after the other on a connection, each with
//! bounds on what it may send and how long it may take.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode, header};
use pingora::ErrorType;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::time::timeout;

use super::auth::{MAX_BODY, refuse_browser, too_large};
use super::health::Readiness;
use super::response::{AdminResponse, probe};
use super::router::AdminApi;
use super::scrape;
use crate::proxy::state::ProxyState;

/// Any number: how long the next request is waited for is the listener's to say.
const KEPT: u64 = 60;
/// For a head to come in.
const HEAD: Duration = Duration::from_secs(5);
/// For a body to come in.
const BODY: Duration = Duration::from_secs(10);
/// For a response to go out.
const WRITE: Duration = Duration::from_secs(30);
/// What is read of a body that nobody wants, so that its sender sees the response and no reset.
const LINGER: (usize, Duration) = (8 * MAX_BODY, Duration::from_secs(2));

/// What one of these listeners serves.
#[async_trait]
pub trait OperatorApp: Send + Sync + 'static {
    /// Responds to the request whose head [`read_head`] has read. The connection comes back where it
    /// is kept for another request.
    async fn respond(&self, http: ServerSession, shutdown: &ShutdownWatch) -> Option<Stream>;
}

/// The admin listener.
pub struct AdminApp(AdminApi);

impl AdminApp {
    /// Serves `api`.
    #[must_use]
    pub fn new(api: AdminApi) -> Self {
        Self(api)
    }

    /// `None`: there is nobody to answer.
    async fn respond(&self, http: &mut ServerSession) -> Option<AdminResponse> {
        let peer = peer(http);
        let head = http.req_header();
        if let Err(refused) = self.0.check_head(peer, &head.uri, &head.headers) {
            return Some(refused);
        }
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let body = match timeout(BODY, read_body(http)).await {
            Ok(ReadBody::Whole(body)) => body,
            Ok(ReadBody::TooLarge) => return Some(too_large()),
            Ok(ReadBody::Broken) => return None,
            Err(_) => return Some(AdminResponse::error(StatusCode::REQUEST_TIMEOUT, "request timeout")),
        };
        Some(self.0.handle(&method, &uri, &body).await)
    }
}

#[async_trait]
impl OperatorApp for AdminApp {
    async fn respond(&self, mut http: ServerSession, shutdown: &ShutdownWatch) -> Option<Stream> {
        let _under_way = self.0.under_way();
        let response = self.respond(&mut http).await?;
        send(http, &response, shutdown).await
    }
}

/// The metrics listener; without anything to be scraped the health listener.
pub struct MetricsApp {
    scraped: Option<Arc<ProxyState>>,
    readiness: Arc<Readiness>,
}

impl MetricsApp {
    /// Serves `/metrics`, and the two probes.
    pub(crate) fn new(state: Arc<ProxyState>, readiness: Arc<Readiness>) -> Self {
        Self { scraped: Some(state), readiness }
    }

    /// Serves the two probes only.
    #[must_use]
    pub fn health_only(readiness: Arc<Readiness>) -> Self {
        Self { scraped: None, readiness }
    }

    pub(super) async fn respond(&self, method: &Method, path: &str) -> AdminResponse {
        if let Some(response) = probe(&self.readiness, method.as_str(), path) {
            return response;
        }
        match &self.scraped {
            Some(state) if path == scrape::PATH && matches!(*method, Method::GET | Method::HEAD) => {
                scrape::scrape(state, &self.readiness).await
            }
            _ => AdminResponse::no_route(method.as_str(), path),
        }
    }
}

#[async_trait]
impl OperatorApp for MetricsApp {
    async fn respond(&self, http: ServerSession, shutdown: &ShutdownWatch) -> Option<Stream> {
        // A successor may be asked.
        let _under_way = self.scraped.as_ref().map(|state| state.forwarding.under_way());
        let head = http.req_header();
        // Probes tell nothing that is worth a browser's while, and balancers name hosts as they like.
        let refused = match head.uri.path() {
            scrape::PATH => refuse_browser(peer(&http), &head.uri, &head.headers).err(),
            _ => None,
        };
        let response = match refused {
            Some(refused) => refused,
            None => self.respond(&head.method, head.uri.path()).await,
        };
        send(http, &response, shutdown).await
    }
}

/// Reads the head of a request, of which a byte has come in or is about to.
///
/// `None`: there is no request, or a malformed one, which had its 400; the connection is over.
pub async fn read_head(stream: Stream, shutdown: &ShutdownWatch) -> Option<ServerSession> {
    let mut http = ServerSession::new_http1(stream);
    match timeout(HEAD, http.read_request()).await.ok()? {
        Ok(true) => {
            http.set_keepalive((!*shutdown.borrow()).then_some(KEPT));
            Some(http)
        }
        Ok(false) => None,
        Err(error) => {
            // All other errors are about the connection.
            if error.etype() == &ErrorType::InvalidHTTPHeader {
                refuse_head(http).await;
            }
            None
        }
    }
}

/// Responds to a head that is none.
async fn refuse_head(mut http: ServerSession) {
    let response = AdminResponse::error(StatusCode::BAD_REQUEST, "malformed request");
    http.set_keepalive(None);
    let sending = async {
        http.write_response_header(Box::new(response.head()?)).await?;
        http.write_response_body(response.body, true).await
    };
    let ServerSession::H1(mut connection) = (match timeout(WRITE, sending).await {
        Ok(Ok(())) => http,
        _ => return,
    }) else {
        return;
    };
    connection.shutdown().await;
    let (most, wait) = LINGER;
    let drain = async {
        let mut read = 0;
        while let Ok(1..) = connection.idle().await {
            read += 1;
            if read > most {
                return;
            }
        }
    };
    // Whether all of it came matters no more.
    let _ = timeout(wait, drain).await;
}

fn peer(http: &ServerSession) -> Option<IpAddr> {
    http.client_addr().and_then(|peer| peer.as_inet()).map(SocketAddr::ip)
}

enum ReadBody {
    Whole(Vec<u8>),
    TooLarge,
    Broken,
}

async fn read_body(http: &mut ServerSession) -> ReadBody {
    let expects = http
        .get_header(header::EXPECT)
        .is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if let (true, ServerSession::H1(session)) = (expects, &mut *http)
        && session.write_continue_response().await.is_err()
    {
        return ReadBody::Broken;
    }
    let mut body = Vec::new();
    loop {
        match http.read_request_body().await {
            Ok(Some(piece)) if body.len() + piece.len() > MAX_BODY => return ReadBody::TooLarge,
            Ok(Some(piece)) => body.extend_from_slice(&piece),
            Ok(None) => return ReadBody::Whole(body),
            Err(_) => return ReadBody::Broken,
        }
    }
}

/// Sends the response. A connection whose request was not read to its end is not kept.
async fn send(mut http: ServerSession, response: &AdminResponse, shutdown: &ShutdownWatch) -> Option<Stream> {
    let unread = !http.is_body_done();
    // The time to end may have come while the response was made.
    if unread || *shutdown.borrow() {
        http.set_keepalive(None);
    }
    let no_body = http.req_header().method == Method::HEAD;
    let sending = async {
        http.write_response_header(Box::new(response.head()?)).await?;
        let body = if no_body { bytes::Bytes::new() } else { response.body.clone() };
        http.write_response_body(body, true).await
    };
    // A peer that does not take its response loses it.
    timeout(WRITE, sending).await.ok()?.ok()?;
    if unread {
        let (most, wait) = LINGER;
        let drain = async {
            let mut read = 0;
            while let Ok(Some(piece)) = http.read_request_body().await {
                read += piece.len();
                if read > most {
                    return;
                }
            }
        };
        // Whether all of it came matters no more.
        let _ = timeout(wait, drain).await;
    }
    // Nothing comes with the connection: bytes of a next request that were read already end it.
    let (stream, _) = http.finish().await.ok()??.into_parts();
    Some(stream)
}
