//! The engine: libFuzzer on the target that `CUBE_FUZZ_TARGET` names (scripts/fuzz).

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

/// A target by its name, which is its corpus's as well.
const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("host", cube_route::fuzz::host),
    ("path", cube_route::fuzz::path),
    ("response-headers", cube_route::fuzz::response_headers),
    ("preview", cube_route::fuzz::preview),
    ("record", cube_metadata::fuzz::record),
    ("records-file", cube_metadata::fuzz::records_file),
    ("admin", cube_lifecycle::fuzz::admin),
    ("explain", cube_edge::fuzz::explain),
    ("own-response", cube_edge::fuzz::own_response),
    ("chunks", cube_http1::fuzz::chunks),
    ("requests", cube_edge::fuzz::requests),
    ("configuration", cube_proxy::config::fuzz::configuration),
];

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fn chosen() -> fn(&[u8]) {
    let name = std::env::var("CUBE_FUZZ_TARGET").unwrap_or_default();
    match TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => *target,
        None => {
            eprintln!(
                "CUBE_FUZZ_TARGET is one of {}",
                TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
            );
            std::process::exit(64);
        }
    }
}

fuzz_target!(|data: &[u8]| TARGET.get_or_init(chosen)(data));
