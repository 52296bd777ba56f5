//! The proxy as Pingora sees it: each phase of the old gateway on its hook (docs/architecture.md).
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

use crate::connection::{ConnectionPhase, DOWNSTREAM};
use crate::metrics::RouteClass;
use crate::proxy::cache_filters;
use crate::proxy::context::{Attempts, BodyBytes, Context, Destination, Gauges, LoggedHead};
use crate::proxy::fail_to_proxy;
use crate::proxy::logging;
use crate::proxy::request_body_filter;
use crate::proxy::request_filter;
use crate::proxy::request_id;
use crate::proxy::response_filter;
use crate::proxy::state::{ProxyState, header_text};
use crate::proxy::upstream_peer;
use crate::proxy::upstream_request_filter;
use crate::response_cache::CacheUse;

/// The implementation of `ProxyHttp`: each of Pingora's hooks calls the function of its phase.
pub struct SandboxProxy(pub(crate) Arc<ProxyState>);

#[async_trait]
impl ProxyHttp for SandboxProxy {
    // Boxed: Pingora moves it about.
    type CTX = Box<Context>;

    fn new_ctx(&self) -> Box<Context> {
        let state = self.0.clone();
        let downstream = DOWNSTREAM.try_with(Clone::clone).ok();
        let number = downstream.as_ref().map_or(0, |downstream| {
            downstream.conn.set_phase(ConnectionPhase::Open);
            downstream.conn.next_request()
        });
        Box::new(Context {
            settings: state.settings.load_full(),
            state,
            downstream,
            started: Instant::now(),
            number,
            method: Method::GET,
            route_class: RouteClass::Other,
            request_id: request_id::new(),
            host: Bytes::new(),
            origin_form: None,
            target: None,
            preview: None,
            right: None,
            preview_result: None,
            destination: Destination::Nowhere,
            active: None,
            masked_host: None,
            upgrade: false,
            upgrade_named: false,
            body_end: None,
            grpc: false,
            error: None,
            masked_as_unavailable: false,
            resumed: false,
            attempts: Attempts::default(),
            body: BodyBytes::default(),
            cache_use: CacheUse::Not,
            stamped: None,
            outcome: None,
            logged: false,
            seen: LoggedHead::default(),
            gauges: Gauges::default(),
            held: Duration::ZERO,
            trace: None,
        })
    }

    /// Pingora would bring its compression, switched off: a call in every phase for nothing, since
    /// bodies are never compressed here.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    /// rewrite and access: decides whether, and whereto, the request goes on.
    async fn request_filter(&self, session: &mut Session, ctx: &mut Box<Context>) -> Result<bool> {
        request_filter::filter_request(&self.0, session, ctx).await
    }

    fn request_cache_filter(&self, session: &mut Session, ctx: &mut Box<Context>) -> Result<()> {
        cache_filters::consult_cache(&self.0, session, ctx);
        Ok(())
    }

    fn cache_key_callback(&self, session: &Session, ctx: &mut Box<Context>) -> Result<CacheKey> {
        cache_filters::cache_key(&self.0, session, ctx)
    }

    fn cache_miss(&self, session: &mut Session, _ctx: &mut Box<Context>) {
        cache_filters::note_cache_miss(session);
    }

    /// What was found is fresh by the clock that cannot be set; Pingora goes by the other.
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
        Ok(cache_filters::may_store(&self.0, session, response, ctx))
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
        upstream_peer::select_peer(&self.0, session, ctx).await
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
        upstream_peer::note_connected(&self.0, reused, ctx);
        Ok(())
    }

    /// proxy_set_header
    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        upstream_request_filter::filter_upstream_request(&self.0, session, request, ctx)
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        request_body_filter::filter_request_body(&self.0, body, end_of_stream, ctx)
    }

    /// header_filter
    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        response_filter::filter_response(&self.0, session, response, ctx)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Box<Context>,
    ) -> Result<Option<Duration>> {
        response_filter::count_response_body(
            &self.0,
            body.as_ref().map_or(0, Bytes::len),
            end_of_stream,
            ctx,
        )?;
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Box<Context>,
        error: Box<Error>,
    ) -> Box<Error> {
        upstream_peer::note_connect_failure(&self.0, ctx, error)
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        ctx: &mut Box<Context>,
        client_reused: bool,
    ) -> Box<Error> {
        upstream_peer::note_exchange_failure(&self.0, session, ctx, error, client_reused)
    }

    /// error_page
    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut Box<Context>,
    ) -> FailToProxy {
        fail_to_proxy::respond_to_failure(&self.0, session, error, ctx).await
    }

    /// log
    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Box<Context>) {
        if error.is_some() {
            cache_filters::forget_broken_hit(session, ctx).await;
        }
        logging::log_request(&self.0, ctx, Some(session));
    }

    fn suppress_error_log(&self, _session: &Session, _ctx: &Box<Context>, _error: &Error) -> bool {
        // What went wrong is in the access log and the metrics, by reason; Pingora's line would
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
