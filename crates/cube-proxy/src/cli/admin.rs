//! Asking the running proxy through its admin API (lifecycle.md) and its metrics.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::config::Config;
use crate::error::StartError;

/// For one question, connecting included.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends a request to the admin listener of the proxy that runs with this configuration.
///
/// # Errors
/// [`StartError::NotRunning`] where nobody listens there, else what keeps the response from being
/// a success.
pub(crate) async fn ask(
    config: &Config,
    method: Method,
    target: &str,
    body: String,
) -> Result<Value, StartError> {
    let Some(address) = config.listen.admin else {
        return Err(StartError::Assembly(
            "listen.admin is off: the running proxy cannot be asked".to_owned(),
        ));
    };
    let address = reachable(address);
    let fault = |what: String| StartError::Assembly(format!("admin API at {address}: {what}"));
    let mut request = Request::builder()
        .method(method)
        .uri(target)
        .header(HOST, address.to_string())
        .header(CONTENT_TYPE, "application/json")
        .header(CONTENT_LENGTH, body.len());
    if let Some(token) = config.admin.token() {
        request = request.header("X-Cube-Admin-Token", token.expose());
    }
    // The text of this error would show the header that it is about.
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(|_| fault("the request cannot be built; is admin.token one line of text?".to_owned()))?;
    let (status, bytes) = exchange("listen.admin", address, request).await?;
    let response: Value =
        serde_json::from_slice(&bytes).map_err(|_| fault(format!("{status}, and no JSON")))?;
    if status == StatusCode::OK {
        return Ok(response);
    }
    let said = response.get("error").and_then(Value::as_str).unwrap_or_default();
    Err(fault(format!("{}: {said}", status.as_u16())))
}

/// Which processes of before a hot restart still drain: the response of `GET /admin/processes`.
///
/// # Errors
/// As [`ask`]; a proxy of an earlier version answers 404.
pub(super) async fn processes(config: &Config) -> Result<Value, StartError> {
    ask(config, Method::GET, "/admin/processes", String::new()).await
}

/// What `/metrics` of the proxy that runs with this configuration says.
///
/// # Errors
/// [`StartError::NotRunning`] where nobody listens there, else what keeps the response from being
/// a success.
pub(super) async fn metrics(config: &Config) -> Result<String, StartError> {
    let Some(address) = config.listen.metrics else {
        return Err(StartError::Assembly("listen.metrics is off: there are no figures to show".to_owned()));
    };
    let address = reachable(address);
    let fault = |what: String| StartError::Assembly(format!("metrics at {address}: {what}"));
    let request = Request::builder().uri("/metrics").header(HOST, address.to_string());
    let request = request.body(Full::default()).map_err(|error| fault(error.to_string()))?;
    let (status, bytes) = exchange("listen.metrics", address, request).await?;
    if status != StatusCode::OK {
        return Err(fault(status.to_string()));
    }
    String::from_utf8(bytes.into()).map_err(|_| fault("the response is no text".to_owned()))
}

/// What `/readyz` of the proxy that runs with this configuration says, on the first listener that
/// has it: nothing when it is ready, else why not.
///
/// # Errors
/// [`StartError::NotRunning`] where nobody listens there, else what keeps it from answering.
pub(super) async fn unready(config: &Config) -> Result<Option<String>, StartError> {
    let listen = &config.listen;
    let listeners = [
        ("listen.admin", listen.admin),
        ("listen.health", listen.health),
        ("listen.metrics", listen.metrics),
    ];
    let Some((option, address)) = listeners.into_iter().find_map(|(option, at)| Some((option, at?))) else {
        return Err(StartError::Assembly("admin, health and metrics listeners are all off".to_owned()));
    };
    let address = reachable(address);
    let request = Request::builder().uri("/readyz").header(HOST, address.to_string());
    let request = request
        .body(Full::default())
        .map_err(|error| StartError::Assembly(format!("{option} at {address}: {error}")))?;
    let (status, bytes) = exchange(option, address, request).await?;
    if status == StatusCode::OK {
        return Ok(None);
    }
    let response: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let reason = response.get("reason").and_then(Value::as_str);
    Ok(Some(reason.map_or_else(|| status.to_string(), str::to_owned)))
}

/// Sends one request over a connection of its own.
async fn exchange(
    option: &'static str,
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), StartError> {
    let fault = |what: String| StartError::Assembly(format!("{option} at {address}: {what}"));
    let exchange = async {
        let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::ConnectionRefused => StartError::NotRunning { option, address },
            _ => fault(error.to_string()),
        })?;
        let failed = |error: hyper::Error| fault(error.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let response = async {
            let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
            Ok::<_, StartError>((head.status, body.collect().await.map_err(failed)?.to_bytes()))
        };
        tokio::pin!(response);
        tokio::select! {
            biased;
            response = &mut response => response,
            // What it read was handed over before it ended.
            _ = connection => response.await,
        }
    };
    let answered = tokio::time::timeout(PATIENCE, exchange).await;
    answered.map_err(|_| fault(format!("no response within {PATIENCE:?}")))?
}

/// Where a listener is reached from this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_every_address_is_asked_on_loopback() {
        for (listen, asked) in [
            ("0.0.0.0:8082", "127.0.0.1:8082"),
            ("[::]:8082", "[::1]:8082"),
            ("10.0.0.1:8082", "10.0.0.1:8082"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), asked);
        }
    }
}
