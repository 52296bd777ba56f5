//! Where people are sent to log in (previews.md, "Sending people to log in").

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::{ClientHost, Port, SandboxId};

/// All but what RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The longest target that `{path}` repeats, in bytes.
const MAX_PATH: usize = 2048;

/// Why a text is no login URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginUrlError {
    /// Not `https://host/...`, or `http` on loopback.
    #[error("must be an https URL, or an http one on loopback, without user, fragment, space or quote")]
    Url,
    /// A placeholder before the `?`.
    #[error("{{{0}}} must stand behind the \"?\"")]
    Place(String),
    /// Braces around something else.
    #[error("{{{0}}} is none of {{host}}, {{path}}, {{sandbox}} and {{port}}")]
    Unknown(String),
    /// A brace without its other one.
    #[error("a brace has no other one")]
    Brace,
}

/// `previews.login_url`, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginUrl {
    start: String,
    /// What stands in place of something, and the text behind it.
    rest: Vec<(Placeholder, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placeholder {
    Host,
    Path,
    Sandbox,
    Port,
}

impl Placeholder {
    const ALL: [(&'static str, Self); 4] =
        [("host", Self::Host), ("path", Self::Path), ("sandbox", Self::Sandbox), ("port", Self::Port)];

    fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(own, _)| *own == name).map(|(_, placeholder)| *placeholder)
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, placeholder)| *placeholder == self).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for LoginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.start)?;
        self.rest.iter().try_for_each(|(placeholder, behind)| write!(f, "{{{}}}{behind}", placeholder.name()))
    }
}

impl LoginUrl {
    /// Reads a template.
    ///
    /// # Errors
    /// [`LoginUrlError`].
    pub fn parse(text: &str) -> Result<Self, LoginUrlError> {
        let question = text.find('?').unwrap_or(text.len());
        let mut pieces = text.split('{');
        let start = pieces.next().unwrap_or_default().to_owned();
        let mut at = start.len();
        let mut rest = Vec::new();
        for piece in pieces {
            let (name, behind) = piece.split_once('}').ok_or(LoginUrlError::Brace)?;
            let unknown = || LoginUrlError::Unknown(name.to_owned());
            let placeholder = Placeholder::of(name).ok_or_else(unknown)?;
            if at < question {
                return Err(LoginUrlError::Place(name.to_owned()));
            }
            at += 1 + piece.len();
            rest.push((placeholder, behind.to_owned()));
        }
        let literal = || std::iter::once(&start).chain(rest.iter().map(|(_, text)| text));
        if literal().any(|text| text.contains('}')) {
            return Err(LoginUrlError::Brace);
        }
        let plain = |text: &String| text.bytes().all(|b| b.is_ascii_graphic() && !b"\"#<>\\^`|".contains(&b));
        if !literal().all(plain) || !has_good_origin(&start) {
            return Err(LoginUrlError::Url);
        }
        Ok(Self { start, rest })
    }

    /// The URL for a request: `host` is the client's, `target` its path and query without a ticket.
    #[must_use]
    pub fn location(&self, host: &[u8], target: &[u8], id: &SandboxId, port: Port) -> String {
        let mut out = self.start.clone();
        for (placeholder, behind) in &self.rest {
            match placeholder {
                Placeholder::Host => out.extend(percent_encode(host, RESERVED)),
                Placeholder::Path if target.len() > MAX_PATH => out.push_str("%2F"),
                Placeholder::Path => out.extend(percent_encode(target, RESERVED)),
                Placeholder::Sandbox => out.push_str(id.as_str()),
                Placeholder::Port => out.push_str(&port.to_string()),
            }
            out.push_str(behind);
        }
        out
    }
}

/// `https://host`, or `http://` and a host that is this machine.
fn has_good_origin(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let Some(host) = ClientHost::parse(authority) else { return false };
    let loopback = host.ip().map_or(host.name() == "localhost", |ip| ip.to_canonical().is_loopback());
    scheme == "https" || (scheme == "http" && loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(template: &str, target: &str) -> String {
        let (id, port) = (SandboxId::parse("Abc_1").unwrap(), Port::new(3000).unwrap());
        LoginUrl::parse(template).unwrap().location(
            b"3000-abc_1.cube.test:8443",
            target.as_bytes(),
            &id,
            port,
        )
    }

    #[test]
    fn placeholders_are_filled_in_encoded() {
        let all = "https://p.example/login?h={host}&to={path}&s={sandbox}&p={port}&x";
        assert_eq!(LoginUrl::parse(all).unwrap().to_string(), all);
        assert_eq!(
            location(all, "/a b/é?x=1&y=~"),
            "https://p.example/login?h=3000-abc_1.cube.test%3A8443&to=%2Fa%20b%2F%C3%A9%3Fx%3D1%26y%3D~&s=abc_1&\
             p=3000&x"
        );
        assert_eq!(location("https://p.example/login", "/"), "https://p.example/login");
        let long = format!("/{}", "a".repeat(2048));
        assert_eq!(location("https://p.example/?{path}", &long), "https://p.example/?%2F");
    }

    #[test]
    fn a_template_leads_to_one_place_that_nobody_else_chooses() {
        for good in ["http://localhost:1/?{host}", "http://127.0.0.1/", "http://[::1]:80?{path}{port}"] {
            assert!(LoginUrl::parse(good).is_ok(), "{good}");
        }
        for (bad, error) in [
            ("https://{host}/?x", LoginUrlError::Place("host".into())),
            ("https://p.example/{path}?x={port}", LoginUrlError::Place("path".into())),
            ("https://p.example/{path}", LoginUrlError::Place("path".into())),
            ("https://p.example/?{user}", LoginUrlError::Unknown("user".into())),
            ("https://p.example/?{host", LoginUrlError::Brace),
            ("https://p.example/?host}", LoginUrlError::Brace),
            ("https://p.example/?{port}}", LoginUrlError::Brace),
            ("http://p.example/", LoginUrlError::Url),
            ("http://localhost.evil/", LoginUrlError::Url),
            ("ftp://p.example/", LoginUrlError::Url),
            ("https://u:p@p.example/", LoginUrlError::Url),
            ("https://p.example/?a b", LoginUrlError::Url),
            ("https://p.example/?a#{path}", LoginUrlError::Url),
            ("https:///x", LoginUrlError::Url),
            ("/login?{path}", LoginUrlError::Url),
            ("", LoginUrlError::Url),
        ] {
            assert_eq!(LoginUrl::parse(bad), Err(error), "{bad}");
        }
    }
}
