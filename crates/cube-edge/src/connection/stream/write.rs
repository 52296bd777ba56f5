//! What Pingora writes to a client: our response in place of its own refusals, a head and the first piece of
//! its body in one write, frames as `RST_STREAM` has to say them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::ClientStream;
use crate::connection::ConnectionPhase;
use crate::connection::head_watch;

/// The most that is copied to join a response's head and the first piece of its body.
const JOIN: usize = 16 * 1024;

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let Self { io, frames, .. } = &mut *self;
        if let Some(frames) = frames {
            let changed = frames.in_place_of(data);
            let sent = ready!(io.poll_write(cx, changed.as_deref().unwrap_or(data)))?;
            frames.left(data.get(..sent).unwrap_or(data));
            return Poll::Ready(Ok(sent));
        }
        if self.refusing {
            return Poll::Ready(Ok(data.len()));
        }
        if self.conn.phase() != ConnectionPhase::Open {
            // No request came to be, so this is Pingora's own refusal of one: ours says more.
            self.refusing = true;
            let status = data
                .get(9..12)
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| digits.parse().ok())
                .unwrap_or(400);
            let status = if status == 400 { self.head.why_refused() } else { status };
            let response = self.conn.refusal(status);
            self.conn.linger_on_close();
            self.held.extend_from_slice(&response);
            return Poll::Ready(Ok(data.len()));
        }
        if self.conn.take_nominate_upgrade() {
            self.conn.take_join_head();
            self.held.extend_from_slice(&head_watch::nominating_upgrade(data));
            if let Poll::Ready(Err(error)) = self.poll_held(cx) {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(data.len()));
        }
        if self.held.is_empty() {
            if data.len() <= JOIN && self.conn.take_join_head() {
                self.held.extend_from_slice(data);
                return Poll::Ready(Ok(data.len()));
            }
            return self.io.poll_write(cx, data);
        }
        if self.held.len() + data.len() <= JOIN {
            // Written at once below, so that nothing waits for a flush that may not come. What
            // the socket does not take now goes out with the next write, flush or read.
            self.held.extend_from_slice(data);
            if let Poll::Ready(Err(error)) = self.poll_held(cx) {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(data.len()));
        }
        ready!(self.poll_held(cx))?;
        self.io.poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        ready!(self.io.poll_flush(cx))?;
        if let Some(frames) = &self.frames {
            frames.flushed();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        self.io.poll_shutdown(cx)
    }
}
