//! The heads of HTTP/1.1 requests: read for Pingora or left for [`crate::exchange`], each within its time and its
//! limits.

use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::ReadBuf;
use tokio::time::Instant;

use super::ClientStream;
use crate::connection::ConnectionPhase;

/// A CR before a request that ends no line.
struct BareReturn;

impl ClientStream {
    /// Reads until the whole head of a request is there, and leaves it where it is; how long it is. None
    /// where the connection has ended, or ended with a refusal.
    pub(in crate::connection) async fn whole_head(&mut self) -> Option<usize> {
        let mut looked = 0;
        poll_fn(|cx| self.poll_whole_head(cx, &mut looked)).await.ok().flatten()
    }

    fn poll_whole_head(
        &mut self,
        cx: &mut Context<'_>,
        looked: &mut usize,
    ) -> Poll<io::Result<Option<usize>>> {
        loop {
            if let Some(length) = self.look(cx, looked)? {
                return Poll::Ready(Ok(Some(length)));
            }
            match self.io.poll_fill(cx, &mut self.ahead) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(None)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_overdue(cx).map(Err),
            }
        }
    }

    /// Looks at what has come in of a head since the last time; its length where it is whole.
    fn look(&mut self, cx: &mut Context<'_>, looked: &mut usize) -> io::Result<Option<usize>> {
        let mut ahead = std::mem::take(&mut self.ahead.bytes);
        let Some(empty) = self.head.empty_lines(ahead.get(*looked..).unwrap_or_default()) else {
            return Err(self.refuse(cx, 400));
        };
        ahead.advance(empty);
        let came = ahead.get(*looked..).unwrap_or_default();
        if came.is_empty() {
            self.ahead.bytes = ahead;
            return Ok(None);
        }
        self.begin_head(cx)?;
        let end = self.head.end_in(came);
        let part = came.get(..end.unwrap_or(came.len())).unwrap_or_default();
        if let Some(line) = self.head.take(part) {
            self.conn.note_odd_line(line);
        }
        *looked += part.len();
        self.ahead.bytes = ahead;
        if let Some(status) = self.head.over() {
            return Err(self.refuse(cx, status));
        }
        Ok(end.map(|_| *looked))
    }

    /// Bytes of a head have come: the first ones start its time, and none may come after it.
    fn begin_head(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let phase = self.conn.phase();
        if phase == ConnectionPhase::Idle {
            self.deadline = Instant::now() + self.header_timeout;
        }
        if phase != ConnectionPhase::Head {
            self.conn.set_phase(ConnectionPhase::Head);
        } else if self.begun && Instant::now() >= self.deadline {
            return Err(self.overdue(cx));
        }
        self.begun = true;
        Ok(())
    }

    /// Ready when the head that is coming in is overdue, which has been refused by then.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.conn.phase() == ConnectionPhase::Idle {
            return Poll::Pending;
        }
        let deadline = self.deadline;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(self.overdue(cx))
    }

    /// The bytes of a whole head, still in their place.
    pub(in crate::connection) fn peek_head(&self, length: usize) -> Bytes {
        Bytes::copy_from_slice(self.ahead.bytes.get(..length).unwrap_or_default())
    }

    /// Takes a whole head away: what follows is its body.
    pub(in crate::connection) fn take_head(&mut self, length: usize) {
        self.timer = None;
        self.ahead.bytes.advance(length);
        self.conn.note_head_given(length);
    }

    /// A whole head that was looked at is to be read by somebody else.
    pub(in crate::connection) fn unread_head(&mut self) {
        self.head.restart();
    }

    /// What of these bytes belongs to the head: no empty lines before it, and nothing behind it.
    fn head_part(&mut self, bytes: &[u8]) -> Result<Range<usize>, BareReturn> {
        let start = self.head.empty_lines(bytes).ok_or(BareReturn)?;
        let bytes = bytes.get(start..).unwrap_or_default();
        let end = self.head.end_in(bytes);
        if let Some(end) = end {
            self.conn.note_head_given(self.head.bytes() + end);
        }
        Ok(start..start + end.unwrap_or(bytes.len()))
    }

    /// Reads bytes of the head that is waited for, and nothing behind it.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = loop {
            break match self.poll_part(cx, buf, Self::head_part) {
                // Empty lines before a request are no beginning of it: they reach Pingora as little
                // as they start a clock.
                Poll::Ready(Ok(Ok(came))) if came > 0 && buf.filled().len() == before => continue,
                Poll::Ready(Ok(Ok(_))) => Poll::Ready(Ok(())),
                Poll::Ready(Ok(Err(BareReturn))) => Poll::Ready(Err(self.refuse(cx, 400))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            };
        };
        match read {
            Poll::Ready(Ok(())) if buf.filled().len() > before => {
                self.begin_head(cx)?;
                if let Some(line) = self.head.take(buf.filled().get(before..).unwrap_or_default()) {
                    self.conn.note_odd_line(line);
                }
                match self.head.over() {
                    Some(status) => Poll::Ready(Err(self.refuse(cx, status))),
                    None => Poll::Ready(Ok(())),
                }
            }
            Poll::Pending => self.poll_overdue(cx).map(Err),
            other => other,
        }
    }
}
