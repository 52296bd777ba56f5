//! The running server.

use std::sync::Arc;

use cube_metadata::MetadataStore;

use crate::config::Config;
use crate::error::StartError;

/// What the command line says about how to serve.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {}

/// Serves until the process is asked to end.
///
/// `store` replaces the one that the configuration names.
///
/// # Errors
/// [`StartError`] when it cannot start.
pub fn serve(
    config: Config,
    store: Option<Arc<dyn MetadataStore>>,
    options: ServeOptions,
) -> Result<(), StartError> {
    let _ = (config, store, options);
    Err(StartError::Engine("not built yet".into()))
}
