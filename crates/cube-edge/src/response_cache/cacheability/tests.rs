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
