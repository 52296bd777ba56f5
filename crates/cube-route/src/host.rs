//! Host as a client sends it: checked, taken apart, compared.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::byte_class;

/// A Host (or `:authority`, or the authority of a URL) that is well-formed: a name of letters,
/// digits, `-`, `_` and dots, an IPv4 address, or an IPv6 address in brackets; then an optional
/// port. One trailing dot of a name is ignored.
///
/// Nothing else passes: no user information, no percent-encoding, no empty label, no byte
/// beyond ASCII. So the text may be put into a header or a URL as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientHost<'a> {
    name: &'a str,
    ip: Option<IpAddr>,
    port: Option<u16>,
}

impl<'a> ClientHost<'a> {
    /// Reads `text`; none if it is malformed.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let (literal, tail) = rest.split_once(']')?;
            let ip: Ipv6Addr = literal.parse().ok()?;
            let port = match tail.strip_prefix(':') {
                Some(port) => read_port(port)?,
                None if tail.is_empty() => None,
                None => return None,
            };
            return Some(Self { name: literal, ip: Some(IpAddr::V6(ip)), port });
        }
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, read_port(port)?),
            None => (text, None),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        if !is_name(name) {
            return None;
        }
        let ip = if name.as_bytes().first().is_some_and(u8::is_ascii_digit) {
            name.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
        } else {
            None
        };
        Some(Self { name, ip, port })
    }

    /// The name or address alone: no port, no brackets, no trailing dot; case as sent.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The address, when Host is an IP literal.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// The port, when one is written.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// First label and what follows it; the whole name and none if it has no dot.
    #[must_use]
    pub fn labels(&self) -> (&'a str, Option<&'a str>) {
        match self.name.split_once('.') {
            Some((label, domain)) => (label, Some(domain)),
            None => (self.name, None),
        }
    }

    /// Same name, without case, or same address.
    #[must_use]
    pub fn same_name(&self, other: &ClientHost<'_>) -> bool {
        match (self.ip, other.ip) {
            (Some(one), Some(two)) => one == two,
            (None, None) => self.name.eq_ignore_ascii_case(other.name),
            _ => false,
        }
    }

    /// Same name and same port, where the scheme is unknown: no port is equal to 80 and to 443.
    #[must_use]
    pub fn same(&self, other: &ClientHost<'_>) -> bool {
        let ports = match (self.port, other.port) {
            (None, Some(port)) | (Some(port), None) => is_default_port(port),
            (one, two) => one == two,
        };
        ports && self.same_name(other)
    }

    /// Same name and same port, where no port means `default`.
    #[must_use]
    pub fn same_with_default(&self, other: &ClientHost<'_>, default: u16) -> bool {
        self.port.unwrap_or(default) == other.port.unwrap_or(default) && self.same_name(other)
    }

    /// Same name and same port by either scheme: no port, 80 and 443 are all equal.
    #[must_use]
    pub fn same_by_either_scheme(&self, other: &ClientHost<'_>) -> bool {
        let class = |port: Option<u16>| port.filter(|port| !is_default_port(*port));
        class(self.port) == class(other.port) && self.same_name(other)
    }
}

fn is_default_port(port: u16) -> bool {
    port == 80 || port == 443
}

/// The digits after the colon; outer none: malformed, inner none: nothing after the colon, which
/// the URI syntax allows.
#[expect(clippy::option_option, reason = "the two kinds of nothing are told apart")]
fn read_port(text: &str) -> Option<Option<u16>> {
    if text.is_empty() {
        return Some(None);
    }
    if text.len() > 5 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().map(Some)
}

/// Labels of letters, digits, `-` and `_`, none of them empty.
fn is_name(name: &str) -> bool {
    // The beginning counts as a dot, so that a first label without a byte is an empty one too.
    let (mut seen, mut pairs, mut last) = (0, 0, byte_class::DOT);
    for byte in name.bytes() {
        let class = byte_class::of(byte);
        seen |= class;
        pairs |= class & last;
        last = class;
    }
    seen & byte_class::OTHER == 0 && pairs & byte_class::DOT == 0 && last != byte_class::DOT
}

#[cfg(test)]
mod tests;
