//! Who asked: what of a request decides how a response of the proxy looks.

use cube_route::{Port, SandboxId};
use http::{HeaderMap, HeaderValue, Method, header};

use crate::proxy::media_type::{essence, is_grpc};

/// The shape of a response, as far as the request decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum BodyFormat {
    /// JSON.
    #[default]
    Json,
    /// A browser that navigates: a page, in both dialects.
    Page,
    /// A unary Connect request, in the `e2b` dialect.
    ConnectUnary,
    /// A streaming Connect request, with the content type of its frames.
    ConnectStream(&'static str),
    /// gRPC in both dialects.
    Grpc,
}

/// What a preflight asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Preflight {
    /// The page asks for a method and headers that are tokens (RFC 9110, 5.6.2).
    Asks {
        /// `Access-Control-Request-Method`.
        method: HeaderValue,
        /// `Access-Control-Request-Headers`, where there are any.
        headers: Option<HeaderValue>,
    },
    /// Something that is not in token syntax.
    Malformed,
}

/// What of a request matters for a response of the proxy. Built only when there is one to make.
#[derive(Debug, Clone, Default)]
pub struct ResponseFormat {
    pub(super) get: bool,
    pub(super) head: bool,
    pub(super) origin: bool,
    pub(super) preflight: Option<Preflight>,
    /// The origin of a preflight that may send credentials.
    pub(super) credentialed: Option<HeaderValue>,
    pub(super) shape: BodyFormat,
    pub(super) sandbox: Option<(SandboxId, Port)>,
    pub(super) request_id: Option<HeaderValue>,
}

impl ResponseFormat {
    /// Reads method and headers of the request as the client sent them. [`ResponseFormat::default`] is
    /// for a request that could not be read.
    #[must_use]
    pub fn new(method: &Method, headers: &HeaderMap) -> Self {
        Self {
            get: method == Method::GET,
            head: method == Method::HEAD,
            origin: headers.contains_key(header::ORIGIN),
            preflight: is_preflight(method, headers).then(|| preflight(headers)),
            credentialed: None,
            shape: shape(headers),
            sandbox: None,
            request_id: None,
        }
    }

    /// The same format, where `origins` may send requests with credentials (previews.md): their preflights
    /// are told so.
    #[must_use]
    pub fn allowing(mut self, headers: &HeaderMap, origins: &[String]) -> Self {
        if self.preflight.is_some() && !origins.is_empty() {
            let mut sent = headers.get_all(header::ORIGIN).iter();
            let one = sent.next().filter(|_| sent.next().is_none());
            self.credentialed =
                one.filter(|one| origins.iter().any(|origin| origin.as_bytes() == one.as_bytes())).cloned();
        }
        self
    }

    /// The same format with the id of its request, for people to quote.
    #[must_use]
    pub fn identified(mut self, request_id: &HeaderValue) -> Self {
        self.request_id = Some(request_id.clone());
        self
    }

    /// The same format for the sandbox and port that the request names.
    #[must_use]
    pub fn of(mut self, id: &SandboxId, port: Port) -> Self {
        self.sandbox = Some((id.clone(), port));
        self
    }
}

/// Whether this is a CORS preflight: such a request wakes nothing and holds nothing.
#[must_use]
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// What the preflight asks for, checked: it is sent back in a header.
fn preflight(headers: &HeaderMap) -> Preflight {
    let mut methods = headers.get_all(header::ACCESS_CONTROL_REQUEST_METHOD).iter();
    let (Some(method), None) = (methods.next(), methods.next()) else {
        return Preflight::Malformed;
    };
    if !is_token(method.as_bytes()) {
        return Preflight::Malformed;
    }
    let mut asked = Vec::new();
    for value in headers.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        for name in value.as_bytes().split(|b| *b == b',').map(<[u8]>::trim_ascii) {
            if name.is_empty() {
                continue;
            }
            if !is_token(name) {
                return Preflight::Malformed;
            }
            if !asked.is_empty() {
                asked.extend_from_slice(b", ");
            }
            asked.extend_from_slice(name);
        }
    }
    let headers = (!asked.is_empty()).then(|| HeaderValue::from_bytes(&asked)).transpose();
    match headers {
        Ok(headers) => Preflight::Asks { method: method.clone(), headers },
        Err(_) => Preflight::Malformed,
    }
}

/// Whether the text is a token (RFC 9110, 5.6.2).
fn is_token(text: &[u8]) -> bool {
    let tchar = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !text.is_empty() && text.iter().all(tchar)
}

/// gRPC comes before Connect, Connect before a page, a page before JSON.
fn shape(headers: &HeaderMap) -> BodyFormat {
    if is_grpc(headers) {
        return BodyFormat::Grpc;
    }
    if headers.get("connect-protocol-version").is_some_and(|version| version.as_bytes().trim_ascii() == b"1")
    {
        let content_type =
            headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| essence(value.as_bytes()));
        return ["application/connect+json", "application/connect+proto"]
            .into_iter()
            .find(|kind| content_type.eq_ignore_ascii_case(kind.as_bytes()))
            .map_or(BodyFormat::ConnectUnary, BodyFormat::ConnectStream);
    }
    if navigates(headers) { BodyFormat::Page } else { BodyFormat::Json }
}

/// Whether a browser navigates to read something.
pub(crate) fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && navigates(headers)
}

/// Whether a browser shows the response to somebody. The User-Agent says nothing about that.
pub(crate) fn navigates(headers: &HeaderMap) -> bool {
    if let Some(mode) = headers.get("sec-fetch-mode") {
        return mode.as_bytes().trim_ascii().eq_ignore_ascii_case(b"navigate");
    }
    if headers.contains_key("x-requested-with") || headers.contains_key(header::UPGRADE) {
        return false;
    }
    headers
        .get_all(header::ACCEPT)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .map(essence)
        .find_map(|kind| {
            if kind.eq_ignore_ascii_case(b"text/html") {
                return Some(true);
            }
            kind.eq_ignore_ascii_case(b"application/json").then_some(false)
        })
        .unwrap_or(false)
}
