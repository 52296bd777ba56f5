use super::*;
use crate::FieldValue;

fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).unwrap()
}

async fn next(events: &mut broadcast::Receiver<StoreEvent>) -> StoreEvent {
    tokio::time::timeout(Duration::from_secs(5), events.recv()).await.expect("an event in time").unwrap()
}

fn store_with(text: &str) -> (tempfile::TempDir, PathBuf, Arc<FileStore>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sandboxes.yaml");
    fs::write(&path, text).unwrap();
    let store = FileStore::open(&path, &Registry::new()).unwrap();
    (directory, path, store)
}

#[tokio::test]
async fn records_and_faulty_nodes_come_from_the_text() {
    let text = "sandboxes: {Ab: {HostIP: 10.0.0.1}, empty: {}}\nfaulty_backend_set: ['::ffff:10.0.0.2', x]";
    let store = FileStore::from_yaml(text).unwrap();
    let record = store.fetch(&id("ab")).await.unwrap().record.unwrap();
    assert_eq!(record.host_ip, FieldValue::Value("10.0.0.1".parse().unwrap()));
    assert!(store.fetch(&id("empty")).await.unwrap().record.is_none());
    assert!(store.fetch(&id("other")).await.unwrap().record.is_none());
    assert_eq!(store.faulty_nodes().await.unwrap(), HashSet::from(["10.0.0.2".parse().unwrap()]));
}

#[tokio::test]
async fn a_store_in_memory_takes_changes() {
    let store = FileStore::from_yaml("sandboxes: {}").unwrap();
    let mut events = store.subscribe();
    let fields = BTreeMap::from([("HostIP".to_owned(), "10.0.0.1".to_owned())]);
    store.put(&id("ab"), &fields).await.unwrap();
    assert_eq!(next(&mut events).await, StoreEvent::RecordChanged(id("ab")));
    assert_eq!(store.get(&id("ab")).await.unwrap(), Some(fields));
    assert_eq!(store.list().await.unwrap(), [id("ab")]);
    assert!(store.delete(&id("ab")).await.unwrap());
    assert!(!store.delete(&id("ab")).await.unwrap());
    assert_eq!(store.get(&id("ab")).await.unwrap(), None);
}

#[tokio::test]
async fn a_replaced_file_is_followed_and_only_differences_are_told() {
    let (_directory, path, store) = store_with("sandboxes: {a: {x: y}, b: {x: y}, c: {x: y}}");
    let mut events = store.subscribe();
    let fresh = path.with_extension("tmp");
    fs::write(&fresh, "sandboxes: {a: {x: y}, b: {x: z}, d: {x: y}}\nfaulty_backend_set: [10.0.0.1]")
        .unwrap();
    fs::rename(&fresh, &path).unwrap();
    let mut changed = Vec::new();
    for _ in 0..3 {
        match next(&mut events).await {
            StoreEvent::RecordChanged(id) => changed.push(id.to_string()),
            other => panic!("{other:?}"),
        }
    }
    changed.sort();
    assert_eq!(changed, ["b", "c", "d"]);
    assert_eq!(next(&mut events).await, StoreEvent::FaultyNodes);
}

#[tokio::test]
async fn a_broken_file_leaves_the_last_good_one_in_force() {
    let (_directory, path, store) = store_with("sandboxes: {a: {x: y}}");
    let mut events = store.subscribe();
    fs::write(&path, "sandboxes: {a: [").unwrap();
    let broken = store.put(&id("b"), &BTreeMap::new()).await.unwrap_err();
    assert!(broken.to_string().contains("line 1, column"), "{broken}");
    // Good again: the only event there ever is.
    fs::write(&path, "sandboxes: {a: {x: y}, b: {x: y}}").unwrap();
    assert_eq!(next(&mut events).await, StoreEvent::RecordChanged(id("b")));
    assert!(store.fetch(&id("a")).await.unwrap().record.is_some());
}

#[tokio::test]
async fn writing_keeps_the_other_records_and_the_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, path, store) = store_with("sandboxes: {a: {x: '1'}}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    store.put(&id("a"), &BTreeMap::from([("y".into(), "2".into())])).await.unwrap();
    store.put(&id("b"), &BTreeMap::from([("x".into(), "false".into())])).await.unwrap();
    let again = FileStore::open(&path, &Registry::new()).unwrap();
    let a = again.get(&id("a")).await.unwrap().unwrap();
    assert_eq!(a, BTreeMap::from([("x".into(), "1".into()), ("y".into(), "2".into())]));
    assert_eq!(again.get(&id("b")).await.unwrap().unwrap()["x"], "false");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no file is left behind");
}

#[tokio::test]
async fn comments_stay_or_nothing_is_written() {
    let text = "# mine\nsandboxes:\n  a:\n    x: '1' # why\n";
    let (_directory, path, store) = store_with(text);
    store.put(&id("a"), &BTreeMap::from([("x".into(), "2".into())])).await.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text.replace('1', "2"));
    let flow = "# mine\nsandboxes: {a: {x: '1'}}\n";
    let (_directory, path, store) = store_with(flow);
    let refused = store.put(&id("a"), &BTreeMap::from([("x".into(), "2".into())])).await.unwrap_err();
    assert!(refused.to_string().contains("comments would be lost"), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), flow);
    assert!(!store.delete(&id("b")).await.unwrap(), "nothing to do is no fault");
}

#[test]
fn a_file_that_is_broken_or_missing_at_the_start_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sandboxes.yaml");
    assert!(FileStore::open(&path, &Registry::new()).is_err());
    fs::write(&path, "sandboxes:\n  a.b: {}\n").unwrap();
    let error = FileStore::open(&path, &Registry::new()).err().unwrap().to_string();
    assert!(error.contains("sandboxes.yaml: line 2, column 3"), "{error}");
}
