//! What hostile bytes may not do to this crate, a function a target (fuzz/README.md).

use crate::{ChunkWatch, Malformed};

/// A chunked body, after a byte that says in which pieces it comes: both ways of following it agree with each
/// other, and with a reader that takes the grammar of RFC 9112, 7.1 line by line.
pub fn chunks(data: &[u8]) {
    let Some((size, body)) = data.split_first() else { return };
    let mut watch = ChunkWatch::default();
    let mut taken = 0;
    let pieces = body.chunks(usize::from(*size).max(1)).try_for_each(|piece| {
        taken += watch.follow(piece)?;
        Ok::<(), Malformed>(())
    });
    let mut framed = ChunkWatch::default();
    let mut at = 0;
    let alternating = loop {
        let Some(rest) = body.get(at..).filter(|rest| !rest.is_empty() && !framed.is_over()) else {
            break Ok(());
        };
        match framed.framing(rest) {
            Ok(count) => at += count,
            Err(malformed) => break Err(malformed),
        }
        at += framed.data(body.len() - at);
    };
    assert_eq!(pieces, alternating, "two ways of following");
    match (pieces, whole_body(body)) {
        (Ok(()), Some(end)) => {
            assert_eq!((watch.is_over(), framed.is_over(), taken, at), (true, true, end, end))
        }
        (Ok(()), None) => assert!(!watch.is_over() && !framed.is_over() && taken == body.len()),
        (Err(Malformed), end) => assert_eq!(end, None, "the grammar allows it"),
    }
}

/// The most fields of a trailer section. The other bounds of framing are beyond the size of an input.
const FIELDS: usize = 100;

/// Where a whole chunked body ends, by its grammar; none where there is none.
fn whole_body(body: &[u8]) -> Option<usize> {
    let mut rest = body;
    loop {
        let (line, after) = line(rest)?;
        rest = after;
        let digits = line.iter().position(|b| !b.is_ascii_hexdigit()).unwrap_or(line.len());
        let (size, extensions) = line.split_at_checked(digits)?;
        let significant: Vec<u8> = size.iter().copied().skip_while(|b| *b == b'0').collect();
        if size.is_empty() || significant.len() > 16 || !are_extensions(extensions) {
            return None;
        }
        let size = u64::from_str_radix(&format!("0{}", String::from_utf8_lossy(&significant)), 16).ok()?;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok()?;
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
    let mut fields = 0;
    loop {
        let (field, after) = line(rest)?;
        rest = after;
        if field.is_empty() {
            return Some(body.len() - rest.len());
        }
        let colon = field.iter().position(|b| *b == b':')?;
        let (name, value) = field.split_at_checked(colon)?;
        fields += 1;
        if fields > FIELDS || !is_token(name) || !value.iter().all(|b| is_text(*b)) {
            return None;
        }
    }
}

/// Up to a CR LF, neither of which stands in it; and what follows.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|b| matches!(b, b'\r' | b'\n'))?;
    let (line, rest) = bytes.split_at_checked(end)?;
    Some((line, rest.strip_prefix(b"\r\n")?))
}

/// `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`.
fn are_extensions(mut text: &[u8]) -> bool {
    let blank = |text: &[u8]| text.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
    let skip = |text: &mut &[u8]| *text = text.get(blank(text)..).unwrap_or_default();
    let token = |text: &mut &[u8]| {
        let count = text.iter().take_while(|b| is_token(&[**b])).count();
        *text = text.get(count..).unwrap_or_default();
        count > 0
    };
    while !text.is_empty() {
        skip(&mut text);
        let Some(after) = text.strip_prefix(b";") else { return false };
        text = after;
        skip(&mut text);
        if !token(&mut text) {
            return false;
        }
        let mut ahead = text;
        skip(&mut ahead);
        let Some(after) = ahead.strip_prefix(b"=") else { continue };
        text = after;
        skip(&mut text);
        match text.strip_prefix(b"\"") {
            Some(mut quoted) => loop {
                match quoted {
                    [b'"', after @ ..] => {
                        text = after;
                        break;
                    }
                    [b'\\', escaped, after @ ..] if is_text(*escaped) => quoted = after,
                    [plain, after @ ..] if *plain != b'\\' && is_text(*plain) => quoted = after,
                    _ => return false,
                }
            },
            None if !token(&mut text) => return false,
            None => {}
        }
    }
    true
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use cube_fuzz::run_corpus;

    #[test]
    fn corpora_of_fuzzing() {
        run_corpus("chunks", super::chunks);
    }
}
