//! The collector at the other end: one connection, an export after the other (OTLP 1.x over HTTP).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::{OtlpError, Settings, encode};

/// For one try, from connecting to the end of the response.
const TRY: Duration = Duration::from_secs(5);
/// A response says how many spans were rejected, and why in a line.
const RESPONSE_MOST: usize = 64 * 1024;

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("no response: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("the response cannot be read")]
    Response,
    #[error("no response in time")]
    Late,
    #[error("the request cannot be built: {0}")]
    Request(#[from] http::Error),
    #[error("it responds with {0}")]
    Status(StatusCode, Option<Duration>),
}

impl ExportError {
    /// Whether the collector is there and will not take the spans however often they are sent (OTLP, "Failures").
    pub(crate) fn is_final(&self) -> bool {
        let again = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        matches!(self, Self::Status(status, _) if !again.contains(status))
    }

    /// How long the collector asks to be left alone.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self {
            Self::Status(_, wait) => *wait,
            _ => None,
        }
    }
}

/// Where exports go.
pub(crate) struct Collector {
    host: String,
    port: u16,
    authority: HeaderValue,
    path: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Collector {
    pub(crate) fn new(settings: &Settings) -> Result<Self, OtlpError> {
        let endpoint = &settings.endpoint;
        let authority = endpoint.authority().ok_or(OtlpError::Endpoint("names no host"))?;
        let named = authority.host();
        let host = named.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(named);
        let https = endpoint.scheme_str() == Some("https");
        let tls = if https { Some(tls(settings, host)?) } else { None };
        let base = endpoint.path().trim_end_matches('/');
        let traces = "/v1/traces";
        Ok(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if https { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|_| OtlpError::Endpoint("names no host"))?,
            path: if base.ends_with(traces) { base.to_owned() } else { format!("{base}{traces}") },
            tls,
            headers: settings.headers.clone(),
            connection: None,
        })
    }

    /// Has the collector take `body`; how many of the spans in it it did not take.
    pub(crate) async fn export(&mut self, body: Bytes) -> Result<usize, ExportError> {
        let exported = timeout(TRY, self.post(body)).await.unwrap_or(Err(ExportError::Late));
        if exported.is_err() {
            // Whatever is still under way on it is nobody's.
            self.connection = None;
        }
        exported
    }

    async fn post(&mut self, body: Bytes) -> Result<usize, ExportError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&self.path)
            .header(HOST, &self.authority)
            .header(USER_AGENT, concat!("cube-proxy/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/x-protobuf");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body))?;
        let kept = match self.connection.take() {
            Some(mut connection) => connection.ready().await.is_ok().then_some(connection),
            None => None,
        };
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let response = connection.send_request(request).await?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let wait = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            return Err(ExportError::Status(head.status, wait.map(Duration::from_secs)));
        }
        let body = Limited::new(body, RESPONSE_MOST).collect().await.map_err(|_| ExportError::Response)?;
        self.connection = Some(connection);
        Ok(encode::rejected(&body.to_bytes()))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ExportError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match &self.tls {
            None => handshake(TokioIo::new(stream)).await,
            Some((connector, name)) => {
                handshake(TokioIo::new(connector.connect(name.clone(), stream).await?)).await
            }
        }
    }
}

/// Begins HTTP on a connection, which a task of its own drives to its end.
async fn handshake<T>(stream: T) -> Result<SendRequest<Full<Bytes>>, ExportError>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, driver) = http1::handshake(stream).await?;
    // How it ends shows in what was sent on it.
    tokio::spawn(async move { drop(driver.await) });
    Ok(sender)
}

fn tls(settings: &Settings, host: &str) -> Result<(TlsConnector, ServerName<'static>), OtlpError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| OtlpError::Endpoint("names no host that a certificate can be for"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(settings.authorities.clone())
        .with_no_client_auth();
    Ok((TlsConnector::from(Arc::new(config)), name))
}
