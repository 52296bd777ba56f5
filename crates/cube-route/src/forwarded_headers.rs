//! The headers that the proxy itself sets on a forwarded request (`X-Forwarded-*`, `X-Real-IP`, the
//! request id), and the client's headers that it removes.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};

/// The proxy's own credentials and the names of the header form: removed before a request goes
/// upstream, unless `routing.forward_credentials` keeps them.
pub static CREDENTIAL_HEADERS: [HeaderName; 4] = [
    HeaderName::from_static("e2b-traffic-access-token"),
    HeaderName::from_static("cube-traffic-access-token"),
    HeaderName::from_static("e2b-sandbox-id"),
    HeaderName::from_static("e2b-sandbox-port"),
];

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_CUBE_REQUEST_ID: HeaderName = HeaderName::from_static("x-cube-request-id");

/// The most bytes of a client's own request id.
const MAX_REQUEST_ID: usize = 128;

/// Whether a header is removed when the peer is not trusted: `Forwarded`, every `X-Forwarded-*`,
/// `X-Real-IP`, `X-Cube-Request-Id`, and what a server that reads `_` as `-` would take for one
/// of these or for one of [`CREDENTIAL_HEADERS`].
///
/// [`CREDENTIAL_HEADERS`] in their right spelling are not among them; they have their own switch.
#[must_use]
pub fn is_reserved_header(name: &str) -> bool {
    match name.as_bytes().first() {
        Some(b'x' | b'X') => {
            let forwarded = name.get(.."x-forwarded-".len());
            forwarded.is_some_and(|start| is_spelling_of(start, "x-forwarded-"))
                || is_spelling_of(name, "x-real-ip")
                || is_spelling_of(name, "x-cube-request-id")
        }
        Some(b'f' | b'F') => name.eq_ignore_ascii_case("forwarded"),
        Some(b'c' | b'C' | b'e' | b'E') => {
            name.contains('_') && CREDENTIAL_HEADERS.iter().any(|known| is_spelling_of(name, known.as_str()))
        }
        _ => false,
    }
}

/// Whether a header is one of [`CREDENTIAL_HEADERS`].
#[must_use]
pub fn is_credential(name: &str) -> bool {
    CREDENTIAL_HEADERS.iter().any(|known| known.as_str().eq_ignore_ascii_case(name))
}

/// Equal without case and with `_` read as `-`; `known` is in lower case.
fn is_spelling_of(name: &str, known: &str) -> bool {
    name.len() == known.len()
        && name.bytes().zip(known.bytes()).all(|(one, two)| match one {
            b'_' => two == b'-',
            _ => one.to_ascii_lowercase() == two,
        })
}

/// The client's own request id: one value of 1 to 128 visible ASCII characters.
#[must_use]
pub fn request_id(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(&X_CUBE_REQUEST_ID).iter();
    let value = values.next()?;
    let good = (1..=MAX_REQUEST_ID).contains(&value.len())
        && value.as_bytes().iter().all(u8::is_ascii_graphic)
        && values.next().is_none();
    if good { value.to_str().ok() } else { None }
}

/// What `X-Forwarded-For` and `X-Real-IP` say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedFor {
    /// `X-Forwarded-For`, when it is more than the peer's address; none: it is the text of
    /// `real_ip`, so one header value serves both.
    pub chain: Option<String>,
    /// `X-Real-IP`.
    pub real_ip: IpAddr,
}

/// Works out `X-Forwarded-For` and `X-Real-IP`. A client's chain counts only when `peer` is
/// trusted: then the peer is appended to it, and the real address is the rightmost that is not
/// trusted (if all are, the leftmost; what is no address ends the search).
pub fn forwarded_for(headers: &HeaderMap, peer: IpAddr, trusted: impl Fn(IpAddr) -> bool) -> ForwardedFor {
    let peer = peer.to_canonical();
    if !headers.contains_key(&X_FORWARDED_FOR) || !trusted(peer) {
        return ForwardedFor { chain: None, real_ip: peer };
    }
    let mut chain = String::new();
    for value in headers.get_all(&X_FORWARDED_FOR) {
        // A value beyond ASCII names no address.
        if let Ok(text) = value.to_str()
            && !text.trim().is_empty()
        {
            chain.push_str(text.trim());
            chain.push_str(", ");
        }
    }
    let mut real_ip = peer;
    for entry in chain.rsplit(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let Some(ip) = entry_ip(entry) else { break };
        real_ip = ip;
        if !trusted(ip) {
            break;
        }
    }
    if chain.is_empty() {
        return ForwardedFor { chain: None, real_ip: peer };
    }
    // Writing to a String does not fail.
    let _ = write!(chain, "{peer}");
    ForwardedFor { chain: Some(chain), real_ip }
}

/// The address of one entry of a chain; some proxies write a port with it.
fn entry_ip(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    let ip = bare.parse().or_else(|_| entry.parse().map(|address: SocketAddr| address.ip()));
    ip.ok().map(|ip: IpAddr| ip.to_canonical())
}

/// `X-Forwarded-Proto`: what a trusted peer says, in any case, of a list the first (the scheme that
/// the client itself used), `ws` and `wss` as `http` and `https`; where it says nothing that is
/// known, whether the listener that took the request is `secure`.
#[must_use]
pub fn forwarded_proto(headers: &HeaderMap, peer_trusted: bool, secure: bool) -> &'static str {
    let own = if secure { "https" } else { "http" };
    if !peer_trusted {
        return own;
    }
    // Several header lines are one list (RFC 9110, 5.3); empty elements of a list are none.
    let first = headers
        .get_all(&X_FORWARDED_PROTO)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .find(|element| !element.is_empty());
    let Some(first) = first else { return own };
    let is = |names: [&str; 2]| names.iter().any(|name| first.eq_ignore_ascii_case(name.as_bytes()));
    if is(["https", "wss"]) {
        "https"
    } else if is(["http", "ws"]) {
        "http"
    } else {
        own
    }
}

#[cfg(test)]
mod tests;
