//! Which request headers are rewritten, and how: those that name the client's own host or the prefix
//! of the path form, and must name what the sandbox knows instead (routing.md, "The masked host").

use crate::absolute_url::AbsoluteUrl;

/// How one request's sandbox sees its client's host. Each function returns the new value of a
/// header, or none where the value stays. What is not exactly the client's own stays: another
/// origin must never look like the sandbox's.
#[derive(Debug, Clone, Copy)]
pub struct RequestRewrite<'a> {
    /// `/sandbox/<id>/<port>` as the client wrote it, in the path form.
    pub prefix: Option<&'a str>,
    /// The client's Host, as sent.
    pub client_host: &'a str,
    /// The Host that is sent upstream: the client's, or its mask.
    pub upstream_host: &'a str,
}

impl RequestRewrite<'_> {
    /// `Origin`: the client's own becomes the masked one. The scheme stays, as applications compare
    /// the host with Host and may compare the scheme with what they know of it.
    #[must_use]
    pub fn origin(&self, value: &[u8]) -> Option<Vec<u8>> {
        let url = AbsoluteUrl::parse(value)?;
        if !url.rest.is_empty() {
            return None;
        }
        self.masked(&url, b"")
    }

    /// `Referer`: its origin, as [`RequestRewrite::origin`]; its path and query stay.
    #[must_use]
    pub fn referer(&self, value: &[u8]) -> Option<Vec<u8>> {
        let url = AbsoluteUrl::parse(value)?;
        self.masked(&url, url.rest)
    }

    /// `Destination` (WebDAV): what is under the prefix loses it, and its host is the one that the
    /// application knows itself by; outside the path form only the host changes.
    #[must_use]
    pub fn destination(&self, value: &[u8]) -> Option<Vec<u8>> {
        let Some(prefix) = self.prefix else { return self.referer(value) };
        if value.first() == Some(&b'/') {
            return without_prefix(prefix, value).map(<[u8]>::to_vec);
        }
        let url = AbsoluteUrl::parse(value)?;
        let rest = without_prefix(prefix, url.rest)?;
        if !url.leads_to_by_its_scheme(self.client_host) {
            return None;
        }
        Some(self.masked(&url, rest).unwrap_or_else(|| [url.start, rest].concat()))
    }

    /// The URL with the masked host and `rest`; none where it is not the client's own, or nothing
    /// masks it. A port that is not written is the default of the URL's own scheme: the proxy may not
    /// know which one the client speaks to a proxy in front.
    fn masked(&self, url: &AbsoluteUrl<'_>, rest: &[u8]) -> Option<Vec<u8>> {
        (self.upstream_host != self.client_host && url.leads_to_by_its_scheme(self.client_host))
            .then(|| [url.scheme, self.upstream_host.as_bytes(), rest].concat())
    }
}

/// What stands behind the prefix: a path that begins with `/`.
fn without_prefix<'v>(prefix: &str, path: &'v [u8]) -> Option<&'v [u8]> {
    let rest = path.strip_prefix(prefix.as_bytes())?;
    match rest.first() {
        Some(b'/') => Some(rest),
        None => Some(b"/"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
