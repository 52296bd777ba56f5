//! The proxy as the engine sees it: each phase of the old gateway on its hook (docs/architecture.md).
//!
//! The hooks are short; what they do is in a file a phase: [`crate::proxy::request_filter`] (rewrite and access),
//! [`crate::proxy::access`] (sandbox, token, gate, route), [`crate::proxy::upstream_peer`] (balancer), [`crate::proxy::upstream_request_filter`]
//! (proxy_set_header), [`crate::proxy::response_filter`] (header_filter), [`crate::proxy::fail_to_proxy`] (error_page),
//! [`crate::proxy::logging`] (log). Between access and balancer stands [`crate::response_cache`], where it
//! is on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use pingora::cache::key::CacheKey;
use pingora::cache::storage::HitHandler;
use pingora::cache::{CacheMeta, ForcedFreshness, RespCacheable};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, Result};

use crate::connection::{ORIGIN, Phase};
use crate::metrics::RouteClass;
use crate::proxy::cache_filters::Cached;
use crate::proxy::context::{Attempts, Body, Context, Destination, Gauges, Seen};
use crate::proxy::request_id;
use crate::proxy::state::{ProxyState, header_text};

/// The `ProxyHttp` implementation.
pub struct SandboxProxy(pub(crate) Arc<ProxyState>);

#[async_trait]
impl ProxyHttp for SandboxProxy {
    // Boxed: the engine moves it about.
    type CTX = Box<Context>;

    fn new_ctx(&self) -> Box<Context> {
        let state = self.0.clone();
        let origin = ORIGIN.try_with(Clone::clone).ok();
        let number = origin.as_ref().map_or(0, |origin| {
            origin.conn.set_phase(Phase::Open);
            origin.conn.next_request()
        });
        Box::new(Context {
            settings: state.settings.load_full(),
            state,
            origin,
            started: Instant::now(),
            number,
            method: Method::GET,
            route_class: RouteClass::Other,
            request_id: request_id::new(),
            host: Bytes::new(),
            origin_form: None,
            target: None,
            destination: Destination::Nowhere,
            place: None,
            masked_host: None,
            upgrade: false,
            upgrade_named: false,
            body_end: None,
            grpc: false,
            error: None,
            masked_as_unavailable: false,
            resumed: false,
            attempts: Attempts::default(),
            body: Body::default(),
            cached: Cached::Not,
            stamped: None,
            outcome: None,
            logged: false,
            seen: Seen::default(),
            gauges: Gauges::default(),
            held: Duration::ZERO,
        })
    }

    /// The engine would bring its compression, switched off: a call in every phase for nothing, since
    /// bodies are never compressed here.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    /// rewrite and access: decides whether, and whereto, the request goes on.
    async fn request_filter(&self, session: &mut Session, ctx: &mut Box<Context>) -> Result<bool> {
        self.0.filter_request(session, ctx).await
    }

    fn request_cache_filter(&self, session: &mut Session, ctx: &mut Box<Context>) -> Result<()> {
        self.0.consult_cache(session, ctx);
        Ok(())
    }

    fn cache_key_callback(&self, session: &Session, ctx: &mut Box<Context>) -> Result<CacheKey> {
        self.0.cache_key(session, ctx)
    }

    fn cache_miss(&self, session: &mut Session, _ctx: &mut Box<Context>) {
        ProxyState::cache_missed(session);
    }

    /// What was found is fresh by the clock that cannot be set; the engine goes by the other.
    async fn cache_hit_filter(
        &self,
        _session: &mut Session,
        _meta: &CacheMeta,
        _hit_handler: &mut HitHandler,
        _is_fresh: bool,
        _ctx: &mut Box<Context>,
    ) -> Result<Option<ForcedFreshness>> {
        Ok(Some(ForcedFreshness::ForceFresh))
    }

    fn response_cache_filter(
        &self,
        session: &Session,
        response: &ResponseHeader,
        ctx: &mut Box<Context>,
    ) -> Result<RespCacheable> {
        Ok(self.0.may_store(session, response, ctx))
    }

    fn should_serve_stale(
        &self,
        _session: &mut Session,
        _ctx: &mut Box<Context>,
        _error: Option<&Error>,
    ) -> bool {
        false
    }

    /// balancer
    async fn upstream_peer(&self, session: &mut Session, ctx: &mut Box<Context>) -> Result<Box<HttpPeer>> {
        self.0.select_peer(session, ctx).await
    }

    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        reused: bool,
        _peer: &HttpPeer,
        _fd: std::os::unix::io::RawFd,
        _digest: Option<&Digest>,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        self.0.connected(reused, ctx);
        Ok(())
    }

    /// proxy_set_header
    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        self.0.filter_upstream_request(session, request, ctx)
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        if end_of_stream && let Some(body_end) = &ctx.body_end {
            body_end.hand();
        }
        let counted = self.0.count_request_body(body.as_ref().map_or(0, Bytes::len), end_of_stream, ctx);
        // An empty last piece would make the engine end a chunked body twice, and the second end
        // would be read as the beginning of whatever request uses that connection next: answers
        // would reach the wrong caller (cloudflare/pingora #935). This stays the last act of this
        // hook, on every path.
        if end_of_stream && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
        counted
    }

    /// header_filter
    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        self.0.filter_response(session, response, ctx)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Box<Context>,
    ) -> Result<Option<Duration>> {
        self.0.count_response_body(body.as_ref().map_or(0, Bytes::len), end_of_stream, ctx)?;
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Box<Context>,
        error: Box<Error>,
    ) -> Box<Error> {
        self.0.note_connect_failure(ctx, error)
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        ctx: &mut Box<Context>,
        client_reused: bool,
    ) -> Box<Error> {
        self.0.note_exchange_failure(session, ctx, error, client_reused)
    }

    /// error_page
    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut Box<Context>,
    ) -> FailToProxy {
        self.0.respond_to_failure(session, error, ctx).await
    }

    /// log
    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Box<Context>) {
        if error.is_some() {
            self.0.hit_broke(session, ctx).await;
        }
        self.0.log_request(ctx, Some(session));
    }

    fn suppress_error_log(&self, _session: &Session, _ctx: &Box<Context>, _error: &Error) -> bool {
        // What went wrong is in the access log and the metrics, by reason; the engine's line would
        // show targets with their secrets.
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _ctx: &Box<Context>,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    fn request_summary(&self, _session: &Session, ctx: &Box<Context>) -> String {
        header_text(&ctx.request_id).to_owned()
    }
}
