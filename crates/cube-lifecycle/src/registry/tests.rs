use std::sync::atomic::Ordering;
use std::time::Duration;

use cube_metadata::testing::ScriptedStore;
use tokio::sync::oneshot;

use super::*;
use crate::testbed::{LONG, Testbed, until};

fn settings(interval: Duration) -> RegistrySettings {
    RegistrySettings {
        enabled: true,
        proxy_id: cube_settings::Auto::new("node-1".into()),
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
    store: &Arc<ScriptedStore>,
    interval: Duration,
) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (end, ended) = oneshot::channel::<()>();
    let store: Arc<dyn MetadataStore> = Arc::<ScriptedStore>::clone(store);
    let beating = Arc::clone(lifecycle).heartbeat(store, settings(interval), async move {
        let _ = ended.await;
    });
    (end, tokio::spawn(beating))
}

#[tokio::test]
async fn the_first_beat_is_at_once_and_the_row_goes_at_the_end() {
    let lifecycle = Testbed::new().build();
    let store = Arc::<ScriptedStore>::default();
    assert_eq!(lifecycle.heartbeat_last_pushed_ms(), None);
    let (end, task) = begin(&lifecycle, &store, LONG);
    until("announced", || lifecycle.heartbeat_last_pushed_ms().is_some()).await;
    end.send(()).unwrap();
    task.await.unwrap();
    let said = store.registry.lock();
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
    let store = Arc::<ScriptedStore>::default();
    store.registry_failures.store(3, Ordering::SeqCst);
    let (end, task) = begin(&lifecycle, &store, Duration::from_millis(1));
    until("announced twice", || store.registry.lock().len() >= 2).await;
    end.send(()).unwrap();
    task.await.unwrap();
    let said = store.registry.lock();
    assert_eq!(said[0], said[1]);
    assert_eq!(store.registry_failures.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_heartbeat_that_is_dropped_leaves_its_row() {
    let lifecycle = Testbed::new().build();
    let store = Arc::<ScriptedStore>::default();
    let (_end, task) = begin(&lifecycle, &store, LONG);
    until("announced", || store.registry.lock().len() == 1).await;
    task.abort();
    assert!(task.await.is_err());
    assert_eq!(store.registry.lock().len(), 1);
}
