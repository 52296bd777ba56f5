//! From a error to the bytes of its response.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pingora::Result;
use pingora::http::ResponseHeader;
use serde_json::{Map, Value, json};

use super::format::{BodyFormat, Preflight, ResponseFormat};
use super::table::{E2bMessage, ProxyError, Reason};
use super::{Dialect, Settings, html};
use crate::retcode::Retcode;

/// What is forwarded, for the `Allow` of a 405.
const ALLOW: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
const JSON: &str = "application/json";
const GRPC: &str = "application/grpc";
const JSON_UTF8: &str = "application/json; charset=utf-8";

/// A header of an own response, with the case it has on HTTP/1.1.
type Header = (&'static str, HeaderValue);

/// A response of the proxy, ready to be sent.
#[derive(Debug, Clone)]
pub struct OwnResponse {
    /// The status on the wire.
    pub status: StatusCode,
    /// All headers but `X-Cube-Request-Id` (and `Date`), in the order they are sent in.
    pub headers: Vec<Header>,
    /// The body; empty for HEAD, a preflight and gRPC.
    pub body: Bytes,
    /// The return code on the wire.
    pub wire_retcode: Retcode,
    /// The return code for log and metrics: what the wire one would be without masking.
    pub log_retcode: Retcode,
    /// The reason for log and metrics.
    pub reason: Reason,
    /// Whether it counts as `success` in the metrics: true for an answered preflight only.
    pub success: bool,
}

impl OwnResponse {
    /// The head for Pingora, with the request's id as its last header.
    ///
    /// # Errors
    /// What Pingora says about a header; none of ours is refused.
    pub fn head(&self, request_id: HeaderValue) -> Result<ResponseHeader> {
        let mut head = ResponseHeader::build(self.status, Some(self.headers.len() + 3))?;
        for (name, value) in &self.headers {
            head.append_header(*name, value.clone())?;
        }
        head.append_header("X-Cube-Request-Id", request_id)?;
        Ok(head)
    }
}

/// The response to `format` for `error`.
#[must_use]
pub fn render(error: ProxyError, format: &ResponseFormat, settings: Settings) -> OwnResponse {
    let (shown, error) = match (&format.preflight, error) {
        (Some(Preflight::Malformed), _) => (ProxyError::BadRequest, ProxyError::BadRequest),
        (_, ProxyError::TokenMissing | ProxyError::TokenWrong) if *settings.mask_existence => {
            (ProxyError::NoRecord, error)
        }
        _ => (error, error),
    };
    let content = match &format.preflight {
        Some(Preflight::Asks { method, headers }) => allowed(method, headers.as_ref()),
        _ => ResponseContent::of(shown, format, settings),
    };
    let no_body = content.status == StatusCode::NO_CONTENT;

    let mut headers: Vec<Header> = Vec::with_capacity(12);
    if !no_body {
        headers.push(("Content-Type", HeaderValue::from_static(content.kind)));
        headers.push(("Content-Length", HeaderValue::from(content.body.len())));
    }
    headers.push(("Cache-Control", HeaderValue::from_static("no-store")));
    headers.push(("X-Content-Type-Options", HeaderValue::from_static("nosniff")));
    if shown == ProxyError::MethodNotAllowed {
        headers.push(("Allow", HeaderValue::from_static(ALLOW)));
    }
    if let Some(seconds) = shown.retry_after() {
        headers.push(("Retry-After", HeaderValue::from_static(seconds)));
    }
    headers.extend(content.extra);
    if format.origin {
        match &format.credentialed {
            Some(origin) => {
                headers.push(("Access-Control-Allow-Origin", origin.clone()));
                headers.push(("Access-Control-Allow-Credentials", HeaderValue::from_static("true")));
            }
            None => headers.push(("Access-Control-Allow-Origin", HeaderValue::from_static("*"))),
        }
        let exposed = HeaderValue::from_static("X-Cube-Request-Id, X-Cube-Retcode");
        headers.push(("Access-Control-Expose-Headers", exposed));
    }
    headers.push(("X-Cube-Retcode", shown.retcode().wire()));

    OwnResponse {
        status: content.status,
        headers,
        body: if format.head { Bytes::new() } else { content.body },
        wire_retcode: shown.retcode(),
        log_retcode: error.retcode(),
        reason: error.reason(),
        success: no_body,
    }
}

/// What differs between the shapes of a response.
struct ResponseContent {
    status: StatusCode,
    kind: &'static str,
    body: Bytes,
    extra: Vec<Header>,
}

impl ResponseContent {
    fn of(error: ProxyError, format: &ResponseFormat, settings: Settings) -> Self {
        let dialect = settings.dialect;
        let number = error.status(dialect);
        let status = StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let new = |kind, body: String| Self { status, kind, body: body.into(), extra: Vec::new() };
        let message = error.message(format.sandbox.is_some());
        match (format.shape, dialect) {
            (BodyFormat::Grpc, _) => {
                let sentence = match dialect {
                    Dialect::Cube => error.text().into(),
                    Dialect::E2b => message.sentence(),
                };
                grpc(error.grpc_status(), &sentence)
            }
            (BodyFormat::Page, _) => {
                // Masked, nothing tells a sandbox that is there from one that is not.
                let masked = *settings.mask_existence && error.retcode() == Retcode::NoRoute;
                let body = html::page(status, if masked { ProxyError::NoRecord } else { error }, format);
                let policy = HeaderValue::from_static(html::POLICY);
                Self {
                    extra: vec![("Content-Security-Policy", policy)],
                    ..new("text/html; charset=utf-8", body)
                }
            }
            (_, Dialect::Cube) => new(JSON, format!("{{\"error\":\"{}\"}}\n", error.text())),
            (BodyFormat::ConnectUnary, Dialect::E2b) => {
                new(JSON, connect_error(error.connect_code(), &message.sentence()).to_string())
            }
            (BodyFormat::ConnectStream(kind), Dialect::E2b) => {
                connect_end(kind, &connect_error(error.connect_code(), &message.sentence()))
            }
            (BodyFormat::Json, Dialect::E2b) => new(JSON_UTF8, e2b(number, message, format).to_string()),
        }
    }
}

/// The body of the `e2b` dialect, its keys in order.
fn e2b(status: u16, message: E2bMessage, format: &ResponseFormat) -> Value {
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| body.insert(key.into(), value);
    if let E2bMessage::Control(path) = message {
        put("message", message.sentence().into());
        put("path", path.into());
        put("code", status.into());
        return body.into();
    }
    if let Some((id, _)) = &format.sandbox {
        put("sandboxId", id.as_str().into());
    }
    put("message", message.sentence().into());
    if let (E2bMessage::NotOpen, Some((_, port))) = (message, &format.sandbox) {
        put("port", port.get().into());
    }
    put("code", status.into());
    if let E2bMessage::TooMany(limit) = message {
        put("connectionLimit", limit.into());
    }
    body.into()
}

/// The 204 of a preflight that the proxy responds itself.
fn allowed(method: &HeaderValue, asked: Option<&HeaderValue>) -> ResponseContent {
    let mut extra = vec![("Access-Control-Allow-Methods", method.clone())];
    if let Some(asked) = asked {
        extra.push(("Access-Control-Allow-Headers", asked.clone()));
    }
    extra.push(("Access-Control-Max-Age", HeaderValue::from_static("5")));
    let vary = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers";
    extra.push(("Vary", HeaderValue::from_static(vary)));
    ResponseContent { status: StatusCode::NO_CONTENT, kind: "", body: Bytes::new(), extra }
}

/// A gRPC response of the kind "Trailers-Only": its status is in the one header block there is.
fn grpc(code: &'static str, message: &str) -> ResponseContent {
    // What the gRPC wire format leaves as it is: printable ASCII but for the percent sign.
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    let message = utf8_percent_encode(message, ENCODED).to_string();
    let mut extra = vec![("grpc-status", HeaderValue::from_static(code))];
    if let Ok(message) = HeaderValue::try_from(message) {
        extra.push(("grpc-message", message));
    }
    ResponseContent { status: StatusCode::OK, kind: GRPC, body: Bytes::new(), extra }
}

/// `{"code":...,"message":...}` of the Connect protocol.
fn connect_error(code: &str, message: &str) -> Value {
    json!({ "code": code, "message": message })
}

/// The one frame that ends a Connect stream with an error.
fn connect_end(kind: &'static str, error: &Value) -> ResponseContent {
    let error = json!({ "error": error }).to_string();
    let length = u32::try_from(error.len()).unwrap_or(u32::MAX);
    let mut body = Vec::with_capacity(5 + error.len());
    body.push(2);
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(error.as_bytes());
    ResponseContent { status: StatusCode::OK, kind, body: body.into(), extra: Vec::new() }
}
