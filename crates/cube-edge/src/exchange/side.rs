//! The upstream's side of one attempt: what has come in of the response, what is to be written of the
//! request, and how long neither has moved.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use pingora::{Error, ErrorType, Result};
use tokio::time::Instant;

use super::body::Body;
use super::growing::Growing;
use super::head::Response;
use super::kept::Timer;
use super::out::Out;
use super::upstream::Upstream;
use crate::connection::Ahead;

/// What has come in, for the hooks to see before it goes on.
pub(super) enum Event {
    /// A head of the upstream's, interim ones too.
    Head(Response),
    /// A piece of the response's body, and whether it is the last.
    Down(Bytes, bool),
    /// A piece of the request's body, and whether it is the last.
    Up(Bytes, bool),
    /// All of the response has left, and no more of the request goes up.
    Over,
}

/// What one look at a socket has brought.
pub(super) enum Step {
    Event(Event),
    Moved,
    Still,
}

/// Where the response is.
enum Incoming {
    Head,
    Body(Body),
    Over,
}

/// The upstream's side.
pub(super) struct Side<'a> {
    pub(super) up: &'a mut Upstream,
    method: Method,
    response: Incoming,
    /// A head that is not whole yet.
    growing: Growing,
    /// Why the upstream takes no more of the request.
    refused: Option<Box<Error>>,
    refuses: bool,
    keep_alive: bool,
    /// How long nothing may move.
    silence: Option<Duration>,
    /// When something has moved last; none: since the last look at the timer.
    moved: Option<Instant>,
    timer: Timer,
}

impl<'a> Side<'a> {
    /// `method` is the request's; `silence` is how long nothing may move.
    pub(super) fn new(up: &'a mut Upstream, method: Method, silence: Option<Duration>) -> Self {
        Self {
            up,
            method,
            response: Incoming::Head,
            growing: Growing::default(),
            refused: None,
            refuses: false,
            keep_alive: false,
            silence,
            moved: None,
            timer: Timer::default(),
        }
    }

    /// Whether all of the response has come in.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.response, Incoming::Over)
    }

    /// Whether the upstream takes no more of the request.
    pub(super) fn refuses(&self) -> bool {
        self.refuses
    }

    /// No more of the response is read.
    pub(super) fn end(&mut self) {
        self.response = Incoming::Over;
        self.keep_alive = false;
    }

    /// Something has moved.
    pub(super) fn note_moved(&mut self) {
        self.moved = None;
    }

    /// Whether the connection may serve another request after one that is over: the response was whole,
    /// and nothing came behind it.
    pub(super) fn is_reusable(&self) -> bool {
        self.keep_alive
            && !self.refuses
            && self.is_over()
            && self.up.out.is_empty()
            && self.up.ahead.bytes.is_empty()
    }

    /// What is there of the response.
    pub(super) fn buffered(&mut self) -> Result<Option<Event>> {
        match &mut self.response {
            Incoming::Head if self.up.ahead.bytes.is_empty() => Ok(None),
            Incoming::Head => {
                if !self.growing.is_worth_reading(&self.up.ahead.bytes) {
                    return Ok(None);
                }
                let read = Response::read(&mut self.up.ahead.bytes, &self.method)
                    .map_err(|error| error.into_up())?;
                let Some(mut response) = read else { return Ok(None) };
                self.growing = Growing::default();
                if let Some(body) = response.body.take() {
                    self.keep_alive = response.keep_alive && !matches!(body, Body::Close);
                    self.response = if body.is_over() { Incoming::Over } else { Incoming::Body(body) };
                }
                Ok(Some(Event::Head(response)))
            }
            Incoming::Body(body) => {
                let next = body.next(&mut self.up.ahead.bytes).map_err(|_| {
                    Error::explain(ErrorType::InvalidHTTPHeader, "the chunks of a response").into_up()
                })?;
                let Some((piece, end)) = next else { return Ok(None) };
                if end {
                    self.response = Incoming::Over;
                }
                Ok(Some(Event::Down(piece, end)))
            }
            Incoming::Over => Ok(None),
        }
    }

    /// Writes what is to be written; whether all of it has left. An upstream that takes no more may have
    /// said why: its response is still read.
    pub(super) fn poll_out(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.up.out.len();
        if before == 0 || self.refuses {
            return false;
        }
        match self.up.poll_flush(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                self.refused =
                    Some(Error::because(ErrorType::WriteError, "writing a request", error).into_up());
                self.refuses = true;
                true
            }
            Poll::Pending => {
                if self.up.out.len() < before {
                    self.note_moved();
                }
                false
            }
        }
    }

    /// Reads more of the response.
    pub(super) fn poll_in(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        if self.is_over() {
            return Ok(Step::Still);
        }
        match self.up.poll_fill(cx) {
            Poll::Ready(Ok(0)) => self.ended().map(Step::Event),
            Poll::Ready(Ok(_)) => Ok(Step::Moved),
            Poll::Ready(Err(error)) => Err(self.refused.take().unwrap_or_else(|| {
                Error::because(ErrorType::ReadError, "reading a response", error).into_up()
            })),
            Poll::Pending => Ok(Step::Still),
        }
    }

    /// The upstream has closed its connection.
    fn ended(&mut self) -> Result<Event> {
        if matches!(self.response, Incoming::Body(Body::Close)) {
            self.response = Incoming::Over;
            return Ok(Event::Down(Bytes::new(), true));
        }
        Err(self.refused.take().unwrap_or_else(|| {
            Error::explain(ErrorType::ConnectionClosed, "before the end of the response").into_up()
        }))
    }

    /// Ready when nothing has moved for too long.
    pub(super) fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(silence) = self.silence else { return Poll::Pending };
        let moved = *self.moved.get_or_insert_with(Instant::now);
        self.timer.poll(moved + silence, cx)
    }

    /// Who was waited for when nothing moved: the upstream, unless the client owes a body.
    pub(super) fn overdue(&self, client_owes: bool) -> Box<Error> {
        if !self.up.out.is_empty() && !self.refuses {
            Error::new_up(ErrorType::WriteTimedout)
        } else if client_owes {
            Error::new_down(ErrorType::ReadTimedout)
        } else {
            Error::new_up(ErrorType::ReadTimedout)
        }
    }

    /// A silent side keeps no buffers.
    pub(super) fn give_back(&mut self) {
        give_back(&mut self.up.ahead, &mut self.up.out);
    }
}

/// A silent side keeps no buffers.
pub(super) fn give_back(ahead: &mut Ahead, out: &mut Out) {
    ahead.give_back();
    out.give_back();
}
