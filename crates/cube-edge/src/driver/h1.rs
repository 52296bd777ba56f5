//! One HTTP/1.1 connection: its requests, one after the other.

use std::fmt::Write;
use std::sync::Arc;

use bytes::BytesMut;
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
            let Some((served, mut settings)) = served.map(ReusedHttpStream::consume) else { return };
            let Ok(served) = served.into_any().downcast::<ClientStream>() else { return };
            stream = served;
            let ahead = match &settings {
                Some(settings) if !stream.ends_with_head() => Ahead::of(settings),
                _ => Ahead::Nothing,
            };
            if let (Ahead::EmptyLines { .. }, Some(settings)) = (ahead, &mut settings) {
                settings.set_pipelined_prefix(BytesMut::new());
            }
            let fresh = ahead != Ahead::Bytes;
            match ahead {
                Ahead::EmptyLines { cut: true } => stream.next_request_in_empty_line(),
                _ => stream.next_request(fresh),
            }
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

/// What came in of the next request with this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ahead {
    Nothing,
    /// Empty lines, which are ignored (RFC 9112, 2.2); `cut`: the last without its line feed.
    EmptyLines {
        cut: bool,
    },
    Bytes,
}

impl Ahead {
    /// The engine keeps those bytes to itself, and only its debug text tells; whatever else that says
    /// counts as bytes, and the engine waits as it used to. Not for every request:
    /// [`ClientStream::ends_with_head`] is cheaper.
    fn of(settings: &HttpPersistentSettings) -> Self {
        let mut looks = Looks::default();
        let _ = write!(looks, "{settings:?}"); // ends with an error when enough is known
        let text = looks.text.strip_prefix(": ").unwrap_or(&looks.text);
        if text.starts_with("None") {
            return Ahead::Nothing;
        }
        let Some(mut rest) = text.strip_prefix("Some(b\"") else { return Ahead::Bytes };
        while let Some(next) = rest.strip_prefix("\\r\\n").or_else(|| rest.strip_prefix("\\n")) {
            rest = next;
        }
        match rest.strip_prefix("\\r") {
            Some(rest) if rest.starts_with('"') => Ahead::EmptyLines { cut: true },
            None if rest.starts_with('"') => Ahead::EmptyLines { cut: false },
            _ => Ahead::Bytes,
        }
    }
}

/// The debug text of the bytes ahead, as far as it matters.
#[derive(Default)]
struct Looks {
    at_prefix: bool,
    text: String,
}

impl Looks {
    /// Some empty lines; who sends more of them is about to send a request.
    const ENOUGH: usize = 64;
}

impl Write for Looks {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.at_prefix {
            self.text.push_str(text);
            if self.text.len() > Self::ENOUGH || self.text.starts_with(": None") {
                return Err(std::fmt::Error); // the rest is of no interest
            }
        }
        self.at_prefix |= text == "pipelined_prefix";
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn bytes_of_a_next_request_are_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let session =
            ServerSession::new_http1(Box::new(pingora_core::protocols::l4::stream::Stream::from(tcp)));
        let mut settings = HttpPersistentSettings::for_session(&session);
        assert_eq!(Ahead::of(&settings), Ahead::Nothing);
        for (bytes, ahead) in [
            ("G", Ahead::Bytes),
            ("\r\nG", Ahead::Bytes),
            ("\rG", Ahead::Bytes),
            ("\r\n", Ahead::EmptyLines { cut: false }),
            ("\n\r\n", Ahead::EmptyLines { cut: false }),
            ("\r", Ahead::EmptyLines { cut: true }),
            ("\r\n\r", Ahead::EmptyLines { cut: true }),
        ] {
            settings.set_pipelined_prefix(BytesMut::from(bytes));
            assert_eq!(Ahead::of(&settings), ahead, "{bytes:?}");
        }
        settings.set_pipelined_prefix(BytesMut::from(&"\r\n".repeat(1000)[..]));
        assert_eq!(Ahead::of(&settings), Ahead::Bytes);
    }
}
