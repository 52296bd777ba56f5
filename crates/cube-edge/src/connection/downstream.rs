//! Where a request came from, for the task that serves it.

use std::sync::Arc;

use super::conn::Conn;
use super::kill::Kill;

/// What a request's task knows of where the request came from.
#[derive(Clone)]
pub(crate) struct Downstream {
    pub(crate) conn: Arc<Conn>,
    /// HTTP/2 only: an HTTP/1.1 request is ended through its connection.
    pub(crate) kill: Option<Arc<Kill>>,
}

tokio::task_local! {
    /// Pingora makes a request's context without saying for whom; this says it.
    pub(crate) static DOWNSTREAM: Downstream;
}
