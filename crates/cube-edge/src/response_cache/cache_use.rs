//! What the response cache has to do with one request.

use std::sync::Arc;

use cube_resolver::{Generation, Revision};

use super::request::CacheDemand;
use super::store::Stored;

/// What the response cache has to do with a request.
#[derive(Default)]
pub(crate) enum CacheUse {
    /// The cache has nothing to do with the request.
    #[default]
    Not,
    /// The request may use the cache, in this way; its key is still to be made.
    Asks(CacheDemand),
    /// Nothing that is stored will do. With `keep`, the response may be stored where it comes from this life of
    /// the sandbox.
    Missed { keep: bool, life: (Generation, Revision) },
    /// What is stored is the response.
    Hit(Arc<Stored>),
}
