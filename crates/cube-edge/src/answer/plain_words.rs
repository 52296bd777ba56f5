//! What happened, and what to do about it, for people who look at a page: in both dialects the same.

use std::borrow::Cow;

use cube_route::Port;

use super::fault::Fault;

/// What a page says. Neither text has a character that HTML minds.
pub(super) struct PlainWords {
    /// What happened.
    pub(super) title: Cow<'static, str>,
    /// What to do. That the page reloads by itself is said by the page.
    pub(super) advice: &'static str,
}

/// The words for `fault`; `port` is the one that the request names.
pub(super) fn plain_words(fault: Fault, port: Option<Port>) -> PlainWords {
    let number = port.map(|port| format!(" {port}")).unwrap_or_default();
    let (title, advice) = match fault {
        Fault::NoRecord | Fault::NoHostIp | Fault::NoSandboxIp => (
            "This sandbox was not found",
            "It may have ended, its address may be wrong, or it may not be open to you. Check the address, \
             or ask whoever gave it to you for a new one.",
        ),
        Fault::NoMapping => {
            return PlainWords {
                title: Cow::Owned(format!("Port{number} of this sandbox is not open")),
                advice: "Choose another port, or have whoever started the sandbox open this one.",
            };
        }
        Fault::ConnectRefused if port.is_some() => {
            return PlainWords {
                title: Cow::Owned(format!("Nothing answers on port{number}")),
                advice: "The sandbox runs, but no server listens on this port. Start one, or let it listen \
                         on all interfaces instead of localhost alone, and reload this page.",
            };
        }
        Fault::BadTarget => (
            "This address does not name a sandbox",
            "The name of a sandbox and its port are a part of the address. Check that it is complete.",
        ),
        Fault::BadRequest | Fault::BadHead => (
            "This request cannot be understood",
            "Check the address. If you followed a link, tell whoever made it.",
        ),
        Fault::TokenMissing => (
            "This sandbox is private",
            "It opens with its access token only, and none came with this request. Ask its owner.",
        ),
        Fault::TokenWrong => (
            "This sandbox is private",
            "The access token that came with this request is not the right one. Ask its owner for a new one.",
        ),
        Fault::EnvdControl { .. } => {
            ("This address is not open to browsers", "Only the platform itself may use it.")
        }
        Fault::MethodNotAllowed => {
            ("This kind of request is not allowed", "Nothing was sent to the sandbox.")
        }
        Fault::HeadTimeout | Fault::BodyTimeout => {
            ("The request took too long to arrive", "Check your connection and try again.")
        }
        Fault::Killed | Fault::Revoked => {
            ("This sandbox has ended", "It was shut down and cannot be opened any more. Start a new one.")
        }
        Fault::BodyTooLarge => (
            "What you sent is too large",
            "Send less at a time, or ask whoever runs this platform for a higher limit.",
        ),
        Fault::TargetTooLong => {
            ("This address is too long", "Shorten it, or send what it carries in another way.")
        }
        Fault::HeadTooLarge => (
            "The headers of this request are too large",
            "Most often these are cookies: delete those of this site and try again.",
        ),
        Fault::TooManyForSandbox { .. } | Fault::HeldTooMany => {
            ("This sandbox is busy", "Too many requests are under way to it.")
        }
        Fault::TooManyFromAddress => {
            ("Too many requests", "Your network sends more requests than are taken from one address.")
        }
        Fault::ResumeQuota => (
            "This sandbox cannot be woken right now",
            "It is paused, and its owner's quota of running sandboxes is used up.",
        ),
        Fault::StoreUnavailable => (
            "Sandboxes cannot be looked up right now",
            "This is an outage of the platform. Your sandbox is not affected by it.",
        ),
        Fault::Internal => (
            "Something went wrong",
            "The fault is ours. Try again; if it happens again, report the request ID below.",
        ),
        Fault::OutOfDescriptors => (
            "Too many connections are open",
            "There is no room for another one at the moment. Reload this page in a moment.",
        ),
        Fault::Pausing => (
            "This sandbox is changing its state",
            "It is being paused or resumed, and opens when that is done.",
        ),
        Fault::Paused => ("This sandbox is paused", "It opens here as soon as it runs again."),
        Fault::ResumeFailed => {
            ("This sandbox could not be woken", "It is paused, and resuming it failed or took too long.")
        }
        Fault::DrainTimeout => ("The proxy is restarting", "Your sandbox is not affected by it."),
        Fault::MalformedAddress | Fault::ForbiddenAddress => (
            "This sandbox cannot be reached",
            "The platform has no usable address for it. Report the request ID below to whoever runs it.",
        ),
        // Without a sandbox it is the control plane that was asked.
        Fault::ControlPlaneUnresolved
        | Fault::ControlPlaneTls
        | Fault::ConnectRefused
        | Fault::ConnectFailed
        | Fault::ConnectTimeout
        | Fault::UpstreamTimeout
        | Fault::UpstreamCut
        | Fault::UpstreamMalformed
            if port.is_none() =>
        {
            (
                "The control plane cannot be reached",
                "Reload this page in a moment. If it stays like this, report the request ID below.",
            )
        }
        Fault::ControlPlaneUnresolved
        | Fault::ControlPlaneTls
        | Fault::ConnectRefused
        | Fault::ConnectFailed => {
            ("The sandbox cannot be reached", "The connection to it failed. Reload this page in a moment.")
        }
        Fault::ConnectTimeout | Fault::UpstreamTimeout => (
            "The sandbox did not answer in time",
            "It may be busy, or what runs in it may hang. Reload this page in a moment.",
        ),
        Fault::UpstreamCut => (
            "The sandbox broke the connection",
            "What runs in it closed the connection before it answered; it may have crashed.",
        ),
        Fault::UpstreamMalformed => (
            "What the sandbox answered is not HTTP",
            "Something else than a web server may listen on this port.",
        ),
        Fault::FaultyNode | Fault::BreakerOpen => (
            "The machine of this sandbox is not available",
            "It has been taken out of service, or does not answer at the moment.",
        ),
    };
    PlainWords { title: Cow::Borrowed(title), advice }
}
