//! Who may use the admin API (lifecycle.md): decided from the head, before a body is read.

use std::net::IpAddr;

use cube_settings::Secret;
use http::{HeaderMap, StatusCode, Uri, header};

use super::response::AdminResponse;

/// The most bytes of a body.
pub(super) const MAX_BODY: usize = 1024 * 1024;

/// Whether exactly one token is presented and it is `token`.
fn is_presented(token: &Secret, headers: &HeaderMap) -> bool {
    let mut presented = headers.get_all("x-cube-admin-token").iter();
    match (presented.next(), presented.next()) {
        (Some(presented), None) => token.matches(presented.as_bytes()),
        _ => false,
    }
}

/// Whether the request may go on to its body; `peer` is none where the system cannot tell.
pub(super) fn check(
    token: Option<&Secret>,
    peer: Option<IpAddr>,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), AdminResponse> {
    refuse_browser(peer, uri, headers)?;
    let allowed = match token {
        _ if matches!(uri.path(), "/healthz" | "/readyz") => true,
        Some(token) => is_presented(token, headers),
        None => is_local(peer),
    };
    if !allowed {
        return Err(AdminResponse::error(StatusCode::FORBIDDEN, "admin token mismatch"));
    }
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_BODY as u64) {
        return Err(too_large());
    }
    Ok(())
}

fn is_local(peer: Option<IpAddr>) -> bool {
    peer.is_some_and(|peer| peer.to_canonical().is_loopback())
}

/// The 403 to what a browser was talked into: no tool of an operator sends Origin, and none that
/// runs here names a host of somebody else's. From beyond loopback a name is as good as an address.
pub(super) fn refuse_browser(
    peer: Option<IpAddr>,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), AdminResponse> {
    if headers.contains_key(header::ORIGIN) || (is_local(peer) && !own_host(uri, headers)) {
        return Err(AdminResponse::error(StatusCode::FORBIDDEN, "requests of browsers are refused"));
    }
    Ok(())
}

pub(super) fn too_large() -> AdminResponse {
    AdminResponse::error(StatusCode::PAYLOAD_TOO_LARGE, "payload too large")
}

/// Whether every host that the request names is an IP literal or `localhost`.
fn own_host(uri: &Uri, headers: &HeaderMap) -> bool {
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    headers.get_all(header::HOST).iter().map(http::HeaderValue::as_bytes).chain(authority).all(|host| {
        let Ok(host) = str::from_utf8(host) else {
            return false;
        };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        literal.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
    })
}
