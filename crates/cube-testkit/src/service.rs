//! A stand-in for the service manager's end of NOTIFY_SOCKET.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Keeps what it is told.
pub struct ServiceManager {
    path: PathBuf,
    told: Arc<Mutex<Vec<String>>>,
}

impl ServiceManager {
    /// Listens at `path`.
    pub(crate) fn listen(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        let told = Arc::new(Mutex::new(Vec::new()));
        let keep = told.clone();
        // Ends with the test binary.
        std::thread::spawn(move || {
            let mut text = [0; 4096];
            while let Ok(length) = socket.recv(&mut text) {
                let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned();
                keep.lock().expect("no panic").push(text);
            }
        });
        Self { path: path.to_owned(), told }
    }

    pub(crate) fn path(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Everything so far, a message an entry.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        self.told.lock().expect("no panic").clone()
    }

    /// The process that was last announced as the main one.
    #[must_use]
    pub fn main_pid(&self) -> Option<u32> {
        let told = self.told();
        let mut lines = told.iter().rev().flat_map(|text| text.lines());
        lines.find_map(|line| line.strip_prefix("MAINPID=")?.parse().ok())
    }
}
