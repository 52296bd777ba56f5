//! What is to be written to one side: some bytes, then at most one large piece of a body as it is, then
//! what frames its end.

use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A piece of a body up to this size is copied behind what is there; a larger one is written from
/// where it is.
const COPIED: usize = 4 * 1024;
/// So much may wait before the other side is read again.
const ROOM: usize = 16 * 1024;

/// How the body of a message that leaves is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes are still to come; 0: none, or no body.
    Length(u64),
    /// Chunks (RFC 9112, 7.1).
    Chunked,
    /// Until the connection ends.
    Close,
}

/// Bytes on their way out.
#[derive(Debug, Default)]
pub(crate) struct Out {
    first: BytesMut,
    piece: Bytes,
    last: &'static [u8],
}

impl Out {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.piece.is_empty() && self.last.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.piece.len() + self.last.len()
    }

    /// Whether more may be put before something has left.
    pub(super) fn has_room(&self) -> bool {
        self.piece.is_empty() && self.last.is_empty() && self.first.len() < ROOM
    }

    /// Where heads are put.
    pub(super) fn head(&mut self) -> &mut BytesMut {
        self.join();
        &mut self.first
    }

    /// Copies a piece that has not left behind what is before it, so that more can follow.
    fn join(&mut self) {
        self.first.put_slice(&std::mem::take(&mut self.piece));
        self.first.put_slice(std::mem::take(&mut self.last));
    }

    /// Puts a piece of a body, with `end` its last.
    pub(super) fn body(&mut self, piece: Bytes, end: bool, framing: &mut Framing) {
        let piece = match framing {
            Framing::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                *left -= count as u64;
                piece.slice(..count)
            }
            Framing::Chunked | Framing::Close => piece,
        };
        let chunked = *framing == Framing::Chunked;
        self.join();
        if piece.is_empty() {
            if chunked && end {
                self.first.put_slice(b"0\r\n\r\n");
            }
            return;
        }
        if chunked {
            put_size(&mut self.first, piece.len());
        }
        let last: &'static [u8] = match (chunked, end) {
            (true, true) => b"\r\n0\r\n\r\n",
            (true, false) => b"\r\n",
            (false, _) => b"",
        };
        if piece.len() <= COPIED {
            self.first.put_slice(&piece);
            self.first.put_slice(last);
        } else {
            self.piece = piece;
            self.last = last;
        }
    }

    /// What is there, in its order; how many of the slices are used.
    pub(crate) fn slices<'a>(&'a self, into: &mut [IoSlice<'a>; 3]) -> usize {
        let mut used = 0;
        for part in [&self.first[..], &self.piece[..], self.last] {
            if !part.is_empty()
                && let Some(place) = into.get_mut(used)
            {
                *place = IoSlice::new(part);
                used += 1;
            }
        }
        used
    }

    /// So many bytes have left.
    pub(crate) fn left(&mut self, mut count: usize) {
        let first = count.min(self.first.len());
        self.first.advance(first);
        count -= first;
        let piece = count.min(self.piece.len());
        self.piece.advance(piece);
        count -= piece;
        self.last = self.last.get(count..).unwrap_or_default();
        if self.piece.is_empty() {
            self.piece = Bytes::new();
        }
    }

    /// Gives the room back.
    pub(super) fn give_back(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

/// The size line of a chunk.
fn put_size(out: &mut BytesMut, size: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for at in (0..digits).rev() {
        let digit = (size >> (at * 4)) & 15;
        out.put_u8(DIGITS.get(digit).copied().unwrap_or(b'0'));
    }
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What leaves, at most `step` bytes at a time.
    fn leave(out: &mut Out, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !out.is_empty() {
            let mut slices = [IoSlice::new(b""); 3];
            let used = out.slices(&mut slices);
            let before = all.len();
            for slice in &slices[..used] {
                let room = before.saturating_add(step) - all.len();
                all.extend_from_slice(&slice[..slice.len().min(room)]);
            }
            out.left(all.len() - before);
        }
        all
    }

    #[test]
    fn bodies_leave_framed_whatever_is_taken_at_once() {
        for size in [1, 9, 4096, 4097, 70_000] {
            let piece = Bytes::from(vec![b'x'; size]);
            for step in [1, 3, 5000, usize::MAX] {
                let mut out = Out::default();
                out.head().put_slice(b"head\r\n\r\n");
                out.body(piece.clone(), true, &mut Framing::Chunked);
                let left = leave(&mut out, step);
                let right =
                    [b"head\r\n\r\n", format!("{size:x}\r\n").as_bytes(), &piece, b"\r\n0\r\n\r\n"].concat();
                assert!(left == right, "{size} by {step}");
            }
        }
    }

    #[test]
    fn an_end_behind_a_piece_that_has_not_left_is_its_end() {
        let mut out = Out::default();
        out.body(Bytes::from(vec![b'x'; 5000]), false, &mut Framing::Chunked);
        out.left(100);
        out.body(Bytes::new(), true, &mut Framing::Chunked);
        assert!(leave(&mut out, 7).ends_with(b"x\r\n0\r\n\r\n"));
    }

    #[test]
    fn a_length_lets_no_more_pass() {
        let mut framing = Framing::Length(5);
        let mut out = Out::default();
        out.body(Bytes::from_static(b"abc"), false, &mut framing);
        out.body(Bytes::from_static(b"defg"), true, &mut framing);
        assert_eq!((leave(&mut out, 2), framing), (b"abcde".to_vec(), Framing::Length(0)));
    }
}
