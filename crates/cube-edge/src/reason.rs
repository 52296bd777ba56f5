//! Why a request ended as it did: one closed list for the access log and the metrics.

/// Declares [`Reason`] with its words, so that word, variant and documentation stay together.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)*) => {
        /// Why a request ended as it did (operations.md). Return code and reason belong together:
        /// the code says what the client was told, the reason says which of its causes it was.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// All of them, in order of declaration.
            pub const ALL: [Reason; [$(Reason::$variant),*].len()] = [$(Reason::$variant),*];

            /// The word in the access log and in the metric label.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Reason::$variant => $word,)*
                }
            }
        }
    };
}

reasons! {
    /// The upstream answered below 400 (an upgrade too) and the answer ended well.
    Ok = "ok",
    /// The upstream answered 400 or above, and that answer ended well.
    UpstreamStatus = "upstream_status",
    /// Neither Host, headers nor path name a sandbox.
    BadTarget = "bad_target",
    /// The request is malformed: Host, framing, target bytes, a preflight that asks for no token.
    BadRequest = "bad_request",
    /// The engine could not parse the head.
    BadHead = "bad_head",
    /// The sandbox is private and no traffic token was presented.
    TokenMissing = "token_missing",
    /// The sandbox is private and the traffic token is not its own.
    TokenWrong = "token_wrong",
    /// A control route of envd, from a caller that may not use it.
    EnvdControl = "envd_control",
    /// CONNECT, TRACE, or another method that is not forwarded.
    MethodNotAllowed = "method_not_allowed",
    /// The head was not complete in time.
    HeadTimeout = "head_timeout",
    /// The client stopped sending its body.
    BodyTimeout = "body_timeout",
    /// The sandbox is being or was killed; also what it cut while under way.
    Killed = "killed",
    /// Cut because the record was deleted or describes another life of the sandbox.
    Revoked = "revoked",
    /// The body is over `limits.body`.
    BodyLimit = "body_limit",
    /// The target is over `limits.target`.
    TargetLimit = "target_limit",
    /// The head is over `limits.head` or `limits.headers`.
    HeadLimit = "head_limit",
    /// A browser navigated to the path form without a path, and was sent to the one with a slash.
    BarePath = "bare_path",
    /// Over `limits.requests_per_sandbox`.
    SandboxLimit = "sandbox_limit",
    /// Over `limits.requests_per_ip`.
    AddressLimit = "address_limit",
    /// The manager refused a resume for a quota.
    ResumeQuota = "resume_quota",
    /// The client left.
    ClientClosed = "client_closed",
    /// The store cannot answer and nothing is cached.
    StoreUnavailable = "store_unavailable",
    /// A fault of the proxy itself.
    Internal = "internal",
    /// Too many files are open for another upstream connection.
    OutOfDescriptors = "out_of_descriptors",
    /// Still pausing after the wait.
    Pausing = "pausing",
    /// Paused, and nothing resumes it.
    Paused = "paused",
    /// Paused, and the resume failed or took too long.
    ResumeFailed = "resume_failed",
    /// Too many requests are held already.
    HeldLimit = "held_limit",
    /// There is no such sandbox.
    NoRecord = "no_record",
    /// The record has no `HostIP`.
    NoHostIp = "no_host_ip",
    /// The record has no `SandboxIP`.
    NoSandboxIp = "no_sandbox_ip",
    /// The record maps no host port to this container port.
    NoPortMapping = "no_port_mapping",
    /// A field of the record that is needed is no address or no port.
    MalformedAddress = "malformed_address",
    /// The address may not be dialled.
    ForbiddenAddress = "forbidden_address",
    /// The node is in the shared set of faulty nodes.
    FaultyNode = "faulty_node",
    /// The node's breaker is open.
    BreakerOpen = "breaker_open",
    /// The backend refused the connection.
    ConnectRefused = "connect_refused",
    /// The connection could not be made for another cause: unreachable, reset.
    ConnectFailed = "connect_failed",
    /// The connection was not made in time.
    ConnectTimeout = "connect_timeout",
    /// The upstream fell silent: before the answer (`310509`) or in the middle of it.
    UpstreamTimeout = "upstream_timeout",
    /// The upstream closed or reset: before the answer (`310509`) or in the middle of it.
    UpstreamCut = "upstream_cut",
    /// The upstream sent something that is no HTTP.
    UpstreamMalformed = "upstream_malformed",
    /// The name of the control plane does not resolve.
    ControlPlaneUnresolved = "control_plane_unresolved",
    /// The certificate of the control plane is not trusted or not its own, or its TLS failed otherwise.
    ControlPlaneTls = "control_plane_tls",
    /// Cut because the time for draining was over.
    DrainTimeout = "drain_timeout",
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
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn words_are_distinct_and_plain() {
        let words: HashSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        assert!(words.iter().all(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }

    #[test]
    fn the_index_is_the_place_in_the_list() {
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), at);
        }
    }
}
