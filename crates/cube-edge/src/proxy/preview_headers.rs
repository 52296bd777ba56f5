//! What upstream and client see of a preview: no ticket goes to a sandbox, and none comes from one.

use cube_route::preview::cookie;
use cube_route::preview::query::take_parameter;
use http::{HeaderName, HeaderValue, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{ErrorType, OrErr, Result};

use crate::preview::Right;
use crate::proxy::context::Context;
use crate::response_cache::is_private;

/// Takes tickets out of the head that goes upstream, where they may stand beside the target; its cookies are
/// one header by now.
pub(crate) fn remove_tickets(request: &mut RequestHeader) -> Result<()> {
    replace(request, &header::REFERER, |value| take_parameter(value).map(|(rest, _)| rest))?;
    replace(request, &header::COOKIE, cookie::without_tickets)
}

/// Puts each value of a header through `change`, which says nothing of one that stays; one that becomes
/// nothing goes.
fn replace(
    request: &mut RequestHeader,
    name: &HeaderName,
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<()> {
    let changes = |value: &HeaderValue| change(value.as_bytes()).is_some();
    if !request.headers.get_all(name).iter().any(changes) {
        return Ok(());
    }
    let values: Vec<HeaderValue> = request.headers.get_all(name).iter().cloned().collect();
    request.remove_header(name);
    for value in values {
        let value = match change(value.as_bytes()) {
            Some(rest) if rest.is_empty() => continue,
            Some(rest) => HeaderValue::from_maybe_shared(bytes::Bytes::from(rest))
                .or_err(ErrorType::InvalidHTTPHeader, "a header without a ticket")?,
            None => value,
        };
        request.append_header(name, value)?;
    }
    Ok(())
}

/// Drops what a sandbox would set as a ticket's cookie.
pub(crate) fn drop_forged_cookies(response: &mut ResponseHeader) -> Result<()> {
    let forged = |value: &HeaderValue| cookie::sets_ticket(value.as_bytes());
    if !response.headers.get_all(header::SET_COOKIE).iter().any(forged) {
        return Ok(());
    }
    let kept: Vec<HeaderValue> =
        response.headers.get_all(header::SET_COOKIE).iter().filter(|value| !forged(value)).cloned().collect();
    response.remove_header(&header::SET_COOKIE);
    for value in kept {
        response.append_header(header::SET_COOKIE, value)?;
    }
    Ok(())
}

/// Says in the sandbox's response that no cache in front may keep it for others, and no sibling may frame it.
pub(crate) fn mark_response(response: &mut ResponseHeader, ctx: &Context) -> Result<()> {
    if ctx.preview.is_some() && !is_private(&response.headers) {
        response.append_header(header::CACHE_CONTROL, "private")?;
    }
    if ctx.right == Some(Right::Cookie) {
        response.append_header(header::CONTENT_SECURITY_POLICY, ctx.settings.previews.frame_policy())?;
    }
    Ok(())
}
