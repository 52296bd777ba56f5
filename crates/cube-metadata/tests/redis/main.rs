//! The Redis store against real servers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what it expects by unwrapping it"
)]

mod cluster;
mod sentinel;
mod server;
mod single;
mod tls;
mod tracking;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cube_metadata::{MetadataStore, RedisSettings, RedisStore, StoreEvent};
use cube_route::SandboxId;
use cube_settings::Secret;
use prometheus::Registry;
use tokio::sync::broadcast;

use crate::server::Redis;

fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).unwrap()
}

fn settings(redis: &Redis) -> RedisSettings {
    RedisSettings { url: Secret::new(redis.url()), ..RedisSettings::default() }
}

fn connect(settings: RedisSettings) -> Arc<RedisStore> {
    RedisStore::connect(settings, true, &Registry::new()).unwrap()
}

/// Waits until `holds`, no longer than `seconds`.
async fn within(what: &str, seconds: u64, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for `wanted`, whatever else comes before it.
async fn event(events: &mut broadcast::Receiver<StoreEvent>, wanted: &StoreEvent, seconds: u64) {
    let found = async {
        loop {
            match events.recv().await {
                Ok(event) if event == *wanted => return,
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(seconds), found).await;
    assert!(found.is_ok(), "no {wanted:?} within {seconds} s");
}

/// A store whose changes are pushed.
async fn tracked(redis: &Redis) -> (Arc<RedisStore>, broadcast::Receiver<StoreEvent>) {
    let store = connect(settings(redis));
    within("tracking", 5, async || store.tracking().is_some()).await;
    let events = store.subscribe();
    (store, events)
}
