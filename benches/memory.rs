//! What a cached request allocates, piece by piece, and what a cached sandbox takes.
//! `cargo bench -p cube-benches --bench memory`; fails when the route of a cached sandbox allocates.

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use allocation_counter::measure;
use cube_resolver::{AddressGuard, Lookup, TokenVerdict, authorise, route};
use cube_route::{ListenerKind, RequestHead, Rules, parse_request};
use http::{HeaderMap, HeaderValue, Method, Version, header};
use pingora::upstreams::peer::HttpPeer;
use serde_json::json;

mod store;

const ENTRIES: usize = 1_000_000;

fn main() -> ExitCode {
    // `cargo test --benches` calls it too, to see that it runs.
    let entries = if std::env::args().any(|argument| argument == "--bench") { ENTRIES } else { 1000 };
    match run(entries) {
        Some(true) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Whether looking up, token and route allocate nothing; `None` where the parts cannot be made.
#[expect(clippy::print_stdout)]
fn run(entries: usize) -> Option<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let _in_runtime = runtime.enter();

    let resident_before = resident()?;
    let resolver = store::resolver(ENTRIES)?;
    let mut full = None;
    let filled = measure(|| full = runtime.block_on(store::fill(&resolver, entries)));
    full?;
    let grown = resident()?.saturating_sub(resident_before);
    let heap = u64::try_from(filled.bytes_current).ok()? / u64::try_from(resolver.len().max(1)).ok()?;
    let resident = grown / u64::try_from(resolver.len().max(1)).ok()?;

    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_static("8080-00000000000000000000000000000007.cube.app"));
    headers.insert("e2b-traffic-access-token", HeaderValue::from_static(store::TOKEN));
    let head = RequestHead {
        version: Version::HTTP_11,
        method: &Method::GET,
        target: b"/files/list?path=%2Fhome",
        authority: None,
        headers: &headers,
        listener: ListenerKind::Data,
    };
    let rules = Rules::default();
    let guard = AddressGuard::new(None, 1024..=65535, Vec::new());
    let node_ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

    let mut target = None;
    let parse = measure(|| target = parse_request(&head, &rules).ok().and_then(|request| request.target));
    let target = target?;
    let mut found = None;
    let lookup = measure(|| found = resolver.cached(target.id.as_str()));
    let Some(Lookup::Found(entry)) = found else { return None };
    let mut verdict = TokenVerdict::Missing;
    let token = measure(|| verdict = authorise(&entry.record, &headers));
    let mut dialled = None;
    let routed = measure(|| dialled = route(&entry.record, target.port, node_ip, &guard).ok());
    let address = dialled?.address;
    let peer = measure(|| drop(Box::new(HttpPeer::new(address, false, String::new()))));

    let report = json!({
        "entries": resolver.len(),
        "heap_bytes_an_entry": heap,
        "resident_bytes_an_entry": resident,
        "allocations": {
            "parse": parse.count_total,
            "lookup": lookup.count_total,
            "token": token.count_total,
            "route": routed.count_total,
            "http_peer": peer.count_total,
        },
    });
    println!("{report:#}");
    if let Some(path) = std::env::var_os("CUBE_BENCH_OUT") {
        std::fs::write(path, report.to_string()).ok()?;
    }
    let authorised = verdict == TokenVerdict::Authorised;
    Some(authorised && lookup.count_total + token.count_total + routed.count_total == 0)
}

/// Resident memory of this process in bytes.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    statm.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}
