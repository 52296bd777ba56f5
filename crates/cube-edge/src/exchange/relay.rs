//! Both directions of one request at once, in one task and with one timer: nothing is read that its
//! other side has no room for, and nothing is kept but what is on its way.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use pingora::{Error, ErrorType, Result};

use super::body::Body;
use super::client::{Client, Shared};
use super::side::{Event, Side, Step, give_back};

/// Where the request's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    Open,
    Over,
}

/// One attempt at an upstream for an HTTP/1.1 client, after its connection is there.
pub(super) struct Relay<'a> {
    client: &'a Shared,
    pub(super) side: Side<'a>,
    request: Outgoing,
    /// The upstream has switched protocols: bytes pass both ways until either side ends.
    tunnel: bool,
}

impl<'a> Relay<'a> {
    pub(super) fn new(client: &'a Shared, side: Side<'a>) -> Self {
        let request = if client.lock().body.is_over() { Outgoing::Over } else { Outgoing::Open };
        Self { client, side, request, tunnel: false }
    }

    /// What comes from now on belongs to the protocol that was switched to, both ways.
    pub(super) fn tunnel(&mut self) {
        self.tunnel = true;
        self.client.lock().body = Body::Close;
        self.request = Outgoing::Open;
    }

    /// The head that is put next came in like this.
    pub(super) fn came(&self, raw: Bytes) {
        self.client.lock().came = raw;
    }

    /// Puts a piece of the response's body.
    pub(super) fn put_body(&self, piece: Bytes, end: bool) {
        self.client.lock().put_body(piece, end);
    }

    /// What comes next.
    pub(super) async fn next(&mut self) -> Result<Event> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Whether the upstream connection may serve another request.
    pub(super) fn is_reusable(&self) -> bool {
        self.request == Outgoing::Over && self.side.is_reusable()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        let shared = self.client;
        let mut client = shared.lock();
        let client = &mut *client;
        if client.stream.conn().poll_ending(cx).is_ready() {
            return Poll::Ready(Err(left()));
        }
        loop {
            if client.out.has_room()
                && let Some(event) = self.side.buffered()?
            {
                return Poll::Ready(Ok(event));
            }
            let mut moved = self.poll_client_out(client, cx)?;
            // A client that has all of its response may leave at once.
            if self.is_over(client) {
                return Poll::Ready(Ok(Event::Over));
            }
            match self.poll_client_in(client, cx)? {
                Step::Event(event) => return Poll::Ready(Ok(event)),
                Step::Moved => moved = true,
                Step::Still => {}
            }
            moved |= self.side.poll_out(cx);
            let step = if client.out.has_room() { self.side.poll_in(cx)? } else { Step::Still };
            match step {
                Step::Event(event) => return Poll::Ready(Ok(event)),
                Step::Moved => moved = true,
                Step::Still => {}
            }
            if self.is_over(client) {
                return Poll::Ready(Ok(Event::Over));
            }
            if !moved {
                break;
            }
            self.side.note_moved();
        }
        give_back(client.stream.ahead(), &mut client.out);
        self.side.give_back();
        self.side.poll_silence(cx).map(|()| Err(self.overdue(client)))
    }

    fn is_over(&self, client: &Client) -> bool {
        let request_over = match self.request {
            _ if self.side.refuses() => true,
            Outgoing::Open => self.tunnel,
            Outgoing::Over => self.side.up.out.is_empty(),
        };
        self.side.is_over() && client.out.is_empty() && request_over
    }

    fn overdue(&self, client: &Client) -> Box<Error> {
        if !client.out.is_empty() {
            return Error::new_down(ErrorType::WriteTimedout);
        }
        self.side.overdue(self.request == Outgoing::Open && !self.side.refuses())
    }

    fn poll_client_out(&mut self, client: &mut Client, cx: &mut Context<'_>) -> Result<bool> {
        let before = client.out.len();
        if before == 0 {
            return Ok(false);
        }
        match client.poll_flush(cx) {
            Poll::Ready(Ok(())) => Ok(true),
            Poll::Ready(Err(error)) => {
                Err(Error::because(ErrorType::WriteError, "writing a response", error).into_down())
            }
            Poll::Pending => {
                if client.out.len() < before {
                    self.side.note_moved();
                }
                Ok(false)
            }
        }
    }

    fn poll_client_in(&mut self, client: &mut Client, cx: &mut Context<'_>) -> Result<Step> {
        match self.request {
            _ if self.side.refuses() => return Ok(Step::Still),
            Outgoing::Open if self.side.up.out.is_empty() => {
                if let Some((piece, end)) = client.next_piece()? {
                    if end {
                        self.request = Outgoing::Over;
                    }
                    return Ok(Step::Event(Event::Up(piece, end)));
                }
            }
            // Behind the request there is only the end of the connection to be told. What comes is
            // the next request's: it is kept, and no more is read for now.
            Outgoing::Over if client.stream.ahead().bytes.is_empty() && !self.tunnel => {}
            _ => return Ok(Step::Still),
        }
        match client.stream.poll_fill(cx) {
            Poll::Ready(Ok(0)) if self.tunnel => {
                // Either side's end is the tunnel's; what was read of either still leaves.
                self.request = Outgoing::Over;
                self.side.end();
                Ok(Step::Moved)
            }
            Poll::Ready(Ok(0)) => Err(left()),
            Poll::Ready(Ok(_)) if self.request == Outgoing::Over => Ok(Step::Still),
            Poll::Ready(Ok(_)) => Ok(Step::Moved),
            Poll::Ready(Err(error)) => {
                Err(Error::because(ErrorType::ReadError, "reading a request", error).into_down())
            }
            Poll::Pending => Ok(Step::Still),
        }
    }
}

/// The client has left, or its request was ended from outside.
fn left() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "before the end of the response").into_down()
}
