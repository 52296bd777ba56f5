//! One request of an HTTP/2 client onto an HTTP/1.1 upstream: the client's side is Pingora's stream, the
//! upstream's ours.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use pingora::protocols::http::HttpTask;
use pingora::proxy::Session;
use pingora::{Error, Result};

use super::side::{Event, Side, Step};

/// One attempt at an upstream for an HTTP/2 client, after its connection is there.
pub(super) struct H2Relay<'a> {
    pub(super) side: Side<'a>,
    /// The request's body has ended.
    request_over: bool,
}

impl<'a> H2Relay<'a> {
    pub(super) fn new(side: Side<'a>, request_over: bool) -> Self {
        Self { side, request_over }
    }

    /// What comes next.
    pub(super) async fn next(&mut self, session: &mut Session) -> Result<Event> {
        loop {
            if self.side.is_over()
                && (self.side.refuses() || self.request_over && self.side.up.out.is_empty())
            {
                return Ok(Event::Over);
            }
            let reads = self.side.up.out.is_empty() || self.request_over;
            let (side, over) = (&mut self.side, self.request_over);
            // In any order: an upstream that always has something, interim responses without end that is,
            // must not hide that the client has left.
            tokio::select! {
                event = poll_fn(|cx| poll_side(side, over, cx)) => {
                    if let Some(event) = event? {
                        return Ok(event);
                    }
                }
                body = session.downstream_session.read_body_or_idle(over), if reads => {
                    self.side.note_moved();
                    let piece = body.map_err(|error| error.into_down())?;
                    let end = piece.is_none() || session.downstream_session.is_body_done();
                    self.request_over = end;
                    let piece = piece.unwrap_or_default();
                    if end || !piece.is_empty() {
                        return Ok(Event::Up(piece, end));
                    }
                }
            }
        }
    }

    /// Sends a part of the response, while what is to go up goes on leaving.
    pub(super) async fn send(&mut self, session: &mut Session, task: HttpTask) -> Result<()> {
        let mut sent = pin!(session.write_response_tasks(vec![task]));
        let side = &mut self.side;
        poll_fn(|cx| {
            side.poll_out(cx);
            sent.as_mut().poll(cx)
        })
        .await?;
        self.side.note_moved();
        Ok(())
    }

    /// A piece of the response's body as Pingora's streams take it.
    pub(super) fn body(piece: Option<Bytes>, end: bool) -> HttpTask {
        HttpTask::Body(piece.filter(|piece| !piece.is_empty()), end)
    }
}

/// What comes next of the upstream's; `None`: what was to be written has left.
fn poll_side(side: &mut Side<'_>, request_over: bool, cx: &mut Context<'_>) -> Poll<Result<Option<Event>>> {
    loop {
        if let Some(event) = side.buffered()? {
            return Poll::Ready(Ok(Some(event)));
        }
        if side.poll_out(cx) {
            side.note_moved();
            return Poll::Ready(Ok(None));
        }
        match side.poll_in(cx)? {
            Step::Event(event) => return Poll::Ready(Ok(Some(event))),
            Step::Moved => side.note_moved(),
            Step::Still => break,
        }
    }
    side.give_back();
    side.poll_silence(cx).map(|()| Err::<_, Box<Error>>(side.overdue(!request_over && !side.refuses())))
}
