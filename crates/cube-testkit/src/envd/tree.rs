//! The files of a sandbox, in memory, and who watches them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::connect::Refusal;

/// Where relative paths begin.
const HOME: &str = "/home/user";

#[derive(Clone)]
enum Node {
    Directory,
    File(Bytes),
}

struct Watcher {
    path: String,
    recursive: bool,
    events: UnboundedSender<Value>,
}

pub(super) struct Tree {
    nodes: Mutex<BTreeMap<String, Node>>,
    watchers: Mutex<Vec<Watcher>>,
    /// The watchers that are asked for their events, by id.
    polled: Mutex<BTreeMap<String, UnboundedReceiver<Value>>>,
}

impl Default for Tree {
    fn default() -> Self {
        let nodes = ["/", "/home", HOME].map(|path| (path.to_owned(), Node::Directory));
        Self { nodes: Mutex::new(nodes.into()), watchers: Mutex::default(), polled: Mutex::default() }
    }
}

impl Tree {
    /// Makes or replaces a file, and the directories above it.
    pub(super) fn write(&self, path: &str, content: Bytes) -> Value {
        let path = absolute(path);
        let mut nodes = self.nodes.lock().unwrap();
        for (at, _) in path.match_indices('/').skip(1) {
            nodes.entry(path[..at].to_owned()).or_insert(Node::Directory);
        }
        let known = nodes.insert(path.clone(), Node::File(content)).is_some();
        drop(nodes);
        if !known {
            self.tell(&path, "EVENT_TYPE_CREATE");
        }
        self.tell(&path, "EVENT_TYPE_WRITE");
        json!({ "name": name(&path), "type": "file", "path": path })
    }

    pub(super) fn read(&self, path: &str) -> Option<Bytes> {
        match self.nodes.lock().unwrap().get(&absolute(path)) {
            Some(Node::File(content)) => Some(content.clone()),
            _ => None,
        }
    }

    pub(super) fn stat(&self, path: &str) -> Result<Value, Refusal> {
        let path = absolute(path);
        let nodes = self.nodes.lock().unwrap();
        nodes.get(&path).map(|node| entry(&path, node)).ok_or_else(|| missing(&path))
    }

    /// What lies in a directory, down to that depth.
    pub(super) fn list(&self, path: &str, depth: usize) -> Result<Vec<Value>, Refusal> {
        let path = absolute(path);
        let nodes = self.nodes.lock().unwrap();
        match nodes.get(&path) {
            Some(Node::Directory) => {}
            Some(Node::File(_)) => return Err(Refusal::new("invalid_argument", "path is not a directory")),
            None => return Err(missing(&path)),
        }
        let within = |other: &str| below(&path, other).is_some_and(|rest| rest.split('/').count() <= depth);
        Ok(nodes.iter().filter(|(other, _)| within(other)).map(|(other, node)| entry(other, node)).collect())
    }

    pub(super) fn make_directory(&self, path: &str) -> Result<Value, Refusal> {
        let path = absolute(path);
        let mut nodes = self.nodes.lock().unwrap();
        if nodes.contains_key(&path) {
            return Err(Refusal::new("already_exists", format!("directory already exists: {path}")));
        }
        nodes.insert(path.clone(), Node::Directory);
        drop(nodes);
        self.tell(&path, "EVENT_TYPE_CREATE");
        self.stat(&path)
    }

    /// Removes a file, or a directory with all that is in it. What is not there is removed already.
    pub(super) fn remove(&self, path: &str) {
        let path = absolute(path);
        self.nodes.lock().unwrap().retain(|other, _| *other != path && below(&path, other).is_none());
        self.tell(&path, "EVENT_TYPE_REMOVE");
    }

    /// Moves a file, or a directory with all that is in it.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<Value, Refusal> {
        let (from, to) = (absolute(from), absolute(to));
        let mut nodes = self.nodes.lock().unwrap();
        if !nodes.contains_key(&from) {
            return Err(missing(&from));
        }
        let moved: Vec<String> =
            nodes.keys().filter(|path| **path == from || below(&from, path).is_some()).cloned().collect();
        for path in moved {
            if let Some(node) = nodes.remove(&path) {
                nodes.insert(format!("{to}{}", &path[from.len()..]), node);
            }
        }
        drop(nodes);
        self.tell(&from, "EVENT_TYPE_RENAME");
        self.tell(&to, "EVENT_TYPE_CREATE");
        self.stat(&to)
    }

    /// The events of a directory from now on.
    pub(super) fn watch(&self, path: &str, recursive: bool) -> Result<UnboundedReceiver<Value>, Refusal> {
        let path = absolute(path);
        if !matches!(self.nodes.lock().unwrap().get(&path), Some(Node::Directory)) {
            return Err(missing(&path));
        }
        let (events, receiver) = unbounded_channel();
        self.watchers.lock().unwrap().push(Watcher { path, recursive, events });
        Ok(receiver)
    }

    /// The same for a client that asks for them; the id to ask with.
    pub(super) fn watch_polled(&self, path: &str, recursive: bool) -> Result<String, Refusal> {
        let receiver = self.watch(path, recursive)?;
        let mut polled = self.polled.lock().unwrap();
        let id = format!("watcher-{}", polled.len());
        polled.insert(id.clone(), receiver);
        Ok(id)
    }

    /// What has happened since the last question.
    pub(super) fn poll(&self, id: &str) -> Result<Vec<Value>, Refusal> {
        let mut polled = self.polled.lock().unwrap();
        let receiver = polled.get_mut(id).ok_or_else(|| Refusal::not_found("watcher not found"))?;
        Ok(std::iter::from_fn(|| receiver.try_recv().ok()).collect())
    }

    pub(super) fn unwatch(&self, id: &str) -> Result<(), Refusal> {
        let known = self.polled.lock().unwrap().remove(id);
        known.map(drop).ok_or_else(|| Refusal::not_found("watcher not found"))
    }

    fn tell(&self, path: &str, event: &str) {
        self.watchers.lock().unwrap().retain(|watcher| {
            let Some(name) = below(&watcher.path, path) else { return !watcher.events.is_closed() };
            if name.contains('/') && !watcher.recursive {
                return !watcher.events.is_closed();
            }
            watcher.events.send(json!({ "name": name, "type": event })).is_ok()
        });
    }
}

fn missing(path: &str) -> Refusal {
    Refusal::not_found(format!("path not found: {path}"))
}

fn absolute(path: &str) -> String {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("{HOME}/{path}") };
    match path.trim_end_matches('/') {
        "" => "/".to_owned(),
        trimmed => trimmed.to_owned(),
    }
}

/// `path` as seen from the directory, if it lies below it.
fn below<'a>(directory: &str, path: &'a str) -> Option<&'a str> {
    let rest = path.strip_prefix(directory.trim_end_matches('/'))?.strip_prefix('/')?;
    (!rest.is_empty()).then_some(rest)
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn entry(path: &str, node: &Node) -> Value {
    let (kind, size, mode, permissions) = match node {
        Node::Directory => ("FILE_TYPE_DIRECTORY", 4096, 0o755, "drwxr-xr-x"),
        Node::File(content) => ("FILE_TYPE_FILE", content.len(), 0o644, "-rw-r--r--"),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    json!({
        "name": name(path), "type": kind, "path": path, "size": size.to_string(), "mode": mode,
        "permissions": permissions, "owner": "user", "group": "user",
        // RFC 3339 within a day of 1970: the clients only have to parse it.
        "modifiedTime": format!("1970-01-01T00:00:{:02}Z", now.as_secs() % 60),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_in_directories_that_appear_with_them() {
        let tree = Tree::default();
        tree.write("a/b.txt", Bytes::from_static(b"x"));
        tree.write("/tmp/c", Bytes::from_static(b""));
        let names = |path, depth| {
            let listed = tree.list(path, depth).unwrap();
            listed.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("", 1), ["/home/user/a"]);
        assert_eq!(names(HOME, 2), ["/home/user/a", "/home/user/a/b.txt"]);
        assert_eq!(names("/", 1), ["/home", "/tmp"]);
        tree.rename("a", "d").unwrap();
        assert_eq!((tree.read("a/b.txt"), tree.read("d/b.txt").unwrap().as_ref()), (None, &b"x"[..]));
        tree.remove("d");
        assert!(tree.read("d/b.txt").is_none() && tree.list("/home/user/d", 1).is_err());
    }

    #[test]
    fn a_watcher_hears_of_its_directory_alone() {
        let tree = Tree::default();
        let id = tree.watch_polled(HOME, false).unwrap();
        tree.write("a", Bytes::new());
        tree.write("/tmp/b", Bytes::new());
        tree.write("deep/c", Bytes::new());
        let told = tree.poll(&id).unwrap();
        assert_eq!(told[0], json!({ "name": "a", "type": "EVENT_TYPE_CREATE" }));
        assert!(told.iter().all(|event| event["name"] == "a"), "{told:?}");
        tree.unwatch(&id).unwrap();
        assert!(tree.poll(&id).is_err());
    }
}
