//! The request target: which bytes may stand in it, and its origin form.

use std::borrow::Cow;

use http::{Method, Version};

use crate::error::BadRequest;
use crate::host::ClientHost;

/// A request target whose bytes and form were checked.
pub(crate) struct RawTarget<'a> {
    /// Authority and default port of an absolute-form target.
    pub(crate) authority: Option<(ClientHost<'a>, u16)>,
    /// Path and query, or `*`.
    pub(crate) origin_form: Cow<'a, [u8]>,
}

impl<'a> RawTarget<'a> {
    /// Reads origin form, absolute form (HTTP/1 only) and, with OPTIONS, asterisk form.
    pub(crate) fn parse(version: Version, method: &Method, target: &'a [u8]) -> Result<Self, BadRequest> {
        match target {
            [b'/', ..] => {
                check_bytes(target)?;
                Ok(Self { authority: None, origin_form: Cow::Borrowed(target) })
            }
            b"*" if *method == Method::OPTIONS => {
                Ok(Self { authority: None, origin_form: Cow::Borrowed(target) })
            }
            _ if version >= Version::HTTP_2 => Err(BadRequest::TargetForm),
            _ => Self::parse_absolute_form(method, target),
        }
    }

    fn parse_absolute_form(method: &Method, target: &'a [u8]) -> Result<Self, BadRequest> {
        let (default_port, rest) = match (
            strip_prefix_ignore_case(target, b"http://"),
            strip_prefix_ignore_case(target, b"https://"),
        ) {
            (Some(rest), _) => (80, rest),
            (None, Some(rest)) => (443, rest),
            (None, None) => return Err(BadRequest::TargetForm),
        };
        let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at_checked(end).ok_or(BadRequest::TargetAuthority)?;
        check_bytes(rest)?;
        let authority = std::str::from_utf8(authority)
            .ok()
            .and_then(ClientHost::parse)
            .ok_or(BadRequest::TargetAuthority)?;
        let origin_form = match rest.first() {
            Some(b'/') => Cow::Borrowed(rest),
            // RFC 9112, 3.2.4: this is how OPTIONS of a whole server looks in absolute form.
            None if *method == Method::OPTIONS => Cow::Borrowed(&b"*"[..]),
            None => Cow::Borrowed(&b"/"[..]),
            Some(_) => Cow::Owned([b"/", rest].concat()),
        };
        Ok(Self { authority: Some((authority, default_port)), origin_form })
    }
}

/// `text` without `prefix`, which is compared without case.
pub(crate) fn strip_prefix_ignore_case<'t>(text: &'t [u8], prefix: &[u8]) -> Option<&'t [u8]> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// The path of a path and query.
pub(crate) fn path_of(path_and_query: &[u8]) -> &[u8] {
    path_and_query.split(|b| *b == b'?').next().unwrap_or_default()
}

/// A byte that may stand in a path. What may not is refused or altered further on, where it
/// would no longer be the client's byte.
fn is_allowed_in_path(byte: u8) -> bool {
    is_allowed_in_query(byte) && byte != b'`' || byte == b'"'
}

/// A byte that may stand in a query.
fn is_allowed_in_query(byte: u8) -> bool {
    !matches!(byte, 0..=b' ' | 0x7f | b'<' | b'>' | b'#' | b'"')
}

fn check_bytes(target: &[u8]) -> Result<(), BadRequest> {
    let path = path_of(target);
    let query = target.get(path.len()..).unwrap_or_default();
    if !path.iter().all(|b| is_allowed_in_path(*b)) || !query.iter().all(|b| is_allowed_in_query(*b)) {
        return Err(BadRequest::TargetByte);
    }
    if !target.is_ascii() && std::str::from_utf8(target).is_err() {
        return Err(BadRequest::TargetUtf8);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(target: &[u8]) -> Result<RawTarget<'_>, BadRequest> {
        RawTarget::parse(Version::HTTP_11, &Method::GET, target)
    }

    fn error(target: &[u8]) -> Option<BadRequest> {
        read(target).err()
    }

    #[test]
    fn origin_form_is_kept_byte_for_byte() {
        for good in [
            "/",
            "//",
            "/a%2Fb//%40/[x]?y=[z]&&=&%zz",
            "/..//./~x;y=,z!$'()*+:@&=|{}\\^\"",
            "/?",
            "/??",
            "/?`{}|\\^'",
            "/é?é",
            "/%00",
        ] {
            assert_eq!(read(good.as_bytes()).unwrap().origin_form, good.as_bytes(), "{good}");
        }
    }

    #[test]
    fn bytes_that_would_not_arrive_as_they_are_are_refused() {
        for byte in (0..=b' ').chain([0x7f, b'<', b'>', b'#']) {
            for target in [[b'/', byte, b'a'].as_slice(), &[b'/', b'?', byte], &[b'/', b'a', byte]] {
                assert_eq!(error(target), Some(BadRequest::TargetByte), "{}", target.escape_ascii());
            }
        }
        for bad in ["/`", "/`?", "/?\"", "/a?b?\"", "http://h/`", "http://h?\"", "http://h/ ", "http://h#x"] {
            assert_eq!(error(bad.as_bytes()), Some(BadRequest::TargetByte), "{bad}");
        }
        for bad in [b"/\xff".as_slice(), b"/?\xc3", b"/\xc3(", b"/\xed\xa0\x80", b"http://h/\xff"] {
            assert_eq!(error(bad), Some(BadRequest::TargetUtf8), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn absolute_form_becomes_origin_form() {
        for (target, host, port, origin) in [
            ("http://h/a%2Fb?c", "h", 80, "/a%2Fb?c"),
            ("HTTPS://H:1", "H", 443, "/"),
            ("http://h?x=/", "h", 80, "/?x=/"),
            ("http://[::1]:80//x", "::1", 80, "//x"),
        ] {
            let read = read(target.as_bytes()).unwrap();
            let (authority, default_port) = read.authority.unwrap();
            assert_eq!((authority.name(), default_port), (host, port), "{target}");
            assert_eq!(read.origin_form, origin.as_bytes(), "{target}");
        }
    }

    #[test]
    fn options_may_ask_for_the_whole_server() {
        let read =
            |method, version, target| RawTarget::parse(version, method, target).map(|read| read.origin_form);
        let star = Ok(Cow::Borrowed(&b"*"[..]));
        assert_eq!(read(&Method::OPTIONS, Version::HTTP_11, b"*"), star);
        assert_eq!(read(&Method::OPTIONS, Version::HTTP_2, b"*"), star);
        assert_eq!(read(&Method::OPTIONS, Version::HTTP_11, b"http://h"), star);
        assert_eq!(read(&Method::OPTIONS, Version::HTTP_11, b"http://h/"), Ok(Cow::Borrowed(&b"/"[..])));
        assert_eq!(read(&Method::GET, Version::HTTP_11, b"*"), Err(BadRequest::TargetForm));
        assert_eq!(read(&Method::OPTIONS, Version::HTTP_11, b"**"), Err(BadRequest::TargetForm));
    }

    #[test]
    fn other_targets_have_no_form() {
        for bad in [
            "",
            "a/b",
            "?x",
            "h:80",
            "ftp://h/",
            "http:/h",
            "http:h",
            "://h/",
            "\\",
            "javascript:x",
            "\u{e9}",
        ] {
            assert_eq!(error(bad.as_bytes()), Some(BadRequest::TargetForm), "{bad}");
        }
        for bad in ["http://", "http:///x", "http://a@b/", "http://a b/", "http://a\\b/", "http://é/"] {
            assert_eq!(error(bad.as_bytes()), Some(BadRequest::TargetAuthority), "{bad}");
        }
        let on_h2 = RawTarget::parse(Version::HTTP_2, &Method::GET, b"http://h/").err();
        assert_eq!(on_h2, Some(BadRequest::TargetForm));
    }
}
