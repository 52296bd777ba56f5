//! Which HTTP/2 streams a client opens and gives up, told from its bytes.
//!
//! Pingora looks for a reset only where it reads or writes the client's side of a stream; one
//! whose upload is stuck on the way to its upstream goes on for as long as the upstream likes. And
//! it does not say which stream a request came on. So the frames are watched on their way in: the
//! bytes after a head are held back until the request that it opens has been taken, which tells
//! whose number it is, and a reset is said to the driver.
//!
//! Requests that are opened only to be reset are a known attack; the protocol library bounds those
//! that are reset before they were taken, which do not happen here any more. So they are bounded
//! here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::h2_frame::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM};
use super::kill::Kill;
use super::unsent::OpenStreams;

const PREFACE: usize = 24;
/// The bytes of a frame's head before the one that says its kind.
const KIND: usize = 3;

/// What happened in a client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameEvent {
    /// The head of a request has come in whole.
    Opened {
        stream: u32,
        /// It has no body.
        ends: bool,
    },
    /// The body of a request has come in whole.
    Ended(u32),
    /// A stream was given up.
    Reset(u32),
}

/// A block of headers that is coming in.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// The frame under way is its last.
    last: bool,
    /// No body follows these headers.
    ends: bool,
}

/// A head that has not come in whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coming {
    /// Which one it is, by a number that no other one nearby has.
    pub(super) which: u32,
    /// It is the head of a request. Else it may turn out to be another frame: too little of it has
    /// come to tell, nothing is held for it, and a pause within it ends nothing.
    pub(super) certain: bool,
}

/// Follows frames across reads. What is no HTTP/2 is left to Pingora, which ends it.
struct FrameReader {
    /// Bytes of the preface, then of a frame's payload, that are still to come.
    skip: usize,
    head: [u8; 9],
    /// How many bytes of a frame's head have come.
    have: usize,
    /// The highest stream that was opened.
    last: u32,
    block: Option<Block>,
    /// Blocks and other frames that have begun so far.
    begun: u32,
    /// Said when `skip` is over.
    then: Option<FrameEvent>,
}

impl FrameReader {
    fn new() -> Self {
        Self { skip: PREFACE, head: [0; 9], have: 0, last: 0, block: None, begun: 0, then: None }
    }

    /// Follows the bytes up to the next event; how many were followed.
    fn follow(&mut self, bytes: &[u8]) -> (usize, Option<FrameEvent>) {
        let mut at = 0;
        loop {
            let left = bytes.len() - at;
            let skipped = self.skip.min(left);
            self.skip -= skipped;
            at += skipped;
            if self.skip > 0 {
                return (at, None);
            }
            if self.have == 0 && self.block.is_some_and(|block| block.last) {
                self.block = None;
            }
            if let Some(event) = self.then.take() {
                return (at, Some(event));
            }
            let Some(byte) = bytes.get(at) else { return (at, None) };
            if self.have == 0 && self.block.is_none() {
                self.begun = self.begun.wrapping_add(1);
            }
            if let Some(place) = self.head.get_mut(self.have) {
                *place = *byte;
            }
            at += 1;
            self.have += 1;
            if self.have == self.head.len() {
                self.have = 0;
                self.frame();
            }
        }
    }

    /// The head of a frame is whole.
    fn frame(&mut self) {
        let [a, b, c, kind, flags, id @ ..] = self.head;
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let stream = u32::from_be_bytes(id) & (u32::MAX >> 1);
        match kind {
            HEADERS | CONTINUATION => {
                let last = flags & END_HEADERS > 0;
                let ends = match self.block {
                    Some(block) if kind == CONTINUATION => block.ends,
                    _ => flags & END_STREAM > 0,
                };
                self.block = Some(Block { last, ends });
                if last && stream > self.last {
                    self.last = stream;
                    self.then = Some(FrameEvent::Opened { stream, ends });
                } else if last && ends {
                    self.then = Some(FrameEvent::Ended(stream));
                }
            }
            DATA if flags & END_STREAM > 0 => self.then = Some(FrameEvent::Ended(stream)),
            RST_STREAM => self.then = Some(FrameEvent::Reset(stream)),
            _ => {}
        }
    }

    /// Whether what has come in ends within the head of a request, or within a frame that may be one.
    fn within_head(&self) -> Option<Coming> {
        let [_, _, _, kind, ..] = self.head;
        let certain = match self.have {
            _ if self.block.is_some() => true,
            0 => return None,
            1..=KIND => false,
            _ if matches!(kind, HEADERS | CONTINUATION) => true,
            _ => return None,
        };
        Some(Coming { which: self.begun, certain })
    }
}

/// Resets that a client may send beyond those that are given back to it: one for each stream that
/// ends otherwise, and some a second.
const RESETS: u32 = 1000;
const RESETS_A_SECOND: u32 = 100;

/// A connection's streams by number, between its bytes and the loop that takes requests.
pub(super) struct StreamNumbers {
    /// The stream whose head came last and that was not taken yet; 0: none.
    opened: AtomicU32,
    streams: Mutex<TakenStreams>,
    flooded: Kill,
}

/// The streams that were taken, and how many resets are left.
struct TakenStreams {
    streams: Vec<(u32, Arc<Kill>)>,
    resets: u32,
    since: Instant,
}

impl StreamNumbers {
    /// The request that Pingora has just made of the bytes: `left` is told when its client
    /// gives it up.
    pub(super) fn take(self: &Arc<Self>, left: Arc<Kill>) -> StreamNumber {
        let stream = self.opened.swap(0, Ordering::AcqRel);
        self.streams.lock().streams.push((stream, left));
        StreamNumber { all: self.clone(), stream }
    }

    /// Returns when the client has sent more resets than anyone needs.
    pub(super) async fn flooded(&self) {
        self.flooded.killed().await;
    }

    /// Pingora looks at the bytes anew: what it has not made a request of by now it has refused.
    pub(super) fn turn(&self) {
        self.opened.store(0, Ordering::Release);
    }

    fn reset(&self, stream: u32) {
        let mut taken = self.streams.lock();
        let seconds = u32::try_from(taken.since.elapsed().as_secs()).unwrap_or(u32::MAX);
        if seconds > 0 {
            taken.resets = taken.resets.saturating_add(seconds.saturating_mul(RESETS_A_SECOND)).min(RESETS);
            taken.since = Instant::now();
        }
        match taken.resets.checked_sub(1) {
            Some(left) => taken.resets = left,
            None => self.flooded.kill(),
        }
        for (_, left) in taken.streams.iter().filter(|(taken, _)| *taken == stream) {
            left.kill();
        }
    }
}

impl Default for StreamNumbers {
    fn default() -> Self {
        Self {
            opened: AtomicU32::new(0),
            streams: Mutex::new(TakenStreams { streams: Vec::new(), resets: RESETS, since: Instant::now() }),
            flooded: Kill::default(),
        }
    }
}

/// A stream's place among those of its connection, given back when dropped.
pub(super) struct StreamNumber {
    all: Arc<StreamNumbers>,
    stream: u32,
}

impl Drop for StreamNumber {
    fn drop(&mut self) {
        let mut taken = self.all.streams.lock();
        if let Some(at) = taken.streams.iter().position(|(stream, _)| *stream == self.stream) {
            let (_, left) = taken.streams.swap_remove(at);
            if !left.is_killed() {
                taken.resets = (taken.resets + 1).min(RESETS);
            }
        }
    }
}

/// The client's side of the watch.
pub(super) struct FrameWatch {
    reader: FrameReader,
    numbers: Arc<StreamNumbers>,
    /// Reading has been put off for the request that waits to be taken.
    put_off: bool,
}

impl FrameWatch {
    pub(super) fn new(numbers: Arc<StreamNumbers>) -> Self {
        Self { reader: FrameReader::new(), numbers, put_off: false }
    }

    /// Whether a request waits to be taken, so that reading is put off, once: in the next turn it
    /// was taken or refused.
    pub(super) fn waits(&mut self) -> bool {
        self.put_off = self.numbers.opened.load(Ordering::Acquire) != 0 && !self.put_off;
        self.put_off
    }

    /// Whether what has come in ends within the head of a request, or within a frame that may be one.
    pub(super) fn within_head(&self) -> Option<Coming> {
        self.reader.within_head()
    }

    /// Follows bytes that are about to be handed on; how many of them may be. Keeps `open` up to
    /// date.
    pub(super) fn follow(&mut self, bytes: &[u8], open: &mut OpenStreams) -> usize {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let (followed, event) = self.reader.follow(rest);
            at += followed;
            match event {
                Some(FrameEvent::Opened { stream, ends }) => {
                    open.opened(stream, ends);
                    self.numbers.opened.store(stream, Ordering::Release);
                    return at;
                }
                Some(FrameEvent::Ended(stream)) => open.request_ended(stream),
                Some(FrameEvent::Reset(stream)) => {
                    open.reset(stream);
                    self.numbers.reset(stream);
                }
                None => {}
            }
        }
        at
    }
}

#[cfg(test)]
mod tests;
