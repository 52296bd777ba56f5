//! One HTTP/1.1 connection: its requests, one after the other.

use std::fmt::Write;
use std::sync::Arc;

use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use tokio::time::{sleep, timeout_at};

use super::conn::LAST_WORDS;
use super::stream::ClientStream;
use super::{Conn, ConnectionLimits, Driver, ORIGIN, Origin};
use crate::drain::Stage;

impl<A: HttpServerApp + Send + Sync + 'static> Driver<A> {
    pub(super) async fn serve_h1(&self, stream: ClientStream, conn: Arc<Conn>, limits: &ConnectionLimits) {
        self.serve_requests(stream, &conn, limits).await;
        tokio::select! {
            () = conn.linger() => {}
            // Nobody's lingering holds up the end of the process.
            () = async { self.drain.reached(Stage::Emptying).await; sleep(LAST_WORDS).await } => {}
        }
    }

    /// Returns when no further request is taken; the stream is dropped by then.
    async fn serve_requests(&self, stream: ClientStream, conn: &Arc<Conn>, limits: &ConnectionLimits) {
        let shutdown = self.shutdown_watch();
        let origin = Origin { conn: conn.clone(), kill: None };
        let mut stream = Box::new(stream);
        // The deadline of the first head counts from accept; nobody is answered who has sent nothing.
        match timeout_at(stream.deadline(), stream.waited()).await {
            Ok(true) => {}
            Ok(false) => return stream.close().await,
            Err(_) => return,
        }
        let mut kept: Option<HttpPersistentSettings> = None;
        loop {
            let mut session = ServerSession::new_http1(stream as Stream);
            match kept {
                Some(settings) => settings.apply_to_session(&mut session),
                None => {
                    // The stream has the deadline of the first head: no read of it has one of its own.
                    session.set_read_timeout(None);
                    let further = limits.keepalive_requests.saturating_sub(1);
                    session.set_keepalive_reuses_remaining(Some(further));
                    // Without it one byte of a next request, sent early, would abort the one before.
                    session.set_pipelining_enabled(true);
                }
            }
            let served = tokio::select! {
                served = ORIGIN.scope(origin.clone(), self.app.process_new_http(session, &shutdown)) => served,
                // Said before the request is dropped, and its stream with it.
                () = async { conn.overdue().await; conn.reset_on_close(); } => return,
            };
            let Some((served, settings)) = served.map(ReusedHttpStream::consume) else { return };
            let Ok(served) = served.into_any().downcast::<ClientStream>() else { return };
            stream = served;
            let fresh = stream.ends_with_head() || !settings.as_ref().is_some_and(has_prefix);
            stream.next_request(fresh);
            // An answer without `Connection: close` promised that the next request will be taken.
            if self.drain.stage() >= Stage::Emptying {
                return;
            }
            // The engine's session with its buffers comes to be when there is something to read: an
            // idle connection is a socket and little else.
            if fresh && !stream.waited().await {
                return stream.close().await;
            }
            kept = settings;
        }
    }
}

/// Whether bytes of the next request came in with this one. The engine keeps them to itself, and only
/// its debug text tells; whatever else that says counts as yes, and the engine waits as it used to.
/// Not for every request: [`ClientStream::ends_with_head`] is cheaper.
fn has_prefix(settings: &HttpPersistentSettings) -> bool {
    struct Looks {
        at_prefix: bool,
        none: bool,
    }
    impl Write for Looks {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            if self.at_prefix && text != ": " {
                self.none = text == "None";
                return Err(std::fmt::Error); // the rest is of no interest
            }
            self.at_prefix |= text == "pipelined_prefix";
            Ok(())
        }
    }
    let mut looks = Looks { at_prefix: false, none: false };
    let _ = write!(looks, "{settings:?}");
    !looks.none
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn bytes_of_a_next_request_are_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let session =
            ServerSession::new_http1(Box::new(pingora_core::protocols::l4::stream::Stream::from(tcp)));
        let mut settings = HttpPersistentSettings::for_session(&session);
        assert!(!has_prefix(&settings));
        settings.set_pipelined_prefix(BytesMut::from("G"));
        assert!(has_prefix(&settings));
    }
}
