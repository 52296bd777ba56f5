//! A response of the proxy itself on its way to the client.

use bytes::Bytes;
use http::{Version, header};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::protocols::http::HttpTask;
use pingora::proxy::Session;

use super::format::ResponseFormat;
use super::render::render;
use super::table::ProxyError;
use crate::proxy::context::{Context, RequestOutcome};

/// Sends the response to `error` in the form that the request asks for, and notes it for the log.
pub(crate) async fn respond_with_error(
    session: &mut Session,
    ctx: &mut Context,
    error: ProxyError,
) -> Result<()> {
    let settings = ctx.settings.own_responses;
    let request = session.req_header();
    let format = ResponseFormat::new(&request.method, &request.headers)
        .allowing(&request.headers, ctx.settings.previews.allowed_origins())
        .identified(&ctx.request_id);
    let format = match &ctx.target {
        Some(target) => format.of(&target.id, target.port),
        None => format,
    };
    let shown = if ctx.masked_as_unavailable { ProxyError::StoreUnavailable } else { error };
    let own = render(shown, &format, settings);
    let status = if own.success { own.status.as_u16() } else { shown.status(settings.dialect) };
    let (retcode, reason) = if ctx.masked_as_unavailable {
        (error.retcode(), error.reason())
    } else {
        (own.log_retcode, own.reason)
    };
    ctx.outcome = Some(RequestOutcome { status, retcode, reason });
    let head = own.head(ctx.request_id.clone())?;
    send(session, ctx, head, own.body).await
}

/// Sends a response of the proxy itself: `head`, and `body` where it is not empty.
///
/// # Errors
/// What Pingora says when the client does not take it.
pub(crate) async fn send(
    session: &mut Session,
    ctx: &mut Context,
    mut head: ResponseHeader,
    body: Bytes,
) -> Result<()> {
    ctx.seen.head_sent = Some(head.status.as_u16());
    ctx.body.down = body.len() as u64;
    let empty = body.is_empty();
    if session.req_header().version == Version::HTTP_2 {
        if head.headers.contains_key("grpc-status") {
            // Trailers, which say no length.
            head.remove_header(&header::CONTENT_LENGTH);
        }
        // Pingora ends a stream with its head only where that is a task. A gRPC client takes its status
        // from the header block that ends the stream.
        let mut tasks = vec![HttpTask::Header(Box::new(head), empty)];
        if !empty {
            tasks.push(HttpTask::Body(Some(body), true));
        }
        session.write_response_tasks(tasks).await?;
        return Ok(());
    }
    if let Some(downstream) = &ctx.downstream {
        downstream.conn.join_next_head();
    }
    session.write_response_header(Box::new(head), empty).await?;
    if !empty {
        session.write_response_body(Some(body), true).await?;
    }
    Ok(())
}
