use super::*;

const SANDBOX: Connect = Connect {
    error: ProxyError::ConnectTimeout,
    refused: false,
    own: false,
    upstream: UpstreamKind::Sandbox,
};
const REFUSED: Connect = Connect { error: ProxyError::ConnectRefused, refused: true, ..SANDBOX };
const CONTROL_PLANE: Connect = Connect { upstream: UpstreamKind::ControlPlane { addresses: 2 }, ..SANDBOX };
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
        ("nothing leads nowhere", after(Connect { upstream: UpstreamKind::Nowhere, ..SANDBOX }, FIRST), None),
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
        ("nor after its response began", BrokenExchange { response_begun: true, ..UNPROCESSED }, 1, false),
        ("twice at most", UNPROCESSED, 2, false),
        ("nor for a sandbox that has ended", BrokenExchange { sandbox_ended: true, ..UNPROCESSED }, 1, false),
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
