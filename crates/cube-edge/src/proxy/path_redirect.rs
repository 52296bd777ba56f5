//! A browser that navigates to `/sandbox/<id>/<port>` is sent to the same with a slash, where the
//! relative links of the page lead into the sandbox (routing.md, "Path form").
//!
//! That happens before anything is looked up, for every id alike: the response tells nothing about
//! the sandbox, nothing is woken and nothing is stamped. Whether the sandbox is there, and for
//! whom, is decided on the request that follows.

use bytes::Bytes;
use cube_route::RoutingForm;
use http::{HeaderValue, Method, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::proxy::Session;
use pingora::{ErrorType, OrErr, Result};

use crate::error_response::Reason;
use crate::error_response::navigates;
use crate::error_response::send::send;
use crate::proxy::context::{Context, Outcome};
use crate::retcode::Retcode;

/// Responds to such a request; `location` is what [`bare_path`] has found.
pub(crate) async fn redirect_bare_path(
    session: &mut Session,
    ctx: &mut Context,
    location: Vec<u8>,
) -> Result<()> {
    let request = session.req_header();
    let cors = request.headers.contains_key(header::ORIGIN);
    let mut head = ResponseHeader::build(302, Some(8))?;
    let location = HeaderValue::from_maybe_shared(Bytes::from(location))
        .or_err(ErrorType::InvalidHTTPHeader, "a target as a Location")?;
    head.append_header(header::LOCATION, location)?;
    head.append_header(header::CONTENT_LENGTH, 0)?;
    head.append_header(header::CACHE_CONTROL, "no-store")?;
    head.append_header("X-Content-Type-Options", "nosniff")?;
    if cors {
        head.append_header("Access-Control-Allow-Origin", "*")?;
        head.append_header("Access-Control-Expose-Headers", "X-Cube-Request-Id, X-Cube-Retcode")?;
    }
    head.append_header("X-Cube-Retcode", Retcode::Redirected.wire())?;
    head.append_header("X-Cube-Request-Id", ctx.request_id.clone())?;
    ctx.outcome = Some(Outcome { status: 302, retcode: Retcode::Redirected, reason: Reason::BarePath });
    send(session, ctx, head, Bytes::new()).await
}

/// Where such a request is sent; `None`: it is none.
pub(crate) fn bare_path(request: &RequestHeader, ctx: &Context) -> Option<Vec<u8>> {
    // Headers last: few requests name their sandbox in the path, and fewer leave out the slash.
    if ctx.method != Method::GET {
        return None;
    }
    with_slash(ctx, request.raw_path()).filter(|_| navigates(&request.headers))
}

/// The origin form with a slash behind the prefix; none where something stands there.
fn with_slash(ctx: &Context, raw: &[u8]) -> Option<Vec<u8>> {
    let target = ctx.target.as_ref().filter(|target| target.form == RoutingForm::Path)?;
    let origin_form = ctx.origin_form(raw);
    let prefix = target.prefix(origin_form)?.as_bytes();
    let rest = origin_form.strip_prefix(prefix)?;
    matches!(rest.first(), None | Some(b'?')).then(|| [prefix, b"/", rest].concat())
}
