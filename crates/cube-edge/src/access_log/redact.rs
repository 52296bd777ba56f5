//! Secrets in queries do not reach the log.

use std::borrow::Cow;

use cube_route::preview::query::PARAMETER;
use percent_encoding::percent_decode;

/// What stands in place of a secret.
const REPLACED: &[u8] = b"***";

/// Where a pair ends. Not only `&`: some applications split at `;`, and neither a second `?` nor
/// a `#` may hide a key.
const SEPARATORS: &[u8] = b"&;?#";

/// Replaces the values of configured query keys.
#[derive(Debug)]
pub(super) struct Redactor {
    keys: Vec<Vec<u8>>,
}

impl Redactor {
    /// `keys` as configured; they are compared without case.
    pub(super) fn new(keys: &[String]) -> Self {
        Self { keys: keys.iter().map(|key| key.to_ascii_lowercase().into_bytes()).collect() }
    }

    /// `target` with the secrets of its query replaced.
    pub(super) fn redact<'a>(&self, target: &'a [u8]) -> Cow<'a, [u8]> {
        let Some(question) = target.iter().position(|b| *b == b'?') else {
            return Cow::Borrowed(target);
        };
        let (path, query) = target.split_at(question);
        let pairs = || query.split_inclusive(|b| SEPARATORS.contains(b));
        if !pairs().any(|pair| self.secret(pair).is_some()) {
            return Cow::Borrowed(target);
        }
        let mut out = path.to_vec();
        let mut hidden = false;
        for pair in pairs() {
            let end = pair.last().filter(|b| SEPARATORS.contains(b));
            match self.secret(pair) {
                // What the proxy takes for the ticket ends at `&` alone.
                _ if hidden => {}
                Some(Unwritten::Ticket) => {
                    out.extend_from_slice(PARAMETER.as_bytes());
                    out.extend_from_slice(b"=-");
                    hidden = true;
                }
                Some(Unwritten::Configured(key)) => {
                    out.extend_from_slice(key);
                    out.push(b'=');
                    out.extend_from_slice(REPLACED);
                    out.extend(end);
                }
                None => out.extend_from_slice(pair),
            }
            if hidden && end == Some(&b'&') {
                out.push(b'&');
                hidden = false;
            }
        }
        Cow::Owned(out)
    }

    /// What is secret about `pair`.
    fn secret<'a>(&self, pair: &'a [u8]) -> Option<Unwritten<'a>> {
        let key = pair.split(|b| *b == b'=').next().filter(|key| key.len() < pair.len())?;
        let decoded = percent_decode(key).map(|b| b.to_ascii_lowercase());
        if decoded.clone().eq(PARAMETER.bytes()) {
            return Some(Unwritten::Ticket);
        }
        let configured = self.keys.iter().any(|secret| decoded.clone().eq(secret.iter().copied()));
        configured.then_some(Unwritten::Configured(key))
    }
}

/// What of a query is not written.
enum Unwritten<'a> {
    /// The ticket of a preview link, whatever is configured.
    Ticket,
    /// The value of this key, as written.
    Configured(&'a [u8]),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::Settings;

    fn redacted(target: &str) -> String {
        let target = Redactor::new(&Settings::default().redact_query).redact(target.as_bytes()).into_owned();
        String::from_utf8(target).unwrap()
    }

    #[test]
    fn values_of_secret_keys_are_replaced_however_the_key_is_written() {
        for (target, want) in [
            ("/p?token=a", "/p?token=***"),
            ("/p?a=1&Access_Token=b&c=2", "/p?a=1&Access_Token=***&c=2"),
            ("/p?%74oken=a", "/p?%74oken=***"),
            ("/p?X-Amz-Signature=a%26b", "/p?X-Amz-Signature=***"),
            ("/p?x-amz%2Dsignature=a", "/p?x-amz%2Dsignature=***"),
            ("/p?key=a=b&key=c", "/p?key=***&key=***"),
            ("/p?a=1;sig=b;c", "/p?a=1;sig=***;c"),
            ("/p?a?token=b", "/p?a?token=***"),
            ("/p?a=1#token=b", "/p?a=1#token=***"),
            ("/p?token=", "/p?token=***"),
        ] {
            assert_eq!(redacted(target), want);
        }
    }

    #[test]
    fn a_ticket_is_never_written_however_it_is_hidden() {
        for (target, want) in [
            ("/?cube_preview=t", "/?cube_preview=-"),
            ("/p?a=1&cube_preview=t&b=2", "/p?a=1&cube_preview=-&b=2"),
            ("/p?%63ube_Preview=t&b=2", "/p?cube_preview=-&b=2"),
            ("/p?a;cube_preview=t", "/p?a;cube_preview=-"),
            ("/p?a?cube_preview=t", "/p?a?cube_preview=-"),
            ("/p?a#cube_preview=t", "/p?a#cube_preview=-"),
            ("/p?cube_preview=t;u?v#w&b", "/p?cube_preview=-&b"),
            ("/p?cube_preview=t;token=x&token=y", "/p?cube_preview=-&token=***"),
            ("/p?cube_preview=t&cube_preview=u", "/p?cube_preview=-&cube_preview=-"),
            ("/p?cube_preview=&x", "/p?cube_preview=-&x"),
        ] {
            assert_eq!(redacted(target), want);
            assert_eq!(
                Redactor::new(&[]).redact(target.as_bytes()),
                redacted(target).replace("***", "y").as_bytes()
            );
        }
    }

    #[test]
    fn everything_else_is_left_as_it_is() {
        for target in ["/p", "/p?", "/p?token", "/token=a", "/p?tokens=a&mytoken=b&a=token", "/p?&&==&"] {
            assert_eq!(redacted(target), target);
        }
    }
}
