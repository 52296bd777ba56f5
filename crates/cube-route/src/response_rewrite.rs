//! Which response headers are rewritten, and how, so that redirects, cookies and service workers keep
//! leading to the sandbox (routing.md, "Path form" and "The masked host").

use crate::absolute_url::AbsoluteUrl;
use crate::target::strip_prefix_ignore_case;

/// Response headers that path form removes, in lower case: all sandboxes share one browser origin
/// there, and these speak for a whole origin.
pub const REMOVED_IN_PATH_FORM: &[&str] =
    &["clear-site-data", "alt-svc", "strict-transport-security", "nel", "report-to", "reporting-endpoints"];

/// How one request's client sees the sandbox. Each function returns the new value of a header,
/// or none where the value stays; a value that was moved stays when it is moved again.
#[derive(Debug, Clone, Copy)]
pub struct ResponseRewrite<'a> {
    /// `/sandbox/<id>/<port>` as the client wrote it, in the path form.
    pub prefix: Option<&'a str>,
    /// The client's Host, as sent.
    pub client_host: &'a str,
    /// `http` or `https`, as the client speaks it.
    pub client_scheme: &'a str,
    /// The Host that was sent upstream: the client's, or its mask.
    pub upstream_host: &'a str,
    /// The port inside the sandbox: an application that builds URLs with the port it listens on
    /// means itself.
    pub container_port: u16,
}

impl ResponseRewrite<'_> {
    /// `Location` and `Content-Location`.
    ///
    /// A URL at the mask becomes one at the client's host, in every form; its scheme is the
    /// client's, but an `https` is not taken back, since it may be the very point of the
    /// redirect. In the path form what is root-relative, or absolute to the host that the client
    /// used, is moved under the prefix. Either host with the sandbox's own port is the same as
    /// without: the proxy does not listen there (the client's own only in the path form, since a
    /// name of the host form with another port may be somebody else's).
    #[must_use]
    pub fn location(&self, value: &[u8]) -> Option<Vec<u8>> {
        if self.prefix.is_none() && self.upstream_host == self.client_host {
            return None;
        }
        let moved = self.rewritten(value)?;
        (moved != value).then_some(moved)
    }

    /// `Refresh`: the URL in it, as [`ResponseRewrite::location`].
    #[must_use]
    pub fn refresh(&self, value: &[u8]) -> Option<Vec<u8>> {
        let (before, url, after) = refresh_url(value)?;
        Some([before, &self.location(url)?, after].concat())
    }

    /// `Set-Cookie`, one header: every Path attribute that is a path is moved under the prefix,
    /// Domain is removed, all else keeps its order and case.
    #[must_use]
    pub fn set_cookie(&self, value: &[u8]) -> Option<Vec<u8>> {
        let prefix = self.prefix?.as_bytes();
        let mut parts = value.split(|b| *b == b';');
        let mut out = Vec::with_capacity(value.len() + prefix.len());
        // The first part is the cookie itself, whatever its name is.
        out.extend_from_slice(parts.next()?);
        for part in parts {
            let name = part.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii();
            if name.eq_ignore_ascii_case(b"domain") {
                continue;
            }
            out.push(b';');
            match cookie_path(part, name) {
                Some((before, path)) if !has_prefix(prefix, path) => {
                    out.extend_from_slice(before);
                    out.extend_from_slice(prefix);
                    out.extend_from_slice(path);
                }
                _ => out.extend_from_slice(part),
            }
        }
        (out != value).then_some(out)
    }

    /// `Service-Worker-Allowed`: a scope that never reaches beyond the prefix. What is no plain
    /// path (a URL, `..`, an escaped dot) becomes the prefix itself. The prefix alone gets its slash: a
    /// scope reaches everything that begins with its letters, and `/sandbox/<id>/80` begins port 8080's too.
    #[must_use]
    pub fn service_worker_allowed(&self, value: &[u8]) -> Option<Vec<u8>> {
        let prefix = self.prefix?.as_bytes();
        let moved = match value.strip_prefix(prefix) {
            Some(rest) if is_plain_path(value) && rest.first() == Some(&b'/') => return None,
            Some(b"") => [prefix, b"/"].concat(),
            _ if is_plain_path(value) => [prefix, value].concat(),
            _ => [prefix, b"/"].concat(),
        };
        Some(moved)
    }

    fn rewritten(&self, value: &[u8]) -> Option<Vec<u8>> {
        if value.first() == Some(&b'/') {
            let prefix = self.prefix?.as_bytes();
            let elsewhere = matches!(value.get(1), Some(b'/' | b'\\'));
            return (!elsewhere && !has_prefix(prefix, value)).then(|| [prefix, value].concat());
        }
        let url = AbsoluteUrl::parse(value)?;
        if url.leads_to(self.client_host) {
            let prefix = self.prefix?;
            return Some([url.start, &with_prefix(prefix, url.rest)].concat());
        }
        let own_port = |host| url.leads_to_port(host, self.container_port);
        let own = url.leads_to(self.upstream_host)
            || own_port(self.upstream_host)
            || (self.prefix.is_some() && own_port(self.client_host));
        if !own {
            return None;
        }
        let scheme = if url.https { "https" } else { self.client_scheme };
        let rest = with_prefix(self.prefix.unwrap_or_default(), url.rest);
        Some([scheme.as_bytes(), b"://", self.client_host.as_bytes(), &rest].concat())
    }
}

/// What follows an authority, moved under `prefix`, which may be empty.
fn with_prefix(prefix: &str, rest: &[u8]) -> Vec<u8> {
    let between: &[u8] = match rest.first() {
        _ if prefix.is_empty() || has_prefix(prefix.as_bytes(), rest) => return rest.to_vec(),
        Some(b'/') => b"",
        _ => b"/",
    };
    [prefix.as_bytes(), between, rest].concat()
}

/// Whether a path is the prefix, or goes on after it with `/`, `?` or `#`.
fn has_prefix(prefix: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| matches!(rest.first(), None | Some(b'/' | b'?' | b'#')))
}

/// A cookie attribute `Path=/...`, taken apart before its path.
fn cookie_path<'v>(part: &'v [u8], name: &[u8]) -> Option<(&'v [u8], &'v [u8])> {
    if !name.eq_ignore_ascii_case(b"path") {
        return None;
    }
    let equals = part.iter().position(|b| *b == b'=')?;
    let path = part.get(equals + 1..)?.trim_ascii_start();
    (path.first() == Some(&b'/')).then_some(())?;
    part.split_at_checked(part.len().checked_sub(path.len())?)
}

/// A path that means what it says: no host in front, no segment that climbs, nothing that a URL
/// parser drops or turns.
fn is_plain_path(value: &[u8]) -> bool {
    let plain = |b: &u8| b.is_ascii_graphic() && !matches!(b, b'\\' | b'?' | b'#' | b'%');
    value.first() == Some(&b'/')
        && value.get(1) != Some(&b'/')
        && value.iter().all(plain)
        && value.split(|b| *b == b'/').all(|segment| segment != b".." && segment != b".")
}

/// `5; url=/x` as browsers read it (HTML, shared declarative refresh steps): what stands before
/// the URL, the URL, and what stands behind it.
fn refresh_url(value: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let rest = value.trim_ascii_start();
    if !rest.first().is_some_and(|b| b.is_ascii_digit() || *b == b'.') {
        return None;
    }
    let time = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
    let rest = rest.get(time..)?;
    if !matches!(rest.first(), Some(b';' | b',')) && !rest.first().is_some_and(u8::is_ascii_whitespace) {
        return None;
    }
    let rest = rest.trim_ascii_start();
    let rest = match rest {
        [b';' | b',', tail @ ..] => tail.trim_ascii_start(),
        _ => rest,
    };
    let named = strip_prefix_ignore_case(rest, b"url")
        .and_then(|tail| tail.trim_ascii_start().strip_prefix(b"="))
        .map(<[u8]>::trim_ascii_start);
    let rest = named.unwrap_or(rest);
    let (url, after) = match rest {
        [quote @ (b'"' | b'\''), tail @ ..] => {
            let end = tail.iter().position(|b| b == quote).unwrap_or(tail.len());
            tail.split_at_checked(end)?
        }
        _ => (rest, &b""[..]),
    };
    let before = value.get(..value.len().checked_sub(url.len() + after.len())?)?;
    Some((before, url, after))
}

#[cfg(test)]
mod tests;
