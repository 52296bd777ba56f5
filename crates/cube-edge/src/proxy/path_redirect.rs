//! A browser that navigates to `/sandbox/<id>/<port>` is sent to the same with a slash, where the
//! relative links of the page lead into the sandbox (routing.md, "Path form").
//!
//! That happens before anything is looked up, for every id alike: the response tells nothing about
//! the sandbox, nothing is woken and nothing is stamped. Whether the sandbox is there, and for
//! whom, is decided on the request that follows.

use cube_route::RoutingForm;
use http::Method;
use pingora::Result;
use pingora::http::RequestHeader;
use pingora::proxy::Session;

use crate::error_response::Reason;
use crate::error_response::navigates;
use crate::proxy::context::Context;
use crate::proxy::redirect::{Redirect, redirect};
use crate::retcode::Retcode;

/// Responds to such a request; `location` is what [`bare_path`] has found.
pub(crate) async fn redirect_bare_path(
    session: &mut Session,
    ctx: &mut Context,
    location: Vec<u8>,
) -> Result<()> {
    let to = Redirect {
        status: 302,
        retcode: Retcode::Redirected,
        reason: Reason::BarePath,
        location,
        extra: Vec::new(),
    };
    redirect(session, ctx, to).await
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
    // A ticket goes along: it is judged on the request that follows.
    let whole = ctx.preview.as_ref().and_then(|presented| presented.origin_form());
    let origin_form = whole.unwrap_or_else(|| ctx.origin_form(raw));
    let prefix = target.prefix(origin_form)?.as_bytes();
    let rest = origin_form.strip_prefix(prefix)?;
    matches!(rest.first(), None | Some(b'?')).then(|| [prefix, b"/", rest].concat())
}
