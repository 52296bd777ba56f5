//! How the names of headers are spelled in the heads that leave: as they came, ours in the usual way.
//!
//! Heads hold names in small letters alone, since a second map for their spelling costs as much as the first
//! one (decision 6). A value that came in shares the bytes of its head, so its name stands before it there.

use bytes::{BufMut, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::proxy::own_headers;

/// Puts the fields of a head `but` those; `came` is the head that they came in, empty where there was none.
pub(super) fn put_fields(headers: &HeaderMap, but: &[HeaderName], came: &[u8], out: &mut BytesMut) {
    for (name, value) in headers {
        if but.contains(name) {
            continue;
        }
        let spelled = before(value, name, came)
            .or_else(|| own_headers::spelling(name).map(str::as_bytes))
            .or_else(|| somewhere(name, came))
            .unwrap_or(name.as_str().as_bytes());
        put_field(spelled, value, out);
    }
}

/// Puts one field.
pub(super) fn put_field(name: &[u8], value: &HeaderValue, out: &mut BytesMut) {
    out.reserve(name.len() + value.len() + 4);
    out.put_slice(name);
    out.put_slice(b": ");
    out.put_slice(value.as_bytes());
    out.put_slice(b"\r\n");
}

/// The name before a value that stands in `came`.
fn before<'a>(value: &HeaderValue, name: &HeaderName, came: &'a [u8]) -> Option<&'a [u8]> {
    let at = (value.as_bytes().as_ptr() as usize).checked_sub(came.as_ptr() as usize)?;
    let line = came.get(..at)?;
    let line = match line.strip_suffix(b": ") {
        Some(line) => line,
        None => line.trim_ascii_end().strip_suffix(b":")?,
    };
    let line = line.trim_ascii_end();
    let spelled = line.get(line.len().checked_sub(name.as_str().len())?..)?;
    is_name(spelled, name).then_some(spelled)
}

/// The name as the first of its fields in `came` spells it: of a value that was changed, or is empty.
fn somewhere<'a>(name: &HeaderName, came: &'a [u8]) -> Option<&'a [u8]> {
    came.split(|byte| *byte == b'\n').find_map(|line| {
        let spelled = line.get(..name.as_str().len())?;
        let rest = line.get(spelled.len()..)?.trim_ascii_start();
        (rest.starts_with(b":") && is_name(spelled, name)).then_some(spelled)
    })
}

fn is_name(spelled: &[u8], name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    // Without a way out in the middle, for several bytes at once.
    let differs =
        spelled.iter().zip(name).fold(0, |differs, (one, two)| differs | one.to_ascii_lowercase() ^ two);
    spelled.len() == name.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn put(fields: &[(&'static str, HeaderValue)], came: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), value.clone());
        }
        let mut out = BytesMut::new();
        put_fields(&headers, &[], came, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn a_field_keeps_the_spelling_of_its_own_line() {
        let came = Bytes::from_static(b"GET / HTTP/1.1\r\nx-A: a\r\nX-a :  2\r\nDATE:3\r\n\r\n");
        let at = |text: u8| {
            let at = came.iter().position(|byte| *byte == text).unwrap();
            HeaderValue::from_maybe_shared(came.slice(at..=at)).unwrap()
        };
        let fields = [("x-a", at(b'a')), ("x-a", at(b'2')), ("date", at(b'3'))];
        assert_eq!(put(&fields, &came), "x-A: a\r\nX-a: 2\r\nDATE: 3\r\n");
    }

    #[test]
    fn a_changed_value_keeps_the_spelling_and_what_is_set_has_the_usual_one() {
        let came = b"HTTP/1.1 200 OK\r\nLOCATION: /a\r\nX-Empty:\r\n\r\n";
        let value = HeaderValue::from_static;
        let fields = [("location", value("/b")), ("x-empty", value("")), ("x-real-ip", value("::1"))];
        assert_eq!(put(&fields, came), "LOCATION: /b\r\nX-Empty: \r\nX-Real-IP: ::1\r\n");
        assert_eq!(put(&[("x-other", value("1"))], b""), "x-other: 1\r\n");
    }

    #[test]
    fn a_value_that_stands_elsewhere_in_the_head_does_not_name_the_field() {
        let came = Bytes::from_static(b"GET / HTTP/1.1\r\nCookie: a=1; b=2\r\n\r\n");
        let part = HeaderValue::from_maybe_shared(came.slice(24..27)).unwrap();
        assert_eq!(part, "a=1");
        let part_of = HeaderValue::from_maybe_shared(came.slice(29..32)).unwrap();
        assert_eq!(put(&[("cookie", part_of), ("x-b", part)], &came), "Cookie: b=2\r\nx-b: a=1\r\n");
    }
}
