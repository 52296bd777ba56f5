//! What hostile bytes may not do to the reading of requests, against a second reader (fuzz/README.md).

use bytes::{Bytes, BytesMut};

use super::body::Body;
use super::head::{Request, put_request};

/// What one client sends on one connection: each request that the exchange takes begins and ends where the
/// grammar of RFC 9112 says, and what would be sent on is in the grammar and says the same.
pub fn requests(data: &[u8]) {
    let mut rest = data;
    while let Some(end) = head_end(rest) {
        let Some((raw, behind)) = rest.split_at_checked(end) else { return };
        let Some(mut request) = Request::read(Bytes::copy_from_slice(raw)) else { return };
        let expected = reference(raw);
        assert!(expected.is_some(), "taken, and in no grammar: {}", raw.escape_ascii());
        let Some(expected) = expected else { return };
        let mut sent = BytesMut::new();
        put_request(&request.head, raw, &mut sent);
        let mut expected_sent = [&expected.method[..], b" ", &expected.target, b" HTTP/1.1\r\n"].concat();
        for (name, value) in &expected.fields {
            expected_sent.extend_from_slice(&[name, &b": "[..], value, b"\r\n"].concat());
        }
        expected_sent.extend_from_slice(b"\r\n");
        assert_eq!(sorted(&sent), sorted(&expected_sent), "{}", raw.escape_ascii());
        // HTTP/1.0 knows no chunks; a length and chunks, or two of either, are for nobody.
        let length = expected.all(b"content-length");
        let coding = expected.all(b"transfer-encoding");
        assert!(length.len() + coding.len() <= 1, "two framings: {}", raw.escape_ascii());
        let mut from = BytesMut::from(behind);
        let mut taken = Vec::new();
        let whole = loop {
            if matches!(request.body, Body::Length(0)) {
                break true;
            }
            match request.body.next(&mut from) {
                Ok(Some((piece, _))) if matches!(request.body, Body::Length(_)) => {
                    taken.extend_from_slice(&piece)
                }
                Ok(Some((_, true))) => break true,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break false,
            }
        };
        let used = behind.len() - from.len();
        if let Some(length) = length.first() {
            let length: usize =
                std::str::from_utf8(length).ok().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
            assert_eq!(
                (whole, taken.len()),
                (length <= behind.len(), length.min(behind.len())),
                "the length"
            );
            assert_eq!(Some(&taken[..]), behind.get(..used));
        } else if coding.is_empty() {
            assert_eq!((whole, used), (true, 0), "a body out of nothing");
        } else {
            assert!(
                coding.iter().all(|coding| coding.eq_ignore_ascii_case(b"chunked")) && expected.version == 1
            );
        }
        if !whole || !request.keep_alive {
            return;
        }
        rest = behind.get(used..).unwrap_or_default();
    }
}

/// Where a head ends: behind its first empty line.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let mut start = 0;
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        if matches!(bytes.get(start..at)?, b"" | b"\r") {
            return Some(at + 1);
        }
        start = at + 1;
    }
    None
}

/// A head as the second reader has it.
struct Head {
    method: Vec<u8>,
    target: Vec<u8>,
    version: u8,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Head {
    fn all(&self, name: &[u8]) -> Vec<&[u8]> {
        let named = self.fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| &value[..]).collect()
    }
}

/// RFC 9112, 3 and 5: a line a piece, no folding, nothing between name and colon. A line may end without its
/// CR (2.2), which is as far as the leniency goes.
fn reference(raw: &[u8]) -> Option<Head> {
    let mut lines = raw.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let version = match version {
        b"HTTP/1.1" => 1,
        b"HTTP/1.0" => 0,
        _ => return None,
    };
    let plain = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    if words.next().is_some() || !is_token(method) || target.is_empty() || !target.iter().all(plain) {
        return None;
    }
    let mut fields = Vec::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_at_checked(line.iter().position(|byte| *byte == b':')?)?;
        let value = value.get(1..)?;
        let value = value.trim_ascii();
        let text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        if !is_token(name) || !value.iter().all(text) {
            return None;
        }
        fields.push((name.to_vec(), value.to_vec()));
    }
    Some(Head { method: method.to_vec(), target: target.to_vec(), version, fields })
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// Lines in an order of their own: fields of one name are written together.
fn sorted(head: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = head.split(|byte| *byte == b'\n').map(<[u8]>::to_ascii_lowercase).collect();
    lines.sort();
    lines
}
