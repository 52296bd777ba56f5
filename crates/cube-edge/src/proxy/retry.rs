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
    /// It failed on this side (no descriptor, no port): the record has nothing to do with it.
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
    /// Neither.
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
mod tests {
    use super::*;

    const SANDBOX: Connect = Connect {
        error: ProxyError::ConnectTimeout,
        refused: false,
        own: false,
        upstream: UpstreamKind::Sandbox,
    };
    const REFUSED: Connect = Connect { error: ProxyError::ConnectRefused, refused: true, ..SANDBOX };
    const CONTROL_PLANE: Connect =
        Connect { upstream: UpstreamKind::ControlPlane { addresses: 2 }, ..SANDBOX };
    /// An idempotent request without a body, on a pooled connection that had died.
    const DEAD: BrokenExchange = BrokenExchange {
        reused: true,
        died: true,
        not_processed: false,
        response_begun: false,
        idempotent: true,
        no_body_taken: true,
        body_kept: true,
        sandbox_ended: false,
    };
    /// A gRPC call with a body on a new connection, which a GOAWAY left out.
    const UNPROCESSED: BrokenExchange = BrokenExchange {
        reused: false,
        died: true,
        not_processed: true,
        idempotent: false,
        no_body_taken: false,
        ..DEAD
    };

    /// `now` is so many milliseconds after the first attempt; a series at a port lasts `series`.
    struct Case {
        routes: u8,
        ms: u64,
        series: Option<u64>,
    }

    const FIRST: Case = Case { routes: 1, ms: 10, series: None };

    fn after(connect: Connect, case: Case) -> Option<NextAttempt> {
        let first = Instant::now();
        let at = |ms| first + Duration::from_millis(ms);
        let tally = Tally {
            routes: case.routes,
            first: Some(first),
            port_until: case.series.map(at),
            ..Tally::default()
        };
        next(&Failure::Connect(connect), &tally, at(case.ms))
    }

    #[test]
    fn connecting() {
        let reread = |connect: Connect| Some(NextAttempt::Reread(connect.error));
        let one_address = Connect { upstream: UpstreamKind::ControlPlane { addresses: 1 }, ..CONTROL_PLANE };
        let own = Connect { error: ProxyError::OutOfDescriptors, own: true, ..SANDBOX };
        let rules = [
            ("a failed connect reads the record again", after(SANDBOX, FIRST), reread(SANDBOX)),
            ("a refused one, too", after(REFUSED, FIRST), reread(REFUSED)),
            ("two routes at most", after(SANDBOX, Case { routes: 2, ..FIRST }), None),
            ("just within 5 s of the first", after(SANDBOX, Case { ms: 4999, ..FIRST }), reread(SANDBOX)),
            ("not after 5 s", after(SANDBOX, Case { ms: 5000, ..FIRST }), None),
            ("not for what failed on this side", after(own, FIRST), None),
            (
                "a series tries a refused port again",
                after(REFUSED, Case { series: Some(1000), ..FIRST }),
                Some(NextAttempt::Port),
            ),
            (
                "its last try begins before its end",
                after(REFUSED, Case { ms: 900, series: Some(1000), ..FIRST }),
                Some(NextAttempt::Port),
            ),
            (
                "after a series the record is read again",
                after(REFUSED, Case { ms: 901, series: Some(1000), ..FIRST }),
                reread(REFUSED),
            ),
            (
                "a series is for refused connections alone",
                after(SANDBOX, Case { series: Some(1000), ..FIRST }),
                reread(SANDBOX),
            ),
            ("the control plane's next address", after(CONTROL_PLANE, FIRST), Some(NextAttempt::Route)),
            ("if it has one", after(one_address, FIRST), None),
            ("two of them at most", after(CONTROL_PLANE, Case { routes: 2, ..FIRST }), None),
            ("within 5 s as well", after(CONTROL_PLANE, Case { ms: 5000, ..FIRST }), None),
            (
                "nothing leads nowhere",
                after(Connect { upstream: UpstreamKind::Nowhere, ..SANDBOX }, FIRST),
                None,
            ),
        ];
        for (rule, decided, right) in rules {
            assert_eq!(decided, right, "{rule}");
        }
    }

    #[test]
    fn a_resume_starts_the_count_of_routes_anew() {
        let now = Instant::now();
        let long_ago = now.checked_sub(Duration::from_secs(60));
        let mut tally = Tally { routes: 2, first: long_ago, sent: 1, ..Tally::default() };
        let failure = Failure::Connect(SANDBOX);
        assert_eq!(next(&failure, &tally, now), None);
        tally.restart();
        assert_eq!(next(&failure, &tally, now), Some(NextAttempt::Reread(ProxyError::ConnectTimeout)));
        assert_eq!(tally.sent, 1, "what was sent stays sent");
    }

    #[test]
    fn sending() {
        let rules = [
            ("an idempotent request on a reused connection that died", DEAD, 1, true),
            ("not on a new connection", BrokenExchange { reused: false, ..DEAD }, 1, false),
            ("not where the connection lives", BrokenExchange { died: false, ..DEAD }, 1, false),
            ("a POST is never sent again", BrokenExchange { idempotent: false, ..DEAD }, 1, false),
            ("nor what a body was taken of", BrokenExchange { no_body_taken: false, ..DEAD }, 1, false),
            ("nor after a byte of the response", BrokenExchange { response_begun: true, ..DEAD }, 1, false),
            ("once", DEAD, 2, false),
            ("not to a sandbox that has ended", BrokenExchange { sandbox_ended: true, ..DEAD }, 1, false),
            ("a call that was not processed, with its body", UNPROCESSED, 1, true),
            ("on a reused connection as well", BrokenExchange { reused: true, ..UNPROCESSED }, 1, true),
            (
                "not where its body was too long to keep",
                BrokenExchange { body_kept: false, ..UNPROCESSED },
                1,
                false,
            ),
            (
                "not where it may have been processed",
                BrokenExchange { not_processed: false, ..UNPROCESSED },
                1,
                false,
            ),
            (
                "nor after its response began",
                BrokenExchange { response_begun: true, ..UNPROCESSED },
                1,
                false,
            ),
            ("twice at most", UNPROCESSED, 2, false),
            (
                "nor for a sandbox that has ended",
                BrokenExchange { sandbox_ended: true, ..UNPROCESSED },
                1,
                false,
            ),
        ];
        for (rule, exchange, sent, again) in rules {
            let tally = Tally { sent, ..Tally::default() };
            let right = again.then_some(NextAttempt::Fresh);
            assert_eq!(next(&Failure::Exchange(exchange), &tally, Instant::now()), right, "{rule}");
        }
    }

    #[test]
    fn a_connection_that_takes_no_stream_is_replaced_twice() {
        for (unusable, right) in [(0, Some(NextAttempt::Fresh)), (1, Some(NextAttempt::Fresh)), (2, None)] {
            let tally = Tally { unusable, ..Tally::default() };
            assert_eq!(next(&Failure::NoStream, &tally, Instant::now()), right);
        }
    }

    #[test]
    fn the_same_route_is_dialled_again_after_a_resume_alone() {
        let dialled = Tally { first: Some(Instant::now()), ..Tally::default() };
        assert!(!worth_dialling(&"same", &"same", &dialled));
        assert!(worth_dialling(&"one", &"other", &dialled));
        assert!(worth_dialling(&"same", &"same", &Tally::default()));
    }
}
