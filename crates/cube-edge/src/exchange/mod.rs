//! Requests whose upstream is plain HTTP/1.1, driven by us: the hooks of `ProxyHttp` in the order in
//! which Pingora's own proxy calls them, and the bytes in between (docs/architecture.md, "The exchange").
//!
//! A request is one task with one timer. [`relay`] moves the bytes ([`h2_relay`] for HTTP/2 clients),
//! [`client`] and [`side`] are its two sides, [`pool`] keeps connections for further requests. What is not for the exchange (heads that
//! leave something in doubt, the control plane, a process with a response cache) goes to Pingora's
//! proxy, request by request, on the same connection.

mod body;
mod client;
#[cfg(any(test, cube_fuzz))]
pub(crate) mod fuzz;
mod growing;
mod h2_relay;
mod head;
mod kept;
mod out;
mod pool;
mod relay;
mod side;
mod spelling;
mod upstream;

use std::future::poll_fn;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::poll;
use http::{HeaderValue, Method, StatusCode, Version, header};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::{HttpTask, ServerSession};
use pingora::proxy::{ProxyHttp, Session};
use pingora::upstreams::peer::{HttpPeer, Peer};

use crate::connection::{ClientStream, DOWNSTREAM, Downstream, ListenerProtocol};
use crate::proxy::context::Context;
use crate::proxy::hooks::SandboxProxy;
use crate::proxy::media_type::is_grpc;
use crate::proxy::state::ProxyState;
use client::{Down, flush};
use h2_relay::H2Relay;
pub(crate) use head::Request;
use head::{Response, content_length, is_chunked, put_request, without_body};
use out::Framing;
pub(crate) use out::Out;
use pool::Pool;
use relay::Relay;
use side::{Event, Side};
use upstream::Upstream;

/// Drives requests.
pub(crate) struct Exchange {
    proxy: SandboxProxy,
    pool: Pool,
}

impl Exchange {
    /// Keeps at most `pool_size` idle connections.
    pub(crate) fn new(state: Arc<ProxyState>, pool_size: usize) -> Self {
        Self { proxy: SandboxProxy(state), pool: Pool::new(pool_size) }
    }

    /// Whether it takes a request of an HTTP/1.1 client: those for sandboxes.
    pub(crate) fn takes(&self, request: &Request) -> bool {
        self.takes_host(&request.head)
    }

    /// Whether it takes a request of an HTTP/2 client: those whose upstream speaks HTTP/1.1.
    pub(crate) fn takes_stream(&self, request: &RequestHeader, downstream: &Downstream) -> bool {
        let grpc = downstream.conn.protocol == ListenerProtocol::Grpc || is_grpc(&request.headers);
        !grpc && request.method != Method::CONNECT && self.takes_host(request)
    }

    fn takes_host(&self, request: &RequestHeader) -> bool {
        let authority = request.uri.authority().map(|authority| authority.as_str().as_bytes());
        let host = request.headers.get(header::HOST).map(HeaderValue::as_bytes);
        [authority, host].into_iter().flatten().all(|host| !self.proxy.0.names_control_plane(host))
    }

    /// Looks after the idle connections.
    pub(crate) fn sweep(&self) {
        self.pool.sweep(Instant::now());
    }

    /// Serves one request; the stream for the next one, where there may be one. `last`: the connection
    /// ends with it.
    pub(crate) async fn serve(
        &self,
        stream: Box<ClientStream>,
        request: Request,
        downstream: &Downstream,
        last: bool,
    ) -> Option<Box<ClientStream>> {
        let mut ctx = DOWNSTREAM.sync_scope(downstream.clone(), || self.proxy.new_ctx());
        let silence = ctx.settings.upstream.silence_timeout;
        let raw = request.raw.clone();
        let (down, client) = Down::new(stream, request, self.proxy.0.drain.clone(), last);
        let (mut session, none) = kept::session(ServerSession::new_custom(Box::new(down)));
        let failed = self.phases(&mut session, &mut ctx, &From::H1(&client, &raw)).await.err();
        if let Some(error) = &failed {
            client.lock().closes = true;
            self.proxy.fail_to_proxy(&mut session, error, &mut ctx).await;
        }
        self.proxy.logging(&mut session, failed.as_deref(), &mut ctx).await;
        // Said for Pingora's path alone.
        downstream.conn.take_join_head();
        if failed.is_some() {
            return None;
        }
        let again = finish_in(silence, &client).await;
        kept::keep_session(session, none);
        if again { Some(Arc::into_inner(client)?.into_inner().stream) } else { None }
    }

    /// Serves one stream of an HTTP/2 connection, whose head is in.
    pub(crate) async fn serve_stream(&self, stream: ServerSession) {
        let mut ctx = self.proxy.new_ctx();
        let (mut session, none) = kept::session(stream);
        let failed = self.phases(&mut session, &mut ctx, &From::H2).await.err();
        if let Some(error) = &failed {
            self.proxy.fail_to_proxy(&mut session, error, &mut ctx).await;
        }
        self.proxy.logging(&mut session, failed.as_deref(), &mut ctx).await;
        if failed.is_none() {
            // An error says that the client has left meanwhile.
            let _ = session.downstream_session.finish_body().await;
        }
        kept::keep_session(session, none);
    }

    /// Everything between the head of the request and its line in the log.
    async fn phases(&self, session: &mut Session, ctx: &mut Box<Context>, from: &From<'_>) -> Result<()> {
        let proxy = &self.proxy;
        proxy.early_request_filter(session, ctx).await?;
        if proxy.request_filter(session, ctx).await? {
            return Ok(());
        }
        proxy.request_cache_filter(session, ctx)?;
        if !proxy.proxy_upstream_filter(session, ctx).await? {
            return Ok(());
        }
        loop {
            match self.attempt(session, ctx, from).await {
                Ok(()) => return Ok(()),
                Err(error) if error.retry() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt at an upstream.
    async fn attempt(&self, session: &mut Session, ctx: &mut Box<Context>, from: &From<'_>) -> Result<()> {
        let proxy = &self.proxy;
        let peer = proxy.upstream_peer(session, ctx).await?;
        let mut up = match Upstream::get(&self.pool, &peer).await {
            Ok(up) => up,
            Err(mut error) => {
                error.as_up();
                return Err(proxy.fail_to_connect(session, &peer, ctx, error).into_up());
            }
        };
        match self.exchange(session, ctx, from, &mut up, &peer).await {
            Ok(reusable) => {
                if reusable {
                    self.pool.put(up.key, up.tcp, peer.idle_timeout().unwrap_or_default());
                }
                Ok(())
            }
            Err(error) => {
                // What follows judges the request by its head, or sends it once more.
                if let From::H1(_, raw) = from
                    && let Some(request) = Request::read((*raw).clone())
                {
                    *session.req_header_mut() = request.head;
                }
                Err(proxy.error_while_proxy(&peer, session, error, ctx, up.reused))
            }
        }
    }

    /// The request and its response; whether the connection may serve another one.
    async fn exchange(
        &self,
        session: &mut Session,
        ctx: &mut Box<Context>,
        from: &From<'_>,
        up: &mut Upstream,
        peer: &HttpPeer,
    ) -> Result<bool> {
        let proxy = &self.proxy;
        let fd = up.tcp.as_raw_fd();
        proxy.connected_to_upstream(session, up.reused, peer, fd, None, ctx).await?;
        let mut head = match from {
            From::H1(..) => take_head(session)?,
            From::H2 => session.req_header().clone(),
        };
        head.set_version(Version::HTTP_11);
        proxy.upstream_request_filter(session, &mut head, ctx).await?;
        let empty = session.is_body_empty();
        let says_length = head.headers.contains_key(header::CONTENT_LENGTH)
            || head.headers.contains_key(header::TRANSFER_ENCODING);
        if !empty && !says_length {
            head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
        }
        let framing = if is_chunked(&head.headers) {
            Framing::Chunked
        } else {
            Framing::Length(content_length(&head.headers).unwrap_or(0))
        };
        let came = match from {
            From::H1(_, raw) => raw,
            From::H2 => &[][..],
        };
        put_request(&head, came, up.out.head());
        if empty {
            proxy.request_body_filter(session, &mut None, true, ctx).await?;
        }
        let side = Side::new(up, head.method.clone(), peer.options.read_timeout);
        drop(head);
        match from {
            From::H1(client, _) => self.relay(session, ctx, Relay::new(client, side), framing).await,
            From::H2 => self.relay_stream(session, ctx, H2Relay::new(side, empty), framing).await,
        }
    }

    /// The rest of an exchange with an HTTP/1.1 client.
    async fn relay(
        &self,
        session: &mut Session,
        ctx: &mut Box<Context>,
        mut relay: Relay<'_>,
        mut framing: Framing,
    ) -> Result<bool> {
        let proxy = &self.proxy;
        loop {
            match relay.next().await? {
                Event::Head(response) => {
                    relay.came(response.raw.clone());
                    let head = self.filter_head(session, ctx, response).await?;
                    let switches = head.status == StatusCode::SWITCHING_PROTOCOLS;
                    session.downstream_session.write_response_header(head).await?;
                    if switches {
                        framing = Framing::Close;
                        relay.tunnel();
                    }
                }
                Event::Down(piece, end) => {
                    let mut piece = Some(piece);
                    proxy.upstream_response_body_filter(session, &mut piece, end, ctx)?;
                    proxy.response_body_filter(session, &mut piece, end, ctx)?;
                    relay.put_body(piece.unwrap_or_default(), end);
                }
                Event::Up(piece, end) => {
                    let mut piece = Some(piece);
                    proxy.request_body_filter(session, &mut piece, end, ctx).await?;
                    relay.side.up.out.body(piece.unwrap_or_default(), end, &mut framing);
                }
                Event::Over => return Ok(relay.is_reusable()),
            }
        }
    }

    /// The rest of an exchange with an HTTP/2 client, which gets no interim responses.
    async fn relay_stream(
        &self,
        session: &mut Session,
        ctx: &mut Box<Context>,
        mut relay: H2Relay<'_>,
        mut framing: Framing,
    ) -> Result<bool> {
        let proxy = &self.proxy;
        loop {
            match relay.next(session).await? {
                Event::Head(response) => {
                    let head = self.filter_head(session, ctx, response).await?;
                    if !head.status.is_informational() {
                        let end = relay.side.is_over();
                        relay.send(session, HttpTask::Header(head, end)).await?;
                    }
                }
                Event::Down(piece, end) => {
                    let mut piece = Some(piece);
                    proxy.upstream_response_body_filter(session, &mut piece, end, ctx)?;
                    proxy.response_body_filter(session, &mut piece, end, ctx)?;
                    relay.send(session, H2Relay::body(piece, end)).await?;
                }
                Event::Up(piece, end) => {
                    let mut piece = Some(piece);
                    proxy.request_body_filter(session, &mut piece, end, ctx).await?;
                    relay.side.up.out.body(piece.unwrap_or_default(), end, &mut framing);
                }
                Event::Over => return Ok(relay.side.is_reusable()),
            }
        }
    }

    /// A head of the upstream's as the client gets it.
    async fn filter_head(
        &self,
        session: &mut Session,
        ctx: &mut Box<Context>,
        response: Response,
    ) -> Result<Box<ResponseHeader>> {
        let mut head = response.head;
        self.proxy.upstream_response_filter(session, &mut head, ctx).await?;
        frame(session, &mut head)?;
        self.proxy.response_filter(session, &mut head, ctx).await?;
        Ok(head)
    }
}

/// Takes the head of a request away for it to go upstream, changed. What is left says what is asked for, without
/// headers: a copy would cost as much as reading the head, and it can be read again.
fn take_head(session: &mut Session) -> Result<RequestHeader> {
    let request = session.req_header();
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = request.method.clone();
    parts.uri = request.uri.clone();
    parts.version = request.version;
    let mut left = RequestHeader::from(parts);
    // A target that the URI does not say.
    if left.raw_path() != request.raw_path() {
        left.set_raw_path(request.raw_path())?;
    }
    Ok(std::mem::replace(session.req_header_mut(), left))
}

/// Whose request it is, and the head of it as it came in.
enum From<'a> {
    H1(&'a client::Shared, &'a Bytes),
    H2,
}

/// As [`finish`], in so much time. Most often nothing is left, so that no timer is set.
async fn finish_in(time: Duration, client: &client::Shared) -> bool {
    let mut over = pin!(finish(client));
    match poll!(over.as_mut()) {
        Poll::Ready(again) => again,
        Poll::Pending => tokio::time::timeout(time, over).await.unwrap_or(false),
    }
}

/// Writes what is left of a response; whether the connection may have another request.
async fn finish(client: &client::Shared) -> bool {
    if flush(client).await.is_err() {
        return false;
    }
    let closes = client.lock().closes;
    if closes {
        // An error says that the client has closed it already.
        let _ = poll_fn(|cx| client.lock().stream.poll_end(cx)).await;
    }
    !closes
}

/// A response that says no length is sent in chunks, so that the client's connection outlives it.
fn frame(session: &Session, head: &mut ResponseHeader) -> Result<()> {
    let says_length = head.headers.contains_key(header::CONTENT_LENGTH)
        || head.headers.contains_key(header::TRANSFER_ENCODING);
    let without = without_body(head.status, &session.req_header().method);
    if says_length || without || head.status.is_informational() {
        return Ok(());
    }
    head.set_version(Version::HTTP_11);
    head.insert_header(header::TRANSFER_ENCODING, "chunked")
}
