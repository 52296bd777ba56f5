//! One HTTP/1.1 connection: its requests, one after the other.

use std::sync::Arc;

use pingora::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use tokio::time::{sleep, timeout_at};

use super::conn::LAST_WORDS;
use super::stream::ClientStream;
use super::{Conn, ConnectionSettings, DOWNSTREAM, Downstream, Driver};
use crate::drain::Stage;
use crate::exchange::Request;

impl<A: HttpServerApp + Send + Sync + 'static> Driver<A> {
    pub(super) async fn serve_h1(
        &self,
        stream: ClientStream,
        conn: Arc<Conn>,
        settings: &ConnectionSettings,
    ) {
        self.serve_requests(stream, &conn, settings).await;
        tokio::select! {
            () = conn.linger() => {}
            // Nobody's lingering holds up the end of the process.
            () = async { self.drain.reached(Stage::Emptying).await; sleep(LAST_WORDS).await } => {}
        }
    }

    /// Returns when no further request is taken; the stream is dropped by then.
    async fn serve_requests(&self, stream: ClientStream, conn: &Arc<Conn>, settings: &ConnectionSettings) {
        let shutdown = self.shutdown_watch();
        let downstream = Downstream { conn: conn.clone(), kill: None };
        let mut stream = Box::new(stream);
        // The deadline of the first head counts from accept; nobody is answered who has sent nothing.
        match timeout_at(stream.deadline(), stream.waited()).await {
            Ok(true) => {}
            Ok(false) => return stream.close().await,
            Err(_) => return,
        }
        let mut kept: Option<HttpPersistentSettings> = None;
        loop {
            if let Some(exchange) = &self.exchange {
                let Some(length) = stream.whole_head().await else { return };
                let request =
                    Request::read(stream.peek_head(length)).filter(|request| exchange.takes(request));
                if let Some(request) = request {
                    stream.take_head(length);
                    kept = None;
                    let last = conn.requests().saturating_add(1) >= settings.limits.keepalive_requests;
                    // Boxed, so that no connection carries the size of a request for its whole life.
                    let serve = Box::pin(exchange.serve(stream, request, &downstream, last));
                    let served = tokio::select! {
                        biased;
                        served = serve => served,
                        () = async { conn.overdue().await; conn.reset_on_close(); } => return,
                    };
                    let Some(served) = served else { return };
                    stream = served;
                    if !self.waits_for_next(&mut stream).await {
                        return;
                    }
                    continue;
                }
                stream.unread_head();
            }
            let mut session = ServerSession::new_http1(stream as Stream);
            match kept {
                Some(settings) => settings.apply_to_session(&mut session),
                None => {
                    // The stream has the deadline of the first head: no read of it has one of its own.
                    session.set_read_timeout(None);
                    let further =
                        settings.limits.keepalive_requests.saturating_sub(conn.requests().saturating_add(1));
                    session.set_keepalive_reuses_remaining(Some(further));
                    // Without it one byte of a next request, sent early, would abort the one before.
                    session.set_pipelining_enabled(true);
                }
            }
            let served = tokio::select! {
                served = DOWNSTREAM.scope(downstream.clone(), self.app.process_new_http(session, &shutdown)) => served,
                // Said before the request is dropped, and its stream with it.
                () = async { conn.overdue().await; conn.reset_on_close(); } => return,
            };
            let Some((served, settings)) = served.map(ReusedHttpStream::consume) else { return };
            let Ok(served) = served.into_any().downcast::<ClientStream>() else { return };
            stream = served;
            if !self.waits_for_next(&mut stream).await {
                return;
            }
            kept = settings;
        }
    }

    /// Waits until there is something to read of another request; false where none is taken.
    async fn waits_for_next(&self, stream: &mut ClientStream) -> bool {
        let fresh = stream.next_request();
        // A response without `Connection: close` promised that the next request will be taken.
        if self.drain.stage() >= Stage::Emptying {
            return false;
        }
        // Sessions and buffers come to be when there is something to read: an idle connection is a
        // socket and little else.
        if fresh && !stream.waited().await {
            stream.close().await;
            return false;
        }
        true
    }
}
