//! What a row of the table comes to for one response: codes, statuses, and the words that hang on the request.

use std::borrow::Cow;

use cube_route::Port;

use super::super::Dialect;
use super::{ConnectCode, E2b, PageSource, ProxyError, Reason};
use crate::retcode::Retcode;

/// A message of the `e2b` dialect: one of the bodies that its SDKs classify, or words of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::error_response) enum E2bMessage {
    /// "The sandbox was not found".
    NotFound,
    /// "The sandbox is running but port is not open", with the port.
    NotOpen,
    /// Too many at a time, with the limit.
    TooMany(u32),
    /// The control route, without a sandbox.
    Control(&'static str),
    /// Any other.
    Text(&'static str),
}

impl E2bMessage {
    /// The message as a sentence.
    pub(in crate::error_response) fn sentence(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            E2bMessage::NotFound => "The sandbox was not found",
            E2bMessage::NotOpen => "The sandbox is running but port is not open",
            E2bMessage::TooMany(limit) => {
                return Cow::Owned(format!(
                    "The sandbox has too many concurrent incoming connections (limit: {limit})"
                ));
            }
            E2bMessage::Control(_) => {
                "This endpoint is reserved for the control plane and is not reachable through the sandbox URL"
            }
            E2bMessage::Text(text) => text,
        })
    }
}

/// What a page says.
pub(in crate::error_response) struct PageText {
    /// The headline: what happened.
    pub(in crate::error_response) title: Cow<'static, str>,
    /// What to do. That the page reloads by itself is said by the page.
    pub(in crate::error_response) advice: &'static str,
}

impl ProxyError {
    /// The return code, before any masking.
    #[must_use]
    pub fn retcode(self) -> Retcode {
        self.row().code
    }

    /// The reason for log and metrics.
    #[must_use]
    pub fn reason(self) -> Reason {
        self.row().reason
    }

    /// Whether a browser that meets it is sent to `previews.login_url`, where there is one: it may not enter,
    /// or there is nothing to enter, which it must not be able to tell apart.
    pub(crate) fn leads_to_login(self) -> bool {
        matches!(
            self,
            ProxyError::TokenMissing
                | ProxyError::TokenWrong
                | ProxyError::PreviewExpired
                | ProxyError::NoRecord
        )
    }

    /// The status of the response, before masking and before it travels as a gRPC or Connect 200.
    #[must_use]
    pub fn status(self, dialect: Dialect) -> u16 {
        match dialect {
            Dialect::Cube => self.row().cube_status,
            Dialect::E2b => self.row().e2b_status,
        }
    }

    /// Seconds for `Retry-After`.
    pub(in crate::error_response) fn retry_after(self) -> Option<&'static str> {
        self.row().retry_after
    }

    /// The text of the `cube` dialect.
    pub(in crate::error_response) fn text(self) -> &'static str {
        self.row().cube_text
    }

    /// What the `e2b` dialect says; `named` is whether the request names a sandbox. Without one it is the
    /// control plane that was called.
    pub(in crate::error_response) fn message(self, named: bool) -> E2bMessage {
        match (&self.row().e2b, self) {
            (E2b::NotFound, _) => E2bMessage::NotFound,
            (E2b::NotOpen, _) if named || self.row().code != Retcode::Unreachable => E2bMessage::NotOpen,
            (E2b::NotOpen, _) => E2bMessage::Text("The upstream cannot be reached."),
            (E2b::NotInTime, _) if named => E2bMessage::Text("The sandbox did not answer in time."),
            (E2b::NotInTime, _) => E2bMessage::Text("The upstream did not answer in time."),
            (E2b::TooMany, ProxyError::TooManyForSandbox { limit }) => E2bMessage::TooMany(limit),
            (E2b::TooMany, _) => E2bMessage::TooMany(0),
            (E2b::Control, ProxyError::EnvdControl { path }) => E2bMessage::Control(path),
            (E2b::Control, _) => E2bMessage::Control(""),
            (E2b::Text(text), _) => E2bMessage::Text(text),
        }
    }

    /// The code of a gRPC response.
    pub(in crate::error_response) fn grpc_status(self) -> &'static str {
        self.row().grpc
    }

    /// The code of a Connect error.
    pub(in crate::error_response) fn connect_code(self) -> &'static str {
        match self.row().connect {
            ConnectCode::Aborted => "aborted",
            ConnectCode::DeadlineExceeded => "deadline_exceeded",
            ConnectCode::Internal => "internal",
            ConnectCode::InvalidArgument => "invalid_argument",
            ConnectCode::PermissionDenied => "permission_denied",
            ConnectCode::ResourceExhausted => "resource_exhausted",
            ConnectCode::Unavailable => "unavailable",
        }
    }

    /// What a browser's page says, in both dialects the same; `port` is the one that the request names.
    pub(in crate::error_response) fn page(self, port: Option<Port>) -> PageText {
        let row = self.row();
        if row.code == Retcode::Unreachable && port.is_none() {
            // Without a sandbox it is the control plane that was called.
            return PageText {
                title: Cow::Borrowed("The control plane cannot be reached"),
                advice: "Reload this page in a moment. If it stays like this, report the request ID below.",
            };
        }
        match row.page {
            PageSource::Says(title, advice) => PageText { title: Cow::Borrowed(title), advice },
            PageSource::Port(before, after, advice) => {
                let number = port.map(|port| format!(" {port}")).unwrap_or_default();
                let after = if after.is_empty() { String::new() } else { format!(" {after}") };
                PageText { title: Cow::Owned(format!("{before}{number}{after}")), advice }
            }
        }
    }
}
