use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use cube_metadata::{Snapshot, StoreError, StoreEvent, TrackingSession};
use cube_route::SandboxId;
use parking_lot::Mutex;
use tokio::sync::{broadcast, oneshot};

use super::*;
use crate::testbed::{LONG, Testbed, until};

/// A store that has a registry and nothing else.
#[derive(Default)]
struct Rows {
    said: Mutex<Vec<String>>,
    failures: Mutex<usize>,
}

#[async_trait::async_trait]
impl MetadataStore for Rows {
    async fn fetch(&self, _: &SandboxId) -> Result<Snapshot, StoreError> {
        Err(StoreError::Timeout)
    }
    async fn faulty_nodes(&self) -> Result<HashSet<IpAddr>, StoreError> {
        Err(StoreError::Timeout)
    }
    fn subscribe(&self) -> broadcast::Receiver<StoreEvent> {
        broadcast::channel(1).1
    }
    fn tracking(&self) -> Option<TrackingSession> {
        None
    }
    fn failing(&self) -> bool {
        false
    }
    fn has_responded(&self) -> bool {
        true
    }
    async fn list(&self) -> Result<Vec<SandboxId>, StoreError> {
        Err(StoreError::Timeout)
    }
    async fn get(&self, _: &SandboxId) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        Err(StoreError::Timeout)
    }
    async fn put(&self, _: &SandboxId, _: &BTreeMap<String, String>) -> Result<(), StoreError> {
        Err(StoreError::Timeout)
    }
    async fn delete(&self, _: &SandboxId) -> Result<bool, StoreError> {
        Err(StoreError::Timeout)
    }
    async fn announce(&self, proxy_id: &str, row: &str, now_ms: u64) -> Result<(), StoreError> {
        let mut failures = self.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return Err(StoreError::Timeout);
        }
        assert!(now_ms.abs_diff(unix_ms()) < 60_000);
        self.said.lock().push(format!("announce {proxy_id} {row}"));
        Ok(())
    }
    async fn withdraw(&self, proxy_id: &str) -> Result<(), StoreError> {
        self.said.lock().push(format!("withdraw {proxy_id}"));
        Ok(())
    }
}

fn settings(interval: Duration) -> RegistrySettings {
    RegistrySettings {
        proxy_id: "node-1".into(),
        admin_url: Some("http://10.0.0.1:8082".into()),
        resume_url: None,
        node_ip: Some("10.0.0.1".parse().unwrap()),
        interval,
        version: "0.1.0".into(),
    }
}

/// Begins a heartbeat; what ends it, and its task.
fn begin(
    lifecycle: &Arc<Lifecycle>,
    rows: &Arc<Rows>,
    interval: Duration,
) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (end, ended) = oneshot::channel::<()>();
    let store: Arc<dyn MetadataStore> = Arc::<Rows>::clone(rows);
    let beating = Arc::clone(lifecycle).heartbeat(store, settings(interval), async move {
        let _ = ended.await;
    });
    (end, tokio::spawn(beating))
}

#[tokio::test]
async fn the_first_beat_is_at_once_and_the_row_goes_at_the_end() {
    let lifecycle = Testbed::new().build();
    let rows = Arc::<Rows>::default();
    assert_eq!(lifecycle.heartbeat_last_pushed_ms(), None);
    let (end, task) = begin(&lifecycle, &rows, LONG);
    until("announced", || lifecycle.heartbeat_last_pushed_ms().is_some()).await;
    end.send(()).unwrap();
    task.await.unwrap();
    let said = rows.said.lock();
    let row = said[0].strip_prefix("announce node-1 ").unwrap();
    let row: serde_json::Value = serde_json::from_str(row).unwrap();
    let started = row["started_at"].as_u64().unwrap();
    assert!(started.abs_diff(unix_ms()) < 60_000);
    let expected = json!({
        "proxy_id": "node-1", "admin_url": "http://10.0.0.1:8082", "resume_url": null,
        "node_ip": "10.0.0.1", "started_at": started, "version": "0.1.0",
    });
    assert_eq!(row, expected);
    assert_eq!(said[1..], ["withdraw node-1"]);
}

#[tokio::test]
async fn a_store_that_fails_is_tried_again_and_the_row_is_the_same_every_time() {
    let lifecycle = Testbed::new().build();
    let rows = Arc::<Rows>::default();
    *rows.failures.lock() = 3;
    let (end, task) = begin(&lifecycle, &rows, Duration::from_millis(1));
    until("announced twice", || rows.said.lock().len() >= 2).await;
    end.send(()).unwrap();
    task.await.unwrap();
    let said = rows.said.lock();
    assert_eq!(said[0], said[1]);
    assert_eq!(*rows.failures.lock(), 0);
}

#[tokio::test]
async fn a_heartbeat_that_is_dropped_leaves_its_row() {
    let lifecycle = Testbed::new().build();
    let rows = Arc::<Rows>::default();
    let (_end, task) = begin(&lifecycle, &rows, LONG);
    until("announced", || rows.said.lock().len() == 1).await;
    task.abort();
    assert!(task.await.is_err());
    assert_eq!(rows.said.lock().len(), 1);
}
