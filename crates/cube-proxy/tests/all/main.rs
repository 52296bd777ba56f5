//! The whole proxy: the real binary, a real redis-server, origins that do as they are told.
//!
//! One test binary, so that tests with the same configuration share one running proxy
//! ([`support`]). Each module is named after what it looks at; docs of the contract are named in it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by unwrapping it"
)]

mod access_log;
mod activity;
mod admin;
mod applications;
mod bad_hosts;
mod breaker;
mod certificates;
mod coherence;
mod control_plane;
mod core_dumps;
mod cors;
mod dashboards;
mod demo;
mod documents;
mod drain;
mod e2b;
mod error_log;
mod explained;
mod failover;
mod first_byte;
mod gate;
mod goaway;
mod grpc;
mod grpc_retries;
mod headers;
mod hostile;
mod hot_restart;
mod hot_restart_hang;
mod hot_restart_load;
mod hot_restart_managed;
mod http1;
mod http2;
mod http2_limits;
mod http2_many;
mod kill;
mod large;
mod leaving;
mod limits;
mod log_sinks;
mod metrics;
mod operators;
mod own_responses;
mod package;
mod pages;
mod previews;
mod processes;
mod proxy_protocol;
mod records;
mod registry;
mod reload;
mod response_cache;
mod resume;
mod retries;
mod revocation;
mod rfc;
mod routing;
mod scale;
mod sdk;
mod secrets;
mod silence;
mod store;
mod store_faults;
mod store_fixture;
mod streaming;
mod support;
mod token;
mod tools;
mod tracing;
mod unit;
mod upstream;
mod websocket;
mod websocket_frames;
