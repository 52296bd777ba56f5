use std::sync::Arc;

use cube_metadata::{FileStore, MetadataStore, Snapshot, SnapshotObserver};
use cube_resolver::{Lookup, Resolver};
use cube_route::{ListenerKind, RequestHead, Rules, SandboxId};
use http::HeaderValue;

use super::*;
use crate::response_cache::key::KeyParts;

struct Nobody;

impl SnapshotObserver for Nobody {
    fn observed(&self, _: &SandboxId, _: &Snapshot) {}

    fn interested(&self, _: &SandboxId) -> bool {
        false
    }
}

async fn entry(access: &str) -> Arc<RouteEntry> {
    let yaml = format!("sandboxes:\n  a:\n    HostIP: 10.0.0.1\n    \"80\": \"8080\"\n{access}");
    let store: Arc<dyn MetadataStore> = FileStore::from_yaml(&yaml).unwrap();
    let registry = prometheus::Registry::new();
    let settings = cube_resolver::Settings::default();
    let resolver = Resolver::new(store, Arc::new(Nobody), settings, &registry).unwrap();
    match resolver.lookup(&SandboxId::parse("a").unwrap()).await.unwrap() {
        Lookup::Found(entry) => entry,
        Lookup::Unknown => panic!("no record"),
    }
}

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn target(port: u16) -> SandboxTarget {
    target_of(&[("Host", &format!("{port}-a.cube.test"))])
}

fn target_of(fields: &[(&str, &str)]) -> SandboxTarget {
    let headers = headers(fields);
    let head = RequestHead {
        version: http::Version::HTTP_11,
        method: &Method::GET,
        target: b"/",
        authority: None,
        headers: &headers,
        listener: ListenerKind::Data,
    };
    cube_route::parse_request(&head, &Rules::new(&[], false).unwrap()).unwrap().target.unwrap()
}

/// What an everyday request from a stranger asks, with these headers.
async fn asked(fields: &[(&str, &str)]) -> Option<CacheDemand> {
    let (entry, target, headers) = (entry("").await, target(80), headers(fields));
    cache_demand(&everyday(&headers, &target, &entry))
}

fn everyday<'a>(
    headers: &'a HeaderMap,
    target: &'a SandboxTarget,
    entry: &'a RouteEntry,
) -> RequestFacts<'a> {
    RequestFacts {
        method: &Method::GET,
        headers,
        target,
        entry,
        bodyless: true,
        forward_credentials: false,
        trusted: false,
        real_ip: None,
        chain: None,
    }
}

#[tokio::test]
async fn an_everyday_request_takes_what_is_stored_and_leaves_what_it_gets() {
    let fields = [
        ("Host", "80-a.cube.test"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "gzip"),
        ("User-Agent", "x"),
        ("Connection", "keep-alive, close"),
        ("X-Cube-Request-Id", "mine"),
        ("X-Real-IP", "192.0.2.1"),
        ("X_Real_IP", "192.0.2.1"),
        ("X_Under_Score", "x"),
        ("If-None-Match", "\"a\""),
        ("If-Modified-Since", "x"),
        ("E2b-Sandbox-Id", "a"),
        ("E2b-Sandbox-Port", "80"),
    ];
    assert_eq!(asked(&fields).await, Some(CacheDemand::any(&Method::GET)));
}

#[tokio::test]
async fn what_makes_a_response_one_clients_own_keeps_a_request_away() {
    for (name, value) in [
        ("Range", "bytes=0-1"),
        ("If-Range", "\"a\""),
        ("Authorization", "Bearer x"),
        ("Proxy-Authorization", "Basic x"),
        ("Cookie", "a=b"),
        ("X-Access-Token", "x"),
        ("e2b-traffic-access-token", "x"),
        ("cube-traffic-access-token", "x"),
        ("E2B_Traffic-Access_Token", "x"),
        ("Upgrade", "websocket"),
        ("Expect", "100-continue"),
        ("If-Match", "\"a\""),
        ("If-Unmodified-Since", "x"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-Host", "evil.test"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Anything", "x"),
        ("X_Forwarded_Host", "evil.test"),
        ("Forwarded", "host=evil.test"),
        ("X-HTTP-Method-Override", "POST"),
        ("X-HTTP-Method", "POST"),
        ("X-Method-Override", "POST"),
        ("X-Original-URL", "/other"),
        ("X-Rewrite-URL", "/other"),
        ("X-Host", "evil.test"),
        ("X_Original_URL", "/other"),
        ("X_Access_Token", "x"),
        ("If_Match", "\"a\""),
        ("Connection", "keep-alive, X-Tenant"),
        ("Connection", "upgrade"),
        ("Cache-Control", "no-store"),
        ("Cache-Control", "max-age=5, NO-STORE"),
    ] {
        assert_eq!(asked(&[(name, value)]).await, None, "{name}: {value}");
        assert_eq!(asked(&[(name, "")]).await.is_some(), name == "Connection" || name == "Cache-Control");
    }
}

#[tokio::test]
async fn only_get_and_head_without_a_body_of_a_public_sandbox_and_not_on_the_port_of_envd() {
    let (public, web, envd, none) = (entry("").await, target(80), target(49983), HeaderMap::new());
    let of = |change: fn(&mut RequestFacts<'_>)| {
        let mut facts = everyday(&none, &web, &public);
        change(&mut facts);
        cache_demand(&facts)
    };
    assert_eq!(of(|_| ()), Some(CacheDemand::any(&Method::GET)));
    assert_eq!(of(|facts| facts.method = &Method::HEAD), Some(CacheDemand::any(&Method::HEAD)));
    assert_eq!(of(|facts| facts.method = &Method::POST), None);
    assert_eq!(of(|facts| facts.method = &Method::OPTIONS), None);
    assert_eq!(of(|facts| facts.bodyless = false), None);
    assert_eq!(cache_demand(&everyday(&none, &envd, &public)), None);
    for access in [
        "    AllowPublicTraffic: \"false\"\n    TrafficAccessToken: example-token\n",
        "    TrafficAccessToken: example-token\n",
        "    AllowPublicTraffic: \"false\"\n",
    ] {
        assert_eq!(cache_demand(&everyday(&none, &web, entry(access).await.as_ref())), None, "{access}");
    }
    assert!(!CacheDemand::any(&Method::HEAD).keep && CacheDemand::any(&Method::GET).keep);
}

#[tokio::test]
async fn of_a_trusted_peer_only_what_is_said_anew_or_names_one_client_passes() {
    let (entry, target) = (entry("").await, target(80));
    let chained = |fields: &[(&str, &str)], chain: Option<&str>| {
        let headers = headers(fields);
        let mut facts = everyday(&headers, &target, &entry);
        facts.trusted = true;
        facts.real_ip = Some("192.0.2.1".parse().unwrap());
        facts.chain = chain.map(str::as_bytes);
        cache_demand(&facts).is_some()
    };
    let forwarded = ("X-Forwarded-For", "whatever the chain is made from");
    assert!(chained(&[("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "a"), ("X-Real-IP", "b")], None));
    assert!(chained(&[forwarded], Some("192.0.2.1, 10.0.0.1")));
    assert!(chained(&[forwarded], Some("192.0.2.1, 10.0.0.2, 10.0.0.1")));
    assert!(!chained(&[forwarded], Some("<script>, 192.0.2.1, 10.0.0.1")), "a client's own words");
    assert!(!chained(&[forwarded], Some("198.51.100.7, 192.0.2.1, 10.0.0.1")));
    assert!(!chained(&[forwarded], None));
    for name in ["X-Forwarded-Port", "Forwarded", "X_Forwarded_For", "X_Real_IP", "X-Forwarded-Prefix"] {
        assert!(!chained(&[(name, "x")], Some("192.0.2.1, 10.0.0.1")), "{name}");
    }
}

#[tokio::test]
async fn the_names_of_the_header_form_stay_with_the_proxy_or_keep_a_request_away() {
    let (entry, target, fields) = (entry("").await, target(80), headers(&[("E2b-Sandbox-Id", "A")]));
    let mut facts = everyday(&fields, &target, &entry);
    assert!(cache_demand(&facts).is_some());
    facts.forward_credentials = true;
    assert_eq!(cache_demand(&facts), None);
}

#[tokio::test]
async fn a_request_that_wants_a_response_of_now_gets_one_and_leaves_it_behind() {
    let anew = Some(CacheDemand { stored: false, ..CacheDemand::any(&Method::GET) });
    for fields in [
        &[("Cache-Control", "no-cache")][..],
        &[("Cache-Control", "max-age")],
        &[("Cache-Control", "min-fresh=soon")],
        &[("Cache-Control", "what is this")],
        &[("Pragma", "x, No-Cache")],
    ] {
        assert_eq!(asked(fields).await, anew, "{fields:?}");
    }
    let any = Some(CacheDemand::any(&Method::GET));
    assert_eq!(asked(&[("Pragma", "no-cache"), ("Cache-Control", "x=1")]).await, any);
    assert_eq!(asked(&[("Pragma", "x")]).await, any);
    assert_eq!(asked(&[("Cache-Control", "only-if-cached, max-stale=9, no-transform")]).await, any);
}

#[tokio::test]
async fn a_request_says_how_old_a_response_may_be_and_for_how_long_it_must_be_fresh() {
    use crate::response_cache::cacheability::Storable;
    let seconds = Duration::from_secs;
    let came = Instant::now() + seconds(1000);
    let storable = Storable { age: seconds(20), fresh_for: seconds(60), vary: vec![], length: None };
    let freshness = Freshness::new(&storable, came);
    for (control, takes) in [
        ("max-age=20", true),
        ("max-age=19", false),
        ("max-age=0", false),
        ("max-age=99, max-age=19", false),
        ("min-fresh=40", true),
        ("min-fresh=41", false),
        ("max-age=99999999999999999999", true),
        ("max-age=20, min-fresh=40", true),
    ] {
        let demand = asked(&[("Cache-Control", control)]).await.unwrap();
        assert_eq!(demand.takes(&freshness, came), takes, "{control}");
    }
    let any = asked(&[]).await.unwrap();
    assert!(any.takes(&freshness, came + seconds(39)) && !any.takes(&freshness, came + seconds(40)));
}

#[tokio::test]
async fn no_two_different_requests_have_the_same_key() {
    let (entry, other, target, another) = (entry("").await, entry("").await, target(80), target(8080));
    let usual = KeyParts {
        entry: &entry,
        target: &target,
        scheme: "http",
        upstream_host: b"ab",
        client_host: b"cd",
        prefix: Some("/p"),
        upstream_target: b"/t",
    };
    let parts = |change: fn(&mut KeyParts<'_>)| {
        let mut parts = usual.clone();
        change(&mut parts);
        parts.key()
    };
    let mut keys = vec![
        parts(|_| ()),
        parts(|parts| parts.scheme = "https"),
        // The same bytes, shared out in another way.
        parts(|parts| (parts.upstream_host, parts.client_host) = (b"a", b"bcd")),
        parts(|parts| (parts.upstream_host, parts.client_host) = (b"abcd", b"")),
        parts(|parts| (parts.upstream_host, parts.client_host) = (b"", b"abcd")),
        parts(|parts| (parts.prefix, parts.upstream_target) = (Some("/p/t"), b"")),
        parts(|parts| (parts.prefix, parts.upstream_target) = (None, b"/p/t")),
        parts(|parts| parts.upstream_target = b"/t?"),
    ];
    let mut of_others = KeyParts { entry: &other, ..usual.clone() };
    keys.push(of_others.key());
    (of_others.entry, of_others.target) = (&entry, &another);
    keys.push(of_others.key());
    let by_headers = target_of(&[("Host", "localhost"), ("E2b-Sandbox-Id", "a"), ("E2b-Sandbox-Port", "80")]);
    of_others.target = &by_headers;
    keys.push(of_others.key());
    let all = keys.len();
    assert_eq!(keys[0], parts(|_| ()));
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), all);
}
