//! The cache in Pingora's terms.
//!
//! Pingora wants a storage that lives for ever. This one holds nothing: which cache is meant,
//! and what it has, comes with each request's key, so that a proxy's cache goes with the proxy.

use std::any::Any;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use cube_resolver::RouteEntry;
use pingora::cache::key::CacheKey;
use pingora::cache::storage::{HandleHit, HitHandler, MissHandler, PurgeOutcome, PurgeTarget, PurgeType};
use pingora::cache::trace::SpanHandle;
use pingora::cache::{CacheMeta, Storage};
use pingora::{Error, ErrorType, Result};

use super::ResponseCache;
use super::miss_handler::{Filling, Plan};
use super::store::Stored;

/// Pieces in which a stored body is written: between two of them a kill is noticed, and a slow
/// client is given time for each.
const PIECE: usize = 64 * 1024;

/// What the key of a request carries beside its text, since [`ResponseStorage`] has nothing of its own: the
/// cache that is meant, the sandbox's entry, and the stored response that was found.
#[derive(Clone)]
pub(crate) struct KeyExtension {
    pub(crate) cache: Arc<ResponseCache>,
    pub(crate) entry: Arc<RouteEntry>,
    pub(crate) found: Option<Arc<Stored>>,
}

/// Pingora's storage, which holds nothing: see the module.
pub(crate) struct ResponseStorage;

/// The one storage of the process; Pingora wants a reference that lives for ever.
pub(crate) static STORAGE: ResponseStorage = ResponseStorage;

/// What Pingora is to know of a response: it asks us, not this, how fresh it is.
pub(crate) fn meta(head: pingora::http::ResponseHeader) -> CacheMeta {
    let now = SystemTime::now();
    CacheMeta::new(now, now, 0, 0, head)
}

#[async_trait]
impl Storage for ResponseStorage {
    async fn lookup(
        &'static self,
        key: &CacheKey,
        _trace: &SpanHandle,
    ) -> Result<Option<(CacheMeta, HitHandler)>> {
        let found = key.extensions.get::<KeyExtension>().and_then(|ticket| ticket.found.as_ref());
        Ok(found.map(|stored| -> (CacheMeta, HitHandler) {
            (meta(stored.head.clone()), Box::new(Hit(stored.body.clone())))
        }))
    }

    async fn get_miss_handler(
        &'static self,
        key: &CacheKey,
        meta: &CacheMeta,
        _trace: &SpanHandle,
    ) -> Result<MissHandler> {
        let (Some(ticket), Some(plan)) =
            (key.extensions.get::<KeyExtension>().cloned(), meta.extensions().get::<Plan>().cloned())
        else {
            return Error::e_explain(ErrorType::InternalError, "a response that nothing is known about");
        };
        let head = meta.response_header();
        Ok(Box::new(Filling::new(ticket.cache, ticket.entry, key.primary_key(), plan, head)?))
    }

    /// Nobody purges: responses are forgotten by sandbox, and dropped for others.
    async fn purge(
        &'static self,
        _target: PurgeTarget<'_>,
        _type: PurgeType,
        _trace: &SpanHandle,
    ) -> Result<PurgeOutcome> {
        Ok(PurgeOutcome::NotFound)
    }

    /// Nothing is asked for again to hold longer.
    async fn update_meta(&'static self, _: &CacheKey, _: &CacheMeta, _: &SpanHandle) -> Result<bool> {
        Ok(false)
    }

    fn as_any(&self) -> &(dyn Any + Send + Sync + 'static) {
        self
    }
}

/// What is left to be read of a stored body.
struct Hit(Bytes);

#[async_trait]
impl HandleHit for Hit {
    async fn read_body(&mut self) -> Result<Option<Bytes>> {
        let piece = self.0.split_to(self.0.len().min(PIECE));
        Ok((!piece.is_empty()).then_some(piece))
    }

    async fn finish(
        self: Box<Self>,
        _storage: &'static (dyn Storage + Sync),
        _key: &CacheKey,
        _trace: &SpanHandle,
    ) -> Result<()> {
        Ok(())
    }

    fn as_any(&self) -> &(dyn Any + Send + Sync) {
        self
    }

    fn as_any_mut(&mut self) -> &mut (dyn Any + Send + Sync) {
        self
    }
}
