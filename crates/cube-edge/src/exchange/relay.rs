//! Both directions of one request at once, in one task and with one timer: nothing is read that its
//! other side has no room for, and nothing is kept but what is on its way.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;
use pingora::{Error, ErrorType, Result};
use tokio::time::{Instant, Sleep};

use super::body::Body;
use super::client::{Client, Shared};
use super::head::Response;
use super::out::Out;
use super::upstream::Upstream;

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

/// Where the response is.
enum Incoming {
    Head,
    Body(Body),
    Over,
}

/// Where the request's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    Open,
    /// The upstream takes no more of it.
    Refused,
    Over,
}

/// One attempt at an upstream, after its connection is there.
pub(super) struct Relay<'a> {
    client: &'a Shared,
    pub(super) up: &'a mut Upstream,
    method: Method,
    response: Incoming,
    request: Outgoing,
    /// Why the upstream takes no more of the request.
    refused: Option<Box<Error>>,
    keep_alive: bool,
    /// The upstream has switched protocols: bytes pass both ways until either side ends.
    tunnel: bool,
    /// How long nothing may move.
    silence: Option<Duration>,
    moved: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        client: &'a Shared,
        up: &'a mut Upstream,
        method: Method,
        silence: Option<Duration>,
    ) -> Self {
        let request = if client.lock().body.is_over() { Outgoing::Over } else { Outgoing::Open };
        Self {
            client,
            up,
            method,
            response: Incoming::Head,
            request,
            refused: None,
            keep_alive: false,
            tunnel: false,
            silence,
            moved: Instant::now(),
            timer: None,
        }
    }

    /// What comes from now on belongs to the protocol that was switched to, both ways.
    pub(super) fn tunnel(&mut self) {
        self.tunnel = true;
        self.client.lock().body = Body::Close;
        if self.request != Outgoing::Refused {
            self.request = Outgoing::Open;
        }
    }

    /// What comes next.
    pub(super) async fn next(&mut self) -> Result<Event> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Whether the connection may serve another request: both messages are over, and nothing came
    /// behind the response.
    pub(super) fn is_reusable(&self) -> bool {
        self.keep_alive
            && self.request == Outgoing::Over
            && self.up.out.is_empty()
            && self.up.ahead.is_empty()
            && matches!(self.response, Incoming::Over)
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
                && let Some(event) = self.buffered()?
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
            moved |= self.poll_upstream_out(cx);
            match self.poll_upstream_in(client, cx)? {
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
            self.moved = Instant::now();
        }
        give_back(client.stream.ahead(), &mut client.out);
        give_back(&mut self.up.ahead, &mut self.up.out);
        self.poll_silence(client, cx)
    }

    fn is_over(&self, client: &Client) -> bool {
        matches!(self.response, Incoming::Over)
            && client.out.is_empty()
            && match self.request {
                Outgoing::Open => self.tunnel,
                Outgoing::Over => self.up.out.is_empty(),
                Outgoing::Refused => true,
            }
    }

    /// What is there of the response.
    fn buffered(&mut self) -> Result<Option<Event>> {
        match &mut self.response {
            Incoming::Head if self.up.ahead.is_empty() => Ok(None),
            Incoming::Head => {
                let read =
                    Response::read(&mut self.up.ahead, &self.method).map_err(|error| error.into_up())?;
                let Some(mut response) = read else { return Ok(None) };
                if let Some(body) = response.body.take() {
                    self.keep_alive = response.keep_alive && !matches!(body, Body::Close);
                    self.response = if body.is_over() { Incoming::Over } else { Incoming::Body(body) };
                }
                Ok(Some(Event::Head(response)))
            }
            Incoming::Body(body) => {
                let next = body.next(&mut self.up.ahead).map_err(|_| {
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
                    self.moved = Instant::now();
                }
                Ok(false)
            }
        }
    }

    fn poll_client_in(&mut self, client: &mut Client, cx: &mut Context<'_>) -> Result<Step> {
        match self.request {
            Outgoing::Open if self.up.out.is_empty() => {
                if let Some((piece, end)) = client.next_piece()? {
                    if end {
                        self.request = Outgoing::Over;
                    }
                    return Ok(Step::Event(Event::Up(piece, end)));
                }
            }
            // Behind the request there is only the end of the connection to be told. What comes is
            // the next request's: it is kept, and no more is read for now.
            Outgoing::Over if client.stream.ahead().is_empty() && !self.tunnel => {}
            _ => return Ok(Step::Still),
        }
        match client.stream.poll_fill(cx) {
            Poll::Ready(Ok(0)) if self.tunnel => {
                // Either side's end is the tunnel's; what was read of either still leaves.
                self.request = Outgoing::Over;
                self.response = Incoming::Over;
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

    /// An upstream that takes no more may have said why: its response is still read.
    fn poll_upstream_out(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.up.out.len();
        if before == 0 || self.request == Outgoing::Refused {
            return false;
        }
        match self.up.poll_flush(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                self.refused =
                    Some(Error::because(ErrorType::WriteError, "writing a request", error).into_up());
                self.request = Outgoing::Refused;
                true
            }
            Poll::Pending => {
                if self.up.out.len() < before {
                    self.moved = Instant::now();
                }
                false
            }
        }
    }

    fn poll_upstream_in(&mut self, client: &Client, cx: &mut Context<'_>) -> Result<Step> {
        if matches!(self.response, Incoming::Over) || !client.out.has_room() {
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

    /// Ready when nothing has moved for too long; the error says who was waited for.
    fn poll_silence(&mut self, client: &Client, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        let Some(silence) = self.silence else { return Poll::Pending };
        loop {
            let due = self.moved + silence;
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= due {
                break;
            }
            timer.as_mut().reset(due);
        }
        let error = if !client.out.is_empty() {
            Error::new_down(ErrorType::WriteTimedout)
        } else if !self.up.out.is_empty() && self.request != Outgoing::Refused {
            Error::new_up(ErrorType::WriteTimedout)
        } else if self.request == Outgoing::Open {
            Error::new_down(ErrorType::ReadTimedout)
        } else {
            Error::new_up(ErrorType::ReadTimedout)
        };
        Poll::Ready(Err(error))
    }
}

enum Step {
    Event(Event),
    Moved,
    Still,
}

/// The client has left, or its request was ended from outside.
fn left() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "before the end of the response").into_down()
}

/// A silent side keeps no buffers.
fn give_back(ahead: &mut BytesMut, out: &mut Out) {
    if ahead.is_empty() {
        *ahead = BytesMut::new();
    }
    out.give_back();
}
