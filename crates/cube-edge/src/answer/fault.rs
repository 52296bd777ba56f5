//! Everything that makes the proxy answer itself, and what each of it means.

use std::borrow::Cow;

use super::Dialect;
use crate::reason::Reason;
use crate::retcode::Retcode;

/// Why the proxy answers in the upstream's place. One variant for each row of errors.md and each
/// of its causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Neither Host, headers nor path name a sandbox: `310400`.
    BadTarget,
    /// The request is malformed: `310400`.
    BadRequest,
    /// The engine could not parse the head: `310400`.
    BadHead,
    /// No traffic token: `310403`.
    TokenMissing,
    /// Not the sandbox's traffic token: `310403`.
    TokenWrong,
    /// A control route of envd, `path` as cleaned (`/init`): `310404`.
    EnvdControl {
        /// One of the seven routes.
        path: &'static str,
    },
    /// A method that is not forwarded: `310405`.
    MethodNotAllowed,
    /// The head was not complete in time: `310408`.
    HeadTimeout,
    /// The client stopped sending its body: `310408`.
    BodyTimeout,
    /// The sandbox is being or was killed: `310410`.
    Killed,
    /// The streams of this life of the sandbox were revoked before an answer: `310410`.
    Revoked,
    /// Over `limits.body`: `310413`.
    BodyTooLarge,
    /// Over `limits.target`: `310414`.
    TargetTooLong,
    /// Over `limits.head` or `limits.headers`: `310431`.
    HeadTooLarge,
    /// Over `limits.requests_per_sandbox`: `310429`.
    TooManyForSandbox {
        /// The configured limit.
        limit: u32,
    },
    /// Over `limits.requests_per_ip`: `310429`.
    TooManyFromAddress,
    /// The manager refused a resume for a quota: `310429`.
    ResumeQuota,
    /// The store cannot answer and nothing is cached: `310500`.
    StoreUnavailable,
    /// A fault of the proxy itself: `310501`.
    Internal,
    /// Too many files are open for another upstream connection: `310501`.
    OutOfDescriptors,
    /// Still pausing (or resuming elsewhere) after the wait: `310503`.
    Pausing,
    /// Paused, and nothing resumes it: `310503`.
    Paused,
    /// The resume failed or took too long: `310503`.
    ResumeFailed,
    /// Too many requests are held: `310503`.
    HeldTooMany,
    /// The time for draining was over before the answer began: `310503`.
    DrainTimeout,
    /// There is no such sandbox: `310507`.
    NoRecord,
    /// The record has no `HostIP`: `310507`.
    NoHostIp,
    /// The record has no `SandboxIP`: `310507`.
    NoSandboxIp,
    /// No host port is mapped to the container port: `310507`.
    NoMapping,
    /// The record's address or mapped port is malformed: `310508`.
    MalformedAddress,
    /// The address may not be dialled: `310508`.
    ForbiddenAddress,
    /// The backend refused the connection: `310509`.
    ConnectRefused,
    /// The connection failed otherwise, unreachable or reset: `310509`.
    ConnectFailed,
    /// The connection was not made in time: `310509`.
    ConnectTimeout,
    /// The upstream closed or reset before its answer: `310509`.
    UpstreamCut,
    /// The upstream answered something that is no HTTP: `310509`.
    UpstreamMalformed,
    /// The upstream did not answer in time: `310509`.
    UpstreamTimeout,
    /// The name of the control plane does not resolve: `310509`.
    ControlPlaneUnresolved,
    /// The control plane could not prove who it is, or its TLS failed otherwise: `310509`.
    ControlPlaneTls,
    /// The node is in the shared set of faulty nodes: `340500`.
    FaultyNode,
    /// The node's breaker is open: `340500`.
    BreakerOpen,
}

/// What the `e2b` dialect says: one of the bodies that its SDKs classify, or a message of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Saying {
    /// "The sandbox was not found".
    NotFound,
    /// "The sandbox is running but port is not open", with the port.
    NotOpen,
    /// Too many at a time, with the limit.
    TooMany(u32),
    /// The control route, without a sandbox.
    Control(&'static str),
    /// Any other; has neither "was not found" nor "port is not open" in it.
    Text(&'static str),
}

impl Saying {
    /// The message as a sentence.
    pub(super) fn message(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Saying::NotFound => "The sandbox was not found",
            Saying::NotOpen => "The sandbox is running but port is not open",
            Saying::TooMany(limit) => {
                return Cow::Owned(format!(
                    "The sandbox has too many concurrent incoming connections (limit: {limit})"
                ));
            }
            Saying::Control(_) => {
                "This endpoint is reserved for the control plane and is not reachable through the sandbox URL"
            }
            Saying::Text(text) => text,
        })
    }
}

impl Fault {
    /// The return code, before any masking.
    #[must_use]
    pub fn retcode(self) -> Retcode {
        match self {
            Fault::BadTarget | Fault::BadRequest | Fault::BadHead => Retcode::BadRequest,
            Fault::TokenMissing | Fault::TokenWrong => Retcode::Forbidden,
            Fault::EnvdControl { .. } => Retcode::EnvdControl,
            Fault::MethodNotAllowed => Retcode::MethodNotAllowed,
            Fault::HeadTimeout | Fault::BodyTimeout => Retcode::RequestTimeout,
            Fault::Killed | Fault::Revoked => Retcode::Gone,
            Fault::BodyTooLarge => Retcode::BodyTooLarge,
            Fault::TargetTooLong => Retcode::TargetTooLong,
            Fault::HeadTooLarge => Retcode::HeadTooLarge,
            Fault::TooManyForSandbox { .. } | Fault::TooManyFromAddress | Fault::ResumeQuota => {
                Retcode::TooMany
            }
            Fault::StoreUnavailable => Retcode::StoreUnavailable,
            Fault::Internal | Fault::OutOfDescriptors => Retcode::Internal,
            Fault::Pausing
            | Fault::Paused
            | Fault::ResumeFailed
            | Fault::HeldTooMany
            | Fault::DrainTimeout => Retcode::Asleep,
            Fault::NoRecord | Fault::NoHostIp | Fault::NoSandboxIp | Fault::NoMapping => Retcode::NoRoute,
            Fault::MalformedAddress | Fault::ForbiddenAddress => Retcode::BadAddress,
            Fault::ConnectRefused
            | Fault::ConnectFailed
            | Fault::ConnectTimeout
            | Fault::UpstreamCut
            | Fault::UpstreamMalformed
            | Fault::UpstreamTimeout
            | Fault::ControlPlaneUnresolved
            | Fault::ControlPlaneTls => Retcode::Unreachable,
            Fault::FaultyNode | Fault::BreakerOpen => Retcode::FaultyNode,
        }
    }

    /// The reason for log and metrics.
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Fault::BadTarget => Reason::BadTarget,
            Fault::BadRequest => Reason::BadRequest,
            Fault::BadHead => Reason::BadHead,
            Fault::TokenMissing => Reason::TokenMissing,
            Fault::TokenWrong => Reason::TokenWrong,
            Fault::EnvdControl { .. } => Reason::EnvdControl,
            Fault::MethodNotAllowed => Reason::MethodNotAllowed,
            Fault::HeadTimeout => Reason::HeadTimeout,
            Fault::BodyTimeout => Reason::BodyTimeout,
            Fault::Killed => Reason::Killed,
            Fault::Revoked => Reason::Revoked,
            Fault::BodyTooLarge => Reason::BodyLimit,
            Fault::TargetTooLong => Reason::TargetLimit,
            Fault::HeadTooLarge => Reason::HeadLimit,
            Fault::TooManyForSandbox { .. } => Reason::SandboxLimit,
            Fault::TooManyFromAddress => Reason::AddressLimit,
            Fault::ResumeQuota => Reason::ResumeQuota,
            Fault::StoreUnavailable => Reason::StoreUnavailable,
            Fault::Internal => Reason::Internal,
            Fault::OutOfDescriptors => Reason::OutOfDescriptors,
            Fault::Pausing => Reason::Pausing,
            Fault::Paused => Reason::Paused,
            Fault::ResumeFailed => Reason::ResumeFailed,
            Fault::HeldTooMany => Reason::HeldLimit,
            Fault::DrainTimeout => Reason::DrainTimeout,
            Fault::NoRecord => Reason::NoRecord,
            Fault::NoHostIp => Reason::NoHostIp,
            Fault::NoSandboxIp => Reason::NoSandboxIp,
            Fault::NoMapping => Reason::NoPortMapping,
            Fault::MalformedAddress => Reason::MalformedAddress,
            Fault::ForbiddenAddress => Reason::ForbiddenAddress,
            Fault::ConnectRefused => Reason::ConnectRefused,
            Fault::ConnectFailed => Reason::ConnectFailed,
            Fault::ConnectTimeout => Reason::ConnectTimeout,
            Fault::UpstreamCut => Reason::UpstreamCut,
            Fault::UpstreamMalformed => Reason::UpstreamMalformed,
            Fault::UpstreamTimeout => Reason::UpstreamTimeout,
            Fault::ControlPlaneUnresolved => Reason::ControlPlaneUnresolved,
            Fault::ControlPlaneTls => Reason::ControlPlaneTls,
            Fault::FaultyNode => Reason::FaultyNode,
            Fault::BreakerOpen => Reason::BreakerOpen,
        }
    }

    /// The status that the table gives this fault, before masking and before an answer travels as
    /// a gRPC or Connect 200.
    #[must_use]
    pub fn status(self, dialect: Dialect) -> u16 {
        let e2b = dialect == Dialect::E2b;
        match self.retcode() {
            Retcode::BadRequest => 400,
            Retcode::Forbidden => 403,
            Retcode::EnvdControl => 404,
            Retcode::MethodNotAllowed => 405,
            Retcode::RequestTimeout => 408,
            Retcode::Gone => {
                if e2b {
                    502
                } else {
                    410
                }
            }
            Retcode::BodyTooLarge => 413,
            Retcode::TargetTooLong => 414,
            Retcode::TooMany => 429,
            Retcode::HeadTooLarge => 431,
            Retcode::StoreUnavailable => 503,
            Retcode::Asleep => {
                if e2b && self == Fault::Pausing {
                    409
                } else {
                    503
                }
            }
            Retcode::NoRoute => {
                if e2b {
                    502
                } else {
                    404
                }
            }
            Retcode::BadAddress => 502,
            Retcode::Unreachable => {
                if self.timed_out() {
                    504
                } else {
                    502
                }
            }
            Retcode::FaultyNode => {
                if e2b {
                    503
                } else {
                    500
                }
            }
            Retcode::Internal | Retcode::ClientClosed | Retcode::Redirected | Retcode::Passed(_) => 500,
        }
    }

    /// Seconds for `Retry-After`.
    pub(super) fn retry_after(self) -> Option<&'static str> {
        match self.retcode() {
            Retcode::TooMany | Retcode::StoreUnavailable | Retcode::FaultyNode => Some("1"),
            Retcode::Asleep if self == Fault::Pausing => Some("2"),
            Retcode::Asleep => Some("5"),
            _ => None,
        }
    }

    /// The text of the `cube` dialect.
    pub(super) fn text(self) -> &'static str {
        match self.retcode() {
            Retcode::BadRequest => "bad request",
            Retcode::Forbidden => "forbidden",
            Retcode::EnvdControl | Retcode::NoRoute => "not found",
            Retcode::MethodNotAllowed => "method not allowed",
            Retcode::RequestTimeout => "request timeout",
            Retcode::Gone => "gone",
            Retcode::BodyTooLarge => "payload too large",
            Retcode::TargetTooLong => "uri too long",
            Retcode::HeadTooLarge => "header fields too large",
            Retcode::TooMany => "too many requests",
            Retcode::StoreUnavailable | Retcode::Asleep => "service unavailable",
            Retcode::Unreachable if self.timed_out() => "gateway timeout",
            Retcode::BadAddress | Retcode::Unreachable => "bad gateway",
            Retcode::FaultyNode => "backend unavailable",
            Retcode::Internal | Retcode::ClientClosed | Retcode::Redirected | Retcode::Passed(_) => {
                "internal error"
            }
        }
    }

    /// What the `e2b` dialect says; `named` is whether the request names a sandbox.
    pub(super) fn saying(self, named: bool) -> Saying {
        match self {
            Fault::Killed
            | Fault::Revoked
            | Fault::NoRecord
            | Fault::NoHostIp
            | Fault::NoSandboxIp
            | Fault::MalformedAddress
            | Fault::ForbiddenAddress => Saying::NotFound,
            Fault::NoMapping => Saying::NotOpen,
            Fault::ConnectRefused
            | Fault::ConnectFailed
            | Fault::UpstreamCut
            | Fault::UpstreamMalformed
            | Fault::ControlPlaneUnresolved
            | Fault::ControlPlaneTls => {
                // Without a sandbox it is the control plane that cannot be reached.
                if named { Saying::NotOpen } else { Saying::Text("The upstream cannot be reached.") }
            }
            Fault::TooManyForSandbox { limit } => Saying::TooMany(limit),
            Fault::EnvdControl { path } => Saying::Control(path),
            Fault::BadTarget => Saying::Text("The request does not name a sandbox and a port."),
            Fault::BadRequest | Fault::BadHead => Saying::Text("The request is malformed."),
            Fault::TokenMissing => Saying::Text(
                "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing",
            ),
            Fault::TokenWrong => Saying::Text(
                "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid",
            ),
            Fault::MethodNotAllowed => Saying::Text("This method is not allowed."),
            Fault::HeadTimeout => Saying::Text("The request was not sent in time."),
            Fault::BodyTimeout => Saying::Text("The body of the request was not sent in time."),
            Fault::BodyTooLarge => Saying::Text("The body of the request is too large."),
            Fault::TargetTooLong => Saying::Text("The target of the request is too long."),
            Fault::HeadTooLarge => Saying::Text("The header fields of the request are too large."),
            Fault::TooManyFromAddress => {
                Saying::Text("There are too many requests from this address. Try again in a moment.")
            }
            Fault::ResumeQuota => {
                Saying::Text("The sandbox cannot be resumed because a quota is used up. Try again later.")
            }
            Fault::StoreUnavailable => {
                Saying::Text("Sandboxes cannot be looked up at the moment. Try again in a moment.")
            }
            Fault::Internal => Saying::Text("The proxy failed to handle this request."),
            Fault::OutOfDescriptors => {
                Saying::Text("The proxy has too many connections open. Try again in a moment.")
            }
            Fault::Pausing => Saying::Text("The sandbox is still transitioning. Try again in a moment."),
            Fault::Paused => Saying::Text("The sandbox is paused."),
            Fault::ResumeFailed => Saying::Text("The sandbox is paused and could not be resumed."),
            Fault::HeldTooMany => {
                Saying::Text("Too many requests wait for the sandbox already. Try again in a moment.")
            }
            Fault::DrainTimeout => Saying::Text("The proxy is shutting down. Try again in a moment."),
            Fault::ConnectTimeout | Fault::UpstreamTimeout => {
                if named {
                    Saying::Text("The sandbox did not answer in time.")
                } else {
                    Saying::Text("The upstream did not answer in time.")
                }
            }
            Fault::FaultyNode | Fault::BreakerOpen => {
                Saying::Text("The node of the sandbox is not available. Try again in a moment.")
            }
        }
    }

    /// The code of a gRPC answer.
    pub(super) fn grpc_status(self) -> &'static str {
        match self.retcode() {
            Retcode::BadRequest => "3",
            Retcode::Forbidden => "7",
            Retcode::NoRoute if self == Fault::NoMapping => "14",
            Retcode::EnvdControl | Retcode::NoRoute => "5",
            Retcode::MethodNotAllowed => "12",
            Retcode::RequestTimeout => "4",
            Retcode::Gone => "9",
            Retcode::BodyTooLarge | Retcode::TargetTooLong | Retcode::TooMany | Retcode::HeadTooLarge => "8",
            Retcode::Unreachable if self.timed_out() => "4",
            _ => "14",
        }
    }

    /// The code of a Connect error. An outage is `aborted`: a JavaScript SDK takes `unavailable` on a
    /// stream for a dead sandbox.
    pub(super) fn connect_code(self, dialect: Dialect) -> &'static str {
        if matches!(self.retcode(), Retcode::StoreUnavailable | Retcode::FaultyNode) {
            return "aborted";
        }
        match self.status(dialect) {
            400 | 405 | 414 | 431 => "invalid_argument",
            403 => "permission_denied",
            408 | 504 => "deadline_exceeded",
            409 => "aborted",
            413 | 429 => "resource_exhausted",
            500 => "internal",
            _ => "unavailable",
        }
    }

    fn timed_out(self) -> bool {
        matches!(self, Fault::ConnectTimeout | Fault::UpstreamTimeout)
    }
}
