//! A ticket in a query: `cube_preview=<ticket>` (previews.md, "How it is presented").

use percent_encoding::percent_decode;

/// The name of the parameter.
pub const PARAMETER: &str = "cube_preview";

/// What the parameter of a query says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter<'a> {
    /// One value, as it stands there.
    Once(&'a [u8]),
    /// Several, or none: not a ticket.
    Malformed,
}

/// `target` (a path and query, or a URL) without the parameter, and what that said; none where it has none.
#[must_use]
pub fn take_parameter(target: &[u8]) -> Option<(Vec<u8>, Parameter<'_>)> {
    let at = target.iter().position(|b| *b == b'?')?;
    let (path, query) = (target.get(..at)?, target.get(at + 1..)?);
    let pairs = || query.split(|b| *b == b'&');
    let mut found = pairs().filter_map(value);
    let parameter = match (found.next()?, found.next()) {
        (Some(value), None) if !value.is_empty() => Parameter::Once(value),
        _ => Parameter::Malformed,
    };
    let mut rest: Vec<u8> = path.to_vec();
    for (at, pair) in pairs().filter(|pair| value(pair).is_none()).enumerate() {
        rest.push(if at == 0 { b'?' } else { b'&' });
        rest.extend_from_slice(pair);
    }
    if rest.len() == path.len() + 1 {
        rest.pop(); // nothing is left behind the question mark
    }
    Some((rest, parameter))
}

/// Whether a pair of a query is the parameter: then its value, which may be missing.
fn value(pair: &[u8]) -> Option<Option<&[u8]>> {
    // Nothing else is decoded: most queries have no pair that begins so.
    if !matches!(pair.first(), Some(b'c' | b'%')) {
        return None;
    }
    let (name, value) = match pair.iter().position(|b| *b == b'=') {
        Some(at) => (pair.get(..at)?, pair.get(at + 1..)),
        None => (pair, None),
    };
    percent_decode(name).eq(PARAMETER.bytes()).then_some(value)
}

/// The target without the parameter as a `Location`: path and query alone, and never the beginning of
/// another site's address (`//` and `/\` are one to browsers).
#[must_use]
pub fn location(target: &[u8]) -> Vec<u8> {
    match target {
        [b'/', b'/' | b'\\', ..] => [b"/.", target].concat(),
        _ => target.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(target: &str) -> Option<(String, Option<String>)> {
        let (rest, parameter) = take_parameter(target.as_bytes())?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some((
            text(&rest),
            match parameter {
                Parameter::Once(value) => Some(text(value)),
                Parameter::Malformed => None,
            },
        ))
    }

    #[test]
    fn the_parameter_is_taken_out_and_nothing_else_changes() {
        for (target, rest, value) in [
            ("/?cube_preview=t", "/", Some("t")),
            ("/a?cube_preview=t&b=1", "/a?b=1", Some("t")),
            ("/a?b=1&cube_preview=t", "/a?b=1", Some("t")),
            ("/a?b=1&cube_preview=t&c", "/a?b=1&c", Some("t")),
            ("/a?%63ube%5Fpreview=t&b=%zz&&=", "/a?b=%zz&&=", Some("t")),
            ("/a?cube_preview=a=b", "/a", Some("a=b")),
            ("/a?cube_preview=%76", "/a", Some("%76")),
            ("/a?cube_preview=a;b&c", "/a?c", Some("a;b")),
            ("/a?x?&cube_preview=t", "/a?x?", Some("t")),
            ("/a?cube_preview=t&", "/a", Some("t")),
            ("/a?&cube_preview=t", "/a", Some("t")),
            ("/a?&&cube_preview=t", "/a?&", Some("t")),
            ("https://h/a?cube_preview=t", "https://h/a", Some("t")),
        ] {
            assert_eq!(taken(target), Some((rest.into(), value.map(Into::into))), "{target}");
        }
    }

    #[test]
    fn several_or_none_are_taken_out_and_no_ticket() {
        for (target, rest) in [
            ("/?cube_preview", "/"),
            ("/?cube_preview=", "/"),
            ("/?cube_preview=a&cube_preview=a", "/"),
            ("/?x&cube_preview=a&cube_preview=b", "/?x"),
            ("/?cube_preview=a&x&%63ube_preview", "/?x"),
        ] {
            assert_eq!(taken(target), Some((rest.into(), None)), "{target}");
        }
    }

    #[test]
    fn what_is_not_the_parameter_stays() {
        for target in [
            "/",
            "/?",
            "/cube_preview=t",
            "/?Cube_preview=t",
            "/?cube_previews=t",
            "/?a;cube_preview=t",
            "/?a=cube_preview=t",
            "/?a?cube_preview=t",
            "/?cube+preview=t",
        ] {
            assert_eq!(taken(target), None, "{target}");
        }
    }

    #[test]
    fn a_location_is_never_the_address_of_another_site() {
        for (target, want) in [
            ("/", "/"),
            ("/a//b?c", "/a//b?c"),
            ("//evil.example/", "/.//evil.example/"),
            ("/\\evil.example", "/./\\evil.example"),
            ("/./a", "/./a"),
        ] {
            assert_eq!(location(target.as_bytes()), want.as_bytes(), "{target}");
        }
    }
}
