//! The opt-in cache of public responses (response-cache.md), on Pingora's cache.
//!
//! [`crate::proxy::cache_filters`] is where Pingora's hooks arrive: may the request use the cache ([`request`]), under
//! which key ([`key`]), may the response be kept ([`cacheability`], [`cache_control`]). [`store`] is the bounded
//! memory, [`miss_handler`] a response on its way into it, [`storage`] both in Pingora's terms.
//!
//! What is not here: waiting for another request that fetches the same response, serving what is
//! stale, asking the sandbox whether a stored response still holds. A response is used while it is
//! fresh; then it is fetched as if there were no cache.

mod cache_control;
pub(crate) mod cache_use;
pub(crate) mod cacheability;
mod fill_memory;
pub(crate) mod key;
pub(crate) mod metrics;
pub(crate) mod miss_handler;
pub(crate) mod request;
pub(crate) mod storage;
pub(crate) mod store;

use std::sync::Arc;

use cube_settings::Size;
use http::HeaderMap;
use prometheus::Registry;

use crate::error::EdgeError;
pub(crate) use cache_use::CacheUse;
use metrics::Metrics;
use store::ResponseStore;

cube_settings::section! {
    /// The `response_cache` section of config.md.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Settings in "response_cache" {
        /// Whether responses are stored at all.
        restart enabled: bool = false,
        /// Bytes that everything stored, and on its way there, may take.
        restart memory: usize as Size = 64 << 20,
        /// Bytes of the body of one stored response, at most.
        restart max_object: usize as Size = 1 << 20,
    }
}

/// What one response on its way may take beside its body, so that it fits.
const HEAD: usize = 64 * 1024;

impl Settings {
    /// Whether a response of `max_object` bytes fits at all.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.max_object.saturating_add(HEAD) <= self.memory / 2
    }
}

/// Whether a response says that no shared cache may keep it: the whole of it, not some of its headers.
pub(crate) fn is_private(headers: &HeaderMap) -> bool {
    cache_control::directives(headers).is_some_and(|directives| {
        directives.iter().any(|directive| {
            directive.name == "no-store" || (directive.name == "private" && directive.argument.is_none())
        })
    })
}

/// The cache of one proxy.
pub(crate) struct ResponseCache {
    pub(crate) store: ResponseStore,
    pub(crate) room: fill_memory::FillMemory,
    /// Bytes of the body of one stored response, at most.
    pub(crate) max_object: usize,
    pub(crate) metrics: Metrics,
}

impl ResponseCache {
    /// An empty cache; its metrics are registered in `registry`.
    pub(crate) fn new(settings: Settings, registry: &Registry) -> Result<Arc<Self>, EdgeError> {
        let metrics = Metrics::new(registry)?;
        // Responses that are still coming in have a part of the memory for themselves, so that any
        // number of them at once stays within the bound: a quarter, or more where one response takes
        // more, but never more than half.
        let one = settings.max_object.saturating_add(HEAD);
        let coming_in = (settings.memory / 4).max(one.min(settings.memory / 2));
        Ok(Arc::new(Self {
            store: ResponseStore::new(settings.memory - coming_in, settings.max_object)?,
            room: fill_memory::FillMemory::new(coming_in),
            max_object: settings.max_object,
            metrics,
        }))
    }

    /// Forgets every response of a sandbox. One that is coming in now is not kept either, where the
    /// sandbox's reading is over by now ([`cube_resolver::RouteEntry::is_invalidated`]).
    pub(crate) fn forget(&self, id: &cube_route::SandboxId) {
        self.show_forgotten(self.store.forget(id));
    }

    /// Forgets the responses of one key.
    pub(crate) fn forget_key(&self, key: &[u8]) {
        self.show_forgotten(self.store.forget_key(key));
    }

    fn show_forgotten(&self, forgotten: u64) {
        if forgotten > 0 {
            self.metrics.forgotten.inc_by(forgotten);
            self.show_size();
        }
    }

    fn show_size(&self) {
        let (responses, bytes) = self.store.size();
        self.metrics.entries.set(i64::try_from(responses).unwrap_or(i64::MAX));
        self.metrics.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}
