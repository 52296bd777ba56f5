//! The first phase: is this a request that may go on, and whom does it name?

use std::sync::Arc;

use bytes::Bytes;
use cube_route::{ListenerKind, Port, RequestHead, forwarded_headers};
use http::{HeaderName, Version, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use crate::connection::{Downstream, Framing, ListenerProtocol, is_line_of};
use crate::decision::head::{self, HeadView, NamedTarget};
use crate::decision::recorder::Unrecorded;
use crate::error_response::ProxyError;
use crate::metrics::RouteClass;
use crate::preview::{Presented, PreviewHead};
use crate::proxy::access;
use crate::proxy::context::{Context, Destination, RequestOutcome};
use crate::proxy::media_type::is_grpc;
use crate::proxy::path_redirect;
use crate::proxy::path_redirect::bare_path;
use crate::proxy::preview_redirect;
use crate::proxy::rejection::Rejection;
use crate::proxy::state::ProxyState;
use crate::trace::RequestTrace;

static INSTANCE_ID: HeaderName = HeaderName::from_static("x-cube-instance-id");

/// The request phase. `Ok(true)`: a response was sent.
pub(crate) async fn filter_request(
    state: &ProxyState,
    session: &mut Session,
    ctx: &mut Context,
) -> Result<bool> {
    frame_body(session, ctx);
    set_timeouts(state, session, ctx);
    let admitted = match check_head(state, session, ctx) {
        Ok(()) => match bare_path(session.req_header(), ctx) {
            Some(location) => {
                path_redirect::redirect_bare_path(session, ctx, location).await?;
                return Ok(true);
            }
            None => access::check_access(state, session, ctx).await,
        },
        Err(error) => Err(error.into()),
    };
    match admitted {
        Ok(()) => Ok(false),
        Err(Rejection::Error(error)) => {
            preview_redirect::respond_or_send_to_log_in(session, ctx, error).await?;
            Ok(true)
        }
        Err(Rejection::WithoutTicket) => {
            preview_redirect::redirect_without_ticket(session, ctx).await?;
            Ok(true)
        }
        Err(Rejection::ClientLeft) => {
            ctx.outcome = Some(RequestOutcome::CLIENT_LEFT);
            Err(Error::new_down(ErrorType::ConnectionClosed))
        }
    }
}

/// Time-outs and keep-alive of this request, which Pingora sets anew for each.
fn set_timeouts(state: &ProxyState, session: &mut Session, ctx: &Context) {
    let silence = Some(ctx.settings.upstream.silence_timeout);
    session.set_read_timeout(silence);
    session.set_write_timeout(silence);
    // Else it stays without a limit, as Pingora sets it: idle connections are the driver's.
    if state.drain.closing() {
        session.set_keepalive(None);
    }
    // HTTP/1.0 defines no 1xx (RFC 9110, 15.2).
    if session.req_header().version < Version::HTTP_11 {
        session.set_ignore_info_resp(true);
    }
}

/// Checks the head and reads whom it names.
fn check_head(state: &ProxyState, session: &mut Session, ctx: &mut Context) -> Result<(), ProxyError> {
    let head_bytes = raw_head(session).map(|raw| raw.len());
    let misframed = has_both_framings(session) || pingora_read_another_head(session, ctx);
    let odd_line = ctx.downstream.as_ref().and_then(|downstream| downstream.conn.take_odd_line());
    let target_changed = pingora_changed_target(session, odd_line.as_deref());
    let body_empty = session.is_body_empty();
    let request = session.req_header_mut();
    ctx.method = request.method.clone();
    if let Some(id) = forwarded_headers::request_id(&request.headers)
        && let Ok(id) = http::HeaderValue::from_str(id)
    {
        ctx.request_id = id;
    }
    ctx.seen.user_agent = request.headers.get(header::USER_AGENT).cloned();
    ctx.seen.instance_id = request.headers.get(&INSTANCE_ID).cloned();
    let settings = ctx.settings.clone();
    let Some(downstream) = ctx.downstream.clone() else { return Err(ProxyError::Internal) };

    // Who asks, as far as peers in front are believed.
    let peer = downstream.conn.peer.ip().to_canonical();
    if state.traces.is_some() {
        ctx.trace = RequestTrace::begin(&request.headers, settings.trusts(peer), settings.trace_ratio);
    }
    let forwarded =
        forwarded_headers::forwarded_for(&request.headers, peer, |address| settings.trusts(address));
    ctx.seen.real_ip = Some(forwarded.real_ip);
    ctx.seen.forwarded_for = forwarded.chain.and_then(|chain| http::HeaderValue::from_str(&chain).ok());

    // Whom it names, before anything may refuse it, so that log and response can say it.
    let target = Bytes::copy_from_slice(request.raw_path());
    let authority = if request.version == Version::HTTP_2 { request.uri.authority().cloned() } else { None };
    let grpc_listener = downstream.conn.protocol == ListenerProtocol::Grpc;
    let view = HeadView {
        head: RequestHead {
            version: request.version,
            method: &request.method,
            target: &target,
            authority: authority.as_ref().map(http::uri::Authority::as_str),
            headers: &request.headers,
            listener: if grpc_listener { ListenerKind::Grpc } else { ListenerKind::Data },
        },
        peer: Some(peer),
        bytes: head_bytes,
        sound: !misframed && !target_changed && well_framed(request),
        content_length: content_length(request),
    };
    let named = NamedTarget::read(&view.head, &settings);
    if let Ok(read) = &named.parsed {
        ctx.host = Bytes::copy_from_slice(read.host.as_bytes());
        if read.origin_form.as_ref() != target.as_ref() {
            ctx.origin_form = Some(Bytes::copy_from_slice(&read.origin_form));
        }
        ctx.target.clone_from(&read.target);
        if let Some(named) = &ctx.target
            && let Some((presented, rest)) = Presented::read(
                &PreviewHead {
                    method: &request.method,
                    headers: &request.headers,
                    origin_form: ctx.origin_form(&target),
                    form: named.form,
                    host: read.client_host,
                    tls: is_tls(&request.headers, &downstream, settings.trusts(peer)),
                },
                &settings.previews,
            )
        {
            ctx.preview = Some(Box::new(presented));
            ctx.origin_form = rest.map(Bytes::from).or_else(|| ctx.origin_form.take());
        }
        let upstream = ctx.upstream_target(&target);
        let path = upstream.split(|b| *b == b'?').next().unwrap_or_default();
        ctx.route_class = std::str::from_utf8(path).map_or(RouteClass::Other, RouteClass::of);
    }
    ctx.gauges.inflight = Some(state.metrics.inflight(ctx.route_class));

    let rate = settings.limits.request_rate();
    let rate_allows = || rate.is_none_or(|rate| state.rate.allows(forwarded.real_ip, rate));
    head::check(&view, &named, &settings, rate_allows, &mut Unrecorded)?;
    let control_plane = named.control_plane;
    unify_length(request);

    ctx.upgrade_named = request.headers.contains_key(header::UPGRADE);
    ctx.upgrade = ctx.upgrade_named && keep_real_upgrade(request, &ctx.target, &settings);
    ctx.grpc = request.version == Version::HTTP_2
        && (downstream.conn.protocol == ListenerProtocol::Grpc || is_grpc(&request.headers));
    if control_plane {
        ctx.destination = Destination::ControlPlane;
    }
    if body_empty && ctx.upgrade {
        ctx.body_end = Some(Arc::default());
    }
    if body_empty && !ctx.upgrade {
        ctx.body.request_done = true;
        if request.version != Version::HTTP_2 {
            downstream.conn.join_next_head();
        }
    }
    Ok(())
}

/// Whether the client speaks TLS, with this proxy or with a trusted one before it.
fn is_tls(headers: &http::HeaderMap, downstream: &Downstream, trusted: bool) -> bool {
    let secure = downstream.conn.protocol.scheme() == "https";
    forwarded_headers::forwarded_proto(headers, trusted, secure) == "https"
}

/// The head of an HTTP/1 request as it came in.
fn raw_head(session: &Session) -> Option<Bytes> {
    match &*session.downstream_session {
        ServerSession::H1(http1) => Some(http1.get_headers_raw_bytes()),
        ServerSession::Custom(exchange) => Some(exchange.pseudo_raw_h1_request_header()),
        _ => None,
    }
}

/// Whether Pingora took something away from the target (it cuts a `#` and what follows) or
/// encoded something in it (`odd_line` is what came in), so that it would not reach the sandbox as
/// it was sent.
fn pingora_changed_target(session: &Session, odd_line: Option<&[u8]>) -> bool {
    let Some(raw) = raw_head(session) else { return false };
    // Empty lines before the request line are ignored (RFC 9112, 2.2).
    let line = raw.trim_ascii_start().split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii_end();
    let sent = line.split(|b| *b == b' ').nth(1).unwrap_or_default();
    sent != session.req_header().raw_path() || odd_line.is_some_and(|seen| is_line_of(seen, line))
}

/// Says to the client's stream where the body of an HTTP/1.1 request ends, as Pingora sees it.
fn frame_body(session: &Session, ctx: &Context) {
    let (Some(downstream), Some(_)) = (&ctx.downstream, session.downstream_session.as_http1()) else {
        return;
    };
    let request = session.req_header();
    downstream.conn.frame_body(if request.headers.contains_key(header::TRANSFER_ENCODING) {
        Framing::Chunked
    } else {
        Framing::Length(content_length(request).unwrap_or(0))
    });
}

/// Whether Pingora has found the end of the head elsewhere than the stream it reads from: what
/// follows would be taken for a body by the one and for a request by the other.
fn pingora_read_another_head(session: &Session, ctx: &Context) -> bool {
    let (Some(downstream), Some(http1)) = (&ctx.downstream, session.downstream_session.as_http1()) else {
        return false;
    };
    http1.get_headers_raw_bytes().len() != downstream.conn.head_given()
}

/// Transfer-Encoding beside Content-Length, which Pingora has silently dropped by now: what was
/// sent is looked at, and only where there is a Transfer-Encoding at all.
fn has_both_framings(session: &Session) -> bool {
    if !session.req_header().headers.contains_key(header::TRANSFER_ENCODING) {
        return false;
    }
    let Some(raw) = raw_head(session) else { return true };
    raw.split(|b| *b == b'\n').any(|line| {
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"content-length")
    })
}

/// RFC 9112, 6: the one transfer coding is chunked, and a length is one number. Pingora has refused lengths
/// that differ.
fn well_framed(request: &RequestHeader) -> bool {
    let mut codings = request.headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        if !chunked || codings.next().is_some() {
            return false;
        }
    }
    !request.headers.contains_key(header::CONTENT_LENGTH) || content_length(request).is_some()
}

/// Makes one number of a length that is said several times.
fn unify_length(request: &mut RequestHeader) {
    let mut lengths = request.headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return };
    if lengths.next().is_none() && first.as_bytes().iter().all(u8::is_ascii_digit) {
        return;
    }
    if let Some(length) = content_length(request) {
        // A number is no header value that could be refused.
        let _ = request.insert_header(header::CONTENT_LENGTH, length);
    }
}

/// The length of the body as the head says it; the first of a list of equal ones.
fn content_length(request: &RequestHeader) -> Option<u64> {
    let value = request.headers.get(header::CONTENT_LENGTH)?;
    let first = value.to_str().ok()?.split(',').next()?.trim();
    (!first.is_empty() && first.bytes().all(|b| b.is_ascii_digit())).then(|| first.parse().ok())?
}

/// Whether a request with an `Upgrade` asks for one that is passed on; where it does not, the field
/// goes, so that Pingora sees none either (connections.md, WebSocket and upgrades).
fn keep_real_upgrade(
    request: &mut RequestHeader,
    target: &Option<cube_route::SandboxTarget>,
    settings: &crate::settings::Settings,
) -> bool {
    let nominated = crate::proxy::hop_by_hop::connection_tokens(&request.headers)
        .any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    let mut protocols = request.headers.get_all(header::UPGRADE).iter();
    let protocol = protocols.next().map(|value| value.as_bytes().trim_ascii()).unwrap_or_default();
    let names =
        |name: &[u8]| protocol.split(|b| *b == b',').any(|one| one.trim_ascii().eq_ignore_ascii_case(name));
    let only_websocket = settings.own_responses.dialect == crate::error_response::Dialect::E2b
        && target.as_ref().is_some_and(|target| target.port == Port::ENVD);
    let real = request.version == Version::HTTP_11
        && nominated
        && protocols.next().is_none()
        && !protocol.is_empty()
        && !names(b"h2c")
        && (!only_websocket || protocol.eq_ignore_ascii_case(b"websocket"));
    if !real {
        request.remove_header(&header::UPGRADE);
    }
    real
}
