//! What bounds requests and connections, and what is counted for it.

pub(crate) mod active_requests;
pub(crate) mod descriptors;
pub(crate) mod rate_limit;
pub(crate) mod settings;
pub(crate) mod top_sandboxes;
