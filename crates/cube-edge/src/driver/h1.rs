//! One HTTP/1.1 connection: its requests, one after the other.

use std::sync::Arc;

use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;

use super::stream::ClientStream;
use super::{Conn, ConnectionLimits, Driver, ORIGIN, Origin};
use crate::drain::Stage;

impl<A: HttpServerApp + Send + Sync + 'static> Driver<A> {
    pub(super) async fn serve_h1(&self, stream: ClientStream, conn: Arc<Conn>, limits: &ConnectionLimits) {
        self.serve_requests(stream, &conn, limits).await;
        conn.linger().await;
    }

    /// Returns when no further request is taken; the stream is dropped by then.
    async fn serve_requests(&self, stream: ClientStream, conn: &Arc<Conn>, limits: &ConnectionLimits) {
        let shutdown = self.shutdown_watch();
        let mut session = ServerSession::new_http1(Box::new(stream));
        // The stream has the deadline of the first head: no read of it has one of its own.
        session.set_read_timeout(None);
        session.set_keepalive_reuses_remaining(Some(limits.keepalive_requests.saturating_sub(1)));
        // Without it one byte of a next request, sent early, would abort the one before.
        session.set_pipelining_enabled(true);
        let origin = Origin { conn: conn.clone(), kill: None };
        loop {
            let served = tokio::select! {
                served = ORIGIN.scope(origin.clone(), self.app.process_new_http(session, &shutdown)) => served,
                // Said before the request is dropped, and its stream with it.
                () = async { conn.overdue().await; conn.reset_on_close(); } => return,
            };
            let Some((stream, settings)) = served.map(pingora_core::apps::ReusedHttpStream::consume) else {
                return;
            };
            let Ok(mut stream) = stream.into_any().downcast::<ClientStream>() else {
                return;
            };
            stream.next_request();
            // An answer without `Connection: close` promised that the next request will be taken.
            if self.drain.stage() >= Stage::Emptying {
                return;
            }
            session = ServerSession::new_http1(stream as Stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
        }
    }
}
