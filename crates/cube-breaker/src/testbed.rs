//! A store for tests, which set its faulty set.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use cube_metadata::{MetadataStore, Snapshot, StoreError, StoreEvent, TrackingSession};
use cube_route::SandboxId;
use parking_lot::Mutex;
use tokio::sync::broadcast;

pub(crate) struct ScriptedStore {
    /// None: the store cannot answer.
    pub(crate) nodes: Mutex<Option<HashSet<IpAddr>>>,
    pub(crate) reads: AtomicUsize,
    pub(crate) events: broadcast::Sender<StoreEvent>,
}

impl ScriptedStore {
    pub(crate) fn new(nodes: &[&str]) -> Arc<Self> {
        let set =
            Self { nodes: Mutex::default(), reads: AtomicUsize::new(0), events: broadcast::Sender::new(4) };
        set.set(nodes);
        Arc::new(set)
    }

    pub(crate) fn set(&self, nodes: &[&str]) {
        *self.nodes.lock() = Some(nodes.iter().map(|node| node.parse().unwrap()).collect());
    }
}

#[async_trait]
impl MetadataStore for ScriptedStore {
    async fn fetch(&self, _: &SandboxId) -> Result<Snapshot, StoreError> {
        Ok(Snapshot::default())
    }

    async fn faulty_nodes(&self) -> Result<HashSet<IpAddr>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.nodes.lock().clone().ok_or(StoreError::Timeout)
    }

    fn subscribe(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }

    fn tracking(&self) -> Option<TrackingSession> {
        None
    }

    fn failing(&self) -> bool {
        self.nodes.lock().is_none()
    }

    fn has_responded(&self) -> bool {
        true
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StoreError> {
        Ok(Vec::new())
    }

    async fn get(&self, _: &SandboxId) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        Ok(None)
    }

    async fn put(&self, _: &SandboxId, _: &BTreeMap<String, String>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn delete(&self, _: &SandboxId) -> Result<bool, StoreError> {
        Ok(false)
    }
}
