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
    /// The headers that `Vary` names.
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

    /// The age of the response at `now`, from the `Age` that it came with on.
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

/// The headers that `Vary` names, each once; `None`: requests cannot be compared by them.
fn vary(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    let values = headers.get_all(header::VARY).iter();
    for name in values.flat_map(|value| value.as_bytes().split(|b| *b == b',')) {
        let name = name.trim_ascii();
        if name.is_empty() {
            continue;
        }
        // `*` is a token, and a header of that name cannot be compared.
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

/// What a request said in the headers that a response varies by.
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
mod tests;
