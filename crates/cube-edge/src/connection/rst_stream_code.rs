//! The frames that leave on an HTTP/2 connection: how a stream that the proxy gives up looks to its
//! client, and which streams end.
//!
//! The protocol library resets a stream whose task is dropped with `CANCEL`, and leaves no say in
//! it. Node reports no error for that code, so its clients take half a response for a whole one
//! (errors.md, "When a response is cut"). Every stream that the proxy gives up is cut, so it says
//! `INTERNAL_ERROR`, as other proxies do; `NO_ERROR`, after a whole response, stays.

use h2::Reason;

use super::h2_frame::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, RST_STREAM};

/// What a frame that leaves says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SentFrame {
    /// The response on this stream is whole.
    End(u32),
    /// This stream was given up.
    Reset(u32),
}

/// Follows the frames that are written.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FramesOut {
    /// The head of the frame that is being written, and how much of it there has been.
    head: [u8; HEAD],
    got: usize,
    /// What is to come of its payload.
    left: usize,
    /// The frames of headers under way end their stream.
    headers_end: bool,
}

impl FramesOut {
    /// What is to be written in place of `data`; `None`: what it is.
    pub(super) fn in_place_of(mut self, data: &[u8]) -> Option<Vec<u8>> {
        let mut changed: Option<Vec<u8>> = None;
        let cancel = u32::from(Reason::CANCEL).to_be_bytes();
        self.walk(data, |said, end| {
            let code = end - 1;
            if matches!(said, SentFrame::Reset(_))
                && data.get(code) == cancel.last()
                && let Some(code) = changed.get_or_insert_with(|| data.to_vec()).get_mut(code)
            {
                *code = u32::from(Reason::INTERNAL_ERROR).to_be_bytes()[3];
            }
        });
        changed
    }

    /// `data` has been written, changed or not: what it said.
    pub(super) fn written(&mut self, data: &[u8], mut said: impl FnMut(SentFrame)) {
        self.walk(data, |what, _| said(what));
    }

    /// Calls `said` for each frame that says something, with the place where it ends.
    fn walk(&mut self, data: &[u8], mut said: impl FnMut(SentFrame, usize)) {
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
            }
            if self.got == HEAD && self.left == 0 {
                self.got = 0;
                if let Some(what) = self.frame() {
                    said(what, at);
                }
            }
        }
    }

    /// What the frame says that has just ended.
    fn frame(&mut self) -> Option<SentFrame> {
        let [_, _, _, kind, flags, id @ ..] = self.head;
        let stream = u32::from_be_bytes(id) & (u32::MAX >> 1);
        let ends = match kind {
            DATA => flags & END_STREAM > 0,
            HEADERS => {
                self.headers_end = flags & END_STREAM > 0;
                self.headers_end && flags & END_HEADERS > 0
            }
            CONTINUATION => self.headers_end && flags & END_HEADERS > 0,
            RST_STREAM => return Some(SentFrame::Reset(stream)),
            _ => false,
        };
        ends.then_some(SentFrame::End(stream))
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
        let mut follower = FramesOut::default();
        let mut out = Vec::new();
        for piece in frames.chunks(size) {
            out.extend(follower.in_place_of(piece).unwrap_or_else(|| piece.to_vec()));
            follower.written(piece, |_| {});
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
        assert_eq!(FramesOut::default().in_place_of(&frame(0, &[8; 100])), None);
    }

    #[test]
    fn the_ends_of_streams_are_seen_wherever_the_writes_cut() {
        let with_flags = |flags: u8, mut frame: Vec<u8>| {
            frame[4] = flags;
            frame
        };
        let parts = [
            with_flags(END_STREAM, frame(4, &[])),
            with_flags(END_HEADERS, frame(HEADERS, b"head")),
            frame(DATA, &[8; 100]),
            with_flags(END_STREAM, frame(DATA, &[])),
            with_flags(END_STREAM, frame(HEADERS, b"half")),
            with_flags(END_HEADERS, frame(CONTINUATION, b"other half")),
            frame(RST_STREAM, &[0, 0, 0, 0]),
        ];
        let bytes = parts.concat();
        for size in [1, 4, 9, 13, 100, 1000] {
            let mut frames = FramesOut::default();
            let mut said = Vec::new();
            bytes.chunks(size).for_each(|piece| frames.written(piece, |what| said.push(what)));
            assert_eq!(said, [SentFrame::End(5), SentFrame::End(5), SentFrame::Reset(5)], "pieces of {size}");
        }
    }
}
