//! How an HTTP/2 stream that the proxy gives up looks to its client.
//!
//! The protocol library resets a stream whose task is dropped with `CANCEL`, and leaves no say in
//! it. Node reports no error for that code, so its clients take half an answer for a whole one
//! (errors.md, "When a response is cut"). Every stream that the proxy gives up is cut, so it says
//! `INTERNAL_ERROR`, as other proxies do; `NO_ERROR`, after a whole answer, stays.

use h2::Reason;

const HEAD: usize = 9;
const RST_STREAM: u8 = 3;

/// Follows the frames that are written.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Resets {
    /// The head of the frame that is being written, and how much of it there has been.
    head: [u8; HEAD],
    got: usize,
    /// What is to come of its payload.
    left: usize,
}

impl Resets {
    /// What is to be written in place of `data`; `None`: what it is.
    pub(super) fn in_place_of(mut self, data: &[u8]) -> Option<Vec<u8>> {
        let mut changed: Option<Vec<u8>> = None;
        self.walk(data, |code_ends_at| {
            if let Some(code) = changed.get_or_insert_with(|| data.to_vec()).get_mut(code_ends_at) {
                *code = u32::from(Reason::INTERNAL_ERROR).to_be_bytes()[3];
            }
        });
        changed
    }

    /// `data` has been written, changed or not.
    pub(super) fn written(&mut self, data: &[u8]) {
        self.walk(data, |_| {});
    }

    /// Calls `cancel` with the place of the last byte of each code that is `CANCEL`.
    fn walk(&mut self, data: &[u8], mut cancel: impl FnMut(usize)) {
        let mut at = 0;
        while let Some(rest) = data.get(at..).filter(|rest| !rest.is_empty()) {
            if self.got < HEAD {
                for (to, from) in self.head.iter_mut().skip(self.got).zip(rest) {
                    *to = *from;
                }
                let taken = (HEAD - self.got).min(rest.len());
                self.got += taken;
                at += taken;
                let [a, b, c, ..] = self.head;
                self.left = u32::from_be_bytes([0, a, b, c]) as usize;
            } else {
                let taken = self.left.min(rest.len());
                self.left -= taken;
                at += taken;
                let [_, _, _, kind, ..] = self.head;
                let code = u32::from(Reason::CANCEL).to_be_bytes();
                if self.left == 0 && kind == RST_STREAM && data.get(at - 1) == code.last() {
                    cancel(at - 1);
                }
            }
            if self.got == HEAD && self.left == 0 {
                self.got = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![a, b, c, kind, 0, 0, 0, 0, 5];
        frame.extend_from_slice(payload);
        frame
    }

    /// What a client gets of these frames, written in pieces of that size.
    fn written(frames: &[u8], size: usize) -> Vec<u8> {
        let mut resets = Resets::default();
        let mut out = Vec::new();
        for piece in frames.chunks(size) {
            out.extend(resets.in_place_of(piece).unwrap_or_else(|| piece.to_vec()));
            resets.written(piece);
        }
        out
    }

    #[test]
    fn a_cancelled_stream_says_internal_error_and_nothing_else_changes() {
        let around = |code: u8| {
            let parts = [
                frame(4, &[]),
                frame(0, &[8; 300]),
                frame(RST_STREAM, &[0, 0, 0, code]),
                frame(1, &[0, 0, 0, 8]),
                frame(0, &[0, 0, 0, 8]),
            ];
            parts.concat()
        };
        for size in [1, 4, 9, 13, 100, 1000] {
            assert_eq!(written(&around(8), size), around(2), "pieces of {size}");
            for code in [0, 1, 7, 11] {
                assert_eq!(written(&around(code), size), around(code), "pieces of {size}");
            }
        }
    }

    #[test]
    fn what_has_no_reset_in_it_is_not_copied() {
        assert_eq!(Resets::default().in_place_of(&frame(0, &[8; 100])), None);
    }
}
