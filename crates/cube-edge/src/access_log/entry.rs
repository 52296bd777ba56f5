//! One line's values between the request and the log's thread: numbers as they are, texts packed
//! into the batch's buffer.

use super::fields::{TEXTS, Texts};
use super::values::{LineValues, UpstreamTry};

/// How many attempts at an upstream a line lists.
pub(super) const TRIES: usize = 4;

/// What one line says.
#[derive(Debug, Clone)]
pub struct LogEntry<'a> {
    /// The texts of the request.
    pub texts: Texts<'a>,
    /// What is known of it beside.
    pub values: LineValues,
    /// Each attempt at an upstream, in order. Of more than four the first three and the last are listed.
    pub upstreams: &'a [UpstreamTry],
}

/// One line as it waits in the queue; its texts lie in the queue's buffer.
#[derive(Debug, Clone)]
pub(super) struct QueuedEntry {
    pub(super) values: LineValues,
    pub(super) upstreams: [Option<UpstreamTry>; TRIES],
    lengths: [u32; TEXTS],
}

impl QueuedEntry {
    /// Copies `entry`: its texts to the end of `buffer`, if it stays within `limit` bytes.
    pub(super) fn pack(entry: &LogEntry<'_>, buffer: &mut Vec<u8>, limit: usize) -> Option<Self> {
        let texts = entry.texts.packed();
        let size: usize = texts.iter().map(|text| text.len()).sum();
        if buffer.len().saturating_add(size) > limit {
            return None;
        }
        for text in texts {
            buffer.extend_from_slice(text);
        }
        let mut upstreams = [None; TRIES];
        for (slot, attempt) in upstreams.iter_mut().zip(entry.upstreams) {
            *slot = Some(*attempt);
        }
        if let (Some(slot), [.., last]) = (upstreams.last_mut(), entry.upstreams)
            && entry.upstreams.len() > TRIES
        {
            *slot = Some(*last);
        }
        Some(Self {
            values: entry.values.clone(),
            upstreams,
            // `limit` is far below what a u32 holds.
            lengths: texts.map(|text| u32::try_from(text.len()).unwrap_or(u32::MAX)),
        })
    }

    /// Bytes of all texts.
    pub(super) fn size(&self) -> usize {
        self.lengths.iter().map(|length| *length as usize).sum()
    }

    /// The texts out of this entry's part of the buffer.
    pub(super) fn texts<'a>(&self, packed: &'a [u8]) -> Texts<'a> {
        Texts::unpack(packed, &self.lengths)
    }
}
