//! Everything that makes the proxy answer itself, and what each of it means.

use std::borrow::Cow;

use super::Dialect;
use crate::reason::Reason;
use crate::retcode::Retcode;

/// Why the proxy answers in the upstream's place. One variant for each row of errors.md and each
/// of its causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyError {
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

impl ProxyError {
    /// The return code, before any masking.
    #[must_use]
    pub fn retcode(self) -> Retcode {
        match self {
            ProxyError::BadTarget | ProxyError::BadRequest | ProxyError::BadHead => Retcode::BadRequest,
            ProxyError::TokenMissing | ProxyError::TokenWrong => Retcode::Forbidden,
            ProxyError::EnvdControl { .. } => Retcode::EnvdControl,
            ProxyError::MethodNotAllowed => Retcode::MethodNotAllowed,
            ProxyError::HeadTimeout | ProxyError::BodyTimeout => Retcode::RequestTimeout,
            ProxyError::Killed | ProxyError::Revoked => Retcode::Gone,
            ProxyError::BodyTooLarge => Retcode::BodyTooLarge,
            ProxyError::TargetTooLong => Retcode::TargetTooLong,
            ProxyError::HeadTooLarge => Retcode::HeadTooLarge,
            ProxyError::TooManyForSandbox { .. }
            | ProxyError::TooManyFromAddress
            | ProxyError::ResumeQuota => Retcode::TooMany,
            ProxyError::StoreUnavailable => Retcode::StoreUnavailable,
            ProxyError::Internal | ProxyError::OutOfDescriptors => Retcode::Internal,
            ProxyError::Pausing
            | ProxyError::Paused
            | ProxyError::ResumeFailed
            | ProxyError::HeldTooMany
            | ProxyError::DrainTimeout => Retcode::Asleep,
            ProxyError::NoRecord | ProxyError::NoHostIp | ProxyError::NoSandboxIp | ProxyError::NoMapping => {
                Retcode::NoRoute
            }
            ProxyError::MalformedAddress | ProxyError::ForbiddenAddress => Retcode::BadAddress,
            ProxyError::ConnectRefused
            | ProxyError::ConnectFailed
            | ProxyError::ConnectTimeout
            | ProxyError::UpstreamCut
            | ProxyError::UpstreamMalformed
            | ProxyError::UpstreamTimeout
            | ProxyError::ControlPlaneUnresolved
            | ProxyError::ControlPlaneTls => Retcode::Unreachable,
            ProxyError::FaultyNode | ProxyError::BreakerOpen => Retcode::FaultyNode,
        }
    }

    /// The reason for log and metrics.
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            ProxyError::BadTarget => Reason::BadTarget,
            ProxyError::BadRequest => Reason::BadRequest,
            ProxyError::BadHead => Reason::BadHead,
            ProxyError::TokenMissing => Reason::TokenMissing,
            ProxyError::TokenWrong => Reason::TokenWrong,
            ProxyError::EnvdControl { .. } => Reason::EnvdControl,
            ProxyError::MethodNotAllowed => Reason::MethodNotAllowed,
            ProxyError::HeadTimeout => Reason::HeadTimeout,
            ProxyError::BodyTimeout => Reason::BodyTimeout,
            ProxyError::Killed => Reason::Killed,
            ProxyError::Revoked => Reason::Revoked,
            ProxyError::BodyTooLarge => Reason::BodyLimit,
            ProxyError::TargetTooLong => Reason::TargetLimit,
            ProxyError::HeadTooLarge => Reason::HeadLimit,
            ProxyError::TooManyForSandbox { .. } => Reason::SandboxLimit,
            ProxyError::TooManyFromAddress => Reason::AddressLimit,
            ProxyError::ResumeQuota => Reason::ResumeQuota,
            ProxyError::StoreUnavailable => Reason::StoreUnavailable,
            ProxyError::Internal => Reason::Internal,
            ProxyError::OutOfDescriptors => Reason::OutOfDescriptors,
            ProxyError::Pausing => Reason::Pausing,
            ProxyError::Paused => Reason::Paused,
            ProxyError::ResumeFailed => Reason::ResumeFailed,
            ProxyError::HeldTooMany => Reason::HeldLimit,
            ProxyError::DrainTimeout => Reason::DrainTimeout,
            ProxyError::NoRecord => Reason::NoRecord,
            ProxyError::NoHostIp => Reason::NoHostIp,
            ProxyError::NoSandboxIp => Reason::NoSandboxIp,
            ProxyError::NoMapping => Reason::NoPortMapping,
            ProxyError::MalformedAddress => Reason::MalformedAddress,
            ProxyError::ForbiddenAddress => Reason::ForbiddenAddress,
            ProxyError::ConnectRefused => Reason::ConnectRefused,
            ProxyError::ConnectFailed => Reason::ConnectFailed,
            ProxyError::ConnectTimeout => Reason::ConnectTimeout,
            ProxyError::UpstreamCut => Reason::UpstreamCut,
            ProxyError::UpstreamMalformed => Reason::UpstreamMalformed,
            ProxyError::UpstreamTimeout => Reason::UpstreamTimeout,
            ProxyError::ControlPlaneUnresolved => Reason::ControlPlaneUnresolved,
            ProxyError::ControlPlaneTls => Reason::ControlPlaneTls,
            ProxyError::FaultyNode => Reason::FaultyNode,
            ProxyError::BreakerOpen => Reason::BreakerOpen,
        }
    }

    /// The status that the table gives this error, before masking and before an answer travels as
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
                if e2b && self == ProxyError::Pausing {
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
            Retcode::Asleep if self == ProxyError::Pausing => Some("2"),
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
            ProxyError::Killed
            | ProxyError::Revoked
            | ProxyError::NoRecord
            | ProxyError::NoHostIp
            | ProxyError::NoSandboxIp
            | ProxyError::MalformedAddress
            | ProxyError::ForbiddenAddress => Saying::NotFound,
            ProxyError::NoMapping => Saying::NotOpen,
            ProxyError::ConnectRefused
            | ProxyError::ConnectFailed
            | ProxyError::UpstreamCut
            | ProxyError::UpstreamMalformed
            | ProxyError::ControlPlaneUnresolved
            | ProxyError::ControlPlaneTls => {
                // Without a sandbox it is the control plane that cannot be reached.
                if named { Saying::NotOpen } else { Saying::Text("The upstream cannot be reached.") }
            }
            ProxyError::TooManyForSandbox { limit } => Saying::TooMany(limit),
            ProxyError::EnvdControl { path } => Saying::Control(path),
            ProxyError::BadTarget => Saying::Text("The request does not name a sandbox and a port."),
            ProxyError::BadRequest | ProxyError::BadHead => Saying::Text("The request is malformed."),
            ProxyError::TokenMissing => Saying::Text(
                "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing",
            ),
            ProxyError::TokenWrong => Saying::Text(
                "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid",
            ),
            ProxyError::MethodNotAllowed => Saying::Text("This method is not allowed."),
            ProxyError::HeadTimeout => Saying::Text("The request was not sent in time."),
            ProxyError::BodyTimeout => Saying::Text("The body of the request was not sent in time."),
            ProxyError::BodyTooLarge => Saying::Text("The body of the request is too large."),
            ProxyError::TargetTooLong => Saying::Text("The target of the request is too long."),
            ProxyError::HeadTooLarge => Saying::Text("The header fields of the request are too large."),
            ProxyError::TooManyFromAddress => {
                Saying::Text("There are too many requests from this address. Try again in a moment.")
            }
            ProxyError::ResumeQuota => {
                Saying::Text("The sandbox cannot be resumed because a quota is used up. Try again later.")
            }
            ProxyError::StoreUnavailable => {
                Saying::Text("Sandboxes cannot be looked up at the moment. Try again in a moment.")
            }
            ProxyError::Internal => Saying::Text("The proxy failed to handle this request."),
            ProxyError::OutOfDescriptors => {
                Saying::Text("The proxy has too many connections open. Try again in a moment.")
            }
            ProxyError::Pausing => Saying::Text("The sandbox is still transitioning. Try again in a moment."),
            ProxyError::Paused => Saying::Text("The sandbox is paused."),
            ProxyError::ResumeFailed => Saying::Text("The sandbox is paused and could not be resumed."),
            ProxyError::HeldTooMany => {
                Saying::Text("Too many requests wait for the sandbox already. Try again in a moment.")
            }
            ProxyError::DrainTimeout => Saying::Text("The proxy is shutting down. Try again in a moment."),
            ProxyError::ConnectTimeout | ProxyError::UpstreamTimeout => {
                if named {
                    Saying::Text("The sandbox did not answer in time.")
                } else {
                    Saying::Text("The upstream did not answer in time.")
                }
            }
            ProxyError::FaultyNode | ProxyError::BreakerOpen => {
                Saying::Text("The node of the sandbox is not available. Try again in a moment.")
            }
        }
    }

    /// The code of a gRPC answer.
    pub(super) fn grpc_status(self) -> &'static str {
        match self.retcode() {
            Retcode::BadRequest => "3",
            Retcode::Forbidden => "7",
            Retcode::NoRoute if self == ProxyError::NoMapping => "14",
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
        matches!(self, ProxyError::ConnectTimeout | ProxyError::UpstreamTimeout)
    }
}
