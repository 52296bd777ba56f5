//! A store that knows every sandbox, for benchmarks of the route cache.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use async_trait::async_trait;
use cube_metadata::{
    MetadataStore, SandboxRecord, Snapshot, SnapshotObserver, StoreError, StoreEvent, TrackingSession,
};
use cube_resolver::{Resolver, Settings};
use cube_route::SandboxId;
use prometheus::Registry;
use tokio::sync::broadcast;

/// The secret of every sandbox in it.
pub(crate) const TOKEN: &str = "example-token-of-32-characters-1";
/// What is stored of every sandbox: elsewhere, private, two ports.
const FIELDS: [(&str, &str); 6] = [
    ("HostIP", "10.0.0.1"),
    ("SandboxIP", "192.168.1.100"),
    ("8080", "49983"),
    ("49983", "40001"),
    ("CreatedAt", "1733000000000000000"),
    ("TrafficAccessToken", TOKEN),
];

/// Gives the same record for every id, and pushes nothing.
struct Everyone(broadcast::Sender<StoreEvent>);

#[async_trait]
impl MetadataStore for Everyone {
    async fn fetch(&self, _: &SandboxId) -> Result<Snapshot, StoreError> {
        Ok(Snapshot { record: Some(record()), state: None })
    }

    async fn faulty_nodes(&self) -> Result<HashSet<IpAddr>, StoreError> {
        Ok(HashSet::new())
    }

    fn subscribe(&self) -> broadcast::Receiver<StoreEvent> {
        self.0.subscribe()
    }

    fn tracking(&self) -> Option<TrackingSession> {
        Some(NonZeroU64::MIN)
    }

    fn failing(&self) -> bool {
        false
    }

    fn has_responded(&self) -> bool {
        true
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StoreError> {
        Err(endless())
    }

    async fn get(&self, _: &SandboxId) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        Err(endless())
    }

    async fn put(&self, _: &SandboxId, _: &BTreeMap<String, String>) -> Result<(), StoreError> {
        Err(endless())
    }

    async fn delete(&self, _: &SandboxId) -> Result<bool, StoreError> {
        Err(endless())
    }
}

fn endless() -> StoreError {
    StoreError::Invalid("this store holds every sandbox".to_owned())
}

/// Nobody waits and nobody streams.
struct Nobody;

impl SnapshotObserver for Nobody {
    fn observed(&self, _: &SandboxId, _: &Snapshot) {}

    fn interested(&self, _: &SandboxId) -> bool {
        false
    }
}

/// The record that every sandbox has.
pub(crate) fn record() -> SandboxRecord {
    SandboxRecord::parse(FIELDS.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())), 0)
}

/// The `n`th sandbox, with an id as long as real ones.
pub(crate) fn id(n: usize) -> Option<SandboxId> {
    SandboxId::parse(&format!("{n:032x}")).ok()
}

/// A resolver that follows its store, within the runtime of the caller. `None` where it cannot be
/// made.
pub(crate) fn resolver(capacity: usize) -> Option<Arc<Resolver>> {
    let store = Arc::new(Everyone(broadcast::Sender::new(16)));
    let settings = Settings { capacity, ..Settings::default() };
    let resolver = Resolver::new(store, Arc::new(Nobody), settings, &Registry::new()).ok()?;
    tokio::spawn(Arc::clone(&resolver).run());
    Some(resolver)
}

/// Puts the first `entries` sandboxes into the cache, through the front door.
pub(crate) async fn fill(resolver: &Arc<Resolver>, entries: usize) -> Option<()> {
    // `run` begins with the first pause of this task.
    tokio::task::yield_now().await;
    for n in 0..entries {
        resolver.lookup(&id(n)?).await.ok()?;
    }
    Some(())
}
