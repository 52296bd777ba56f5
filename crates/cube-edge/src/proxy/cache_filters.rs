//! The hooks of Pingora's cache.

use std::sync::Arc;
use std::time::Instant;

use cube_metadata::Access;
use cube_route::forwarded_headers;
use http::{HeaderValue, header};
use pingora::cache::key::CacheKey;
use pingora::cache::{CachePhase, NoCacheReason, RespCacheable};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use crate::proxy::context::Context;
use crate::proxy::fail_to_proxy;
use crate::proxy::state::ProxyState;
use crate::response_cache::CacheUse;
use crate::response_cache::cacheability::{Selecting, storable};
use crate::response_cache::key::KeyParts;
use crate::response_cache::metrics::Fill;
use crate::response_cache::miss_handler::{Plan, ReservedRoom};
use crate::response_cache::request::{CacheDemand, RequestFacts, cache_demand};
use crate::response_cache::storage::{KeyExtension, STORAGE, meta};
use crate::response_cache::store::size_of_head;

/// May the request use the cache? Called when everything else is decided (routing.md, "Order of decisions").
pub(crate) fn consult_cache(state: &ProxyState, session: &mut Session, ctx: &mut Context) {
    let Some(cache) = &state.response_cache else { return };
    let Some(demand) = demand_of(session, ctx) else {
        cache.metrics.bypassed.inc();
        return;
    };
    ctx.cache_use = CacheUse::Asks(demand);
    session.cache.enable(&STORAGE, None, None, None, None);
}

fn demand_of(session: &mut Session, ctx: &Context) -> Option<CacheDemand> {
    if ctx.upgrade || ctx.upgrade_named || ctx.grpc || ctx.preview.is_some() {
        return None;
    }
    let (Some(target), Some(sandbox), Some(downstream)) = (&ctx.target, ctx.sandbox(), &ctx.downstream)
    else {
        return None;
    };
    let bodyless = session.is_body_empty();
    let request = session.req_header();
    cache_demand(&RequestFacts {
        method: &request.method,
        headers: &request.headers,
        target,
        entry: &sandbox.entry,
        bodyless,
        forward_credentials: ctx.settings.routing.forward_credentials,
        trusted: ctx.settings.trusts(downstream.conn.peer.ip().to_canonical()),
        real_ip: ctx.seen.real_ip,
        chain: ctx.seen.forwarded_for.as_ref().map(HeaderValue::as_bytes),
    })
}

/// `X-Forwarded-Proto` as the sandbox sees it.
fn scheme_of(session: &Session, ctx: &Context) -> Option<&'static str> {
    let downstream = ctx.downstream.as_ref()?;
    let trusted = ctx.settings.trusts(downstream.conn.peer.ip().to_canonical());
    let secure = downstream.conn.protocol.scheme() == "https";
    Some(forwarded_headers::forwarded_proto(&session.req_header().headers, trusted, secure))
}

fn key_of(session: &Session, ctx: &Context, scheme: &str) -> Option<Vec<u8>> {
    let (target, sandbox) = (ctx.target.as_ref()?, ctx.sandbox()?);
    let raw = session.req_header().raw_path();
    let parts = KeyParts {
        entry: &sandbox.entry,
        target,
        scheme,
        upstream_host: ctx.masked_host.as_ref().map_or(&ctx.host[..], HeaderValue::as_bytes),
        client_host: &ctx.host,
        prefix: target.prefix(ctx.origin_form(raw)),
        upstream_target: &ctx.upstream_target(raw),
    };
    Some(parts.key())
}

/// A request that may have changed what a target says, and was not refused, ends what is stored
/// for it (RFC 9111, 4.4).
fn drop_changed(state: &ProxyState, session: &Session, response: &ResponseHeader, ctx: &Context) {
    let changes = !ctx.method.is_safe()
        && (response.status.is_success() || response.status.is_redirection())
        && ctx.sandbox().is_some_and(|sandbox| matches!(sandbox.entry.record.access, Access::Public));
    if let (Some(cache), true) = (&state.response_cache, changes)
        && let Some(key) = scheme_of(session, ctx).and_then(|scheme| key_of(session, ctx, scheme))
    {
        cache.forget_key(&key);
    }
}

/// The key of the request, and what is stored under it.
pub(crate) fn cache_key(state: &ProxyState, session: &Session, ctx: &mut Context) -> Result<CacheKey> {
    let (Some(cache), CacheUse::Asks(demand)) = (&state.response_cache, std::mem::take(&mut ctx.cache_use))
    else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let scheme = scheme_of(session, ctx);
    let key = scheme.and_then(|scheme| key_of(session, ctx, scheme));
    let (Some(sandbox), Some(key)) = (ctx.sandbox(), key) else {
        return Err(Error::new_in(ErrorType::InternalError));
    };
    let client = session.req_header();
    let found =
        demand.stored.then(|| cache.store.find(&key, &client.headers, &demand, Instant::now())).flatten();
    let life = (sandbox.entry.generation, sandbox.entry.revision);
    let ticket = KeyExtension { cache: cache.clone(), entry: sandbox.entry.clone(), found: found.clone() };
    // What `forward` says of a request that goes upstream, the way back needs for a hit too.
    ctx.seen.forwarded_proto = scheme.map(HeaderValue::from_static);
    match found {
        // The sandbox is not asked, so it is not in use by that (lifecycle.md).
        Some(stored) => {
            cache.metrics.hits.inc();
            ctx.cache_use = CacheUse::Hit(stored);
        }
        None => {
            cache.metrics.misses.inc();
            ctx.cache_use = CacheUse::Missed { keep: demand.keep, life };
        }
    }
    let mut key = CacheKey::new(key, "");
    key.extensions.insert(ticket);
    Ok(key)
}

/// Nothing is stored. Pingora would take over from here: make a GET of a HEAD, and remove
/// conditions and what else would keep a response from being stored. Bypassing leaves the
/// request as it is and looks at the response all the same; it comes back here when the response
/// is to be stored.
pub(crate) fn note_cache_miss(session: &mut Session) {
    if session.cache.phase() == CachePhase::CacheKey {
        session.cache.bypass();
    } else {
        session.cache.cache_miss();
    }
}

/// May the response be stored?
pub(crate) fn may_store(
    state: &ProxyState,
    session: &Session,
    response: &ResponseHeader,
    ctx: &Context,
) -> RespCacheable {
    let no = |why| RespCacheable::Uncacheable(NoCacheReason::Custom(why));
    let CacheUse::Missed { keep: true, life } = ctx.cache_use else { return no("not asked for") };
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
    let Some(cache) = &state.response_cache else { return no("switched off") };
    if storable.length.is_some_and(|length| length > cache.max_object) {
        cache.metrics.filled(Fill::TooLarge);
        return no("too large");
    }
    let selecting = Arc::new(Selecting::of(&session.req_header().headers, &storable.vary));
    // Pingora keeps one copy of the head, and so do we, until the response is in.
    let head = 2 * size_of_head(&response.headers) + selecting.size();
    let Some(head) = ReservedRoom::new(cache, head) else {
        cache.metrics.filled(Fill::NoRoom);
        return no("no room");
    };
    let mut meta = meta(response.clone());
    meta.extensions_mut().insert(Plan { storable, selecting, came: Instant::now(), _head: Arc::new(head) });
    RespCacheable::Cacheable(meta)
}

/// Says in a response's head what the cache had to do with it.
pub(crate) fn add_cache_header(
    state: &ProxyState,
    session: &Session,
    response: &mut ResponseHeader,
    ctx: &mut Context,
) -> Result<()> {
    if state.response_cache.is_none() {
        return Ok(());
    }
    drop_changed(state, session, response, ctx);
    match &ctx.cache_use {
        CacheUse::Hit(stored) => {
            let age = stored.freshness.age(Instant::now()).as_secs();
            response.insert_header(header::AGE, age)?;
            response.insert_header("X-Cube-Cache", "HIT")?;
            ctx.gauges.stream = Some(state.metrics.stream());
        }
        CacheUse::Missed { .. } => response.insert_header("X-Cube-Cache", "MISS")?,
        // Only this proxy may say `X-Cube-Cache`: a sandbox's own header of that name goes.
        CacheUse::Not | CacheUse::Asks(_) => drop(response.remove_header("x-cube-cache")),
    }
    Ok(())
}

/// A response from the cache was not written to its end: it must not look as if it was.
pub(crate) async fn forget_broken_hit(session: &mut Session, ctx: &mut Context) {
    if !matches!(ctx.cache_use, CacheUse::Hit(_)) || ctx.seen.head_sent.is_none() {
        return;
    }
    let reason = ctx.ended().map_or(crate::error_response::Reason::ClientClosed, |error| error.reason());
    ctx.seen.cut = Some(reason);
    fail_to_proxy::show_cut(session, ctx).await;
}
