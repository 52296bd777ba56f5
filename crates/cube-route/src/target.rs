//! The request target: which bytes may stand in it, and its origin form.

use std::borrow::Cow;

use http::{Method, Version};

use crate::error::BadRequest;
use crate::host::ClientHost;

/// A request target, checked.
pub(crate) struct RawTarget<'a> {
    /// Authority and default port of an absolute-form target.
    pub(crate) authority: Option<(ClientHost<'a>, u16)>,
    /// Path and query, or `*`.
    pub(crate) origin_form: Cow<'a, [u8]>,
}

impl<'a> RawTarget<'a> {
    /// Reads origin form, absolute form (HTTP/1 only) and, with OPTIONS, asterisk form.
    pub(crate) fn read(version: Version, method: &Method, target: &'a [u8]) -> Result<Self, BadRequest> {
        match target {
            [b'/', ..] => {
                check_bytes(target)?;
                Ok(Self { authority: None, origin_form: Cow::Borrowed(target) })
            }
            b"*" if *method == Method::OPTIONS => {
                Ok(Self { authority: None, origin_form: Cow::Borrowed(target) })
            }
            _ if version >= Version::HTTP_2 => Err(BadRequest::TargetForm),
            _ => Self::read_absolute(method, target),
        }
    }

    fn read_absolute(method: &Method, target: &'a [u8]) -> Result<Self, BadRequest> {
        let (default_port, rest) =
            match (strip_no_case(target, b"http://"), strip_no_case(target, b"https://")) {
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
pub(crate) fn strip_no_case<'t>(text: &'t [u8], prefix: &[u8]) -> Option<&'t [u8]> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// The path of a path and query.
pub(crate) fn path_of(path_and_query: &[u8]) -> &[u8] {
    path_and_query.split(|b| *b == b'?').next().unwrap_or_default()
}

/// A byte that may stand in a path. What may not is refused or altered further on, where it
/// would no longer be the client's byte.
fn good_in_path(byte: u8) -> bool {
    good_in_query(byte) && byte != b'`' || byte == b'"'
}

/// A byte that may stand in a query.
fn good_in_query(byte: u8) -> bool {
    !matches!(byte, 0..=b' ' | 0x7f | b'<' | b'>' | b'#' | b'"')
}

fn check_bytes(target: &[u8]) -> Result<(), BadRequest> {
    let path = path_of(target);
    let query = target.get(path.len()..).unwrap_or_default();
    if !path.iter().all(|b| good_in_path(*b)) || !query.iter().all(|b| good_in_query(*b)) {
        return Err(BadRequest::TargetByte);
    }
    if !target.is_ascii() && std::str::from_utf8(target).is_err() {
        return Err(BadRequest::TargetUtf8);
    }
    Ok(())
}
