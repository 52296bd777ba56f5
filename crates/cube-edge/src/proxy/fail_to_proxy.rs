//! The error_page phase: an exchange has failed; what is the client told, and how does the
//! connection end?

use std::time::Duration;

use http::{StatusCode, Version};
use pingora::proxy::{FailToProxy, Session};
use pingora::{Error, ErrorSource, ErrorType};

use crate::drain::Stage;
use crate::error_response::ProxyError;
use crate::error_response::Reason;
use crate::limits::descriptors::OUT_OF_DESCRIPTORS;
use crate::proxy::context::{Context, RequestOutcome};
use crate::proxy::preview_redirect::respond_or_send_to_log_in;
use crate::proxy::state::ProxyState;

/// How Pingora names a body that ends before its length or its last chunk.
const PREMATURE_BODY_END: ErrorType = ErrorType::new("PrematureBodyEnd");
/// A stream that is dropped at once loses what is still queued before its reset.
const BEFORE_RESET: Duration = Duration::from_millis(20);

/// What an error means for the client.
enum Meaning {
    Tell(ProxyError),
    ClientLeft,
}

/// Answers where no response has begun; else makes sure that the end shows as a cut.
pub(crate) async fn respond_to_failure(
    state: &ProxyState,
    session: &mut Session,
    error: &Error,
    ctx: &mut Context,
) -> FailToProxy {
    let over = FailToProxy { error_code: 0, can_reuse_downstream: false };
    session.set_keepalive(None);
    if ctx.outcome.is_some() {
        return over; // told already, or nobody is there to be told
    }
    let meaning = match ctx.ended() {
        Some(error) => Meaning::Tell(error),
        None => match meaning(error, ctx) {
            // The client has not left: its connection was closed at the end of the drain.
            Meaning::ClientLeft if state.drain.stage() == Stage::Over => {
                Meaning::Tell(ProxyError::DrainTimeout)
            }
            meaning => meaning,
        },
    };
    // A 101 is the response: what comes after it belongs to the tunnel.
    let begun = session.response_written().is_some_and(|head| {
        head.status == StatusCode::SWITCHING_PROTOCOLS || !head.status.is_informational()
    });
    let reason = match meaning {
        Meaning::ClientLeft if begun => Reason::ClientClosed,
        Meaning::ClientLeft => {
            ctx.outcome = Some(RequestOutcome::CLIENT_LEFT);
            return over;
        }
        Meaning::Tell(error) if !begun => {
            // An error here says that the client has left meanwhile; the outcome stands.
            let _ = respond_or_send_to_log_in(session, ctx, error).await;
            if session.req_header().version < Version::HTTP_2 {
                session.shutdown().await;
            }
            return FailToProxy {
                error_code: ctx.outcome.map_or(500, |outcome| outcome.status),
                can_reuse_downstream: true,
            };
        }
        Meaning::Tell(error) => error.reason(),
    };
    ctx.seen.cut = Some(reason);
    show_cut(session, ctx).await;
    over
}

/// Ends a response that was begun so that nobody takes the end for its own.
pub(crate) async fn show_cut(session: &mut Session, ctx: &Context) {
    if session.req_header().version == Version::HTTP_2 {
        tokio::time::sleep(BEFORE_RESET).await;
        return; // dropping the stream resets it
    }
    let Some(downstream) = &ctx.downstream else { return };
    let framed = session.response_written().is_some_and(|head| {
        head.headers.contains_key(http::header::CONTENT_LENGTH)
            || head.headers.contains_key(http::header::TRANSFER_ENCODING)
    });
    if framed {
        // The missing rest shows the cut. Under TLS the close is said, so that the client does
        // not take it for an attack.
        session.shutdown().await;
    } else {
        downstream.conn.reset_on_close();
    }
}

fn meaning(error: &Error, ctx: &Context) -> Meaning {
    let kind = error.etype();
    match error.esource() {
        _ if client_would_not_take(error) => Meaning::ClientLeft,
        // An attempt that failed, or a filter of ours, has left what to say.
        _ if ctx.error.is_some() && !from_exchange(error) => {
            Meaning::Tell(ctx.error.unwrap_or(ProxyError::Internal))
        }
        ErrorSource::Downstream => match kind {
            ErrorType::ReadTimedout => Meaning::Tell(ProxyError::BodyTimeout),
            ErrorType::InvalidHTTPHeader => Meaning::Tell(ProxyError::BadRequest),
            kind if *kind == PREMATURE_BODY_END => Meaning::ClientLeft,
            ErrorType::ReadError
                if ctx.downstream.as_ref().is_some_and(|downstream| downstream.conn.is_misframed()) =>
            {
                Meaning::Tell(ProxyError::BadRequest)
            }
            // A body that is not framed as the head says.
            ErrorType::Custom(_) => Meaning::Tell(ProxyError::BadRequest),
            _ => Meaning::ClientLeft,
        },
        ErrorSource::Upstream => Meaning::Tell(match kind {
            // While the client owes its body, the upstream's silence is the client's.
            ErrorType::ReadTimedout if client_is_late(ctx) => ProxyError::BodyTimeout,
            ErrorType::ReadTimedout | ErrorType::WriteTimedout => ProxyError::UpstreamTimeout,
            ErrorType::ConnectTimedout => ProxyError::ConnectTimeout,
            ErrorType::ConnectRefused => ProxyError::ConnectRefused,
            ErrorType::ConnectionClosed
            | ErrorType::ReadError
            | ErrorType::WriteError
            | ErrorType::H2Error => ProxyError::UpstreamCut,
            kind if *kind == PREMATURE_BODY_END => ProxyError::UpstreamCut,
            _ => ProxyError::UpstreamMalformed,
        }),
        ErrorSource::Internal | ErrorSource::Unset => Meaning::Tell(ProxyError::Internal),
    }
}

/// Pingora says of a write to the client that failed whose side it was, but for the trailers of an
/// HTTP/2 stream: their client had reset it a moment before.
fn client_would_not_take(error: &Error) -> bool {
    matches!((error.esource(), error.etype()), (ErrorSource::Unset, ErrorType::WriteError))
}

/// Whether the error came out of the exchange with an upstream that was reached, so that what an
/// earlier attempt left says nothing about it.
fn from_exchange(error: &Error) -> bool {
    !matches!(error.esource(), ErrorSource::Internal | ErrorSource::Unset)
        && !matches!(
            *error.etype(),
            ErrorType::ConnectRefused
                | ErrorType::ConnectTimedout
                | ErrorType::ConnectNoRoute
                | ErrorType::ConnectError
                | ErrorType::SocketError
                | ErrorType::BindError
                | ErrorType::InternalError
                | OUT_OF_DESCRIPTORS
                | ErrorType::HandshakeError
                | ErrorType::TLSHandshakeFailure
                | ErrorType::InvalidCert
                | ErrorType::Custom("refused")
        )
}

fn client_is_late(ctx: &Context) -> bool {
    let silence = ctx.settings.upstream.silence_timeout;
    !ctx.body.request_done
        && ctx.body.moved.is_none_or(|moved| moved.elapsed() + Duration::from_millis(50) >= silence)
}
