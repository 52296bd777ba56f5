//! Whether a failed attempt at an upstream is followed by another one, and by which
//! (connections.md, Retries). Nothing here dials, waits or counts: the phases say what happened and
//! carry out what is decided.

use std::time::{Duration, Instant};

use crate::error_response::ProxyError;

/// Between two attempts at a port that may open.
pub(crate) const PORT_PAUSE: Duration = Duration::from_millis(100);
/// The second route is begun within this time of the first.
const REROUTE_WITHIN: Duration = Duration::from_secs(5);
/// Routes that are dialled for one request.
const ROUTES_MOST: u8 = 2;
/// How often a request is sent.
const SENT_MOST: u8 = 2;
/// How often another connection is dialled because one that was there took no further stream.
const UNUSABLE_MOST: u8 = 2;

/// What the next attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum NextAttempt {
    /// The route that was decided on. For the control plane: the next of its addresses.
    #[default]
    Route,
    /// The same route again, after [`PORT_PAUSE`]: its port may open.
    Port,
    /// Whatever route the record names when it is read again; what went wrong before.
    Reread(ProxyError),
    /// The same route on a new connection: the last one was dead, or did not process the request.
    Fresh,
}

/// The attempts of one request so far, as far as they bound further ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    /// Routes that were dialled.
    pub(crate) routes: u8,
    /// When the first attempt of this count of routes began.
    pub(crate) first: Option<Instant>,
    /// A refused connection is tried again until then (`upstream.port_open_wait`).
    pub(crate) port_until: Option<Instant>,
    /// Times that the request head was sent.
    pub(crate) sent: u8,
    /// Connections that were there and took no request.
    pub(crate) unusable: u8,
}

impl Tally {
    /// A sandbox was resumed: its routes are counted anew.
    pub(crate) fn restart(&mut self) {
        self.routes = 0;
        self.first = None;
    }

    /// Whether a second route may be dialled.
    fn has_a_route_left(&self, now: Instant) -> bool {
        self.routes < ROUTES_MOST && self.first.is_none_or(|first| now < first + REROUTE_WITHIN)
    }
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Failure {
    /// No connection was made.
    Connect(Connect),
    /// There is an HTTP/2 connection, but it ends and takes no stream: nothing was sent.
    NoStream,
    /// The exchange broke after a connection was there.
    Exchange(BrokenExchange),
}

/// A connect that failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connect {
    /// What the client is told if it stays at that.
    pub(crate) error: ProxyError,
    /// The port was closed.
    pub(crate) refused: bool,
    /// It failed on this machine, which had no descriptor or no port left: that says nothing about the record.
    pub(crate) own: bool,
    /// What was dialled.
    pub(crate) upstream: UpstreamKind,
}

/// What a route leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamKind {
    /// A sandbox, whose record may name another route by now.
    Sandbox,
    /// The control plane, whose name has so many addresses.
    ControlPlane { addresses: usize },
    /// Neither a sandbox nor the control plane: nothing was dialled yet.
    Nowhere,
}

/// An exchange that broke.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BrokenExchange {
    /// The connection had served another request before.
    pub(crate) reused: bool,
    /// The connection ended under the request.
    pub(crate) died: bool,
    /// The upstream said that it did not process the request (GOAWAY, REFUSED_STREAM).
    pub(crate) not_processed: bool,
    /// A byte of a response, of whatever kind, went to the client.
    pub(crate) response_begun: bool,
    /// The method is idempotent.
    pub(crate) idempotent: bool,
    /// The request has no body, or none of it was taken and no more of it comes.
    pub(crate) no_body_taken: bool,
    /// All of the body that was taken is kept and can go out again.
    pub(crate) body_kept: bool,
    /// The request's sandbox has ended, or its life has.
    pub(crate) sandbox_ended: bool,
}

/// What follows a failure; `None`: nothing, the failure is what the client is told.
pub(crate) fn next(failure: &Failure, tally: &Tally, now: Instant) -> Option<NextAttempt> {
    match failure {
        Failure::Connect(connect) => after_connect(connect, tally, now),
        Failure::NoStream => (tally.unusable < UNUSABLE_MOST).then_some(NextAttempt::Fresh),
        Failure::Exchange(exchange) => may_send_again(exchange, tally).then_some(NextAttempt::Fresh),
    }
}

fn after_connect(connect: &Connect, tally: &Tally, now: Instant) -> Option<NextAttempt> {
    if connect.refused && tally.port_until.is_some_and(|until| now + PORT_PAUSE <= until) {
        return Some(NextAttempt::Port);
    }
    if !tally.has_a_route_left(now) {
        return None;
    }
    match connect.upstream {
        UpstreamKind::Sandbox => (!connect.own).then_some(NextAttempt::Reread(connect.error)),
        // A name may have an address that leads nowhere (a family that is not served) beside one
        // that works.
        UpstreamKind::ControlPlane { addresses } => (addresses > 1).then_some(NextAttempt::Route),
        UpstreamKind::Nowhere => None,
    }
}

/// A request is sent again only where nothing can have happened twice.
fn may_send_again(exchange: &BrokenExchange, tally: &Tally) -> bool {
    let unprocessed = exchange.not_processed && exchange.body_kept;
    let repeatable = exchange.reused && exchange.died && exchange.idempotent && exchange.no_body_taken;
    (unprocessed || repeatable)
        && !exchange.response_begun
        && !exchange.sandbox_ended
        && tally.sent < SENT_MOST
}

/// Whether a record that was read again leads anywhere new: `before` and `after` are the address and
/// generation it named. Where it says what was known already, dialling once more would only keep the
/// client waiting; after a resume the count has begun anew, and the same address is worth it.
pub(crate) fn worth_dialling<T: PartialEq>(before: &T, after: &T, tally: &Tally) -> bool {
    before != after || tally.first.is_none()
}

#[cfg(test)]
mod tests;
