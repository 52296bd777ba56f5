//! The bodies of HTTP/1.1 requests: read to their end by their framing, and no byte behind it.

use std::convert::Infallible;
use std::io;
use std::task::{Context, Poll, ready};

use cube_http1::Malformed;
use tokio::io::ReadBuf;

use super::ClientStream;
use crate::connection::body::BodyWatch;

impl ClientStream {
    /// Reads bytes of the body under way, no more.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(framing) = self.conn.take_framing() {
            self.body = BodyWatch::new(framing);
        }
        if self.body.is_over() {
            return self.poll_behind(cx, buf);
        }
        match ready!(self.poll_part(cx, buf, |this, bytes| Ok(0..this.body.follow(bytes)?)))? {
            Ok(_) => Poll::Ready(Ok(())),
            Err(Malformed) => {
                self.conn.note_misframed();
                Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
            }
        }
    }

    /// Behind the end of the body there is only the end of the connection to be told. What comes is the
    /// next request's: it is kept, and no more is read for now; that the client has left meanwhile, the
    /// sweep notices.
    fn poll_behind(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.bytes.is_empty() {
            let came = ready!(self.poll_part(cx, buf, |_, _| Ok::<_, Infallible>(0..0)))?;
            if came == Ok(0) {
                return Poll::Ready(Ok(()));
            }
        }
        self.conn.poll_ending(cx).map(Ok)
    }
}
