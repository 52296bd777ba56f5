//! Heads as they come in and as they leave (RFC 9112, 2 to 6).

use std::mem::MaybeUninit;

use bytes::{BufMut, Bytes, BytesMut};
use cube_http1::ChunkWatch;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use pingora::http::{RequestHeader, ResponseHeader, header_value_from_raw};
use pingora::protocols::http::authority::validate_request_authority;
use pingora::protocols::http::date::get_cached_date;
use pingora::{Error, ErrorType, OrErr, Result};

use super::body::Body;
use super::spelling::{put_field, put_fields};

/// The most headers that are read of a message.
const MAX_HEADERS: usize = 256;
/// The most bytes of a response's head.
const MAX_RESPONSE_HEAD: usize = 1024 * 1024;

/// A request that the exchange takes.
pub(crate) struct Request {
    pub(super) head: RequestHeader,
    /// The head as it came in.
    pub(super) raw: Bytes,
    pub(super) body: Body,
    /// Whether the client wants to send another request after this one.
    pub(super) keep_alive: bool,
}

impl Request {
    /// Reads a whole head; none where it is not for the exchange: what its grammar, its framing or its
    /// authority leaves in doubt, and CONNECT.
    pub(crate) fn read(raw: Bytes) -> Option<Self> {
        let mut space = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut []);
        let read = parsed.parse_with_uninit_headers(&raw, &mut space).ok()?;
        if !matches!(read, httparse::Status::Complete(whole) if whole == raw.len()) {
            return None;
        }
        let version = if parsed.version? == 1 { Version::HTTP_11 } else { Version::HTTP_10 };
        let target = parsed.path?.as_bytes();
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.method = Method::from_bytes(parsed.method?.as_bytes()).ok()?;
        parts.version = version;
        // With room for what the proxy sets.
        parts.headers = HeaderMap::with_capacity(parsed.headers.len() + 8);
        for field in parsed.headers.iter() {
            let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
            let value = HeaderValue::from_maybe_shared(raw.slice_ref(field.value)).ok()?;
            parts.headers.try_append(name, value).ok()?;
        }
        let mut head = RequestHeader::from(parts);
        head.set_raw_path(target).ok()?;
        if head.raw_path() != target || head.method == Method::CONNECT {
            return None;
        }
        validate_request_authority(&head).ok()?;
        let body = request_body(&head.headers, version)?;
        let keep_alive = keeps_alive(&head.headers, version);
        Some(Self { head, raw, body, keep_alive })
    }
}

/// How a request's body is framed, where there is no doubt about it (RFC 9112, 6.3).
fn request_body(headers: &HeaderMap, version: Version) -> Option<Body> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    match (codings.next(), lengths.next()) {
        (None, None) => Some(Body::Length(0)),
        (None, Some(length)) if lengths.next().is_none() => number(length.as_bytes()).map(Body::Length),
        (Some(coding), None) if codings.next().is_none() => {
            let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && version == Version::HTTP_11;
            chunked.then(|| Body::Chunked(ChunkWatch::default()))
        }
        _ => None,
    }
}

/// A length by its grammar: digits alone.
fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

/// Whether the connection outlives the message (RFC 9112, 9.3).
fn keeps_alive(headers: &HeaderMap, version: Version) -> bool {
    let (mut close, mut keep) = (false, false);
    for token in crate::proxy::hop_by_hop::connection_tokens(headers) {
        close |= token.eq_ignore_ascii_case(b"close");
        keep |= token.eq_ignore_ascii_case(b"keep-alive");
    }
    !close && (keep || version == Version::HTTP_11)
}

/// A response's head, and what follows from it.
pub(super) struct Response {
    pub(super) head: Box<ResponseHeader>,
    /// The head as it came in.
    pub(super) raw: Bytes,
    /// The body behind it; none behind an interim response.
    pub(super) body: Option<Body>,
    /// Whether the upstream serves another request on this connection.
    pub(super) keep_alive: bool,
}

impl Response {
    /// Takes a whole head out of `buf`; none where more has to come in first. `to` is the method of the
    /// request.
    pub(super) fn read(buf: &mut BytesMut, to: &Method) -> Result<Option<Self>> {
        let mut space = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut []);
        let mut config = httparse::ParserConfig::default();
        config.allow_spaces_after_header_name_in_responses(true);
        config.allow_obsolete_multiline_headers_in_responses(true);
        let read = config
            .parse_response_with_uninit_headers(&mut parsed, buf, &mut space)
            .or_err(ErrorType::InvalidHTTPHeader, "the head of a response")?;
        let httparse::Status::Complete(whole) = read else {
            if buf.len() > MAX_RESPONSE_HEAD {
                return Error::e_explain(ErrorType::InvalidHTTPHeader, "the head of a response is too large");
            }
            return Ok(None);
        };
        let status = parsed.code.unwrap_or_default();
        let count = parsed.headers.len();
        let version = if parsed.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status =
            StatusCode::from_u16(status).or_err(ErrorType::InvalidHTTPHeader, "the status of a response")?;
        parts.version = version;
        // With room for what the proxy sets.
        parts.headers = HeaderMap::with_capacity(count + 4);
        let usual = parts.status.canonical_reason();
        let reason = parsed.reason.filter(|reason| Some(*reason) != usual).map(str::to_owned);
        // Positions, since the headers are to share the bytes of the head.
        let start = buf.as_ptr() as usize;
        let place = |bytes: &[u8]| {
            let at = (bytes.as_ptr() as usize).saturating_sub(start);
            (at, at + bytes.len())
        };
        let places = parsed.headers.iter().map(|field| (place(field.name.as_bytes()), place(field.value)));
        let places: Vec<_> = places.collect();
        let raw = buf.split_to(whole).freeze();
        for (name, value) in places {
            let name = HeaderName::from_bytes(raw.get(name.0..name.1).unwrap_or_default())
                .or_err(ErrorType::InvalidHTTPHeader, "a name in the head of a response")?;
            let value = header_value_from_raw(raw.slice(value.0..value.1));
            parts
                .headers
                .try_append(name, value)
                .or_err(ErrorType::InvalidHTTPHeader, "the headers of a response")?;
        }
        let mut head = Box::new(ResponseHeader::from(parts));
        if reason.is_some() {
            head.set_reason_phrase(reason.as_deref())?;
        }
        if head.headers.contains_key(header::TRANSFER_ENCODING) {
            // It says the length, whatever else does (RFC 9112, 6.3).
            head.remove_header(&header::CONTENT_LENGTH);
        }
        let coded_before_1_1 =
            version < Version::HTTP_11 && head.headers.contains_key(header::TRANSFER_ENCODING);
        let keep_alive = keeps_alive(&head.headers, version) && !coded_before_1_1;
        let body = response_body(&head, to)?;
        Ok(Some(Self { head, raw, body, keep_alive }))
    }
}

/// How a response's body is framed (RFC 9112, 6.3).
fn response_body(head: &ResponseHeader, to: &Method) -> Result<Option<Body>> {
    let length = response_length(&head.headers)?;
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Some(Body::Close));
    }
    if head.status.is_informational() {
        return Ok(None);
    }
    Ok(Some(if without_body(head.status, to) {
        Body::Length(0)
    } else if is_chunked(&head.headers) {
        Body::Chunked(ChunkWatch::default())
    } else {
        length.map_or(Body::Close, Body::Length)
    }))
}

/// The length that is said, once or several times the same.
fn response_length(headers: &HeaderMap) -> Result<Option<u64>> {
    let mut found = None;
    let values = headers.get_all(header::CONTENT_LENGTH).iter();
    for value in values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')) {
        let length = number(value.trim_ascii());
        if length.is_none() || found.is_some_and(|found| Some(found) != length) {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, "the length of a response");
        }
        found = length;
    }
    Ok(found)
}

/// Whether the last coding of a message is `chunked`.
pub(super) fn is_chunked(headers: &HeaderMap) -> bool {
    let last = headers.get_all(header::TRANSFER_ENCODING).iter().next_back();
    let coding = last.and_then(|value| value.as_bytes().rsplit(|byte| *byte == b',').next());
    coding.is_some_and(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// Whether a response has no body whatever its head says (RFC 9110, 6.4.1).
pub(super) fn without_body(status: StatusCode, to: &Method) -> bool {
    *to == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// The length that a head of ours says.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    number(headers.get(header::CONTENT_LENGTH)?.as_bytes())
}

/// Writes a request's head; `came` is what came in of it.
pub(super) fn put_request(head: &RequestHeader, came: &[u8], out: &mut BytesMut) {
    out.reserve(1024);
    out.put_slice(head.method.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(head.raw_path());
    out.put_slice(b" HTTP/1.1\r\n");
    put_fields(&head.headers, &[], came, out);
    out.put_slice(b"\r\n");
}

/// Writes a response's head; `came` is what came in of it. With `connection` it is the last one of its request:
/// it says the date and what becomes of the connection, whatever it says of them itself.
pub(super) fn put_response(head: &ResponseHeader, came: &[u8], connection: Option<&str>, out: &mut BytesMut) {
    out.reserve(1024);
    out.put_slice(b"HTTP/1.1 ");
    out.put_slice(head.status.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(head.get_reason_phrase().unwrap_or_default().as_bytes());
    out.put_slice(b"\r\n");
    let own = if connection.is_some() { &[header::DATE, header::CONNECTION][..] } else { &[] };
    if head.has_case() {
        let is_own = |name: &[u8]| own.iter().any(|own| name.eq_ignore_ascii_case(own.as_str().as_bytes()));
        for (name, value) in head.case_header_iter().filter(|(name, _)| !is_own(name.as_slice())) {
            put_field(name.as_slice(), value, out);
        }
    } else {
        put_fields(&head.headers, own, came, out);
    }
    if let Some(connection) = connection {
        out.put_slice(b"Date: ");
        out.put_slice(get_cached_date().as_bytes());
        out.put_slice(b"\r\nConnection: ");
        out.put_slice(connection.as_bytes());
        out.put_slice(b"\r\n");
    }
    out.put_slice(b"\r\n");
}
