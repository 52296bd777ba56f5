//! A response on its way into the cache, while it streams to its client.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use cube_resolver::RouteEntry;
use http::{HeaderValue, header};
use pingora::cache::storage::{HandleMiss, MissFinishType};
use pingora::http::ResponseHeader;
use pingora::{ErrorType, OrErr, Result};

use super::ResponseCache;
use super::cacheability::{Freshness, Selecting, Storable};
use super::metrics::Fill;
use super::store::{StoreOutcome, Stored};

/// What a body grows by, at least.
const STEP: usize = 4096;

/// A part of the memory for responses on their way into the cache; given back when it is dropped.
pub(crate) struct ReservedRoom {
    cache: Arc<ResponseCache>,
    bytes: usize,
}

impl ReservedRoom {
    /// So many bytes, if there is room for them.
    pub(crate) fn new(cache: &Arc<ResponseCache>, bytes: usize) -> Option<Self> {
        cache.room.take(bytes).then(|| Self { cache: cache.clone(), bytes })
    }

    /// As many as that in all; whether there was room.
    fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let grown = self.cache.room.take(more);
        if grown {
            self.bytes += more;
        }
        grown
    }
}

impl Drop for ReservedRoom {
    fn drop(&mut self) {
        self.cache.room.give_back(self.bytes);
    }
}

/// What is known of a response from its head on.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) storable: Storable,
    pub(crate) selecting: Arc<Selecting>,
    pub(crate) came: Instant,
    /// For the copies of the head, which live as long as this does.
    pub(crate) _head: Arc<ReservedRoom>,
}

/// A response that is being stored: what has come of it so far.
pub(crate) struct Filling {
    cache: Arc<ResponseCache>,
    entry: Arc<RouteEntry>,
    key: Vec<u8>,
    plan: Plan,
    head: ResponseHeader,
    /// Room for the body is taken before it is allocated.
    body: Vec<u8>,
    taken: ReservedRoom,
    /// What became of it; none: it is still coming in.
    over: Option<Fill>,
}

impl Filling {
    pub(crate) fn new(
        cache: Arc<ResponseCache>,
        entry: Arc<RouteEntry>,
        key: &[u8],
        plan: Plan,
        head: &ResponseHeader,
    ) -> Result<Self> {
        let head = own(head)?;
        let taken = ReservedRoom { cache: cache.clone(), bytes: 0 };
        let mut filling =
            Self { cache, entry, key: key.to_vec(), plan, head, body: Vec::new(), taken, over: None };
        if let Some(length) = filling.plan.storable.length {
            filling.grow_to(length);
        }
        Ok(filling)
    }

    fn take(&mut self, piece: &[u8]) {
        if self.over.is_some() {
            return;
        }
        let length = self.body.len() + piece.len();
        if length > self.cache.max_object {
            return self.give_up(Fill::TooLarge);
        }
        if length > self.taken.bytes {
            self.grow_to((2 * self.taken.bytes).max(length).max(STEP).min(self.cache.max_object));
        }
        if self.over.is_none() {
            self.body.extend_from_slice(piece);
        }
    }

    fn grow_to(&mut self, bytes: usize) {
        if !self.taken.grow_to(bytes) {
            return self.give_up(Fill::NoRoom);
        }
        self.body.reserve_exact(bytes - self.body.len());
    }

    fn give_up(&mut self, outcome: Fill) {
        self.over = Some(outcome);
        self.body = Vec::new();
        self.taken = ReservedRoom { cache: self.cache.clone(), bytes: 0 };
    }

    /// The body has come to its end.
    fn keep(&mut self) -> Fill {
        let length = self.body.len();
        if self.plan.storable.length.is_some_and(|said| said != length) {
            return Fill::Cut;
        }
        self.head.remove_header(&header::TRANSFER_ENCODING);
        if self.head.insert_header(header::CONTENT_LENGTH, length).is_err() {
            return Fill::Cut;
        }
        let stored = Stored {
            head: self.head.clone(),
            // A boxed slice has no room to spare.
            body: Bytes::from(std::mem::take(&mut self.body).into_boxed_slice()),
            freshness: Freshness::new(&self.plan.storable, self.plan.came),
            selecting: self.plan.selecting.clone(),
        };
        let entry = &self.entry;
        match self.cache.store.keep(&entry.id, &self.key, stored, || !entry.is_invalidated()) {
            StoreOutcome::Stored { evicted } => {
                self.cache.metrics.evicted.inc_by(evicted);
                self.cache.show_size();
                Fill::Stored
            }
            StoreOutcome::TooLarge => Fill::TooLarge,
            StoreOutcome::Outdated => Fill::Outdated,
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        // Dropped before its end: the response was cut, or its client has left.
        self.cache.metrics.filled(self.over.unwrap_or(Fill::Cut));
    }
}

#[async_trait]
impl HandleMiss for Filling {
    async fn write_body(&mut self, data: Bytes, _end: bool) -> Result<()> {
        self.take(&data);
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<MissFinishType> {
        let length = self.body.len();
        if self.over.is_none() {
            self.over = Some(self.keep());
        }
        Ok(MissFinishType::Created(length))
    }
}

/// A copy that keeps none of the buffers that the head was read into, which are larger than it.
fn own(head: &ResponseHeader) -> Result<ResponseHeader> {
    let mut own = ResponseHeader::build(head.status, Some(head.headers.len()))?;
    own.set_reason_phrase(head.get_reason_phrase())?;
    let copied = |value: &HeaderValue| {
        HeaderValue::from_bytes(value.as_bytes()).or_err(ErrorType::InvalidHTTPHeader, "copying a head")
    };
    // Names as they were written; HTTP/2 has no case to keep.
    for (name, value) in head.case_header_iter() {
        own.append_header(Bytes::copy_from_slice(name.as_slice()), copied(value)?)?;
    }
    if !head.has_case() {
        for (name, value) in &head.headers {
            own.append_header(name, copied(value)?)?;
        }
    }
    Ok(own)
}
