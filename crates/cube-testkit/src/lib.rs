//! What the whole-proxy tests are made of: a real redis-server, origins that do as they are told
//! and record what they see byte for byte, the real proxy binary, and clients with every byte in
//! the test's hands.
//!
//! A test reads as a sentence:
//!
//! ```ignore
//! let origin = Origin::echo().await;
//! let sandbox = env.sandbox(&origin).token("example-token").await;
//! let response = env.get(&sandbox, "/x").await;
//! response.is_own(404, 310507, r#"{"error":"not found"}"#);
//! ```
//!
//! Nothing here returns an error for the test to look at unless it is what the test is about: what
//! does not happen in time panics with a message that says what was waited for.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a kit for tests says what it expected by panicking"
)]

mod client;
mod control_plane;
mod env;
mod envd;
mod gate;
mod grpc;
mod h2client;
pub mod h2frames;
mod hot_restart;
mod manager;
mod metrics;
mod net;
mod origin;
mod process;
mod program;
mod proxy;
mod redis;
mod relay;
mod response;
pub mod scripts;
mod service;
mod tls;
mod wait;
mod websocket;
mod wire;

pub use client::{Client, Io};
pub use control_plane::ControlPlane;
pub use env::{By, Env, NODE_IP, OUTSIDE, Sandbox, SandboxBuilder, unique_id};
pub use envd::Envd;
pub use gate::Gate;
pub use grpc::{GrpcCall, GrpcClient, GrpcServer, GrpcStream};
pub use h2client::{H2Body, H2Client, H2Response, H2Upload};
pub use h2frames::{Frame, H2Wire};
pub use hot_restart::{Attempt, UpgradeRun};
pub use manager::{Manager, Resume};
pub use metrics::Metrics;
pub use net::{BlackHole, free_port, refused_port};
pub use origin::{Exchange, ExchangeResult, Origin, OriginBuilder, Received};
pub use process::Guarded;
pub use proxy::{LOG_FIELDS, LogLine, Proxy, ProxyBuilder, SECRETS, merge};
pub use redis::{Monitor, RedisCluster, RedisError, RedisServer, Reply, Sentinels};
pub use relay::Relay;
pub use response::{Headers, Response, Seen};
pub use service::ServiceManager;
pub use tls::{Authority, TlsClient, TlsFront, TlsSession, certificate_in};
pub use wait::{LIMIT, eventually, never, within};
pub use websocket::WebSocket;
pub use wire::Wire;

// Re-exported so that a test crate needs no dependency but this one.
pub use {bytes, futures_util, h2, http, rustix, serde_json, tokio_tungstenite, tonic};
