//! Whether a cookie with a ticket counts (previews.md, "Cross-site requests"): it goes along with whatever
//! another site makes the browser send.

use http::{HeaderMap, HeaderName, Method, header};

use super::origin::same_origin;
use crate::ClientHost;

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
static SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// What says where a request with such a cookie comes from.
#[derive(Debug, Clone, Copy)]
pub struct CookieRequest<'a> {
    /// The method.
    pub method: &'a Method,
    /// The headers as the client sent them.
    pub headers: &'a HeaderMap,
    /// Whether a browser navigates (errors.md).
    pub navigation: bool,
    /// `http` or `https`, as the client speaks it.
    pub scheme: &'a str,
    /// The client's Host.
    pub host: ClientHost<'a>,
    /// `previews.allowed_origins`.
    pub allowed_origins: &'a [String],
}

impl CookieRequest<'_> {
    /// Whether the cookie counts. The first case that applies decides.
    #[must_use]
    pub fn passes(&self) -> bool {
        let decisive =
            [&header::ORIGIN, &header::UPGRADE, &header::REFERER, &SEC_FETCH_SITE, &SEC_FETCH_MODE];
        if decisive.into_iter().any(|name| self.headers.get_all(name).iter().nth(1).is_some()) {
            return false;
        }
        let origin = self.value(&header::ORIGIN);
        if origin.is_some_and(|origin| self.allowed_origins.iter().any(|one| one.as_bytes() == origin)) {
            return true;
        }
        let own = |url: Option<&[u8]>, whole| url.is_some_and(|url| self.is_own(url, whole));
        if self.headers.contains_key(header::UPGRADE) {
            return own(origin, true);
        }
        let reads = matches!(*self.method, Method::GET | Method::HEAD);
        let site = self.value(&SEC_FETCH_SITE);
        let told = site.is_some() || self.headers.contains_key(&SEC_FETCH_MODE);
        if reads && self.navigation && (told || origin.is_none()) {
            return true;
        }
        if let Some(site) = site {
            return matches!(site, b"same-origin" | b"none");
        }
        if origin.is_some() {
            return own(origin, true);
        }
        reads && own(self.value(&header::REFERER), false)
    }

    fn value(&self, name: &HeaderName) -> Option<&[u8]> {
        self.headers.get(name).map(|value| value.as_bytes().trim_ascii())
    }

    /// Whether `url` has scheme and host of the request; `whole`: and nothing else.
    fn is_own(&self, url: &[u8], whole: bool) -> bool {
        same_origin(url, self.scheme, &self.host, whole)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ALLOWED: &str = "https://platform.example";

    fn passes(method: &Method, navigation: bool, headers: &[(&str, &'static str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
        }
        CookieRequest {
            method,
            headers: &map,
            navigation,
            scheme: "https",
            host: ClientHost::parse("3000-abc.Cube.test").unwrap(),
            allowed_origins: &[ALLOWED.to_owned()],
        }
        .passes()
    }

    const OWN: (&str, &str) = ("origin", "https://3000-abc.cube.test");
    const SIBLING: (&str, &str) = ("origin", "https://3000-evil.cube.test");
    const NULL: (&str, &str) = ("origin", "null");
    const WEBSOCKET: (&str, &str) = ("upgrade", "websocket");
    const SAME_SITE: (&str, &str) = ("sec-fetch-site", "same-site");
    const MODE: (&str, &str) = ("sec-fetch-mode", "navigate");

    #[test]
    fn an_upgrade_needs_the_requests_own_origin() {
        for (headers, want) in [
            (&[WEBSOCKET, OWN][..], true),
            (&[WEBSOCKET, ("origin", "https://3000-abc.cube.test:443")], true),
            (&[WEBSOCKET, ("origin", "http://3000-abc.cube.test")], false),
            (&[WEBSOCKET, SIBLING], false),
            (&[WEBSOCKET, NULL], false),
            (&[WEBSOCKET], false),
            (&[WEBSOCKET, ("sec-fetch-site", "same-origin")], false),
            (&[WEBSOCKET, ("origin", ALLOWED)], true),
            (&[WEBSOCKET, OWN, OWN], false),
        ] {
            assert_eq!(passes(&Method::GET, false, headers), want, "{headers:?}");
            assert_eq!(passes(&Method::GET, true, headers), want, "{headers:?}");
        }
    }

    #[test]
    fn a_navigation_that_reads_always_passes_and_a_form_does_not() {
        for (method, navigation, headers, want) in [
            (Method::GET, true, &[MODE, SAME_SITE][..], true),
            (Method::GET, true, &[MODE, ("sec-fetch-site", "cross-site")], true),
            (Method::HEAD, true, &[MODE, SAME_SITE, SIBLING], true),
            (Method::GET, true, &[], true),
            (Method::GET, true, &[SIBLING], false),
            (Method::GET, true, &[SAME_SITE], true),
            (Method::POST, true, &[MODE, SAME_SITE, SIBLING], false),
            (Method::POST, true, &[MODE, ("sec-fetch-site", "same-origin"), OWN], true),
            (Method::POST, true, &[SIBLING], false),
            (Method::POST, true, &[], false),
        ] {
            assert_eq!(passes(&method, navigation, headers), want, "{method} {headers:?}");
        }
    }

    #[test]
    fn else_the_browser_says_where_a_request_comes_from() {
        for (method, headers, want) in [
            (Method::GET, &[("sec-fetch-site", "same-origin")][..], true),
            (Method::POST, &[("sec-fetch-site", "none")], true),
            (Method::GET, &[SAME_SITE], false),
            (Method::GET, &[SAME_SITE, OWN], false),
            (Method::GET, &[SAME_SITE, ("origin", ALLOWED)], true),
            (Method::GET, &[("sec-fetch-site", "cross-site")], false),
            (Method::GET, &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "same-origin")], false),
            (Method::POST, &[OWN], true),
            (Method::POST, &[("origin", "https://3000-abc.cube.test/")], false),
            (Method::POST, &[SIBLING], false),
            (Method::POST, &[NULL], false),
            (Method::GET, &[("origin", "https://platform.example:443")], false),
            (Method::GET, &[("referer", "https://3000-abc.cube.test/x?y")], true),
            (Method::GET, &[("referer", "https://3000-abc.cube.test")], true),
            (Method::GET, &[("referer", "https://3000-abc.cube.test.evil/")], false),
            (Method::GET, &[("referer", "https://3000-abc.cube.test@evil/")], false),
            (Method::GET, &[("referer", "http://3000-abc.cube.test/")], false),
            (Method::POST, &[("referer", "https://3000-abc.cube.test/")], false),
            (Method::GET, &[], false),
        ] {
            assert_eq!(passes(&method, false, headers), want, "{method} {headers:?}");
        }
    }
}
