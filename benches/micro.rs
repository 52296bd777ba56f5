//! What the pieces of a cached request cost, each alone. `cargo bench -p cube-benches --bench micro`

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use cube_edge::{
    AccessLog, AccessLogSettings, EdgeMetrics, LineValues, LogEntry, Reason, Retcode, Texts, UpstreamTry,
};
use cube_resolver::{AddressGuard, Lookup, Resolver, authorise, route};
use cube_route::{ListenerKind, Port, RequestHead, ResponseRewrite, Rules, SandboxId, parse_request};
use http::{HeaderMap, HeaderValue, Method, Version, header};
use prometheus::Registry;

mod store;

const ID: &str = "7c8fbcd45ffe450fb8f7fb223ad45507";
/// Lines handed to the access log before it may write: half of what its queue holds, which is when
/// it wakes without waiting for more.
const LINES: u32 = 8192;

/// The fields that a small GET of an SDK has.
fn fields(host: &'static str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(header::HOST, HeaderValue::from_static(host));
    fields.insert(header::USER_AGENT, HeaderValue::from_static("bench/1.0"));
    fields.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    fields.insert("e2b-traffic-access-token", HeaderValue::from_static(store::TOKEN));
    fields
}

fn parse(c: &mut Criterion) {
    let rules = Rules::default();
    let host = fields("8080-7c8fbcd45ffe450fb8f7fb223ad45507.cube.app");
    let mut shared = fields("sandbox.cube.app");
    shared.insert("e2b-sandbox-id", HeaderValue::from_static(ID));
    shared.insert("e2b-sandbox-port", HeaderValue::from_static("8080"));
    let path = fields("127.0.0.1:8081");
    let cases: [(&str, &HeaderMap, &[u8]); 3] = [
        ("host", &host, b"/files/list?path=%2Fhome"),
        ("header", &shared, b"/files/list?path=%2Fhome"),
        ("path", &path, b"/sandbox/7c8fbcd45ffe450fb8f7fb223ad45507/8080/files/list?path=%2Fhome"),
    ];
    let mut group = c.benchmark_group("parse");
    for (form, headers, target) in cases {
        let head = RequestHead {
            version: Version::HTTP_11,
            method: &Method::GET,
            target,
            authority: None,
            headers,
            listener: ListenerKind::Data,
        };
        assert!(parse_request(&head, &rules).is_ok_and(|request| request.target.is_some()), "{form}");
        group.bench_function(form, |b| b.iter(|| parse_request(black_box(&head), &rules)));
    }
}

/// A cached lookup, and the whole way from there to the address that is dialled.
fn resolve(c: &mut Criterion) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let _in_runtime = runtime.enter();
    let guard = AddressGuard::new(None, 1024..=65535, Vec::new());
    let node_ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
    let headers = fields("8080-7c8fbcd45ffe450fb8f7fb223ad45507.cube.app");
    let mut group = c.benchmark_group("cached_resolve");
    for entries in [1000, 1_000_000] {
        let Some(resolver) = store::resolver(1_000_000) else { return };
        assert!(runtime.block_on(store::fill(&resolver, entries)).is_some());
        let ids: Vec<SandboxId> = (0..entries).filter_map(store::id).collect();
        // A stride that is prime to both sizes: no order that the processor could foresee.
        let mut at = 0;
        let mut next = || {
            at = (at + 610_639) % entries;
            ids.get(at)
        };
        group.bench_function(format!("lookup/{entries}"), |b| {
            b.iter(|| next().and_then(|id| resolver.cached(black_box(id.as_str()))));
        });
        group.bench_function(format!("lookup_token_route/{entries}"), |b| {
            b.iter(|| next().map(|id| whole(&resolver, id, &headers, node_ip, &guard)));
        });
        assert!(next().is_some_and(|id| whole(&resolver, id, &headers, node_ip, &guard)));
    }
}

fn whole(
    resolver: &Arc<Resolver>,
    id: &SandboxId,
    headers: &HeaderMap,
    node_ip: IpAddr,
    guard: &AddressGuard,
) -> bool {
    let Some(Lookup::Found(entry)) = resolver.cached(black_box(id.as_str())) else { return false };
    let verdict = authorise(&entry.record, headers);
    let route = Port::new(8080).map(|port| route(&entry.record, port, node_ip, guard));
    black_box(verdict) == cube_resolver::TokenVerdict::Authorised
        && black_box(route).is_some_and(|r| r.is_ok())
}

fn token(c: &mut Criterion) {
    let record = store::record();
    let right = fields("x");
    let mut wrong = right.clone();
    wrong.insert("e2b-traffic-access-token", HeaderValue::from_static("example-token-of-32-characters-2"));
    let mut group = c.benchmark_group("token");
    group.bench_function("right", |b| b.iter(|| authorise(&record, black_box(&right))));
    group.bench_function("wrong", |b| b.iter(|| authorise(&record, black_box(&wrong))));
}

fn answer_rewriting(c: &mut Criterion) {
    let back = ResponseRewrite {
        prefix: Some("/sandbox/7c8fbcd45ffe450fb8f7fb223ad45507/8080"),
        client_host: "127.0.0.1:8081",
        client_scheme: "http",
        upstream_host: "127.0.0.1:8081",
        container_port: 8080,
    };
    let cookie = b"session=0123456789abcdef; Path=/; Domain=example.org; HttpOnly; SameSite=Lax";
    assert!(back.location(b"/login?next=%2F").is_some() && back.set_cookie(cookie).is_some());
    let mut group = c.benchmark_group("response_rewrite");
    group.bench_function("location_relative", |b| b.iter(|| back.location(black_box(b"/login?next=%2F"))));
    group.bench_function("location_absolute", |b| {
        b.iter(|| back.location(black_box(b"http://127.0.0.1:8081/login?next=%2F")));
    });
    group.bench_function("location_elsewhere", |b| {
        b.iter(|| back.location(black_box(b"https://accounts.example.org/o/oauth2?state=x")));
    });
    group.bench_function("set_cookie", |b| b.iter(|| back.set_cookie(black_box(cookie))));
}

/// The access log: what a request pays (`submit`), and what a line costs until it is written.
fn log_line(c: &mut Criterion) {
    let registry = Registry::new();
    let settings = AccessLogSettings { path: Some("/dev/null".to_owned()), ..AccessLogSettings::default() };
    let Ok(metrics) = EdgeMetrics::new(&registry) else { return };
    let (Ok(log), Ok(id)) = (AccessLog::open(&settings, &metrics), SandboxId::parse(ID)) else { return };
    let upstreams = [UpstreamTry {
        address: (Ipv4Addr::new(10, 0, 0, 1), 49983).into(),
        status: Some(200),
        took: Some(Duration::from_micros(1500)),
    }];
    let entry = LogEntry {
        texts: Texts {
            host: b"8080-7c8fbcd45ffe450fb8f7fb223ad45507.cube.app",
            x_real_ip: b"203.0.113.7",
            x_forwarded_for: b"203.0.113.7",
            x_forwarded_proto: b"https",
            method: b"GET",
            request_uri: b"/files/list?path=%2Fhome",
            uri: b"/files/list",
            user_agent: b"bench/1.0",
            x_cube_request_id: b"4f3c2a1b-0d9e-4c7a-8b6f-1e2d3c4b5a69",
            x_cube_instance_id: b"",
            sandbox_id: id.as_str().as_bytes(),
        },
        values: LineValues {
            time: SystemTime::now(),
            server_addr: Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9))),
            protocol: Some("HTTP/1.1"),
            status: Some(200),
            body_bytes_sent: 12,
            took: Duration::from_micros(1700),
            connection_requests: 17,
            retcode: Retcode::Passed(200),
            port: Port::new(8080),
            reason: Reason::Ok,
            trace: None,
        },
        upstreams: &upstreams,
    };
    // Lines written so far. Waiting for them keeps the queue from filling, and lines from being
    // dropped, which would be measured as cheap.
    let mut written = 0;
    let mut wait = || {
        written += u64::from(LINES);
        let begun = Instant::now();
        while lines(&registry) < written {
            assert!(begun.elapsed() < Duration::from_secs(20), "lines of the access log were lost");
            std::thread::sleep(Duration::from_micros(50));
        }
    };
    let mut group = c.benchmark_group("access_log");
    group.bench_function("submit", |b| {
        b.iter_custom(|iterations| {
            let mut took = Duration::ZERO;
            let mut left = iterations;
            while left > 0 {
                let timed = left.min(u64::from(LINES));
                let begun = Instant::now();
                (0..timed).for_each(|_| log.submit(black_box(&entry)));
                took += begun.elapsed();
                (timed..u64::from(LINES)).for_each(|_| log.submit(&entry));
                left -= timed;
                wait();
            }
            took
        });
    });
    group.bench_function("8192_lines_written", |b| {
        b.iter_batched(
            || (),
            |()| {
                (0..LINES).for_each(|_| log.submit(black_box(&entry)));
                wait();
            },
            BatchSize::PerIteration,
        );
    });
}

/// `cube_proxy_access_log_lines_total`.
fn lines(registry: &Registry) -> u64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == "cube_proxy_access_log_lines_total");
    let value = family.and_then(|family| family.get_metric().first()).map(|m| m.get_counter().get_value());
    // A count of lines is a whole number far below 2^53.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    value.map_or(0, |value| value as u64)
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50);
    targets = parse, resolve, token, answer_rewriting, log_line
}
criterion_main!(benches);
