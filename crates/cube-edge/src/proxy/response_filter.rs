//! What the client gets back (routing.md): the response's head, and both bodies as they pass.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cube_route::{REMOVED_IN_PATH_FORM, ResponseRewrite, RoutingForm};
use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{ErrorType, OrErr, Result};

use crate::connection::Framing;
use crate::error_response::ProxyError;
use crate::metrics::Direction;
use crate::proxy::cache_filters;
use crate::proxy::context::{Context, Destination};
use crate::proxy::hop_by_hop;
use crate::proxy::logging;
use crate::proxy::own_headers::{self, X_CUBE_REQUEST_ID, X_CUBE_RETCODE};
use crate::proxy::preview_headers::{drop_forged_cookies, mark_response};
use crate::proxy::state::ProxyState;
use crate::retcode::Retcode;

/// How often a sandbox's activity is stamped while bytes move.
const STAMP_EVERY: Duration = Duration::from_secs(5);

static REFRESH: HeaderName = HeaderName::from_static("refresh");
static SERVICE_WORKER: HeaderName = HeaderName::from_static("service-worker-allowed");

/// Turns the sandbox's head into the client's.
pub(crate) fn filter_response(
    state: &ProxyState,
    session: &mut Session,
    response: &mut ResponseHeader,
    ctx: &mut Context,
) -> Result<()> {
    let status = response.status;
    // There is no upgrade in HTTP/1.0; Pingora would take it for one on the client's side alone.
    let switches_for_none =
        status == StatusCode::SWITCHING_PROTOCOLS && (!ctx.upgrade || response.version < Version::HTTP_11);
    if !well_framed(response)? || switches_for_none {
        return Err(ctx.fail(ProxyError::UpstreamMalformed));
    }
    // The version says what the sender of a message can do, and that is this proxy (RFC 9112, 2.3).
    if response.version < Version::HTTP_11 {
        response.set_version(Version::HTTP_11);
    }
    let client_version = session.req_header().version;
    hop_by_hop::remove_from_response(response, client_version)?;
    if client_version == Version::HTTP_11
        && status == StatusCode::UPGRADE_REQUIRED
        && response.headers.contains_key(header::UPGRADE)
        && let Some(downstream) = &ctx.downstream
    {
        downstream.conn.nominate_upgrade();
    }
    if status.is_informational() || status == StatusCode::NO_CONTENT {
        response.remove_header(&header::CONTENT_LENGTH);
        response.remove_header(&header::TRANSFER_ENCODING);
    }
    let of_sandbox = matches!(ctx.destination, Destination::Sandbox(_));
    if of_sandbox {
        drop_forged_cookies(response)?;
    }
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        // Ours to say; of the response they are replaced below.
        response.remove_header(&X_CUBE_REQUEST_ID);
        response.remove_header(&X_CUBE_RETCODE);
        if state.response_cache.is_some() {
            response.remove_header("x-cube-cache");
        }
        return Ok(()); // the response is still to come
    }
    if status == StatusCode::SWITCHING_PROTOCOLS
        && let Some(downstream) = &ctx.downstream
    {
        downstream.conn.frame_body(Framing::Tunnel);
    }
    note_response(state, ctx, status.as_u16());
    if of_sandbox {
        response_rewrite(session, response, ctx)?;
        mark_response(response, ctx)?;
    }
    cache_filters::add_cache_header(state, session, response, ctx)?;
    let retcode = Retcode::Passed(status.as_u16()).wire();
    own_headers::set_in_response(
        response,
        [(&X_CUBE_REQUEST_ID, Some(ctx.request_id.clone())), (&X_CUBE_RETCODE, Some(retcode))],
    )?;
    if session.req_header().version < Version::HTTP_11 {
        // An HTTP/1.0 client knows no chunks: the end of its body is the end of the connection.
        response.remove_header(&header::TRANSFER_ENCODING);
        if !response.headers.contains_key(header::CONTENT_LENGTH) && ctx.method != Method::HEAD {
            session.set_keepalive(None);
        }
    }
    if state.drain.closing() {
        session.set_keepalive(None);
    }
    Ok(())
}

fn note_response(state: &ProxyState, ctx: &mut Context, status: u16) {
    ctx.seen.head_sent = Some(status);
    let Some(attempt) = ctx.attempts.list.last_mut() else { return };
    attempt.status = Some(status);
    if let Some(sent) = ctx.attempts.sent_at {
        state.metrics.upstream_first_byte.observe(sent.elapsed().as_secs_f64());
    }
    let status_switches = status == 101;
    ctx.gauges.stream = Some(state.metrics.stream());
    ctx.gauges.websocket = status_switches.then(|| state.metrics.websocket());
}

/// A piece of the client's body has come.
pub(crate) fn count_request_body(
    state: &ProxyState,
    bytes: usize,
    end: bool,
    ctx: &mut Context,
) -> Result<()> {
    let again = ctx.body.replayed.min(bytes as u64);
    ctx.body.replayed -= again;
    let new = bytes as u64 - again;
    ctx.body.up += new;
    ctx.body.request_done |= end;
    if let Some(ended) = ctx.ended() {
        return Err(ctx.fail(ended));
    }
    let upgraded = ctx.seen.head_sent == Some(101);
    if let Some(limit) = *ctx.settings.limits.body
        && ctx.body.up > limit
        && !upgraded
    {
        return Err(ctx.fail(ProxyError::BodyTooLarge));
    }
    state.metrics.bytes(Direction::In, new);
    note_activity(state, bytes, ctx);
    Ok(())
}

/// A piece of the sandbox's body has come.
pub(crate) fn count_response_body(
    state: &ProxyState,
    bytes: usize,
    end: bool,
    ctx: &mut Context,
) -> Result<()> {
    ctx.body.down += bytes as u64;
    // The end of what is cut short because of a kill must not pass for its end.
    if let Some(ended) = ctx.ended()
        && (end || bytes > 0)
    {
        return Err(ctx.fail(ended));
    }
    state.metrics.bytes(Direction::Out, bytes as u64);
    note_activity(state, bytes, ctx);
    Ok(())
}

fn note_activity(state: &ProxyState, bytes: usize, ctx: &mut Context) {
    if bytes == 0 {
        return;
    }
    let now = Instant::now();
    ctx.body.moved = Some(now);
    if ctx.stamped.is_some_and(|stamped| now.saturating_duration_since(stamped) >= STAMP_EVERY) {
        logging::stamp_activity(state, ctx);
    }
}

/// Whether the response says its length in one way: no coding but `chunked`, and one number, be it
/// written once or several times (then it becomes one).
fn well_framed(response: &mut ResponseHeader) -> Result<bool> {
    let mut codings = response.headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        if !chunked || codings.next().is_some() {
            return Ok(false);
        }
    }
    let mut number = None;
    let mut count = 0;
    let lengths = response.headers.get_all(header::CONTENT_LENGTH).iter();
    for length in lengths.flat_map(|value| value.as_bytes().split(|b| *b == b',')) {
        let length = length.trim_ascii();
        let read = std::str::from_utf8(length).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let Some(read) = read.and_then(|text| text.parse::<u64>().ok()) else { return Ok(false) };
        if number.is_some_and(|number| number != read) {
            return Ok(false);
        }
        number = Some(read);
        count += 1;
    }
    if let Some(number) = number.filter(|_| count > 1) {
        response.insert_header(header::CONTENT_LENGTH, number)?;
    }
    Ok(true)
}

/// Moves what the sandbox says about places back to where the client sees them.
fn response_rewrite(session: &Session, response: &mut ResponseHeader, ctx: &Context) -> Result<()> {
    let Some(target) = &ctx.target else { return Ok(()) };
    if target.form != RoutingForm::Path && ctx.masked_host.is_none() {
        return Ok(());
    }
    let client_host = std::str::from_utf8(&ctx.host).unwrap_or_default();
    let origin_form = ctx.origin_form(session.req_header().raw_path());
    let scheme = match &ctx.seen.forwarded_proto {
        Some(proto) if proto.as_bytes() == b"https" => "https",
        _ => "http",
    };
    let back = ResponseRewrite {
        prefix: target.prefix(origin_form),
        client_host,
        client_scheme: scheme,
        upstream_host: ctx.masked_host.as_ref().map_or(client_host, crate::proxy::state::header_text),
        container_port: target.port.get(),
    };
    rewrite(response, &header::LOCATION, |value| back.location(value))?;
    rewrite(response, &header::CONTENT_LOCATION, |value| back.location(value))?;
    rewrite(response, &REFRESH, |value| back.refresh(value))?;
    if back.prefix.is_some() {
        rewrite(response, &header::SET_COOKIE, |value| back.set_cookie(value))?;
        rewrite(response, &SERVICE_WORKER, |value| back.service_worker_allowed(value))?;
        // One walk tells whether there is anything to remove: most often there is not.
        if response.headers.keys().any(|name| REMOVED_IN_PATH_FORM.contains(&name.as_str())) {
            for name in REMOVED_IN_PATH_FORM {
                response.remove_header(*name);
            }
        }
    }
    Ok(())
}

/// Puts each value of a field through `change`; fields that do not change stay as they are.
fn rewrite(
    response: &mut ResponseHeader,
    name: &HeaderName,
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<()> {
    let mut values = response.headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(()) };
    let rewritten = |bytes: Vec<u8>| {
        HeaderValue::from_maybe_shared(Bytes::from(bytes))
            .or_err(ErrorType::InvalidHTTPHeader, "a rewritten response header")
    };
    // Most often there is one.
    if values.next().is_none() {
        return match change(first.as_bytes()) {
            Some(changed) => response.insert_header(name, rewritten(changed)?),
            None => Ok(()),
        };
    }
    let values: Vec<(HeaderValue, bool)> = response
        .headers
        .get_all(name)
        .iter()
        .map(|value| match change(value.as_bytes()) {
            Some(changed) => rewritten(changed).map(|value| (value, true)),
            None => Ok((value.clone(), false)),
        })
        .collect::<Result<_>>()?;
    if !values.iter().any(|(_, changed)| *changed) {
        return Ok(());
    }
    response.remove_header(name);
    for (value, _) in values {
        response.append_header(name, value)?;
    }
    Ok(())
}
