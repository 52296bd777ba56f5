//! What the sandbox sees (routing.md): the head that goes upstream.

use std::time::Instant;

use cube_route::{RequestRewrite, forwarded_headers};
use http::{HeaderName, HeaderValue, Method, Version, header};
use pingora::http::RequestHeader;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, OrErr, Result};

use crate::connection::ip_value;
use crate::proxy::context::{Context, Destination};
use crate::proxy::hop_by_hop;
use crate::proxy::logging;
use crate::proxy::own_headers::{
    self, X_CUBE_REQUEST_ID, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PREFIX, X_FORWARDED_PROTO,
    X_REAL_IP,
};
use crate::proxy::preview_headers::remove_tickets;
use crate::proxy::state::{ProxyState, header_text};

static DESTINATION: HeaderName = HeaderName::from_static("destination");

/// Turns the client's head into the sandbox's.
pub(crate) fn filter_upstream_request(
    state: &ProxyState,
    session: &Session,
    request: &mut RequestHeader,
    ctx: &mut Context,
) -> Result<()> {
    let Some(downstream) = ctx.downstream.clone() else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let settings = ctx.settings.clone();
    let peer = downstream.conn.peer.ip().to_canonical();
    let trusted = settings.trusts(peer);

    let client = session.req_header();
    if ctx.grpc || client.version == Version::HTTP_2 || ctx.origin_form.is_some() || has_prefix(ctx) {
        let target = ctx.upstream_target(client.raw_path()).into_owned();
        request.set_raw_path(&target)?;
    }

    let secure = downstream.conn.protocol.scheme() == "https";
    let proto = forwarded_headers::forwarded_proto(&request.headers, trusted, secure);
    let proto = HeaderValue::from_static(proto);
    hop_by_hop::remove_from_request(request, ctx.upgrade, ctx.grpc);
    remove_reserved(request, trusted, settings.routing.forward_credentials, &ctx.destination);
    join_cookies(request)?;
    if matches!(ctx.destination, Destination::Sandbox(_)) {
        remove_tickets(request)?;
    }
    if client.version < Version::HTTP_11 {
        // An HTTP/1.0 client knows no 100, so its expectation is ignored (RFC 9110, 10.1.1).
        request.remove_header(&header::EXPECT);
    }
    if client.version == Version::HTTP_2 && !ctx.grpc {
        say_empty_body(request, ctx)?;
    }

    request_rewrite(request, ctx, client.raw_path())?;
    let sent_host = HeaderValue::from_maybe_shared(ctx.host.clone())
        .or_err(ErrorType::InternalError, "a host as a header")?;
    let host = match (&ctx.masked_host, &ctx.destination) {
        (Some(mask), Destination::Sandbox(_)) => Some(mask.clone()),
        // Most often it is there already, as the client sent it.
        _ if request.headers.get(header::HOST) == Some(&sent_host) => None,
        _ => Some(sent_host.clone()),
    };
    ctx.seen.forwarded_proto = Some(proto.clone());
    let real_ip = match ctx.seen.real_ip {
        Some(ip) if ip != peer => ip_value(ip),
        _ => downstream.conn.peer_text().clone(),
    };
    let chain = ctx.seen.forwarded_for.get_or_insert_with(|| downstream.conn.peer_text().clone()).clone();
    let prefix = ctx.target.as_ref().and_then(|target| target.prefix(ctx.origin_form(client.raw_path())));
    let prefix = match prefix {
        Some(prefix) => {
            Some(HeaderValue::try_from(prefix).or_err(ErrorType::InternalError, "a prefix as a header")?)
        }
        // Only the path form has a prefix: in the other forms the header goes, whoever has sent it.
        None => {
            request.remove_header(&X_FORWARDED_PREFIX);
            None
        }
    };
    own_headers::set_in_request(
        request,
        [
            (&header::HOST, host),
            (&X_FORWARDED_HOST, Some(sent_host)),
            (&X_FORWARDED_PROTO, Some(proto)),
            (&X_FORWARDED_FOR, Some(chain)),
            (&X_REAL_IP, Some(real_ip)),
            (&X_FORWARDED_PREFIX, prefix),
            (&X_CUBE_REQUEST_ID, Some(ctx.request_id.clone())),
            (&header::CONNECTION, ctx.upgrade.then(|| HeaderValue::from_static("Upgrade"))),
        ],
    )?;
    if let Some(trace) = &ctx.trace {
        trace.propagate(request)?;
    }
    ctx.attempts.tally.sent = ctx.attempts.tally.sent.saturating_add(1);
    ctx.attempts.sent_at = Some(Instant::now());
    logging::stamp_activity(state, ctx);
    Ok(())
}

/// HTTP/2 tells the end of a request in its frames, HTTP/1.1 has nothing but the length for it: for
/// methods that mean to send content it is to be said even where it is 0 (RFC 9110, 8.6), and some
/// servers refuse them without (411).
fn say_empty_body(request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    let with_content = matches!(ctx.method, Method::POST | Method::PUT | Method::PATCH);
    if with_content && ctx.body.request_done && !request.headers.contains_key(header::CONTENT_LENGTH) {
        request.insert_header(header::CONTENT_LENGTH, 0)?;
    }
    Ok(())
}

/// Has the headers that name the client's own host, or the prefix, name what the sandbox knows.
fn request_rewrite(request: &mut RequestHeader, ctx: &Context, raw: &[u8]) -> Result<()> {
    let (Some(target), Destination::Sandbox(_)) = (&ctx.target, &ctx.destination) else { return Ok(()) };
    let prefix = target.prefix(ctx.origin_form(raw));
    if prefix.is_none() && ctx.masked_host.is_none() {
        return Ok(());
    }
    let client_host = std::str::from_utf8(&ctx.host).unwrap_or_default();
    let upstream_host = ctx.masked_host.as_ref().map_or(client_host, header_text);
    let way = RequestRewrite { prefix, client_host, upstream_host };
    rewrite(request, &header::ORIGIN, |value| way.origin(value))?;
    rewrite(request, &header::REFERER, |value| way.referer(value))?;
    rewrite(request, &DESTINATION, |value| way.destination(value))
}

/// Puts each value of a header through `change`; what does not change stays as it is.
fn rewrite(
    request: &mut RequestHeader,
    name: &HeaderName,
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<()> {
    let values = request.headers.get_all(name).iter();
    let changed: Vec<Option<Vec<u8>>> = values.map(|value| change(value.as_bytes())).collect();
    if changed.iter().all(Option::is_none) {
        return Ok(());
    }
    let values: Vec<HeaderValue> = request.headers.get_all(name).iter().cloned().collect();
    request.remove_header(name);
    for (value, changed) in values.into_iter().zip(changed) {
        let value = match changed {
            Some(bytes) => HeaderValue::from_maybe_shared(bytes::Bytes::from(bytes))
                .or_err(ErrorType::InvalidHTTPHeader, "a rewritten request header")?,
            None => value,
        };
        request.append_header(name, value)?;
    }
    Ok(())
}

fn has_prefix(ctx: &Context) -> bool {
    ctx.target.as_ref().is_some_and(|target| target.form == cube_route::RoutingForm::Path)
}

/// What only the proxy may say, and what is said to the proxy alone.
fn remove_reserved(
    request: &mut RequestHeader,
    trusted: bool,
    forward_credentials: bool,
    destination: &Destination,
) {
    let keep_credentials = forward_credentials && matches!(destination, Destination::Sandbox(_));
    let reserved: Vec<HeaderName> = request
        .headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            (!trusted && forwarded_headers::is_reserved_header(name))
                || (!keep_credentials && forwarded_headers::is_credential(name))
        })
        .cloned()
        .collect();
    for name in &reserved {
        request.remove_header(name);
    }
}

/// HTTP/2 clients may send a cookie in pieces; HTTP/1.1 has one field (RFC 9113, 8.2.3).
fn join_cookies(request: &mut RequestHeader) -> Result<()> {
    let mut cookies = request.headers.get_all(header::COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return Ok(());
    }
    let pieces: Vec<&[u8]> =
        request.headers.get_all(header::COOKIE).iter().map(|value| value.as_bytes()).collect();
    let joined = HeaderValue::from_bytes(&pieces.join(&b"; "[..]))
        .or_err(ErrorType::InvalidHTTPHeader, "joining cookies")?;
    request.insert_header(header::COOKIE, joined)
}
