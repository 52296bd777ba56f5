//! Where a browser is sent that opens a preview link, or may not enter (previews.md): to the same without its
//! ticket, or to log in.

use bytes::Bytes;
use cube_route::preview::query;
use http::{HeaderValue, header};
use pingora::proxy::Session;
use pingora::{ErrorType, OrErr, Result};

use crate::error_response::send::respond_with_error;
use crate::error_response::{ProxyError, Reason};
use crate::preview::{PreviewResult, Right};
use crate::proxy::context::Context;
use crate::proxy::redirect::{Redirect, redirect};
use crate::retcode::Retcode;

/// Gives a navigation its ticket as a cookie, and sends it to the same without the parameter. It wakes
/// nothing: the request that follows does.
pub(crate) async fn redirect_without_ticket(session: &mut Session, ctx: &mut Context) -> Result<()> {
    let Some((location, set_cookie)) = location_and_cookie(session, ctx) else {
        return respond_with_error(session, ctx, ProxyError::Internal).await;
    };
    let set_cookie = HeaderValue::from_maybe_shared(Bytes::from(set_cookie))
        .or_err(ErrorType::InvalidHTTPHeader, "a ticket as a cookie")?;
    ctx.preview_result = Some(PreviewResult::Redirected);
    let to = Redirect {
        status: 303,
        retcode: Retcode::PreviewRedirected,
        reason: Reason::PreviewRedirect,
        location,
        extra: vec![
            (header::SET_COOKIE, set_cookie),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        ],
    };
    redirect(session, ctx, to).await
}

/// What that redirect says.
fn location_and_cookie(session: &Session, ctx: &Context) -> Option<(Vec<u8>, String)> {
    let Some(Right::Query(expiry)) = ctx.right else { return None };
    let target = ctx.origin_form(session.req_header().raw_path());
    // In the path form the cookie covers the sandbox's own targets, in the host form all there are.
    let path = ctx.target.as_ref()?.prefix(target).unwrap_or("/");
    Some((query::location(target), ctx.preview.as_ref()?.set_cookie(expiry, path)?))
}

/// Responds to what `error` says of a request; where people log in, a browser that may not enter, or finds
/// nothing to enter, is sent there.
pub(crate) async fn respond_or_send_to_log_in(
    session: &mut Session,
    ctx: &mut Context,
    error: ProxyError,
) -> Result<()> {
    let Some(location) = login_location(session, ctx, error) else {
        return respond_with_error(session, ctx, error).await;
    };
    ctx.preview_result = Some(PreviewResult::Login);
    let to = Redirect {
        status: 302,
        retcode: Retcode::Redirected,
        reason: Reason::PreviewLogin,
        location,
        extra: Vec::new(),
    };
    redirect(session, ctx, to).await
}

fn login_location(session: &Session, ctx: &Context, error: ProxyError) -> Option<Vec<u8>> {
    if !error.leads_to_login() || ctx.masked_as_unavailable || !sends_to_log_in(session, ctx) {
        return None;
    }
    let target = ctx.target.as_ref()?;
    let login = ctx.settings.previews.login_url.as_ref()?;
    let path = ctx.origin_form(session.req_header().raw_path());
    Some(login.location(&ctx.host, path, &target.id, target.port).into_bytes())
}

/// Whether a request that is refused for its token, or names no sandbox that is there, is sent to log in.
pub(crate) fn sends_to_log_in(session: &Session, ctx: &Context) -> bool {
    let with_ticket = ctx.preview.as_ref().is_some_and(|presented| presented.has_parameter());
    let headers = &session.req_header().headers;
    ctx.target.is_some() && ctx.settings.previews.sends_to_log_in(&ctx.method, headers, with_ticket)
}
