//! The hooks of the engine's cache.

use std::sync::Arc;
use std::time::Instant;

use cube_resolver::{Generation, Revision};
use cube_route::sandbox_view;
use http::{HeaderValue, header};
use pingora_cache::key::CacheKey;
use pingora_cache::{CachePhase, NoCacheReason, RespCacheable};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use super::answer::{Selecting, storable};
use super::engine::{ENGINE, Ticket, meta};
use super::fill::Plan;
use super::key::Parts;
use super::request::{Asking, Wish, wish};
use super::store::Stored;
use crate::context::Context;
use crate::edge::Shared;

/// What the response cache has to do with a request.
#[derive(Default)]
pub(crate) enum Cached {
    /// Nothing.
    #[default]
    Not,
    /// It may use it; the key is to be made.
    Asks(Wish),
    /// It has nothing for it; what comes from this life of the sandbox may be kept.
    Missed { keep: bool, life: (Generation, Revision) },
    /// It answers.
    Hit(Arc<Stored>),
}

impl Shared {
    /// May the request use the cache? Called when everything else is decided (design.md).
    pub(crate) fn consult_cache(&self, session: &mut Session, ctx: &mut Context) {
        let Some(cache) = &self.response_cache else { return };
        let Some(wish) = self.wish(session, ctx) else {
            cache.metrics.bypassed.inc();
            return;
        };
        ctx.cached = Cached::Asks(wish);
        session.cache.enable(&ENGINE, None, None, None, None);
    }

    fn wish(&self, session: &mut Session, ctx: &Context) -> Option<Wish> {
        if ctx.upgrade || ctx.upgrade_named || ctx.grpc {
            return None;
        }
        let (Some(target), Some(sandbox), Some(origin)) = (&ctx.target, ctx.sandbox(), &ctx.origin) else {
            return None;
        };
        let bodyless = session.is_body_empty();
        let request = session.req_header();
        wish(&Asking {
            method: &request.method,
            headers: &request.headers,
            target,
            entry: &sandbox.entry,
            bodyless,
            forward_credentials: ctx.settings.forward_credentials,
            trusted: ctx.settings.trusts(origin.conn.peer.ip().to_canonical()),
            real_ip: ctx.seen.real_ip,
            chain: ctx.seen.forwarded_for.as_ref().map(HeaderValue::as_bytes),
        })
    }

    /// The key of the request, and what is stored under it.
    pub(crate) fn cache_key(&self, session: &Session, ctx: &mut Context) -> Result<CacheKey> {
        let (Some(cache), Cached::Asks(wish)) = (&self.response_cache, std::mem::take(&mut ctx.cached))
        else {
            return Err(Error::new_in(ErrorType::InternalError));
        };
        let (Some(target), Some(sandbox), Some(origin)) = (&ctx.target, ctx.sandbox(), &ctx.origin) else {
            return Err(Error::new_in(ErrorType::InternalError));
        };
        let client = session.req_header();
        let trusted = ctx.settings.trusts(origin.conn.peer.ip().to_canonical());
        let secure = origin.conn.speaks.scheme() == "https";
        let scheme = sandbox_view::forwarded_proto(&client.headers, trusted, secure);
        let raw = client.raw_path();
        let upstream_target = ctx.upstream_target(raw);
        let key = Parts {
            entry: &sandbox.entry,
            target,
            scheme,
            upstream_host: ctx.masked_host.as_ref().map_or(&ctx.host[..], HeaderValue::as_bytes),
            client_host: &ctx.host,
            prefix: target.prefix(ctx.origin_form(raw)),
            upstream_target: &upstream_target,
        }
        .key();
        let found =
            wish.stored.then(|| cache.store.find(&key, &client.headers, &wish, Instant::now())).flatten();
        let life = (sandbox.entry.generation, sandbox.entry.revision);
        let ticket = Ticket { cache: cache.clone(), entry: sandbox.entry.clone(), found: found.clone() };
        drop(upstream_target);
        // What `forward` says of a request that goes upstream, the way back needs for a hit too.
        ctx.seen.forwarded_proto = Some(HeaderValue::from_static(scheme));
        match found {
            Some(stored) => {
                cache.metrics.hits.inc();
                ctx.cached = Cached::Hit(stored);
                // A request that is answered from here is one all the same.
                self.stamp(ctx);
            }
            None => {
                cache.metrics.misses.inc();
                ctx.cached = Cached::Missed { keep: wish.keep, life };
            }
        }
        let mut key = CacheKey::new(key, "");
        key.extensions.insert(ticket);
        Ok(key)
    }

    /// Nothing is stored. The engine would take over from here: make a GET of a HEAD, and remove
    /// conditions and what else would keep an answer from being stored. Bypassing leaves the
    /// request as it is and looks at the answer all the same; it comes back here when the answer
    /// is to be stored.
    pub(crate) fn cache_missed(session: &mut Session) {
        if session.cache.phase() == CachePhase::CacheKey {
            session.cache.bypass();
        } else {
            session.cache.cache_miss();
        }
    }

    /// May the answer be stored?
    pub(crate) fn may_store(
        &self,
        session: &Session,
        response: &ResponseHeader,
        ctx: &Context,
    ) -> RespCacheable {
        let no = |why| RespCacheable::Uncacheable(NoCacheReason::Custom(why));
        let Cached::Missed { keep: true, life } = ctx.cached else { return no("not asked for") };
        let lives = ctx.sandbox().map(|sandbox| (sandbox.entry.generation, sandbox.entry.revision));
        if lives != Some(life) {
            return no("another life of the sandbox"); // the record was read again on the way
        }
        if session.cache.phase() != CachePhase::Bypass {
            return no("a second head");
        }
        let waited = ctx.attempts.sent_at.map_or_else(Default::default, |sent| sent.elapsed());
        let Some(storable) = storable(response.status, &response.headers, waited) else {
            return no("not for everybody");
        };
        let selecting = Arc::new(Selecting::of(&session.req_header().headers, &storable.vary));
        let mut meta = meta(response.clone());
        meta.extensions_mut().insert(Plan { storable, selecting, came: Instant::now() });
        RespCacheable::Cacheable(meta)
    }

    /// Says in an answer's head what the cache had to do with it.
    pub(crate) fn tell_of_cache(&self, response: &mut ResponseHeader, ctx: &mut Context) -> Result<()> {
        if self.response_cache.is_none() {
            return Ok(());
        }
        match &ctx.cached {
            Cached::Hit(stored) => {
                let age = stored.freshness.age(Instant::now()).as_secs();
                response.insert_header(header::AGE, age)?;
                response.insert_header("X-Cube-Cache", "HIT")?;
                ctx.gauges.stream = Some(self.metrics.stream());
            }
            Cached::Missed { .. } => response.insert_header("X-Cube-Cache", "MISS")?,
            // It is ours to say.
            Cached::Not | Cached::Asks(_) => drop(response.remove_header("x-cube-cache")),
        }
        Ok(())
    }

    /// An answer from the cache was not written to its end: it must not look as if it was.
    pub(crate) async fn hit_broke(&self, session: &mut Session, ctx: &mut Context) {
        if !matches!(ctx.cached, Cached::Hit(_)) || ctx.seen.head_sent.is_none() {
            return;
        }
        let reason =
            crate::back::ended(ctx).map_or(crate::reason::Reason::ClientClosed, |fault| fault.reason());
        ctx.seen.cut = Some(reason);
        self.show_cut(session, ctx).await;
    }
}
