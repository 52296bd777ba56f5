//! What the response cache has to do with one request.

use std::sync::Arc;

use cube_resolver::{Generation, Revision};

use super::request::CacheDemand;
use super::store::Stored;

/// What the response cache has to do with a request.
#[derive(Default)]
pub(crate) enum CacheUse {
    /// Nothing.
    #[default]
    Not,
    /// It may use it; the key is to be made.
    Asks(CacheDemand),
    /// It has nothing for it; what comes from this life of the sandbox may be kept.
    Missed { keep: bool, life: (Generation, Revision) },
    /// What is stored is the response.
    Hit(Arc<Stored>),
}
