//! The embedded store: records from a YAML file (config.md), followed as it changes.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use cube_route::SandboxId;
use parking_lot::RwLock;
use prometheus::{IntGauge, Registry};
use tokio::sync::broadcast;

use crate::yaml::{Document, Fields, Id, UniqueMap};
use crate::yaml_edit;
use crate::{MetadataStore, SandboxRecord, Snapshot, StoreError, StoreEvent, TrackingSession};

/// How often the file is looked at. It is read when it looked the same twice after a change, so
/// that a file being written in place is not taken half done.
const POLL: Duration = Duration::from_millis(200);
/// Events kept for a subscriber that is behind.
const EVENTS: usize = 8192;

/// Records from a YAML file, or from memory. Changes are always pushed.
pub struct FileStore {
    path: Option<PathBuf>,
    document: RwLock<Arc<Document>>,
    events: broadcast::Sender<StoreEvent>,
    /// One writer at a time: a write reads the file before it replaces it.
    writing: tokio::sync::Mutex<()>,
}

/// What tells a changed file from an unchanged one without reading it.
#[derive(PartialEq, Eq, Clone, Copy)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl FileStore {
    /// Reads the file and follows it from now on; needs a tokio runtime. A file that breaks later
    /// is reported and the last good one stays in force.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the file cannot be read or is broken (with line and column),
    /// or the metrics are registered already.
    pub fn open(path: impl Into<PathBuf>, registry: &Registry) -> Result<Arc<Self>, StoreError> {
        let path = path.into();
        let stamp = Stamp::of(&path);
        let document = read(&path)?;
        let tracked = IntGauge::new("cube_proxy_cache_tracked", "1 while changes in the store are pushed")
            .and_then(|gauge| registry.register(Box::new(gauge.clone())).map(|()| gauge))
            .map_err(|error| StoreError::Invalid(error.to_string()))?;
        tracked.set(1);
        let store = Arc::new(Self::new(Some(path), document));
        tokio::spawn(follow(Arc::downgrade(&store), stamp));
        Ok(store)
    }

    /// A store without a file behind it; what is written to it lives in memory.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when `text` is broken, with line and column.
    pub fn from_yaml(text: &str) -> Result<Arc<Self>, StoreError> {
        Ok(Arc::new(Self::new(None, Document::read(text).map_err(StoreError::Invalid)?)))
    }

    fn new(path: Option<PathBuf>, document: Document) -> Self {
        Self {
            path,
            document: RwLock::new(Arc::new(document)),
            events: broadcast::channel(EVENTS).0,
            writing: tokio::sync::Mutex::new(()),
        }
    }

    fn document(&self) -> Arc<Document> {
        self.document.read().clone()
    }

    fn fields(&self, id: &SandboxId) -> Option<Fields> {
        let document = self.document();
        document.sandboxes.0.get(&Id(id.clone())).map(|fields| fields.0.clone()).filter(|f| !f.is_empty())
    }

    /// Puts `new` in force and tells what differs.
    fn replace(&self, new: Document) {
        let new = Arc::new(new);
        let old = std::mem::replace(&mut *self.document.write(), new.clone());
        let (before, after) = (&old.sandboxes.0, &new.sandboxes.0);
        let changed = before.iter().filter(|(id, fields)| after.get(*id) != Some(*fields));
        let added = after.iter().filter(|(id, _)| !before.contains_key(*id));
        // Nobody listening is no fault.
        for (id, _) in changed.chain(added) {
            let _ = self.events.send(StoreEvent::RecordChanged(id.0.clone()));
        }
        if old.faulty_backend_set != new.faulty_backend_set {
            let _ = self.events.send(StoreEvent::FaultyNodes);
        }
    }

    /// Changes the document, first in the file where there is one. `draft` changes its text alike;
    /// what it makes is taken where it says what is meant.
    async fn edit<T>(
        &self,
        change: impl FnOnce(&mut Document) -> T,
        draft: impl FnOnce(&str) -> Option<String>,
    ) -> Result<T, StoreError> {
        let _turn = self.writing.lock().await;
        let Some(path) = &self.path else {
            let mut document = (*self.document()).clone();
            let outcome = change(&mut document);
            self.replace(document);
            return Ok(outcome);
        };
        let text = text(path)?;
        let before = parse(path, &text)?;
        let mut document = before.clone();
        let outcome = change(&mut document);
        if document != before {
            let new = match draft(&text).filter(|new| Document::read(new).is_ok_and(|read| read == document))
            {
                Some(new) => new,
                None if yaml_edit::has_comments(&text) => {
                    return Err(StoreError::Invalid(format!(
                        "{}: its comments would be lost, since records are not written a field a line; \
                         edit it by hand, or take the comments out",
                        path.display()
                    )));
                }
                None => document.write().map_err(StoreError::Invalid)?,
            };
            write(path, &new).map_err(|error| cannot("write", path, &error))?;
        }
        self.replace(document);
        Ok(outcome)
    }
}

#[async_trait]
impl MetadataStore for FileStore {
    async fn fetch(&self, id: &SandboxId) -> Result<Snapshot, StoreError> {
        let record = self.fields(id).map(|fields| {
            SandboxRecord::parse(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())), 0)
        });
        Ok(Snapshot { record, state: None })
    }

    async fn faulty_nodes(&self) -> Result<HashSet<IpAddr>, StoreError> {
        let document = self.document();
        let addresses = document.faulty_backend_set.iter().filter_map(|text| text.parse::<IpAddr>().ok());
        Ok(addresses.map(|address| address.to_canonical()).collect())
    }

    fn subscribe(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
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
        Ok(self.document().sandboxes.0.keys().map(|id| id.0.clone()).collect())
    }

    async fn get(&self, id: &SandboxId) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        Ok(self.fields(id))
    }

    /// Comments in the file stay.
    async fn put(&self, id: &SandboxId, fields: &BTreeMap<String, String>) -> Result<(), StoreError> {
        let new = (Id(id.clone()), fields.clone());
        self.edit(
            |document| document.sandboxes.0.entry(new.0).or_insert_with(UniqueMap::default).0.extend(new.1),
            |text| yaml_edit::put(text, id.as_str(), fields),
        )
        .await
    }

    /// Comments in the file stay, but for the one right above the record.
    async fn delete(&self, id: &SandboxId) -> Result<bool, StoreError> {
        let gone = Id(id.clone());
        self.edit(
            |document| document.sandboxes.0.remove(&gone).is_some(),
            |text| yaml_edit::remove(text, id.as_str()),
        )
        .await
    }
}

/// Looks at the file again and again, until the store is gone.
async fn follow(store: Weak<FileStore>, mut in_force: Option<Stamp>) {
    let mut last_seen = in_force;
    let mut polls = tokio::time::interval(POLL);
    polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        polls.tick().await;
        let Some(store) = store.upgrade() else { return };
        let Some(path) = &store.path else { return };
        let seen = Stamp::of(path);
        let settled = seen == last_seen;
        last_seen = seen;
        if !settled || seen == in_force {
            continue;
        }
        let _turn = store.writing.lock().await;
        in_force = seen;
        match read(path) {
            Ok(document) => {
                let count = document.sandboxes.0.len();
                store.replace(document);
                tracing::info!(file = %path.display(), sandboxes = count, "read the sandboxes again");
            }
            Err(error) => tracing::error!(%error, "the last good sandboxes stay in force"),
        }
    }
}

impl Stamp {
    /// `None` while there is no such file.
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

fn read(path: &Path) -> Result<Document, StoreError> {
    parse(path, &text(path)?)
}

fn text(path: &Path) -> Result<String, StoreError> {
    fs::read_to_string(path).map_err(|error| cannot("read", path, &error))
}

fn parse(path: &Path, text: &str) -> Result<Document, StoreError> {
    Document::read(text).map_err(|error| StoreError::Invalid(format!("{}: {error}", path.display())))
}

/// Puts `text` in the place of the file in one step, with the permissions it had.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    // Through a link the file itself is replaced, not the link.
    let path = fs::canonicalize(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh = path.with_file_name(name);
    let _ = fs::remove_file(&fresh);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let done = file
        .write_all(text.as_bytes())
        .and_then(|()| file.set_permissions(fs::metadata(&path)?.permissions()))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&fresh, &path));
    if done.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    done
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Invalid(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
