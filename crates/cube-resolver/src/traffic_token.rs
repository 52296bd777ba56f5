//! The traffic token (metadata.md "Traffic token").

use cube_metadata::{Access, SandboxRecord};
use http::{HeaderMap, HeaderName};

/// The headers a token may come in; right if either is.
static HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("e2b-traffic-access-token"),
    HeaderName::from_static("cube-traffic-access-token"),
];

/// Whether a caller may reach the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The sandbox is public, or the token is right.
    Authorised,
    /// A token is needed and none came.
    Missing,
    /// What came is not it.
    Wrong,
}

/// Judges the token headers of a request, in a time that does not depend on how much of a token
/// is right. A header that comes twice with different values is refused even where one is right.
#[must_use]
pub fn authorise(record: &SandboxRecord, headers: &HeaderMap) -> TokenVerdict {
    let token = match &record.access {
        Access::Public => return TokenVerdict::Authorised,
        Access::Token(token) => Some(token),
        Access::Closed => None,
    };
    let mut presented = false;
    let mut right = false;
    let mut contradiction = false;
    for name in &HEADERS {
        let mut first: Option<&[u8]> = None;
        for value in headers.get_all(name) {
            let value = value.as_bytes();
            contradiction |= first.is_some_and(|first| first != value);
            first = first.or(Some(value));
            presented |= !value.is_empty();
            right |= token.is_some_and(|token| token.matches(value));
        }
    }
    match (presented, right && !contradiction) {
        (_, true) => TokenVerdict::Authorised,
        (true, false) => TokenVerdict::Wrong,
        (false, false) => TokenVerdict::Missing,
    }
}

/// Whether a request has one of the token headers, whatever is in it: then that alone counts.
#[must_use]
pub fn presents_token(headers: &HeaderMap) -> bool {
    HEADERS.iter().any(|name| headers.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const E2B: &str = "e2b-traffic-access-token";
    const CUBE: &str = "cube-traffic-access-token";
    const TOKEN: (&str, &str) = ("TrafficAccessToken", "example-token");

    fn verdict(record: &[(&str, &str)], headers: &[(&'static str, &'static str)]) -> TokenVerdict {
        let fields = record.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, http::HeaderValue::from_static(value));
        }
        authorise(&SandboxRecord::parse(fields, 0), &map)
    }

    #[test]
    fn a_public_sandbox_takes_everyone() {
        assert_eq!(verdict(&[], &[]), TokenVerdict::Authorised);
        assert_eq!(
            verdict(&[("AllowPublicTraffic", "true"), TOKEN], &[(E2B, "x")]),
            TokenVerdict::Authorised
        );
    }

    #[test]
    fn either_header_may_be_right() {
        for right in [
            &[(E2B, "example-token")][..],
            &[(CUBE, "example-token")],
            &[(E2B, "other"), (CUBE, "example-token")],
            &[(CUBE, "other"), (E2B, "example-token")],
            &[(E2B, "example-token"), (E2B, "example-token")],
        ] {
            assert_eq!(verdict(&[TOKEN], right), TokenVerdict::Authorised, "{right:?}");
        }
    }

    #[test]
    fn anything_but_the_token_is_wrong() {
        for wrong in ["example-toke", "example-token ", "example-tokens", "Example-Token", "x"] {
            assert_eq!(verdict(&[TOKEN], &[(E2B, wrong)]), TokenVerdict::Wrong, "{wrong}");
        }
    }

    #[test]
    fn nothing_and_an_empty_one_are_missing() {
        for none in [&[][..], &[(E2B, "")], &[(E2B, ""), (CUBE, "")]] {
            assert_eq!(verdict(&[TOKEN], none), TokenVerdict::Missing, "{none:?}");
            assert_eq!(verdict(&[("AllowPublicTraffic", "false")], none), TokenVerdict::Missing, "{none:?}");
        }
    }

    #[test]
    fn one_header_with_two_values_is_refused() {
        for twice in [
            &[(E2B, "example-token"), (E2B, "other")][..],
            &[(E2B, "other"), (E2B, "example-token")],
            &[(E2B, "example-token"), (E2B, "")],
            &[(CUBE, "example-token"), (CUBE, "other"), (E2B, "example-token")],
        ] {
            assert_eq!(verdict(&[TOKEN], twice), TokenVerdict::Wrong, "{twice:?}");
        }
    }

    #[test]
    fn without_a_token_in_the_record_nothing_is_right() {
        assert_eq!(verdict(&[("AllowPublicTraffic", "false")], &[(E2B, "x")]), TokenVerdict::Wrong);
    }
}
