//! `X-Cube-Request-Id`: ids for requests that bring none.

use http::HeaderValue;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// A new id: 32 hexadecimal digits, random, so that replicas never give the same one.
pub(crate) fn new() -> HeaderValue {
    let mut text = [0u8; 32];
    let mut random = fastrand::u128(..);
    for digit in &mut text {
        let nibble = (random & 15) as usize;
        *digit = HEX.get(nibble).copied().unwrap_or(b'0');
        random >>= 4;
    }
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal_and_differ() {
        let (one, two) = (new(), new());
        assert_ne!(one, two);
        assert!(one.len() == 32 && one.as_bytes().iter().all(u8::is_ascii_hexdigit));
    }
}
