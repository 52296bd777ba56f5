//! `Cache-Control` (RFC 9111, 5.2), read strictly: what is not in the grammar is nothing to build
//! on.

use http::{HeaderMap, header};

/// Seconds beyond which a number says nothing more (RFC 9111, 1.2.2).
const MOST_SECONDS: u64 = 1 << 31;

/// One directive: its name in lower case and its argument, quotes removed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) argument: Option<Vec<u8>>,
}

impl Directive {
    /// The argument as seconds; `None`: there is none, or it is no number.
    pub(super) fn seconds(&self) -> Option<u64> {
        seconds(self.argument.as_deref()?)
    }
}

/// A number of seconds: digits and nothing else.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // All digits, so what does not fit is large.
    let number = std::str::from_utf8(text).ok()?.parse().unwrap_or(MOST_SECONDS);
    Some(number.min(MOST_SECONDS))
}

/// Every directive of all `Cache-Control` headers, in order; `None`: they are not in the grammar.
pub(super) fn directives(headers: &HeaderMap) -> Option<Vec<Directive>> {
    let mut found = Vec::new();
    for value in headers.get_all(header::CACHE_CONTROL) {
        let mut rest = value.as_bytes();
        loop {
            rest = skip(rest, |b| matches!(b, b' ' | b'\t' | b','));
            if rest.is_empty() {
                break;
            }
            let (name, after) = token(rest)?;
            rest = after;
            let mut argument = None;
            if let Some(after) = rest.strip_prefix(b"=") {
                let (value, after) = match after.strip_prefix(b"\"") {
                    Some(quoted) => quoted_string(quoted)?,
                    None => token(after).map(|(token, after)| (token.to_vec(), after))?,
                };
                argument = Some(value);
                rest = after;
            }
            rest = skip(rest, |b| matches!(b, b' ' | b'\t'));
            if !matches!(rest.first(), None | Some(b',')) {
                return None;
            }
            // A token is ASCII.
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            found.push(Directive { name, argument });
        }
    }
    Some(found)
}

fn skip(text: &[u8], what: impl Fn(u8) -> bool) -> &[u8] {
    let end = text.iter().position(|b| !what(*b)).unwrap_or(text.len());
    text.get(end..).unwrap_or_default()
}

/// A token (RFC 9110, 5.6.2) and what follows it.
fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let in_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    let end = text.iter().position(|b| !in_token(b)).unwrap_or(text.len());
    let (token, rest) = text.split_at_checked(end)?;
    (!token.is_empty()).then_some((token, rest))
}

/// A quoted string whose first quote is read already: what it says, and what follows it.
fn quoted_string(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut said = Vec::new();
    let mut bytes = text.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((said, text.get(at + 1..)?)),
            b'\\' => said.push(*bytes.next()?.1),
            byte => said.push(*byte),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read(values: &[&'static str]) -> Option<Vec<(String, Option<String>)>> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CACHE_CONTROL, HeaderValue::from_static(value));
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Some(directives(&headers)?.into_iter().map(|d| (d.name, d.argument.map(text))).collect())
    }

    fn pair(name: &str, argument: Option<&str>) -> (String, Option<String>) {
        (name.to_owned(), argument.map(str::to_owned))
    }

    #[test]
    fn lines_are_combined_names_have_no_case_and_quotes_are_removed() {
        assert_eq!(
            read(&["Public,\tMAX-AGE=60 ", ", x=\"a, \\\"b\" ,,no-transform"]),
            Some(vec![
                pair("public", None),
                pair("max-age", Some("60")),
                pair("x", Some("a, \"b")),
                pair("no-transform", None),
            ])
        );
        assert_eq!(read(&[]), Some(vec![]));
        assert_eq!(read(&[""]), Some(vec![]));
    }

    #[test]
    fn what_is_not_in_the_grammar_is_nothing_to_build_on() {
        for odd in [
            "max-age",
            "max-age =60",
            "max-age= 60",
            "max-age=",
            "public max-age=60",
            "public; max-age=60",
            "max-age=\"60",
            "max-age=\"60\"x",
            "=60",
            "\"public\"",
        ] {
            let read = read(&[odd]);
            // A number that is missing is in the grammar, and no number.
            assert!(read.is_none() || read == Some(vec![pair("max-age", None)]), "{odd}: {read:?}");
        }
    }

    #[test]
    fn seconds_are_digits_and_never_more_than_they_can_mean() {
        for (text, number) in [
            ("0", Some(0)),
            ("060", Some(60)),
            ("2147483649", Some(MOST_SECONDS)),
            ("99999999999999999999999", Some(MOST_SECONDS)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("1 ", None),
            ("1s", None),
        ] {
            assert_eq!(seconds(text.as_bytes()), number, "{text:?}");
        }
    }
}
