//! envd's control routes, in every spelling that decodes and cleans to them.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use crate::target::path_of;

/// The routes of envd that are the control plane's.
const CONTROL_ROUTES: [&str; 7] =
    ["/init", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade"];

/// The control route that a path reaches on envd, as cleaned; none for every other path. The
/// query does not matter.
///
/// envd is a Go server: it percent-decodes a path once and cleans it as `path.Clean` does (`//`
/// is `/`, `.` goes, `..` takes its parent with it and ends at the root, a trailing slash goes).
/// An escape that is none is left as it is.
#[must_use]
pub fn envd_control_route(path_and_query: &[u8]) -> Option<&'static str> {
    // Decoded once; an escape that is none stays.
    let path: Cow<'_, [u8]> = percent_decode(path_of(path_and_query)).into();
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
    CONTROL_ROUTES.into_iter().find(|route| route.as_bytes().strip_prefix(b"/") == Some(only))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_control_route_is_found() {
        for route in CONTROL_ROUTES {
            assert_eq!(envd_control_route(route.as_bytes()), Some(route));
        }
        for spelling in [
            "/init?x=1",
            "/init/",
            "/init//",
            "//init",
            "///init",
            "/./init",
            "/init/.",
            "/x/../init",
            "/x/y/../../init",
            "/../init",
            "/../../../init/./",
            "/init/x/..",
            "/init/../init",
            "/init/x/../../init",
            "/%69nit",
            "/%69%6E%69%74",
            "/ini%74?",
            "%2Finit",
            "/%2finit",
            "/%2e/init",
            "/x/%2E%2e/init",
            "/x%2F..%2Finit",
            "/x/.%2e%2finit%2F",
            "/%2e%2e/init",
            "init",
        ] {
            assert_eq!(envd_control_route(spelling.as_bytes()), Some("/init"), "{spelling}");
        }
    }

    #[test]
    fn other_paths_are_left_alone() {
        for other in [
            "",
            "/",
            "/?/init",
            "/..",
            "/init/..",
            "/INIT",
            "/initx",
            "/xinit",
            "/init/x",
            "/x/init",
            "/x/../y/init",
            "/init/..x",
            "/.../init",
            "/%2569nit",
            "/init%3Fx",
            "/init%",
            "/init%2",
            "/%zzinit",
            "/init%20",
            "/init;x",
            "/init%00",
            "/in+it",
            "/x\\..\\init",
            "/health",
            "/files?path=/init",
        ] {
            assert_eq!(envd_control_route(other.as_bytes()), None, "{other}");
        }
        assert_eq!(envd_control_route(b"/init\xff"), None);
    }

    #[test]
    fn escapes_are_decoded_once_and_broken_ones_kept() {
        let decoded: Cow<'_, [u8]> = percent_decode(b"%41%4a%2541%%41%4").into();
        assert_eq!(decoded, b"AJ%41%A%4".as_slice());
    }
}
