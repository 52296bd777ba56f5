//! The request that `explain` is asked about.

use std::net::{IpAddr, SocketAddr};

use cube_route::{ListenerKind, RequestHead};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use percent_encoding::percent_decode_str;

/// A request as its sender would describe it. Nothing of it is sent anywhere.
#[derive(Debug, Clone)]
pub struct ExplainQuery {
    pub(crate) method: Method,
    /// Path and query.
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    /// The client speaks TLS.
    pub(super) tls: bool,
    /// The address that the client connects to, where the URL names one.
    pub(super) connects_to: Option<IpAddr>,
}

/// Why a question cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExplainQueryError {
    /// There is no URL.
    #[error("query \"url\" is missing")]
    NoUrl,
    /// The URL has another scheme than `http` or `https`, or no host.
    #[error("\"url\" must be http://host/path or https://host/path")]
    Url,
    /// A header is not `Name: value`.
    #[error("\"header\" must be Name: value")]
    Header,
    /// The method is none.
    #[error("\"method\" must be a method")]
    Method,
}

impl ExplainQuery {
    /// The head as the request path would see it.
    pub(super) fn head(&self) -> RequestHead<'_> {
        RequestHead {
            version: Version::HTTP_11,
            method: &self.method,
            target: self.target.as_bytes(),
            authority: None,
            headers: &self.headers,
            listener: ListenerKind::Data,
        }
    }

    /// `Content-Length`, where there is a number in it.
    pub(super) fn content_length(&self) -> Option<u64> {
        self.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// A GET of `url`, where `http://` may be left out. `headers` are lines, `Name: value`; a Host
    /// among them replaces the one of the URL.
    ///
    /// # Errors
    /// [`ExplainQueryError`]: the first part that cannot be understood.
    pub fn new<'a>(url: &str, headers: impl IntoIterator<Item = &'a str>) -> Result<Self, ExplainQueryError> {
        let rest = match url.split_once("://") {
            // A target may hold a URL itself.
            Some((scheme, _)) if scheme.contains(['/', '?']) => url,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => rest,
            Some(_) => return Err(ExplainQueryError::Url),
            None => url,
        };
        // What follows a # stays with the client.
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let slash = if target.starts_with('/') { "" } else { "/" };
        let host = HeaderValue::from_str(authority).map_err(|_| ExplainQueryError::Url)?;
        if authority.is_empty() {
            return Err(ExplainQueryError::Url);
        }
        let connects_to = connects_to(authority);
        let mut map = HeaderMap::new();
        for line in headers {
            let (name, value) = line.split_once(':').ok_or(ExplainQueryError::Header)?;
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| ExplainQueryError::Header)?;
            let value = HeaderValue::from_str(value.trim()).map_err(|_| ExplainQueryError::Header)?;
            map.try_append(name, value).map_err(|_| ExplainQueryError::Header)?;
        }
        map.entry(header::HOST).or_insert(host);
        let tls = url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
        Ok(Self { method: Method::GET, target: format!("{slash}{target}"), headers: map, tls, connects_to })
    }

    /// The same with another method.
    ///
    /// # Errors
    /// [`ExplainQueryError::Method`].
    pub fn method(mut self, method: &str) -> Result<Self, ExplainQueryError> {
        self.method = Method::from_bytes(method.as_bytes()).map_err(|_| ExplainQueryError::Method)?;
        Ok(self)
    }

    /// The query of `GET /admin/explain`: `url`, and as often as wanted `header`, and `method`; all
    /// percent-encoded.
    ///
    /// # Errors
    /// [`ExplainQueryError`].
    pub(crate) fn of_query(query: &str) -> Result<Self, ExplainQueryError> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let pairs = || query.split('&').filter_map(|pair| pair.split_once('='));
        let all = |wanted: &'static str| {
            pairs().filter(move |(name, _)| *name == wanted).map(move |(_, value)| decoded(value))
        };
        let url = all("url").next().filter(|url| !url.is_empty()).ok_or(ExplainQueryError::NoUrl)?;
        let headers: Vec<String> = all("header").collect();
        let question = Self::new(&url, headers.iter().map(String::as_str))?;
        match all("method").next() {
            Some(method) => question.method(&method),
            None => Ok(question),
        }
    }

    /// Bytes of the head on the wire, about.
    pub(super) fn head_len(&self) -> usize {
        let fields: usize =
            self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        self.method.as_str().len() + self.target.len() + fields
    }
}

/// The address in `address`, `address:port` or `[address]:port`.
fn connects_to(authority: &str) -> Option<IpAddr> {
    let bare = authority.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let address = bare.or_else(|| Some(authority.parse::<SocketAddr>().ok()?.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_gives_host_and_target_as_a_client_would_send_them() {
        for (url, host, target) in [
            ("http://8080-abc.cube.test/a%2Fb?x=1#part", "8080-abc.cube.test", "/a%2Fb?x=1"),
            ("HTTPS://8080-abc.cube.test:8443", "8080-abc.cube.test:8443", "/"),
            ("8080-abc.cube.test/a", "8080-abc.cube.test", "/a"),
            ("http://cube.test?x=/y", "cube.test", "/?x=/y"),
            ("cube.test/a?next=http://b.test/", "cube.test", "/a?next=http://b.test/"),
        ] {
            let question = ExplainQuery::new(url, []).unwrap();
            assert_eq!(question.headers[header::HOST], host, "{url}");
            assert_eq!(question.target, target, "{url}");
        }
        for url in ["", "ftp://a.test/", "http://", "http:///a", "/a", "http://a\nb/"] {
            assert_eq!(ExplainQuery::new(url, []).unwrap_err(), ExplainQueryError::Url, "{url:?}");
        }
    }

    #[test]
    fn an_address_in_the_url_is_what_the_client_connects_to() {
        let of = |url: &str| ExplainQuery::new(url, ["Host: 8080-abc.cube.test"]).unwrap().connects_to;
        assert_eq!(of("http://10.0.0.1:8081/"), Some([10, 0, 0, 1].into()));
        assert_eq!(of("http://10.0.0.1/"), Some([10, 0, 0, 1].into()));
        assert_eq!(of("http://[::ffff:10.0.0.1]:8081/"), Some([10, 0, 0, 1].into()));
        assert_eq!(of("http://[::1]/"), Some(std::net::Ipv6Addr::LOCALHOST.into()));
        assert_eq!(of("http://8080-abc.cube.test:8081/"), None);
    }

    #[test]
    fn headers_are_lines_and_host_replaces_the_urls() {
        let lines = ["Host: other.test", "E2b-Sandbox-Id:abc", "X-A:  b : c "];
        let question = ExplainQuery::new("http://cube.test/", lines).unwrap();
        assert_eq!(question.headers[header::HOST], "other.test");
        assert_eq!(question.headers["e2b-sandbox-id"], "abc");
        assert_eq!(question.headers["x-a"], "b : c");
        for line in ["", "a", "a b: c", ": c"] {
            assert_eq!(
                ExplainQuery::new("a.test", [line]).unwrap_err(),
                ExplainQueryError::Header,
                "{line:?}"
            );
        }
    }

    #[test]
    fn a_query_carries_everything_percent_encoded() {
        let question = ExplainQuery::of_query(
            "url=http%3A%2F%2Fa.test%2Fx%3Fy%26z&method=POST&header=A%3A%20b&header=C:d",
        )
        .unwrap();
        assert_eq!((question.target.as_str(), question.method.as_str()), ("/x?y&z", "POST"));
        assert_eq!(
            (&question.headers["a"], &question.headers["c"]),
            (&"b".parse().unwrap(), &"d".parse().unwrap())
        );
        for (query, error) in [
            ("", ExplainQueryError::NoUrl),
            ("url=", ExplainQueryError::NoUrl),
            ("url=a.test&header=x", ExplainQueryError::Header),
            ("url=a.test&method=a%20b", ExplainQueryError::Method),
        ] {
            assert_eq!(ExplainQuery::of_query(query).unwrap_err(), error, "{query}");
        }
    }
}
