//! envd's control routes, in every spelling that decodes and cleans to them.

use std::borrow::Cow;

use crate::target::path_of;

/// The routes of envd that are the control plane's.
const ROUTES: [&str; 7] = ["/init", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade"];

/// The control route that a path reaches on envd, as cleaned; none for every other path. The
/// query does not matter.
///
/// envd is a Go server: it percent-decodes a path once and cleans it as `path.Clean` does (`//`
/// is `/`, `.` goes, `..` takes its parent with it and ends at the root, a trailing slash goes).
/// An escape that is none is left as it is.
#[must_use]
pub fn envd_control_route(path_and_query: &[u8]) -> Option<&'static str> {
    let path = decode(path_of(path_and_query));
    // From the right, a segment stays unless a `..` further right has taken it. All routes have
    // one segment, so a second one that stays ends the search.
    let mut taken = 0usize;
    let mut only: Option<&[u8]> = None;
    for segment in path.rsplit(|b| *b == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => taken = taken.saturating_add(1),
            _ if taken > 0 => taken -= 1,
            _ if only.is_some() => return None,
            _ => only = Some(segment),
        }
    }
    let only = only?;
    ROUTES.into_iter().find(|route| route.as_bytes().strip_prefix(b"/") == Some(only))
}

/// `path` with its escapes decoded, once.
fn decode(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, tail @ ..] = rest {
        match tail {
            [high, low, after @ ..] if *first == b'%' => {
                if let (Some(high), Some(low)) = (hex(*high), hex(*low)) {
                    out.push(high << 4 | low);
                    rest = after;
                    continue;
                }
                out.push(b'%');
            }
            _ => out.push(*first),
        }
        rest = tail;
    }
    Cow::Owned(out)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}
