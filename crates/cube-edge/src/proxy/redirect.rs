//! Responses of the proxy that send a browser elsewhere.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{ErrorType, OrErr, Result};

use crate::error_response::Reason;
use crate::error_response::send::send;
use crate::proxy::context::{Context, RequestOutcome};
use crate::retcode::Retcode;

/// Such a response; it has no body.
pub(crate) struct Redirect {
    pub(crate) status: u16,
    pub(crate) retcode: Retcode,
    pub(crate) reason: Reason,
    pub(crate) location: Vec<u8>,
    /// Headers beside those that every response of the proxy has.
    pub(crate) extra: Vec<(HeaderName, HeaderValue)>,
}

/// Sends the redirect, and notes it for the log.
pub(crate) async fn redirect(session: &mut Session, ctx: &mut Context, to: Redirect) -> Result<()> {
    let Redirect { status, retcode, reason, location, extra } = to;
    let cors = session.req_header().headers.contains_key(header::ORIGIN);
    let mut head = ResponseHeader::build(status, Some(10))?;
    let location = HeaderValue::from_maybe_shared(Bytes::from(location))
        .or_err(ErrorType::InvalidHTTPHeader, "a target as a Location")?;
    head.append_header(header::LOCATION, location)?;
    head.append_header(header::CONTENT_LENGTH, 0)?;
    head.append_header(header::CACHE_CONTROL, "no-store")?;
    head.append_header("X-Content-Type-Options", "nosniff")?;
    for (name, value) in extra {
        head.append_header(name, value)?;
    }
    if cors {
        head.append_header("Access-Control-Allow-Origin", "*")?;
        head.append_header("Access-Control-Expose-Headers", "X-Cube-Request-Id, X-Cube-Retcode")?;
    }
    head.append_header("X-Cube-Retcode", retcode.wire())?;
    head.append_header("X-Cube-Request-Id", ctx.request_id.clone())?;
    ctx.outcome = Some(RequestOutcome { status, retcode, reason });
    send(session, ctx, head, Bytes::new()).await
}
