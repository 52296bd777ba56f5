//! An http or https URL in a header, taken apart: where it leads, and what follows the authority.

use crate::host::ClientHost;
use crate::target::strip_prefix_ignore_case;

/// A URL with scheme and host.
pub(crate) struct AbsoluteUrl<'v> {
    /// Whether the scheme is `https`; `http` otherwise.
    pub(crate) https: bool,
    /// The scheme, up to and with `://`.
    pub(crate) scheme: &'v [u8],
    /// Scheme and authority, as written: `http://host:port`.
    pub(crate) start: &'v [u8],
    /// What follows the authority.
    pub(crate) rest: &'v [u8],
    host: ClientHost<'v>,
}

impl<'v> AbsoluteUrl<'v> {
    pub(crate) fn parse(value: &'v [u8]) -> Option<Self> {
        let (https, after) = match strip_prefix_ignore_case(value, b"http://") {
            Some(after) => (false, after),
            None => (true, strip_prefix_ignore_case(value, b"https://")?),
        };
        let scheme = value.get(..value.len().checked_sub(after.len())?)?;
        let end = after.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(after.len());
        let (authority, rest) = after.split_at_checked(end)?;
        let host = ClientHost::parse(std::str::from_utf8(authority).ok()?)?;
        let start = value.get(..value.len().checked_sub(rest.len())?)?;
        Some(Self { https, scheme, start, rest, host })
    }

    /// Same name and same port as `host`, by either scheme: no port, 80 and 443 are all equal.
    pub(crate) fn leads_to(&self, host: &str) -> bool {
        ClientHost::parse(host).is_some_and(|host| self.host.same_by_either_scheme(&host))
    }

    /// Same name and same port as `host`, where a port that is not written is the default of this URL's
    /// own scheme.
    pub(crate) fn leads_to_by_its_scheme(&self, host: &str) -> bool {
        let default_port = if self.https { 443 } else { 80 };
        ClientHost::parse(host).is_some_and(|host| self.host.same_with_default(&host, default_port))
    }

    /// Whether it leads to the name of `host`, at `port`.
    pub(crate) fn leads_to_port(&self, host: &str, port: u16) -> bool {
        self.host.port() == Some(port)
            && ClientHost::parse(host).is_some_and(|host| self.host.same_name(&host))
    }
}
