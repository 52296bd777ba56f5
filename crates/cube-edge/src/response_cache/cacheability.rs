//! Which responses may be stored, and for how long they are fresh.

use std::time::{Duration, Instant};

use cube_route::forwarded_headers;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::cache_control::{directives, seconds};

/// Fields of a request that do not reach the sandbox as they came, and are not in
/// [`forwarded_headers`]'s lists: a response that varies by one of them varies by something else than
/// what requests could be compared by.
const CHANGED_ON_THE_WAY: [&str; 10] = [
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A response that may be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Storable {
    /// How old it was when its head came.
    pub(crate) age: Duration,
    /// How old it may get.
    pub(crate) fresh_for: Duration,
    /// The fields that `Vary` names.
    pub(crate) vary: Vec<HeaderName>,
    /// The length of its body, where the head says it.
    pub(crate) length: Option<usize>,
}

/// How long a response is fresh, and how old it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Freshness {
    /// When its head came, and how old it was then.
    came: Instant,
    age: Duration,
    fresh_for: Duration,
}

impl Freshness {
    pub(crate) fn new(storable: &Storable, came: Instant) -> Self {
        Self { came, age: storable.age, fresh_for: storable.fresh_for }
    }

    /// How old it is.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        self.age + now.saturating_duration_since(self.came)
    }

    /// For how long it will be fresh; `None`: it is not.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        self.fresh_for.checked_sub(self.age(now)).filter(|left| !left.is_zero())
    }
}

/// Judges the response to a GET by its head. `waited`: since the request was sent, which may be the
/// response's age (RFC 9111, 4.2.3).
pub(crate) fn storable(status: StatusCode, headers: &HeaderMap, waited: Duration) -> Option<Storable> {
    if status != StatusCode::OK
        || [header::SET_COOKIE, header::CONTENT_RANGE, header::TRAILER]
            .iter()
            .any(|name| headers.contains_key(name))
    {
        return None;
    }
    let length = whole_body(headers)?;
    let lifetime = lifetime(headers)?;
    let age = age(headers)?;
    let fresh_for = Duration::from_secs(lifetime);
    let age = Duration::from_secs(age) + waited;
    (age < fresh_for).then_some(())?;
    Some(Storable { age, fresh_for, vary: vary(headers)?, length })
}

/// Whether the end of the body will show that it is whole: a length, or chunks. A body that ends
/// with its connection may be a part.
fn whole_body(headers: &HeaderMap) -> Option<Option<usize>> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (lengths.next(), codings.next(), lengths.next().is_none() && codings.next().is_none()) {
        (Some(length), None, true) => Some(Some(length.to_str().ok()?.trim().parse().ok()?)),
        (None, Some(coding), true) => {
            coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked").then_some(None)
        }
        _ => None,
    }
}

/// Seconds that the sandbox lets everybody use the response.
fn lifetime(headers: &HeaderMap) -> Option<u64> {
    let mut public = false;
    let (mut max_age, mut state) = (None, None);
    for directive in directives(headers)? {
        match directive.name.as_str() {
            "public" => public = true,
            "private" | "no-store" | "no-cache" => return None,
            name @ ("max-age" | "s-maxage") => {
                let number = directive.seconds()?;
                let known = if name == "max-age" { &mut max_age } else { &mut state };
                // Twice is once too often to know which one is meant.
                if known.replace(number).is_some() {
                    return None;
                }
            }
            _ => {}
        }
    }
    state.or(max_age).filter(|_| public)
}

/// `Age` as the response came; an odd one says that nothing is known about it.
fn age(headers: &HeaderMap) -> Option<u64> {
    let mut ages = headers.get_all(header::AGE).iter();
    match (ages.next(), ages.next()) {
        (None, _) => Some(0),
        (Some(age), None) => seconds(age.as_bytes().trim_ascii()),
        (Some(_), Some(_)) => None,
    }
}

/// The fields that `Vary` names, each once; `None`: requests cannot be compared by them.
fn vary(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    let values = headers.get_all(header::VARY).iter();
    for name in values.flat_map(|value| value.as_bytes().split(|b| *b == b',')) {
        let name = name.trim_ascii();
        if name.is_empty() {
            continue;
        }
        // `*` is a token, and a field of that name cannot be compared.
        let name = HeaderName::from_bytes(name).ok().filter(|name| name.as_str() != "*")?;
        if forwarded_headers::is_reserved_header(name.as_str())
            || forwarded_headers::is_credential(name.as_str())
            || CHANGED_ON_THE_WAY.contains(&name.as_str())
        {
            return None;
        }
        // What the sandbox sees as Host is in the key.
        if name != header::HOST && !names.contains(&name) {
            names.push(name);
        }
    }
    Some(names)
}

/// What a request said in the fields that a response varies by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selecting(Vec<(HeaderName, Vec<HeaderValue>)>);

impl Selecting {
    /// Copied, so that no buffer of the request is kept.
    pub(crate) fn of(request: &HeaderMap, vary: &[HeaderName]) -> Self {
        let values = |name| {
            let values = request.get_all(name).iter();
            values.filter_map(|value| HeaderValue::from_bytes(value.as_bytes()).ok()).collect()
        };
        Self(vary.iter().map(|name| (name.clone(), values(name))).collect())
    }

    /// Whether `request` says the same, to the byte.
    pub(crate) fn matches(&self, request: &HeaderMap) -> bool {
        self.0.iter().all(|(name, values)| request.get_all(name).iter().eq(values.iter()))
    }

    /// Bytes that it takes.
    pub(crate) fn size(&self) -> usize {
        let of_one = |(name, values): &(HeaderName, Vec<HeaderValue>)| {
            name.as_str().len() + values.iter().map(|value| value.len() + 64).sum::<usize>() + 80
        };
        self.0.iter().map(of_one).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: (&str, &str) = ("Cache-Control", "public, max-age=60");
    const LENGTH: (&str, &str) = ("Content-Length", "2");

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn judged(fields: &[(&str, &str)]) -> Option<Storable> {
        storable(StatusCode::OK, &headers(fields), Duration::ZERO)
    }

    fn fresh_for(control: &str) -> Option<u64> {
        judged(&[("Cache-Control", control), LENGTH]).map(|storable| storable.fresh_for.as_secs())
    }

    #[test]
    fn public_with_a_positive_time_and_nothing_against_it_is_stored() {
        for (control, seconds) in [
            ("public, max-age=60", Some(60)),
            ("max-age=60, public", Some(60)),
            ("PUBLIC, Max-Age=\"60\"", Some(60)),
            ("public, s-maxage=60", Some(60)),
            ("public, max-age=60, s-maxage=5", Some(5)),
            ("public, max-age=0, s-maxage=5", Some(5)),
            ("public, max-age=60, must-revalidate, proxy-revalidate, immutable", Some(60)),
            ("public, max-age=60, stale-while-revalidate=60, stale-if-error=60", Some(60)),
            ("public, max-age=99999999999999999999", Some(1 << 31)),
            ("public, max-age=60, s-maxage=0", None),
            ("public, max-age=0", None),
            ("public", None),
            ("max-age=60", None),
            ("", None),
            ("s-maxage=60", None),
            ("public, max-age=60, private", None),
            ("public, max-age=60, private=\"x-a\"", None),
            ("public, max-age=60, no-store", None),
            ("public, max-age=60, no-cache", None),
            ("public, max-age=60, no-cache=\"set-cookie\"", None),
            ("public, max-age=60, max-age=60", None),
            ("public, max-age=60, s-maxage=5, s-maxage=9", None),
            ("public, max-age", None),
            ("public, max-age=-1", None),
            ("public, max-age=1.5", None),
            ("public, max-age=60s", None),
            ("public, max-age=60, s-maxage=x", None),
            ("public max-age=60", None),
            ("public, max-age=60, \"", None),
        ] {
            assert_eq!(fresh_for(control), seconds, "{control}");
        }
    }

    #[test]
    fn lines_of_cache_control_count_together_and_expires_not_at_all() {
        let with = |second| judged(&[GOOD, ("Cache-Control", second), LENGTH]);
        assert!(with("no-transform").is_some());
        assert!(with("private").is_none());
        assert!(with("max-age=60").is_none(), "twice");
        let expires = ("Expires", "Fri, 01 Jan 2100 00:00:00 GMT");
        assert!(judged(&[("Cache-Control", "public"), expires, LENGTH]).is_none());
        assert!(judged(&[GOOD, ("Expires", "0"), LENGTH]).is_some());
        assert!(judged(&[LENGTH]).is_none());
    }

    #[test]
    fn the_age_that_a_response_came_with_counts() {
        let aged = |age| judged(&[GOOD, LENGTH, ("Age", age)]).map(|storable| storable.age.as_secs());
        assert_eq!(aged("0"), Some(0));
        assert_eq!(aged("59"), Some(59));
        for age in ["60", "61", "99999999999999999999", "x", "-1", ""] {
            assert_eq!(aged(age), None, "{age}");
        }
        assert!(judged(&[GOOD, LENGTH, ("Age", "1"), ("Age", "1")]).is_none());
        let late = |waited| {
            storable(StatusCode::OK, &headers(&[GOOD, LENGTH, ("Age", "50")]), Duration::from_secs(waited))
        };
        assert_eq!(late(9).map(|storable| storable.age.as_secs()), Some(59));
        assert!(late(10).is_none());
    }

    #[test]
    fn freshness_ends_when_it_is_said_to() {
        let storable = judged(&[GOOD, LENGTH, ("Age", "50")]).unwrap();
        let came = Instant::now() + Duration::from_secs(100);
        let freshness = Freshness::new(&storable, came);
        let after = |seconds| came + Duration::from_secs(seconds);
        assert_eq!(freshness.age(after(3)).as_secs(), 53);
        assert_eq!(freshness.left(after(3)), Some(Duration::from_secs(7)));
        assert_eq!(freshness.left(after(10)), None);
        assert_eq!(freshness.left(after(11)), None);
    }

    #[test]
    fn only_a_whole_200_without_cookies_is_stored() {
        let status = |code| {
            storable(StatusCode::from_u16(code).unwrap(), &headers(&[GOOD, LENGTH]), Duration::ZERO).is_some()
        };
        assert!(status(200));
        assert!(![201, 203, 204, 206, 301, 302, 304, 404, 410, 500].into_iter().any(status));
        let with = |name, value| judged(&[GOOD, LENGTH, (name, value)]).is_some();
        assert!(with("ETag", "\"a\""));
        for (name, value) in [("Set-Cookie", "a=b"), ("Content-Range", "bytes 0-1/2"), ("Trailer", "x")] {
            assert!(!with(name, value), "{name}");
        }
    }

    #[test]
    fn a_body_without_an_end_of_its_own_is_not_stored() {
        let framed = |fields: &[(&str, &str)]| {
            let mut all = vec![GOOD];
            all.extend_from_slice(fields);
            judged(&all).map(|storable| storable.length)
        };
        assert_eq!(framed(&[LENGTH]), Some(Some(2)));
        assert_eq!(framed(&[("Transfer-Encoding", "Chunked")]), Some(None));
        assert_eq!(framed(&[]), None);
        assert_eq!(framed(&[LENGTH, LENGTH]), None);
        assert_eq!(framed(&[LENGTH, ("Transfer-Encoding", "chunked")]), None);
        assert_eq!(framed(&[("Transfer-Encoding", "gzip, chunked")]), None);
        assert_eq!(framed(&[("Content-Length", "x")]), None);
    }

    #[test]
    fn vary_names_what_requests_are_compared_by_or_nothing_is_stored() {
        let vary = |values: &[&str]| {
            let mut fields = vec![GOOD, LENGTH];
            fields.extend(values.iter().map(|value| ("Vary", *value)));
            let names = |storable: Storable| {
                storable.vary.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
            };
            judged(&fields).map(names)
        };
        assert_eq!(vary(&[]), Some(vec![]));
        assert_eq!(
            vary(&["Accept, accept-encoding", ", ACCEPT", "Cookie"]),
            Some(vec!["accept".to_owned(), "accept-encoding".to_owned(), "cookie".to_owned()])
        );
        assert_eq!(vary(&["Host"]), Some(vec![]));
        for odd in [
            "*",
            "Accept, *",
            "a b",
            "X-Forwarded-For",
            "x_forwarded_host",
            "Forwarded",
            "X-Real-IP",
            "X-Cube-Request-Id",
            "E2b-Sandbox-Id",
            "cube-traffic-access-token",
            "TE",
            "Connection",
            "Range",
        ] {
            assert_eq!(vary(&["Accept", odd]), None, "{odd}");
        }
    }

    #[test]
    fn requests_are_compared_to_the_byte() {
        let one = headers(&[("Accept", "a"), ("Accept", "b"), ("X-Other", "1")]);
        let names = [header::ACCEPT, header::ACCEPT_LANGUAGE];
        let selecting = Selecting::of(&one, &names);
        assert!(selecting.matches(&one));
        assert!(selecting.matches(&headers(&[("ACCEPT", "a"), ("Accept", "b"), ("X-Other", "2")])));
        for other in [
            &[][..],
            &[("Accept", "a")],
            &[("Accept", "a, b")],
            &[("Accept", "b"), ("Accept", "a")],
            &[("Accept", "a"), ("Accept", "b"), ("Accept", "")],
            &[("Accept", "a"), ("Accept", "b"), ("Accept-Language", "")],
            &[("Accept", "A"), ("Accept", "b")],
        ] {
            assert!(!selecting.matches(&headers(other)), "{other:?}");
        }
    }
}
