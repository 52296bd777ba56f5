//! Every error that the proxy responds with itself, in one table (errors.md).
//!
//! A row has all that is said of an error: its return code, the reason for log and metrics, what either
//! dialect responds, the codes of gRPC and Connect, `Retry-After`, and the words of the page that a browser
//! gets. A new error is a row here; one with a return code of its own, a row in `retcode.rs` too.

mod wording;

pub(super) use wording::E2bMessage;

use crate::retcode::Retcode;

/// What the table says of an error.
#[derive(Debug)]
struct Row {
    code: Retcode,
    reason: Reason,
    /// The status code of gRPC, as it stands on the wire.
    grpc: &'static str,
    connect: ConnectCode,
    /// Seconds for `Retry-After`.
    retry_after: Option<&'static str>,
    cube_status: u16,
    /// `{"error": ...}` of the `cube` dialect. Nothing in it needs escaping.
    cube_text: &'static str,
    e2b_status: u16,
    e2b: E2b,
    page: PageSource,
}

/// What the `e2b` dialect says of an error.
#[derive(Debug)]
enum E2b {
    /// That there is no such sandbox.
    NotFound,
    /// That nothing listens on the port.
    NotOpen,
    /// That there was no response in time.
    NotInTime,
    /// That there are too many requests at a time, with the limit.
    TooMany,
    /// That the route is the control plane's.
    Control,
    /// Words of our own. They have neither "was not found" nor "port is not open" in them, by which E2B's
    /// SDKs recognise a sandbox that is gone.
    Text(&'static str),
}

/// What a browser's page says of an error: what happened, and what to do. Nothing in it has a character
/// that HTML minds.
#[derive(Debug)]
enum PageSource {
    Says(&'static str, &'static str),
    /// The title has the number of the port between its two parts, where a port is named.
    Port(&'static str, &'static str, &'static str),
}

/// The codes of Connect that the proxy uses. An outage is `aborted`: E2B's JavaScript SDK takes
/// `unavailable` on a stream for a dead sandbox.
#[derive(Debug, Clone, Copy)]
enum ConnectCode {
    Aborted,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
}

/// `None`, or a number of seconds as text.
macro_rules! seconds {
    (None) => {
        None
    };
    ($seconds:literal) => {
        Some(stringify!($seconds))
    };
}

macro_rules! errors {
    (outcomes { $($(#[$outcome_doc:meta])* $outcome:ident = $outcome_word:literal,)* }
    $($(#[$doc:meta])* $variant:ident $(($data:ident: $type:ty))? = $word:literal {
        code: $code:ident, grpc: $grpc:literal, connect: $connect:ident, retry_after: $retry_after:tt,
        cube: $cube_status:literal $cube_text:literal,
        e2b: $e2b_status:literal $e2b:ident $(($e2b_text:literal))?,
        page: $page:ident ($($page_text:literal),* $(,)?),
    })*) => {
        /// Why the proxy responds in the upstream's place. One variant for each row of errors.md and each
        /// of its causes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ProxyError {
            $($(#[$doc])* $variant $({
                /// What the response says of it.
                $data: $type,
            })?,)*
        }

        /// Why a request ended as it did (operations.md): one closed list for access log and metrics.
        /// Return code and reason belong together: the code says what the client was told, the reason
        /// says which of its causes it was.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$outcome_doc])* $outcome,)*
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// All of them, in order of declaration.
            pub const ALL: [Reason; [$(Reason::$outcome,)* $(Reason::$variant),*].len()] =
                [$(Reason::$outcome,)* $(Reason::$variant),*];

            /// The word in the access log and in the metric label.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Reason::$outcome => $outcome_word,)*
                    $(Reason::$variant => $word,)*
                }
            }
        }

        impl ProxyError {
            fn row(self) -> &'static Row {
                match self {
                    $(ProxyError::$variant { .. } => const {
                        &Row {
                            code: Retcode::$code,
                            reason: Reason::$variant,
                            grpc: stringify!($grpc),
                            connect: ConnectCode::$connect,
                            retry_after: seconds!($retry_after),
                            cube_status: $cube_status,
                            cube_text: $cube_text,
                            e2b_status: $e2b_status,
                            e2b: E2b::$e2b $(($e2b_text))?,
                            page: PageSource::$page($($page_text),*),
                        }
                    },)*
                }
            }

            /// One of each, for tests that go through all of them.
            #[cfg(test)]
            pub(crate) fn all() -> Vec<Self> {
                vec![$(ProxyError::$variant $({ $data: Default::default() })?,)*]
            }
        }
    };
}

errors! {
    outcomes {
        /// The upstream responded below 400 (an upgrade too) and the response ended well.
        Ok = "ok",
        /// The upstream responded with 400 or above, and that response ended well.
        UpstreamStatus = "upstream_status",
        /// A browser navigated to the path form without a path, and was sent to the one with a slash.
        BarePath = "bare_path",
        /// A browser that opened a preview link got its ticket as a cookie, and was sent on.
        PreviewRedirect = "preview_redirect",
        /// A browser that may not enter was sent to log in.
        PreviewLogin = "preview_login",
        /// The client left.
        ClientClosed = "client_closed",
    }

    /// Neither Host, headers nor path name a sandbox.
    BadTarget = "bad_target" {
        code: BadRequest, grpc: 3, connect: InvalidArgument, retry_after: None,
        cube: 400 "bad request",
        e2b: 400 Text("The request does not name a sandbox and a port."),
        page: Says(
            "This address does not name a sandbox",
            "The name of a sandbox and its port are a part of the address. Check that it is complete.",
        ),
    }
    /// The request is malformed.
    BadRequest = "bad_request" {
        code: BadRequest, grpc: 3, connect: InvalidArgument, retry_after: None,
        cube: 400 "bad request",
        e2b: 400 Text("The request is malformed."),
        page: Says(
            "This request cannot be understood",
            "Check the address. If you followed a link, tell whoever made it.",
        ),
    }
    /// Pingora could not parse the head.
    BadHead = "bad_head" {
        code: BadRequest, grpc: 3, connect: InvalidArgument, retry_after: None,
        cube: 400 "bad request",
        e2b: 400 Text("The request is malformed."),
        page: Says(
            "This request cannot be understood",
            "Check the address. If you followed a link, tell whoever made it.",
        ),
    }
    /// No traffic token.
    TokenMissing = "token_missing" {
        code: Forbidden, grpc: 7, connect: PermissionDenied, retry_after: None,
        cube: 403 "forbidden",
        e2b: 403 Text(
            "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"
        ),
        page: Says(
            "This sandbox is private",
            "It opens with its access token only, and none came with this request. Ask its owner.",
        ),
    }
    /// Not the sandbox's traffic token.
    TokenWrong = "token_wrong" {
        code: Forbidden, grpc: 7, connect: PermissionDenied, retry_after: None,
        cube: 403 "forbidden",
        e2b: 403 Text(
            "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid"
        ),
        page: Says(
            "This sandbox is private",
            "The access token that came with this request is not the right one. Ask its owner for a new \
             one.",
        ),
    }
    /// The ticket of a preview link that has expired.
    PreviewExpired = "preview_expired" {
        code: Forbidden, grpc: 7, connect: PermissionDenied, retry_after: None,
        cube: 403 "forbidden",
        e2b: 403 Text("This preview link has expired"),
        page: Says(
            "This preview link has expired",
            "Links to private sandboxes open for a limited time only. Ask whoever gave it to you for a new one.",
        ),
    }
    /// A control route of envd, `path` as cleaned (`/init`).
    EnvdControl(path: &'static str) = "envd_control" {
        code: EnvdControl, grpc: 5, connect: Unavailable, retry_after: None,
        cube: 404 "not found",
        e2b: 404 Control,
        page: Says("This address is not open to browsers", "Only the platform itself may use it."),
    }
    /// A method that is not forwarded.
    MethodNotAllowed = "method_not_allowed" {
        code: MethodNotAllowed, grpc: 12, connect: InvalidArgument, retry_after: None,
        cube: 405 "method not allowed",
        e2b: 405 Text("This method is not allowed."),
        page: Says("This kind of request is not allowed", "Nothing was sent to the sandbox."),
    }
    /// The head was not complete in time.
    HeadTimeout = "head_timeout" {
        code: RequestTimeout, grpc: 4, connect: DeadlineExceeded, retry_after: None,
        cube: 408 "request timeout",
        e2b: 408 Text("The request was not sent in time."),
        page: Says("The request took too long to arrive", "Check your connection and try again."),
    }
    /// The client stopped sending its body.
    BodyTimeout = "body_timeout" {
        code: RequestTimeout, grpc: 4, connect: DeadlineExceeded, retry_after: None,
        cube: 408 "request timeout",
        e2b: 408 Text("The body of the request was not sent in time."),
        page: Says("The request took too long to arrive", "Check your connection and try again."),
    }
    /// The sandbox is being or was killed.
    Killed = "killed" {
        code: Gone, grpc: 9, connect: Unavailable, retry_after: None,
        cube: 410 "gone",
        e2b: 502 NotFound,
        page: Says(
            "This sandbox has ended",
            "It was shut down and cannot be opened any more. Start a new one.",
        ),
    }
    /// The streams of this life of the sandbox were revoked before a response.
    Revoked = "revoked" {
        code: Gone, grpc: 9, connect: Unavailable, retry_after: None,
        cube: 410 "gone",
        e2b: 502 NotFound,
        page: Says(
            "This sandbox has ended",
            "It was shut down and cannot be opened any more. Start a new one.",
        ),
    }
    /// Over `limits.body`.
    BodyTooLarge = "body_limit" {
        code: BodyTooLarge, grpc: 8, connect: ResourceExhausted, retry_after: None,
        cube: 413 "payload too large",
        e2b: 413 Text("The body of the request is too large."),
        page: Says(
            "What you sent is too large",
            "Send less at a time, or ask whoever runs this platform for a higher limit.",
        ),
    }
    /// Over `limits.target`.
    TargetTooLong = "target_limit" {
        code: TargetTooLong, grpc: 8, connect: InvalidArgument, retry_after: None,
        cube: 414 "uri too long",
        e2b: 414 Text("The target of the request is too long."),
        page: Says("This address is too long", "Shorten it, or send what it carries in another way."),
    }
    /// Over `limits.head` or `limits.headers`.
    HeadTooLarge = "head_limit" {
        code: HeadTooLarge, grpc: 8, connect: InvalidArgument, retry_after: None,
        cube: 431 "header fields too large",
        e2b: 431 Text("The header fields of the request are too large."),
        page: Says(
            "The headers of this request are too large",
            "Most often these are cookies: delete those of this site and try again.",
        ),
    }
    /// Over `limits.requests_per_sandbox`.
    TooManyForSandbox(limit: u32) = "sandbox_limit" {
        code: TooMany, grpc: 8, connect: ResourceExhausted, retry_after: 1,
        cube: 429 "too many requests",
        e2b: 429 TooMany,
        page: Says("This sandbox is busy", "Too many requests are under way to it."),
    }
    /// Over `limits.requests_per_ip`.
    TooManyFromAddress = "address_limit" {
        code: TooMany, grpc: 8, connect: ResourceExhausted, retry_after: 1,
        cube: 429 "too many requests",
        e2b: 429 Text("There are too many requests from this address. Try again in a moment."),
        page: Says(
            "Too many requests",
            "Your network sends more requests than are taken from one address.",
        ),
    }
    /// The manager refused a resume for a quota.
    ResumeQuota = "resume_quota" {
        code: TooMany, grpc: 8, connect: ResourceExhausted, retry_after: 1,
        cube: 429 "too many requests",
        e2b: 429 Text("The sandbox cannot be resumed because a quota is used up. Try again later."),
        page: Says(
            "This sandbox cannot be woken right now",
            "It is paused, and its owner's quota of running sandboxes is used up.",
        ),
    }
    /// The store cannot answer and nothing is cached.
    StoreUnavailable = "store_unavailable" {
        code: StoreUnavailable, grpc: 14, connect: Aborted, retry_after: 1,
        cube: 503 "service unavailable",
        e2b: 503 Text("Sandboxes cannot be looked up at the moment. Try again in a moment."),
        page: Says(
            "Sandboxes cannot be looked up right now",
            "This is an outage of the platform. Your sandbox is not affected by it.",
        ),
    }
    /// A fault of the proxy itself.
    Internal = "internal" {
        code: Internal, grpc: 14, connect: Internal, retry_after: None,
        cube: 500 "internal error",
        e2b: 500 Text("The proxy failed to handle this request."),
        page: Says(
            "Something went wrong",
            "The error is ours. Try again; if it happens again, report the request ID below.",
        ),
    }
    /// Too many files are open for another upstream connection.
    OutOfDescriptors = "out_of_descriptors" {
        code: Internal, grpc: 14, connect: Internal, retry_after: None,
        cube: 500 "internal error",
        e2b: 500 Text("The proxy has too many connections open. Try again in a moment."),
        page: Says(
            "Too many connections are open",
            "There is no room for another one at the moment. Reload this page in a moment.",
        ),
    }
    /// Still pausing (or resuming elsewhere) after the wait.
    Pausing = "pausing" {
        code: Asleep, grpc: 14, connect: Aborted, retry_after: 2,
        cube: 503 "service unavailable",
        e2b: 409 Text("The sandbox is still transitioning. Try again in a moment."),
        page: Says(
            "This sandbox is changing its state",
            "It is being paused or resumed, and opens when that is done.",
        ),
    }
    /// Paused, and nothing resumes it.
    Paused = "paused" {
        code: Asleep, grpc: 14, connect: Unavailable, retry_after: 5,
        cube: 503 "service unavailable",
        e2b: 503 Text("The sandbox is paused."),
        page: Says("This sandbox is paused", "It opens here as soon as it runs again."),
    }
    /// The resume failed or took too long.
    ResumeFailed = "resume_failed" {
        code: Asleep, grpc: 14, connect: Unavailable, retry_after: 5,
        cube: 503 "service unavailable",
        e2b: 503 Text("The sandbox is paused and could not be resumed."),
        page: Says(
            "This sandbox could not be woken",
            "It is paused, and resuming it failed or took too long.",
        ),
    }
    /// Too many requests are held.
    HeldTooMany = "held_limit" {
        code: Asleep, grpc: 14, connect: Unavailable, retry_after: 5,
        cube: 503 "service unavailable",
        e2b: 503 Text("Too many requests wait for the sandbox already. Try again in a moment."),
        page: Says("This sandbox is busy", "Too many requests are under way to it."),
    }
    /// The time for draining was over before the response began.
    DrainTimeout = "drain_timeout" {
        code: Asleep, grpc: 14, connect: Unavailable, retry_after: 5,
        cube: 503 "service unavailable",
        e2b: 503 Text("The proxy is shutting down. Try again in a moment."),
        page: Says("The proxy is restarting", "Your sandbox is not affected by it."),
    }
    /// There is no such sandbox.
    NoRecord = "no_record" {
        code: NoRoute, grpc: 5, connect: Unavailable, retry_after: None,
        cube: 404 "not found",
        e2b: 502 NotFound,
        page: Says(
            "This sandbox was not found",
            "It may have ended, its address may be wrong, or it may not be open to you. Check the \
             address, or ask whoever gave it to you for a new one.",
        ),
    }
    /// The record has no `HostIP`.
    NoHostIp = "no_host_ip" {
        code: NoRoute, grpc: 5, connect: Unavailable, retry_after: None,
        cube: 404 "not found",
        e2b: 502 NotFound,
        page: Says(
            "This sandbox was not found",
            "It may have ended, its address may be wrong, or it may not be open to you. Check the \
             address, or ask whoever gave it to you for a new one.",
        ),
    }
    /// The record has no `SandboxIP`.
    NoSandboxIp = "no_sandbox_ip" {
        code: NoRoute, grpc: 5, connect: Unavailable, retry_after: None,
        cube: 404 "not found",
        e2b: 502 NotFound,
        page: Says(
            "This sandbox was not found",
            "It may have ended, its address may be wrong, or it may not be open to you. Check the \
             address, or ask whoever gave it to you for a new one.",
        ),
    }
    /// No host port is mapped to the container port.
    NoMapping = "no_port_mapping" {
        code: NoRoute, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 404 "not found",
        e2b: 502 NotOpen,
        page: Port(
            "Port",
            "of this sandbox is not open",
            "Choose another port, or have whoever started the sandbox open this one.",
        ),
    }
    /// The record's address or mapped port is malformed.
    MalformedAddress = "malformed_address" {
        code: BadAddress, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 502 "bad gateway",
        e2b: 502 NotFound,
        page: Says(
            "This sandbox cannot be reached",
            "The platform has no usable address for it. Report the request ID below to whoever runs it.",
        ),
    }
    /// The address may not be dialled.
    ForbiddenAddress = "forbidden_address" {
        code: BadAddress, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 502 "bad gateway",
        e2b: 502 NotFound,
        page: Says(
            "This sandbox cannot be reached",
            "The platform has no usable address for it. Report the request ID below to whoever runs it.",
        ),
    }
    /// The backend refused the connection.
    ConnectRefused = "connect_refused" {
        code: Unreachable, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 502 "bad gateway",
        e2b: 502 NotOpen,
        page: Port(
            "Nothing answers on port",
            "",
            "The sandbox runs, but no server listens on this port. Start one, or let it listen on all \
             interfaces instead of localhost alone, and reload this page.",
        ),
    }
    /// The connection failed otherwise, unreachable or reset.
    ConnectFailed = "connect_failed" {
        code: Unreachable, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 502 "bad gateway",
        e2b: 502 NotOpen,
        page: Says(
            "The sandbox cannot be reached",
            "The connection to it failed. Reload this page in a moment.",
        ),
    }
    /// The connection was not made in time.
    ConnectTimeout = "connect_timeout" {
        code: Unreachable, grpc: 4, connect: DeadlineExceeded, retry_after: None,
        cube: 504 "gateway timeout",
        e2b: 504 NotInTime,
        page: Says(
            "The sandbox did not answer in time",
            "It may be busy, or what runs in it may hang. Reload this page in a moment.",
        ),
    }
    /// The upstream closed or reset before its response.
    UpstreamCut = "upstream_cut" {
        code: Unreachable, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 502 "bad gateway",
        e2b: 502 NotOpen,
        page: Says(
            "The sandbox broke the connection",
            "What runs in it closed the connection before it answered; it may have crashed.",
        ),
    }
    /// The upstream sent something that is no HTTP.
    UpstreamMalformed = "upstream_malformed" {
        code: Unreachable, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 502 "bad gateway",
        e2b: 502 NotOpen,
        page: Says(
            "What the sandbox answered is not HTTP",
            "Something else than a web server may listen on this port.",
        ),
    }
    /// The upstream did not answer in time.
    UpstreamTimeout = "upstream_timeout" {
        code: Unreachable, grpc: 4, connect: DeadlineExceeded, retry_after: None,
        cube: 504 "gateway timeout",
        e2b: 504 NotInTime,
        page: Says(
            "The sandbox did not answer in time",
            "It may be busy, or what runs in it may hang. Reload this page in a moment.",
        ),
    }
    /// The name of the control plane does not resolve.
    ControlPlaneUnresolved = "control_plane_unresolved" {
        code: Unreachable, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 502 "bad gateway",
        e2b: 502 NotOpen,
        page: Says(
            "The sandbox cannot be reached",
            "The connection to it failed. Reload this page in a moment.",
        ),
    }
    /// The control plane could not prove who it is, or its TLS failed otherwise.
    ControlPlaneTls = "control_plane_tls" {
        code: Unreachable, grpc: 14, connect: Unavailable, retry_after: None,
        cube: 502 "bad gateway",
        e2b: 502 NotOpen,
        page: Says(
            "The sandbox cannot be reached",
            "The connection to it failed. Reload this page in a moment.",
        ),
    }
    /// The node is in the shared set of faulty nodes.
    FaultyNode = "faulty_node" {
        code: FaultyNode, grpc: 14, connect: Aborted, retry_after: 1,
        cube: 500 "backend unavailable",
        e2b: 503 Text("The node of the sandbox is not available. Try again in a moment."),
        page: Says(
            "The machine of this sandbox is not available",
            "It has been taken out of service, or does not answer at the moment.",
        ),
    }
    /// The node's breaker is open.
    BreakerOpen = "breaker_open" {
        code: FaultyNode, grpc: 14, connect: Aborted, retry_after: 1,
        cube: 500 "backend unavailable",
        e2b: 503 Text("The node of the sandbox is not available. Try again in a moment."),
        page: Says(
            "The machine of this sandbox is not available",
            "It has been taken out of service, or does not answer at the moment.",
        ),
    }
}

impl Reason {
    /// A number below `Reason::ALL.len()`, for tables of metric handles.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn words_of_reasons_are_distinct_and_plain() {
        let words: HashSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        assert!(words.iter().all(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }

    #[test]
    fn the_index_of_a_reason_is_its_place_in_the_list() {
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), at);
        }
    }
}
