//! Why a request head names no sandbox, in words that `explain` and a log can show.

use crate::name::{NameError, RoutingForm};

/// Why a request gets a 400 (`310400`). The texts name the rule, never the bytes sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// Neither Host nor `:authority`, HTTP/1.0 included.
    #[error("the request has no Host")]
    NoHost,
    /// Host is there, with an empty value.
    #[error("Host is empty")]
    HostEmpty,
    /// More than one Host header, be they equal or not.
    #[error("Host is given more than once")]
    HostTwice,
    /// Host or `:authority` is not `name[:port]`, an IPv4 address or an IPv6 address in brackets.
    #[error("Host is malformed")]
    HostMalformed,
    /// Host says something else than `:authority` or the absolute-form target.
    #[error("Host differs from the authority of the request")]
    HostMismatch,
    /// The target is neither a path, nor an http(s) URL (HTTP/1 only), nor `*` with OPTIONS.
    #[error("the request target is neither a path nor an http URL")]
    TargetForm,
    /// The authority of an absolute-form target is malformed (user information included).
    #[error("the authority of the request target is malformed")]
    TargetAuthority,
    /// A byte that could not reach the sandbox as it was sent: `<`, `>`, `#`, a space, a control
    /// byte, `"` in a query, a backtick in a path.
    #[error("the request target has a byte that must be percent-encoded")]
    TargetByte,
    /// The target is not UTF-8.
    #[error("the request target is not UTF-8")]
    TargetUtf8,
    /// The form applies, but what stands where the sandbox id belongs is not a sandbox id.
    #[error("the {} form applies, but its sandbox id is not 1 to 128 of A-Z a-z 0-9 _ -", .0.as_str())]
    Id(RoutingForm),
    /// The form applies, but what stands where the port belongs is not a port.
    #[error("the {} form applies, but its port is not 1 to 65535 without sign or leading zero", .0.as_str())]
    Port(RoutingForm),
    /// One of `E2b-Sandbox-Id` and `E2b-Sandbox-Port` without the other, on a shared host.
    #[error("the header form needs both E2b-Sandbox-Id and E2b-Sandbox-Port")]
    HeaderPair,
    /// `E2b-Sandbox-Id` or `E2b-Sandbox-Port` more than once, on a shared host.
    #[error("E2b-Sandbox-Id or E2b-Sandbox-Port is given more than once")]
    HeaderTwice,
    /// The path begins with `/sandbox` and does not go on with `/<id>/<port>`.
    #[error("the path form is /sandbox/<id>/<port>[/<rest>]")]
    PathForm,
    /// No form applies; [`crate::parse_request`] leaves this verdict to its caller, which may know the
    /// host as the control plane's.
    #[error("neither host, headers nor path name a sandbox")]
    NoForm,
}

impl BadRequest {
    /// The error of a name that does not parse, in the form that it stood in.
    pub(crate) fn name(form: RoutingForm, error: NameError) -> Self {
        match error {
            NameError::Id => BadRequest::Id(form),
            NameError::Port => BadRequest::Port(form),
        }
    }
}

/// Why a configuration makes no [`Rules`](crate::Rules).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// An entry of `routing.domains` is not a plain domain name.
    #[error("{0:?} is not a domain: a name such as cube.app, without port, wildcard or leading dot")]
    Domain(String),
}
