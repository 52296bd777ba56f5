//! What happened, and what to do about it, for people who look at a page: in both dialects the same.

use std::borrow::Cow;

use cube_route::Port;

use super::table::ProxyError;

/// What a page says. Neither text has a character that HTML minds.
pub(super) struct PlainWords {
    /// What happened.
    pub(super) title: Cow<'static, str>,
    /// What to do. That the page reloads by itself is said by the page.
    pub(super) advice: &'static str,
}

/// The words for `error`; `port` is the one that the request names.
pub(super) fn plain_words(error: ProxyError, port: Option<Port>) -> PlainWords {
    let number = port.map(|port| format!(" {port}")).unwrap_or_default();
    let (title, advice) = match error {
        ProxyError::NoRecord | ProxyError::NoHostIp | ProxyError::NoSandboxIp => (
            "This sandbox was not found",
            "It may have ended, its address may be wrong, or it may not be open to you. Check the address, \
             or ask whoever gave it to you for a new one.",
        ),
        ProxyError::NoMapping => {
            return PlainWords {
                title: Cow::Owned(format!("Port{number} of this sandbox is not open")),
                advice: "Choose another port, or have whoever started the sandbox open this one.",
            };
        }
        ProxyError::ConnectRefused if port.is_some() => {
            return PlainWords {
                title: Cow::Owned(format!("Nothing answers on port{number}")),
                advice: "The sandbox runs, but no server listens on this port. Start one, or let it listen \
                         on all interfaces instead of localhost alone, and reload this page.",
            };
        }
        ProxyError::BadTarget => (
            "This address does not name a sandbox",
            "The name of a sandbox and its port are a part of the address. Check that it is complete.",
        ),
        ProxyError::BadRequest | ProxyError::BadHead => (
            "This request cannot be understood",
            "Check the address. If you followed a link, tell whoever made it.",
        ),
        ProxyError::TokenMissing => (
            "This sandbox is private",
            "It opens with its access token only, and none came with this request. Ask its owner.",
        ),
        ProxyError::TokenWrong => (
            "This sandbox is private",
            "The access token that came with this request is not the right one. Ask its owner for a new one.",
        ),
        ProxyError::EnvdControl { .. } => {
            ("This address is not open to browsers", "Only the platform itself may use it.")
        }
        ProxyError::MethodNotAllowed => {
            ("This kind of request is not allowed", "Nothing was sent to the sandbox.")
        }
        ProxyError::HeadTimeout | ProxyError::BodyTimeout => {
            ("The request took too long to arrive", "Check your connection and try again.")
        }
        ProxyError::Killed | ProxyError::Revoked => {
            ("This sandbox has ended", "It was shut down and cannot be opened any more. Start a new one.")
        }
        ProxyError::BodyTooLarge => (
            "What you sent is too large",
            "Send less at a time, or ask whoever runs this platform for a higher limit.",
        ),
        ProxyError::TargetTooLong => {
            ("This address is too long", "Shorten it, or send what it carries in another way.")
        }
        ProxyError::HeadTooLarge => (
            "The headers of this request are too large",
            "Most often these are cookies: delete those of this site and try again.",
        ),
        ProxyError::TooManyForSandbox { .. } | ProxyError::HeldTooMany => {
            ("This sandbox is busy", "Too many requests are under way to it.")
        }
        ProxyError::TooManyFromAddress => {
            ("Too many requests", "Your network sends more requests than are taken from one address.")
        }
        ProxyError::ResumeQuota => (
            "This sandbox cannot be woken right now",
            "It is paused, and its owner's quota of running sandboxes is used up.",
        ),
        ProxyError::StoreUnavailable => (
            "Sandboxes cannot be looked up right now",
            "This is an outage of the platform. Your sandbox is not affected by it.",
        ),
        ProxyError::Internal => (
            "Something went wrong",
            "The error is ours. Try again; if it happens again, report the request ID below.",
        ),
        ProxyError::OutOfDescriptors => (
            "Too many connections are open",
            "There is no room for another one at the moment. Reload this page in a moment.",
        ),
        ProxyError::Pausing => (
            "This sandbox is changing its state",
            "It is being paused or resumed, and opens when that is done.",
        ),
        ProxyError::Paused => ("This sandbox is paused", "It opens here as soon as it runs again."),
        ProxyError::ResumeFailed => {
            ("This sandbox could not be woken", "It is paused, and resuming it failed or took too long.")
        }
        ProxyError::DrainTimeout => ("The proxy is restarting", "Your sandbox is not affected by it."),
        ProxyError::MalformedAddress | ProxyError::ForbiddenAddress => (
            "This sandbox cannot be reached",
            "The platform has no usable address for it. Report the request ID below to whoever runs it.",
        ),
        // Without a sandbox it is the control plane that was asked.
        ProxyError::ControlPlaneUnresolved
        | ProxyError::ControlPlaneTls
        | ProxyError::ConnectRefused
        | ProxyError::ConnectFailed
        | ProxyError::ConnectTimeout
        | ProxyError::UpstreamTimeout
        | ProxyError::UpstreamCut
        | ProxyError::UpstreamMalformed
            if port.is_none() =>
        {
            (
                "The control plane cannot be reached",
                "Reload this page in a moment. If it stays like this, report the request ID below.",
            )
        }
        ProxyError::ControlPlaneUnresolved
        | ProxyError::ControlPlaneTls
        | ProxyError::ConnectRefused
        | ProxyError::ConnectFailed => {
            ("The sandbox cannot be reached", "The connection to it failed. Reload this page in a moment.")
        }
        ProxyError::ConnectTimeout | ProxyError::UpstreamTimeout => (
            "The sandbox did not answer in time",
            "It may be busy, or what runs in it may hang. Reload this page in a moment.",
        ),
        ProxyError::UpstreamCut => (
            "The sandbox broke the connection",
            "What runs in it closed the connection before it answered; it may have crashed.",
        ),
        ProxyError::UpstreamMalformed => (
            "What the sandbox answered is not HTTP",
            "Something else than a web server may listen on this port.",
        ),
        ProxyError::FaultyNode | ProxyError::BreakerOpen => (
            "The machine of this sandbox is not available",
            "It has been taken out of service, or does not answer at the moment.",
        ),
    };
    PlainWords { title: Cow::Borrowed(title), advice }
}
