//! Why a request does not go on to an upstream.

use crate::error_response::ProxyError;
use crate::proxy::context::Context;

/// Why a request does not go on.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The proxy responds itself.
    Error(ProxyError),
    /// A browser that opened a preview link is sent to the same without its ticket.
    WithoutTicket,
    /// The client has left: nobody is there to respond to.
    ClientLeft,
}

impl From<ProxyError> for Rejection {
    fn from(error: ProxyError) -> Self {
        Rejection::Error(error)
    }
}

impl Rejection {
    /// For a held request whose connection cannot be read from any more: a kill ends reading too, and its
    /// response can still be written.
    pub(crate) fn of_a_client_that_left(ctx: &Context) -> Self {
        ctx.ended().map_or(Self::ClientLeft, Self::Error)
    }
}
