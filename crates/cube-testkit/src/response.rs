//! A response as the client got it, and what can be said about it.

use std::time::Duration;

/// Header fields in order, names as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The first line and the fields of an HTTP/1 head; each byte is one character (latin-1).
    #[must_use]
    pub fn parse(head: &[u8]) -> (String, Self) {
        let text: String = head.iter().map(|byte| char::from(*byte)).collect();
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default().to_owned();
        let fields = lines.filter_map(|line| line.split_once(':'));
        let trim = |value: &str| value.trim_matches([' ', '\t']).to_owned();
        (first, Self(fields.map(|(name, value)| (name.to_owned(), trim(value))).collect()))
    }

    /// From pairs.
    #[must_use]
    pub fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// All of them.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    /// Every value of that name, whatever its case.
    #[must_use]
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str()).collect()
    }

    /// The first value of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// Whether there is one of that name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}

/// A response, read to its end.
#[derive(Debug, Clone, Default)]
pub struct Response {
    /// Its head byte for byte (HTTP/1 only).
    pub head: Vec<u8>,
    /// `HTTP/1.1`, `HTTP/1.0` or `HTTP/2.0`.
    pub version: String,
    /// Its status.
    pub status: u16,
    /// Its header fields.
    pub headers: Headers,
    /// The 1xx responses that came before it.
    pub informational: Vec<Response>,
    /// Its body, transfer coding removed.
    pub body: Vec<u8>,
    /// Its trailers (HTTP/2 only).
    pub trailers: Headers,
    /// Whether the body ended as its framing says; false for a cut one.
    pub clean: bool,
    /// From the request's first byte to the response's last.
    pub took: Duration,
}

/// What an echoing origin received, read from its response.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The name of the origin.
    pub origin: String,
    /// Which of its connections the request came on.
    pub connection: u64,
    /// The method.
    pub method: String,
    /// The target, byte-exact.
    pub target: String,
    /// The header fields.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// Parses an HTTP/1 head.
    #[must_use]
    pub fn of_head(head: Vec<u8>) -> Self {
        let (line, headers) = Headers::parse(&head);
        let mut parts = line.splitn(3, ' ');
        let version = parts.next().unwrap_or_default().to_owned();
        let status = parts.next().and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
        Self { head, version, status, headers, clean: true, ..Self::default() }
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The value of `X-Cube-Retcode`, of which there must be at most one.
    #[must_use]
    #[track_caller]
    pub fn retcode(&self) -> Option<u32> {
        let all = self.headers.all("x-cube-retcode");
        assert!(all.len() < 2, "X-Cube-Retcode twice: {self:?}");
        all.first().map(|code| code.parse().unwrap_or_else(|_| panic!("X-Cube-Retcode {code:?}")))
    }

    /// The value of `X-Cube-Request-Id`, of which there must be exactly one.
    #[must_use]
    #[track_caller]
    pub fn request_id(&self) -> String {
        let all = self.headers.all("x-cube-request-id");
        assert_eq!(all.len(), 1, "one X-Cube-Request-Id: {self:?}");
        all[0].to_owned()
    }

    /// The sandbox answered, with this status, and the response carries our two headers once each.
    #[track_caller]
    pub fn passed(&self, status: u16) -> &Self {
        let retcode = if status == 200 { 310_200 } else { 330_000 + u32::from(status) };
        assert_eq!((self.status, self.retcode()), (status, Some(retcode)), "{}", self.brief());
        let _ = self.request_id();
        self
    }

    /// The proxy answered itself, in the `cube` dialect: `body` is the JSON without its newline.
    /// Checks every header that errors.md asks for.
    #[track_caller]
    pub fn is_own(&self, status: u16, retcode: u32, body: &str) -> &Self {
        assert_eq!((self.status, self.retcode()), (status, Some(retcode)), "{}", self.brief());
        assert_eq!(self.text(), format!("{body}\n"));
        self.carries_own_headers(retcode);
        assert_eq!(self.headers.all("content-type"), ["application/json"]);
        assert_eq!(self.headers.all("content-length"), [(body.len() + 1).to_string()]);
        self
    }

    #[track_caller]
    fn carries_own_headers(&self, retcode: u32) {
        let _ = self.request_id();
        assert_eq!(self.headers.all("cache-control"), ["no-store"]);
        assert_eq!(self.headers.all("x-content-type-options"), ["nosniff"]);
        let retry: &[&str] = match retcode {
            310_429 | 310_500 | 340_500 => &["1"],
            // Two values, by the state: the test's to check.
            310_503 => return,
            _ => &[],
        };
        assert_eq!(self.headers.all("retry-after"), retry, "Retry-After of {retcode}");
    }

    /// 400 `310400`: the request names no sandbox or is malformed.
    #[track_caller]
    pub fn is_bad_request(&self) -> &Self {
        self.is_own(400, 310_400, r#"{"error":"bad request"}"#)
    }

    /// 404 `310507`: no such sandbox.
    #[track_caller]
    pub fn is_not_found(&self) -> &Self {
        self.is_own(404, 310_507, r#"{"error":"not found"}"#)
    }

    /// 502 with this code (`310508` or `310509`).
    #[track_caller]
    pub fn is_bad_gateway(&self, retcode: u32) -> &Self {
        self.is_own(502, retcode, r#"{"error":"bad gateway"}"#)
    }

    /// 504 `310509`.
    #[track_caller]
    pub fn is_gateway_timeout(&self) -> &Self {
        self.is_own(504, 310_509, r#"{"error":"gateway timeout"}"#)
    }

    /// What an echoing origin received; the response must have passed with 200.
    #[track_caller]
    #[must_use]
    pub fn seen(&self) -> Seen {
        assert_eq!(self.status, 200, "{}", self.brief());
        let json: serde_json::Value = serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("an echo, not {}: {error}", self.brief()));
        let text = |name: &str| json[name].as_str().expect("text").to_owned();
        Seen {
            origin: text("origin"),
            connection: json["connection"].as_u64().expect("a number"),
            method: text("method"),
            target: text("target"),
            headers: Headers::new(serde_json::from_value(json["headers"].clone()).expect("pairs")),
            body: serde_json::from_value(json["body"].clone()).expect("bytes"),
        }
    }

    /// The response in one line, for messages.
    #[must_use]
    pub fn brief(&self) -> String {
        let body: String = self.text().chars().take(300).collect();
        format!("{} {:?}, clean: {}, body {body:?}", self.status, self.headers.0, self.clean)
    }

    /// Everything that a caller sees, but what may differ between two requests: date and request id.
    #[must_use]
    pub fn identity(&self) -> (String, Vec<u8>) {
        let text: String = self.head.iter().map(|byte| char::from(*byte)).collect();
        let differing = ["date:", "x-cube-request-id:"];
        let kept = text.split_inclusive("\r\n").map(|line| {
            let lower = line.to_ascii_lowercase();
            let name = differing.iter().find(|name| lower.starts_with(**name));
            name.map_or_else(|| line.to_owned(), |name| format!("{name}\r\n"))
        });
        (kept.collect(), self.body.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(head: &str, body: &str) -> Response {
        let head = format!("{head}\r\n\r\n").into_bytes();
        Response { body: body.into(), ..Response::of_head(head) }
    }

    const HEAD: &str = "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 22\r\n\
        Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Cube-Request-Id: a\r\nX-Cube-Retcode: 310507";

    #[test]
    fn a_response_of_the_proxy_is_checked_header_by_header() {
        let body = "{\"error\":\"not found\"}\n";
        own(HEAD, body).is_not_found();
        for (what, with) in [("no-store", "public"), ("nosniff", "sniff"), ("310507", "310403"), ("22", "23")]
        {
            let changed = own(&HEAD.replace(what, with), body);
            assert!(std::panic::catch_unwind(|| changed.is_not_found().status).is_err(), "{what}");
        }
        assert!(std::panic::catch_unwind(|| own(HEAD, "{}\n").is_not_found().status).is_err());
    }

    #[test]
    fn identity_leaves_out_date_and_request_id_but_not_their_place() {
        let one = own("HTTP/1.1 404 X\r\nDate: a\r\nX-Cube-Request-Id: 1\r\nB: c", "x");
        let two = own("HTTP/1.1 404 X\r\nDate: b\r\nX-Cube-Request-Id: 2\r\nB: c", "x");
        let moved = own("HTTP/1.1 404 X\r\nX-Cube-Request-Id: 2\r\nDate: b\r\nB: c", "x");
        assert_eq!(one.identity(), two.identity());
        assert_ne!(one.identity(), moved.identity());
    }
}
