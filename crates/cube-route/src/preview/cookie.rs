//! A ticket in a cookie (previews.md, "How it is presented").

use crate::RoutingForm;

/// The cookie of the host form over TLS: browsers let nobody but the very host set it.
pub const HOST: &str = "__Host-cube-preview";
/// The cookie of the path form over TLS.
pub const SECURE: &str = "__Secure-cube-preview";
/// The cookie without TLS.
pub const PLAIN: &str = "cube-preview";

const NAMES: [&str; 3] = [HOST, SECURE, PLAIN];

/// How many cookies of one name are judged: a browser may send several.
const JUDGED: usize = 4;

/// The cookie that is set and read in a form; none where none is.
#[must_use]
pub fn name(form: RoutingForm, tls: bool, path_cookie: bool) -> Option<&'static str> {
    match (form, tls) {
        (RoutingForm::Host, true) => Some(HOST),
        (RoutingForm::Path, true) if path_cookie => Some(SECURE),
        (RoutingForm::Host, false) => Some(PLAIN),
        (RoutingForm::Path, false) if path_cookie => Some(PLAIN),
        (RoutingForm::Path | RoutingForm::Header, _) => None,
    }
}

/// The values of the first cookies called `name` in values of `Cookie`.
pub fn tickets<'a>(values: impl Iterator<Item = &'a [u8]>, name: &str) -> impl Iterator<Item = &'a [u8]> {
    values
        .flat_map(|value| value.split(|b| *b == b';'))
        .filter_map(move |pair| {
            let at = pair.iter().position(|b| *b == b'=')?;
            let (before, value) = (pair.get(..at)?, pair.get(at + 1..)?);
            (before.trim_ascii() == name.as_bytes()).then_some(value.trim_ascii())
        })
        .take(JUDGED)
}

/// A value of `Cookie` without any of the three cookies, which may leave nothing; none where it has none.
#[must_use]
pub fn without_tickets(value: &[u8]) -> Option<Vec<u8>> {
    let pairs = || value.split(|b| *b == b';');
    if !pairs().any(is_ours) {
        return None;
    }
    let mut out = Vec::with_capacity(value.len());
    let mut kept = false;
    // The blanks before a pair that goes stay before the next one.
    let mut blanks: Option<&[u8]> = None;
    for pair in pairs() {
        let text = pair.trim_ascii_start();
        if is_ours(pair) {
            blanks.get_or_insert(pair.get(..pair.len() - text.len()).unwrap_or_default());
            continue;
        }
        if std::mem::replace(&mut kept, true) {
            out.push(b';');
        }
        match blanks.take() {
            Some(blanks) => out.extend_from_slice(&[blanks, text].concat()),
            None => out.extend_from_slice(pair),
        }
    }
    Some(out.trim_ascii().to_vec())
}

fn is_ours(pair: &[u8]) -> bool {
    let name = pair.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii();
    NAMES.iter().any(|known| known.as_bytes() == name)
}

/// Whether a sandbox's `Set-Cookie` would set one of the three. A cookie without a name is sent as its
/// value, which may look like a name and a value.
#[must_use]
pub fn sets_ticket(set_cookie: &[u8]) -> bool {
    let pair = set_cookie.split(|b| *b == b';').next().unwrap_or_default();
    let Some(at) = pair.iter().position(|b| *b == b'=') else { return false };
    let (name, value) = pair.split_at_checked(at).unwrap_or_default();
    match name.trim_ascii() {
        b"" => {
            let value = value.get(1..).unwrap_or_default();
            value.contains(&b'=') && is_ours(value)
        }
        _ => is_ours(name),
    }
}

/// The `Set-Cookie` of a ticket. `path` is `/`, or the prefix of the path form as the client wrote it;
/// `max_age` in seconds. Over TLS it works in an iframe of another site.
#[must_use]
pub fn set_cookie(name: &str, ticket: &str, path: &str, tls: bool, max_age: u64) -> String {
    let across = if tls { "; Secure; SameSite=None; Partitioned" } else { "; SameSite=Lax" };
    format!("{name}={ticket}; Path={path}; Max-Age={max_age}; HttpOnly{across}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_and_scheme_has_its_own_name() {
        for (form, tls, path_cookie, want) in [
            (RoutingForm::Host, true, false, Some(HOST)),
            (RoutingForm::Host, false, true, Some(PLAIN)),
            (RoutingForm::Path, true, false, None),
            (RoutingForm::Path, false, false, None),
            (RoutingForm::Path, true, true, Some(SECURE)),
            (RoutingForm::Path, false, true, Some(PLAIN)),
            (RoutingForm::Header, true, true, None),
            (RoutingForm::Header, false, true, None),
        ] {
            assert_eq!(name(form, tls, path_cookie), want, "{form:?} {tls} {path_cookie}");
        }
    }

    #[test]
    fn tickets_are_the_first_four_values_of_one_name() {
        let values =
            [&b"a=1; cube-preview=x;cube-preview=\"y\" ; __Host-cube-preview=z"[..], b"cube-preview=1"];
        let read = |name| -> Vec<Vec<u8>> { tickets(values.into_iter(), name).map(<[u8]>::to_vec).collect() };
        assert_eq!(read(PLAIN), [&b"x"[..], b"\"y\"", b"1"]);
        assert_eq!(read(HOST), [b"z"]);
        assert_eq!(read(SECURE), [b""; 0]);
        let many = b"cube-preview=1; ".repeat(9);
        assert_eq!(tickets(std::iter::once(&many[..]), PLAIN).count(), 4);
    }

    #[test]
    fn all_three_are_taken_out_with_one_separator() {
        for (value, want) in [
            ("cube-preview=x", ""),
            ("cube-preview", ""),
            ("cube-preview=x;", ""),
            (" __Host-cube-preview = x ; __Secure-cube-preview=y", ""),
            ("a=1; cube-preview=x; b=2", "a=1; b=2"),
            ("a=1;cube-preview=x;b=2", "a=1;b=2"),
            ("a=1; cube-preview=x;   b=2", "a=1; b=2"),
            ("a=1; cube-preview=x", "a=1"),
            ("cube-preview=x; a=1", "a=1"),
            ("a=1; cube-preview=x; __Host-cube-preview=y; b=2; __Secure-cube-preview=z", "a=1; b=2"),
        ] {
            assert_eq!(without_tickets(value.as_bytes()).as_deref(), Some(want.as_bytes()), "{value}");
        }
        for other in ["", "a=1", "a=1;  b=2;", "Cube-Preview=x", "cube-previews=x", "a=cube-preview=x"] {
            assert_eq!(without_tickets(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_sandbox_sets_none_of_them_in_any_spelling_that_comes_back_as_one() {
        for ours in [
            "cube-preview=x",
            "__Host-cube-preview=x; Path=/; Secure",
            "__Secure-cube-preview=",
            " \tcube-preview\t =x",
            "=cube-preview=x",
            " = cube-preview=x; Path=/",
        ] {
            assert!(sets_ticket(ours.as_bytes()), "{ours}");
        }
        for other in
            ["a=1", "", "=", "cube-previews=x", "a=cube-preview=x", "=cube-preview", "x; cube-preview=x"]
        {
            assert!(!sets_ticket(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_cookie_over_tls_is_partitioned_and_else_lax() {
        assert_eq!(
            set_cookie(HOST, "t", "/", true, 9),
            "__Host-cube-preview=t; Path=/; Max-Age=9; HttpOnly; Secure; SameSite=None; Partitioned"
        );
        assert_eq!(
            set_cookie(PLAIN, "t", "/sandbox/A/1", false, 9),
            "cube-preview=t; Path=/sandbox/A/1; Max-Age=9; HttpOnly; SameSite=Lax"
        );
    }
}
