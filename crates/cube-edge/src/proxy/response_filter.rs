//! What the client gets back (routing.md): the answer's head, and both bodies as they pass.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cube_route::{REMOVED_IN_PATH_FORM, ResponseRewrite, RoutingForm};
use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{ErrorType, OrErr, Result};

use crate::connection::Framing;
use crate::error_response::ProxyError;
use crate::limits::active_requests::Ended;
use crate::metrics::Direction;
use crate::proxy::context::{Context, Destination};
use crate::proxy::state::ProxyState;
use crate::proxy::upstream_peer::fail;
use crate::retcode::Retcode;

/// How often a sandbox's activity is stamped while bytes move.
const STAMP_EVERY: Duration = Duration::from_secs(5);

static HOP_BY_HOP: [HeaderName; 5] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::UPGRADE,
];
static REQUEST_ID: HeaderName = HeaderName::from_static("x-cube-request-id");
static RETCODE: HeaderName = HeaderName::from_static("x-cube-retcode");
static REFRESH: HeaderName = HeaderName::from_static("refresh");
static SERVICE_WORKER: HeaderName = HeaderName::from_static("service-worker-allowed");

impl ProxyState {
    /// Turns the sandbox's head into the client's.
    pub(crate) fn filter_response(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Context,
    ) -> Result<()> {
        let status = response.status;
        // There is no upgrade in HTTP/1.0; the engine would take it for one on the client's side alone.
        let switches_for_none = status == StatusCode::SWITCHING_PROTOCOLS
            && (!ctx.upgrade || response.version < Version::HTTP_11);
        if !well_framed(response)? || switches_for_none {
            return Err(fail(ctx, ProxyError::UpstreamMalformed));
        }
        // The version says what the sender of a message can do, and that is this proxy (RFC 9112, 2.3).
        if response.version < Version::HTTP_11 {
            response.set_version(Version::HTTP_11);
        }
        let client_version = session.req_header().version;
        remove_hop_by_hop(response, client_version)?;
        if client_version == Version::HTTP_11
            && status == StatusCode::UPGRADE_REQUIRED
            && response.headers.contains_key(header::UPGRADE)
            && let Some(origin) = &ctx.origin
        {
            origin.conn.nominate_upgrade();
        }
        if status.is_informational() || status == StatusCode::NO_CONTENT {
            response.remove_header(&header::CONTENT_LENGTH);
            response.remove_header(&header::TRANSFER_ENCODING);
        }
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            // Ours to say; of the answer they are replaced below.
            response.remove_header(&REQUEST_ID);
            response.remove_header(&RETCODE);
            if self.response_cache.is_some() {
                response.remove_header("x-cube-cache");
            }
            return Ok(()); // the answer is still to come
        }
        if status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(origin) = &ctx.origin
        {
            origin.conn.frame_body(Framing::Tunnel);
        }
        self.answered(ctx, status.as_u16());
        if matches!(ctx.destination, Destination::Sandbox(_)) {
            response_rewrite(session, response, ctx)?;
        }
        self.tell_of_cache(session, response, ctx)?;
        response.insert_header("X-Cube-Request-Id", &ctx.request_id)?;
        response.insert_header("X-Cube-Retcode", Retcode::Passed(status.as_u16()).wire())?;
        if session.req_header().version < Version::HTTP_11 {
            // An HTTP/1.0 client knows no chunks: the end of its body is the end of the connection.
            response.remove_header(&header::TRANSFER_ENCODING);
            if !response.headers.contains_key(header::CONTENT_LENGTH) && ctx.method != Method::HEAD {
                session.set_keepalive(None);
            }
        }
        if self.drain.closing() {
            session.set_keepalive(None);
        }
        Ok(())
    }

    fn answered(&self, ctx: &mut Context, status: u16) {
        ctx.seen.head_sent = Some(status);
        let Some(attempt) = ctx.attempts.list.last_mut() else { return };
        attempt.status = Some(status);
        if let Some(sent) = ctx.attempts.sent_at {
            self.metrics.upstream_first_byte.observe(sent.elapsed().as_secs_f64());
        }
        let status_switches = status == 101;
        ctx.gauges.stream = Some(self.metrics.stream());
        ctx.gauges.websocket = status_switches.then(|| self.metrics.websocket());
    }

    /// A piece of the client's body has come.
    pub(crate) fn count_request_body(&self, bytes: usize, end: bool, ctx: &mut Context) -> Result<()> {
        let again = ctx.body.replayed.min(bytes as u64);
        ctx.body.replayed -= again;
        let new = bytes as u64 - again;
        ctx.body.up += new;
        ctx.body.request_done |= end;
        if let Some(ended) = ended(ctx) {
            return Err(fail(ctx, ended));
        }
        let upgraded = ctx.seen.head_sent == Some(101);
        if let Some(limit) = ctx.settings.limits.body
            && ctx.body.up > limit
            && !upgraded
        {
            return Err(fail(ctx, ProxyError::BodyTooLarge));
        }
        self.metrics.bytes(Direction::In, new);
        self.moved(bytes, ctx);
        Ok(())
    }

    /// A piece of the sandbox's body has come.
    pub(crate) fn count_response_body(&self, bytes: usize, end: bool, ctx: &mut Context) -> Result<()> {
        ctx.body.down += bytes as u64;
        // The end of what is cut short because of a kill must not pass for its end.
        if let Some(ended) = ended(ctx)
            && (end || bytes > 0)
        {
            return Err(fail(ctx, ended));
        }
        self.metrics.bytes(Direction::Out, bytes as u64);
        self.moved(bytes, ctx);
        Ok(())
    }

    fn moved(&self, bytes: usize, ctx: &mut Context) {
        if bytes == 0 {
            return;
        }
        let now = Instant::now();
        ctx.body.moved = Some(now);
        if ctx.stamped.is_some_and(|stamped| now.saturating_duration_since(stamped) >= STAMP_EVERY) {
            self.stamp(ctx);
        }
    }
}

/// What to say of a request that was ended from outside.
pub(crate) fn ended(ctx: &Context) -> Option<ProxyError> {
    match ctx.place.as_ref()?.live.ended()? {
        Ended::Killed => Some(ProxyError::Killed),
        Ended::Revoked => Some(ProxyError::Revoked),
        Ended::Drained => Some(ProxyError::DrainTimeout),
    }
}

fn remove_hop_by_hop(response: &mut ResponseHeader, client: Version) -> Result<()> {
    let switching = response.status == StatusCode::SWITCHING_PROTOCOLS;
    let keeps_upgrade = switching || asks_for_upgrade(response, client);
    if response.headers.contains_key(header::CONNECTION) {
        let nominated: Vec<HeaderName> =
            crate::proxy::upstream_request_filter::connection_tokens(&response.headers)
                .filter_map(|token| HeaderName::from_bytes(token).ok())
                .filter(|name| {
                    // Framing is the engine's; an upgrade's own fields stay with it.
                    *name != header::CONTENT_LENGTH
                        && *name != header::TRANSFER_ENCODING
                        && !(keeps_upgrade && *name == header::UPGRADE)
                })
                .collect();
        for name in &nominated {
            response.remove_header(name);
        }
        response.remove_header(&header::CONNECTION);
    }
    if switching {
        response.insert_header(header::CONNECTION, "Upgrade")?;
    }
    // One walk over the fields tells whether there is anything to remove: most often there is not.
    if response.headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        for name in HOP_BY_HOP.iter().filter(|name| !(keeps_upgrade && **name == header::UPGRADE)) {
            response.remove_header(name);
        }
    }
    Ok(())
}

/// Whether this is a 426 whose `Upgrade` says to what (RFC 9110, 15.5.22), for a client that can do so
/// through this proxy: over HTTP/1.1, and to anything but `h2c`.
fn asks_for_upgrade(response: &ResponseHeader, client: Version) -> bool {
    response.status == StatusCode::UPGRADE_REQUIRED
        && client == Version::HTTP_11
        && !response
            .headers
            .get_all(header::UPGRADE)
            .iter()
            .flat_map(|value| value.as_bytes().split(|b| *b == b','))
            .any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"h2c"))
}

/// Whether the answer says its length in one way: no coding but `chunked`, and one number, be it
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
            .or_err(ErrorType::InvalidHTTPHeader, "a rewritten answer header")
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
