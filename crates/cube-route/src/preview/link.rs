//! A preview link: a URL with a ticket (previews.md, "Making links").

use std::fmt;

use super::query::{PARAMETER, take_parameter};
use super::{MIN_TOKEN, Ticket, TicketPort};
use crate::{ClientHost, Port, SandboxId};

/// The most bytes of one label of a host name.
const MAX_LABEL: usize = 63;

/// Where links lead: `scheme://domain[:port]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkBase {
    https: bool,
    /// Domain, and the port where it is not the scheme's own.
    authority: String,
}

impl LinkBase {
    /// Reads `scheme://domain[:port]`; none where it is anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let https = match scheme {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let host = ClientHost::parse(authority)?;
        host.ip().is_none().then(|| Self::new(https, host.name(), host.port()))
    }

    /// A domain, reached at `port`.
    #[must_use]
    pub fn new(https: bool, domain: &str, port: Option<u16>) -> Self {
        let own = if https { 443 } else { 80 };
        let port = port.filter(|port| *port != own).map(|port| format!(":{port}")).unwrap_or_default();
        Self { https, authority: format!("{domain}{port}") }
    }

    fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }
}

impl fmt::Display for LinkBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority)
    }
}

/// How a link names its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkForm {
    /// In the host.
    #[default]
    Host,
    /// In the path.
    Path,
}

/// What a link is to open.
#[derive(Debug, Clone, Copy)]
pub struct LinkRequest<'a> {
    /// The sandbox.
    pub id: &'a SandboxId,
    /// The port that the link leads to.
    pub port: Port,
    /// Its ticket opens every port but envd's.
    pub any_port: bool,
    /// How the sandbox is named.
    pub form: LinkForm,
    /// Path and query in the sandbox.
    pub path: &'a str,
    /// For how long, in seconds.
    pub ttl: u64,
    /// `previews.max_ttl`, in seconds.
    pub max_ttl: u64,
    /// Now, Unix seconds.
    pub now: u64,
}

/// A link and its ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The URL.
    pub url: String,
    /// The ticket in it.
    pub ticket: String,
    /// Until when it opens something, Unix seconds.
    pub expires_at: u64,
}

/// Why there is no such link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkRefusal {
    /// Everybody reaches it.
    #[error("the sandbox is public: it needs no link")]
    Public,
    /// The record has no token.
    #[error("the sandbox has no token to make a link with")]
    NoToken,
    /// A short token is guessed from a ticket.
    #[error("the sandbox's token has fewer than {MIN_TOKEN} bytes: a link would let its holder guess it")]
    ShortToken,
    /// No ticket opens it.
    #[error("port 49983 is envd's, which no link opens")]
    Envd,
    /// It would be refused.
    #[error("the link would live longer than previews.max_ttl ({0} s) allows")]
    TooLong(u64),
    /// It would open nothing.
    #[error("the link must live for a second at least")]
    NoTime,
    /// Not the path of a target.
    #[error("the path must begin with / and have no #, space or control character")]
    Path,
    /// It has a ticket already.
    #[error("the path must not name {PARAMETER}")]
    Named,
    /// `<port>-<id>` is no label.
    #[error("the sandbox's id is too long for a host name: make a link of the path form")]
    LongLabel,
    /// The configuration does not say where links lead.
    #[error("neither previews.base_url nor routing.domains says where links lead")]
    NoBase,
    /// The proxy takes no tickets.
    #[error("previews.enabled is false: no link opens anything")]
    Off,
}

impl LinkRefusal {
    /// Whether what was asked for is malformed; else it cannot be had.
    #[must_use]
    pub fn is_malformed(self) -> bool {
        matches!(self, LinkRefusal::NoTime)
    }
}

impl LinkRequest<'_> {
    /// Makes the link with the sandbox's token; `None`: it has none.
    ///
    /// # Errors
    /// [`LinkRefusal`].
    pub fn make(&self, base: Option<&LinkBase>, token: Option<&[u8]>) -> Result<Link, LinkRefusal> {
        let token = token.ok_or(LinkRefusal::NoToken)?;
        if token.len() < MIN_TOKEN {
            return Err(LinkRefusal::ShortToken);
        }
        if self.port == Port::ENVD {
            return Err(LinkRefusal::Envd);
        }
        if self.ttl == 0 {
            return Err(LinkRefusal::NoTime);
        }
        if self.ttl > self.max_ttl {
            return Err(LinkRefusal::TooLong(self.max_ttl));
        }
        let plain = |b: u8| b > b' ' && b != 0x7f && !b"#\"<>`".contains(&b);
        if !self.path.starts_with('/') || !self.path.bytes().all(plain) {
            return Err(LinkRefusal::Path);
        }
        if take_parameter(self.path.as_bytes()).is_some() {
            return Err(LinkRefusal::Named);
        }
        let base = base.ok_or(LinkRefusal::NoBase)?;
        let expires_at = self.now.saturating_add(self.ttl);
        let port = if self.any_port { TicketPort::Any } else { TicketPort::One(self.port) };
        let ticket = Ticket::make(token, self.id, port, expires_at);
        let place = match self.form {
            LinkForm::Host => {
                let label = format!("{}-{}", self.port, self.id);
                if label.len() > MAX_LABEL {
                    return Err(LinkRefusal::LongLabel);
                }
                format!("{label}.{}", base.authority)
            }
            LinkForm::Path => format!("{}/sandbox/{}/{}", base.authority, self.id, self.port),
        };
        let sign = if self.path.contains('?') { '&' } else { '?' };
        let url = format!("{}://{place}{}{sign}{PARAMETER}={ticket}", base.scheme(), self.path);
        Ok(Link { url, ticket, expires_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &[u8] = b"preview-vector-token-one";

    fn make(
        change: impl FnOnce(&mut LinkRequest<'_>),
        base: &str,
        token: &[u8],
    ) -> Result<Link, LinkRefusal> {
        let id = SandboxId::parse("7c8fbcd45ffe450fb8f7fb223ad45507").unwrap();
        let mut request = LinkRequest {
            id: &id,
            port: Port::new(3000).unwrap(),
            any_port: false,
            form: LinkForm::Host,
            path: "/",
            ttl: 3600,
            max_ttl: 86_400,
            now: 1_900_000_000 - 3600,
        };
        change(&mut request);
        request.make(LinkBase::parse(base).as_ref(), Some(token))
    }

    #[test]
    fn a_link_is_the_url_with_a_ticket_behind_it() {
        let ticket = "v1.1900000000.3000.aWo1T2nd4anfmNmKhh-M3YyhNOivbgCYmTV3PREc9BI";
        let host = "3000-7c8fbcd45ffe450fb8f7fb223ad45507";
        let link = make(|_| (), "https://cube.test", TOKEN).unwrap();
        assert_eq!(link.url, format!("https://{host}.cube.test/?cube_preview={ticket}"));
        assert_eq!((link.ticket.as_str(), link.expires_at), (ticket, 1_900_000_000));
        let link = make(|request| request.path = "/a?b", "http://cube.test:8081", TOKEN).unwrap();
        assert_eq!(link.url, format!("http://{host}.cube.test:8081/a?b&cube_preview={ticket}"));
        let any = |request: &mut LinkRequest<'_>| {
            request.form = LinkForm::Path;
            request.any_port = true;
        };
        let link = make(any, "https://cube.test:443", TOKEN).unwrap();
        let ticket = "v1.1900000000.any.buXJn9eLlPZyhp7vQyUXaJTRW2MZgaDMrcy4MfTfcT8";
        let prefix = "/sandbox/7c8fbcd45ffe450fb8f7fb223ad45507/3000";
        assert_eq!(link.url, format!("https://cube.test{prefix}/?cube_preview={ticket}"));
    }

    #[test]
    fn what_would_open_nothing_is_refused() {
        let base = "https://cube.test";
        assert_eq!(make(|_| (), base, b"fifteen bytes.."), Err(LinkRefusal::ShortToken));
        assert_eq!(make(|request| request.port = Port::ENVD, base, TOKEN), Err(LinkRefusal::Envd));
        assert_eq!(make(|request| request.ttl = 86_401, base, TOKEN), Err(LinkRefusal::TooLong(86_400)));
        assert_eq!(make(|request| request.ttl = 0, base, TOKEN), Err(LinkRefusal::NoTime));
        for path in ["", "a", "/a#b", "/a b", "/\n", "https://evil.example/"] {
            assert_eq!(make(|request| request.path = path, base, TOKEN), Err(LinkRefusal::Path), "{path}");
        }
        for path in ["/?cube_preview", "/?a&%63ube_preview=x"] {
            assert_eq!(make(|request| request.path = path, base, TOKEN), Err(LinkRefusal::Named), "{path}");
        }
        for base in ["", "cube.test", "https://10.0.0.1", "https://cube.test/", "ftp://cube.test"] {
            assert_eq!(make(|_| (), base, TOKEN), Err(LinkRefusal::NoBase), "{base}");
        }
        let long = SandboxId::parse(&"a".repeat(60)).unwrap();
        let label = |request: &mut LinkRequest<'_>| request.path = "/x";
        assert!(make(label, base, TOKEN).is_ok());
        let request = LinkRequest {
            id: &long,
            port: Port::new(3000).unwrap(),
            any_port: false,
            form: LinkForm::Host,
            path: "/",
            ttl: 1,
            max_ttl: 1,
            now: 1,
        };
        assert_eq!(request.make(LinkBase::parse(base).as_ref(), Some(TOKEN)), Err(LinkRefusal::LongLabel));
        assert_eq!(request.make(LinkBase::parse(base).as_ref(), None), Err(LinkRefusal::NoToken));
    }
}
