//! Which requests may be answered from the cache, and what they ask of it.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cube_metadata::Access;
use cube_resolver::RouteEntry;
use cube_route::{Port, SandboxTarget, forwarded_headers};
use http::{HeaderMap, HeaderName, Method, header};

use super::cache_control::directives;
use super::cacheability::Freshness;

/// Fields that make a response one client's, or a part, or depend on more than the key knows.
static MAKES_IT_OWN: [HeaderName; 18] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    header::RANGE,
    header::IF_RANGE,
    // They ask for what the sandbox has now (RFC 9111, 4.3.2).
    header::IF_MATCH,
    header::IF_UNMODIFIED_SINCE,
    header::EXPECT,
    header::UPGRADE,
    HeaderName::from_static("x-access-token"),
    // By these, common frameworks let a header say another method, target or host than the request
    // line and Host: a response would be stored under what was not asked for.
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("x-host"),
    HeaderName::from_static("x-original-host"),
    HeaderName::from_static("x-http-host-override"),
];

/// Headers that the proxy sets anew towards the sandbox: sent by a trusted peer, they do not make a response one
/// client's own.
const SAID_ANEW: [&str; 4] = ["x-forwarded-proto", "x-forwarded-host", "x-real-ip", "x-cube-request-id"];

/// What is known about a request beside its headers.
pub(crate) struct RequestFacts<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) target: &'a SandboxTarget,
    pub(crate) entry: &'a RouteEntry,
    /// The request has no body.
    pub(crate) bodyless: bool,
    /// `routing.forward_credentials`.
    pub(crate) forward_credentials: bool,
    /// The peer is one of `routing.trusted_proxies`.
    pub(crate) trusted: bool,
    /// The real address, and the chain that a trusted peer sent, with the peer appended.
    pub(crate) real_ip: Option<IpAddr>,
    pub(crate) chain: Option<&'a [u8]>,
}

/// What a request asks of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheDemand {
    /// What is stored will do; else it is fetched, and what comes replaces what is stored.
    pub(crate) stored: bool,
    /// What comes may be stored.
    pub(crate) keep: bool,
    /// `max-age`: how old it may be.
    oldest: Option<Duration>,
    /// `min-fresh`: for how long it must be fresh.
    left: Duration,
}

impl CacheDemand {
    /// What a request asks that says nothing about caches.
    pub(crate) fn any(method: &Method) -> Self {
        Self { stored: true, keep: method == Method::GET, oldest: None, left: Duration::ZERO }
    }

    /// Whether a stored response that has `left` to live will do.
    pub(crate) fn takes(&self, freshness: &Freshness, now: Instant) -> bool {
        let Some(left) = freshness.left(now) else { return false };
        left >= self.left && self.oldest.is_none_or(|oldest| freshness.age(now) <= oldest)
    }
}

/// What the request asks of the cache; `None`: it must have nothing to do with it.
pub(crate) fn cache_demand(facts: &RequestFacts<'_>) -> Option<CacheDemand> {
    let method = facts.method;
    let eligible = (method == Method::GET || method == Method::HEAD)
        && facts.bodyless
        && facts.target.port != Port::ENVD
        && matches!(facts.entry.record.access, Access::Public)
        && !MAKES_IT_OWN.iter().any(|name| facts.headers.contains_key(name))
        && facts.headers.keys().all(|name| impersonal(facts, name.as_str()))
        // A header that is taken away on the way would be compared all the same.
        && crate::proxy::hop_by_hop::connection_tokens(facts.headers)
            .all(|token| token.eq_ignore_ascii_case(b"keep-alive") || token.eq_ignore_ascii_case(b"close"));
    if !eligible {
        return None;
    }
    let mut demand = CacheDemand::any(method);
    let Some(directives) = directives(facts.headers) else {
        // Whatever it asks for, what is fetched for it is that.
        return Some(CacheDemand { stored: false, ..demand });
    };
    let silent = directives.is_empty();
    for directive in directives {
        match (directive.name.as_str(), directive.seconds()) {
            ("no-store", _) => return None,
            ("max-age", Some(seconds)) => {
                let age = Duration::from_secs(seconds);
                demand.oldest = Some(demand.oldest.map_or(age, |oldest| oldest.min(age)));
            }
            ("min-fresh", Some(seconds)) => demand.left = demand.left.max(Duration::from_secs(seconds)),
            ("no-cache" | "max-age" | "min-fresh", _) => demand.stored = false,
            // `only-if-cached` is for a client's own proxy: here the sandbox is asked.
            _ => {}
        }
    }
    // RFC 9111, 5.4: it counts where there is no Cache-Control.
    if silent && facts.headers.contains_key(header::PRAGMA) {
        let names = facts.headers.get_all(header::PRAGMA).iter();
        let mut names = names.flat_map(|value| value.as_bytes().split(|b| *b == b','));
        demand.stored = !names.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"no-cache"));
    }
    Some(demand)
}

/// Whether a header is none of the proxy's own that would reach the sandbox, or says whom it is for.
fn impersonal(facts: &RequestFacts<'_>, name: &str) -> bool {
    if forwarded_headers::is_credential(name) {
        // The header form's names are in the key; the sandbox sees them only where it is to.
        return !facts.forward_credentials && !name.ends_with("token");
    }
    if !forwarded_headers::is_reserved_header(name) {
        // A server that reads `_` as `-` takes it for the other.
        return !name.contains('_') || {
            let read = name.replace('_', "-");
            !MAKES_IT_OWN.iter().any(|own| own.as_str() == read)
        };
    }
    if facts.trusted {
        return SAID_ANEW.contains(&name) || (name == "x-forwarded-for" && names_one_client(facts));
    }
    // A client that claims to be forwarded is none whose response others should get, though nothing
    // of it reaches the sandbox; these two are everyday headers that are replaced.
    matches!(name.replace('_', "-").as_str(), "x-real-ip" | "x-cube-request-id")
}

/// Whether the chain holds nothing but what trusted peers said: its first address is the client's.
fn names_one_client(facts: &RequestFacts<'_>) -> bool {
    let Some(chain) = facts.chain else { return false };
    let first = chain.split(|b| *b == b',').next().and_then(|first| std::str::from_utf8(first).ok());
    let first = first.and_then(|first| first.trim().parse::<IpAddr>().ok());
    first.is_some_and(|first| Some(first.to_canonical()) == facts.real_ip)
}

#[cfg(test)]
mod tests;
