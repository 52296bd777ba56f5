//! Each piece of a request's body on its way to the upstream.

use bytes::Bytes;
use pingora::Result;

use crate::proxy::context::Context;
use crate::proxy::response_filter::count_request_body;
use crate::proxy::state::ProxyState;

/// Counts a piece against the limits, and notes where the body ends.
///
/// # Errors
/// The body is over its limit.
pub(crate) fn filter_request_body(
    state: &ProxyState,
    body: &mut Option<Bytes>,
    end_of_stream: bool,
    ctx: &mut Context,
) -> Result<()> {
    if end_of_stream && let Some(body_end) = &ctx.body_end {
        body_end.hand();
    }
    let counted = count_request_body(state, body.as_ref().map_or(0, Bytes::len), end_of_stream, ctx);
    // The last act, on every path.
    drop_empty_last_piece(body, end_of_stream);
    counted
}

/// An empty last piece would make Pingora end a chunked body twice, and the second end would be read as
/// the beginning of whatever request uses that connection next: responses would reach the wrong caller
/// (cloudflare/pingora #935). `None` ends the body once.
fn drop_empty_last_piece(body: &mut Option<Bytes>, end_of_stream: bool) {
    if end_of_stream && body.as_ref().is_some_and(Bytes::is_empty) {
        *body = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_piece_at_the_end_is_dropped() {
        for (piece, end, left) in [
            (Some(""), true, None),
            (Some(""), false, Some("")),
            (Some("x"), true, Some("x")),
            (None, true, None),
        ] {
            let mut body = piece.map(|text: &str| Bytes::copy_from_slice(text.as_bytes()));
            drop_empty_last_piece(&mut body, end);
            assert_eq!(body.as_deref(), left.map(str::as_bytes), "{piece:?} {end}");
        }
    }
}
