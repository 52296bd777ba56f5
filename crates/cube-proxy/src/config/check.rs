//! Collecting what does not hold, and what several sections judge alike.

use std::path::{Path, PathBuf};

use cube_settings::{Secret, SecretFile};

use super::path::KeyPath;
use super::source::{Broken, Fault};

/// Which sections' files are read: those that a command uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// All, as the proxy does.
    All,
    /// Those of these sections.
    Only(&'static [&'static str]),
}

/// Faults and warnings found so far. A reader answers something usable after a fault, so that
/// one run finds all of them; what it answers is then thrown away.
pub(super) struct Check<'a> {
    /// Relative paths begin here: the directory of the configuration file.
    pub(super) base: &'a Path,
    pub(super) reads: Reads,
    /// What could not be read: defaults stand in for it.
    pub(super) broken: &'a Broken,
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<String>,
}

impl Check<'_> {
    pub(super) fn fault(&mut self, key: &str, message: impl Into<String>) {
        let key = KeyPath::dotted(key);
        if !self.broken.hides(&key) {
            self.faults.push((self.broken.as_written(&key), message.into()));
        }
    }

    /// Whether these keys, and what is in them, say what the file says: what hangs on another value
    /// than the author's would be no fault of theirs.
    pub(super) fn sound(&self, keys: &[&str]) -> bool {
        keys.iter().all(|key| self.broken.spares(&KeyPath::dotted(key)))
    }

    /// Whether the files that `key` names are read.
    pub(super) fn reads(&self, key: &str) -> bool {
        match self.reads {
            Reads::All => true,
            Reads::Only(sections) => sections.contains(&key.split('.').next().unwrap_or(key)),
        }
    }

    pub(super) fn require(&mut self, key: &str, holds: bool, message: &str) {
        if !holds {
            self.fault(key, message);
        }
    }

    /// Puts the directory of the configuration file before a relative path.
    pub(super) fn locate(&self, path: &mut PathBuf) {
        *path = self.base.join(&*path);
    }

    /// A plain http URL without user, query and fragment.
    pub(super) fn http_url(&mut self, key: &str, text: &str) -> Option<http::Uri> {
        self.url_of(key, text, &["http"])
    }

    /// The same, where `https` is spoken too.
    pub(super) fn http_or_https_url(&mut self, key: &str, text: &str) -> Option<http::Uri> {
        self.url_of(key, text, &["http", "https"])
    }

    fn url_of(&mut self, key: &str, text: &str, schemes: &[&str]) -> Option<http::Uri> {
        let url = text.trim_end_matches('/').parse::<http::Uri>().ok();
        let good = url.filter(|url| {
            url.scheme_str().is_some_and(|scheme| schemes.contains(&scheme))
                && url.host().is_some_and(|host| !host.is_empty())
                && url.authority().is_some_and(|authority| !authority.as_str().contains('@'))
                && url.query().is_none()
                && !text.contains('#')
                && good_port(url)
        });
        if good.is_none() {
            // Not repeated in the message: somebody may have put a password into it.
            self.fault(key, "must be a URL such as http://127.0.0.1:8083, with no user and no query");
        }
        good
    }

    /// Reads a secret that is in the configuration itself or in a file that it names. Empty is none.
    pub(super) fn secret(&mut self, key: &str, text: &mut Option<Secret>, file: Option<&mut SecretFile>) {
        text.take_if(|secret| secret.is_empty());
        let Some(file) = file else { return };
        let file_key = format!("{key}_file");
        if text.is_some() {
            self.fault(&file_key, format!("{key} is set as well; only one of them can count"));
        }
        self.secret_file(&file_key, file);
    }

    /// Reads the text of a file without its last line end.
    pub(super) fn secret_file(&mut self, key: &str, file: &mut SecretFile) {
        let path = self.base.join(file.path());
        *file = SecretFile::new(&path);
        if !self.reads(key) {
            return;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let text = text.strip_suffix('\n').unwrap_or(&text);
                let text = text.strip_suffix('\r').unwrap_or(text);
                if text.is_empty() {
                    self.fault(key, format!("{} is empty", path.display()));
                } else if text.chars().any(char::is_control) {
                    self.fault(key, format!("{} holds more than one line of text", path.display()));
                }
                file.set(Some(Secret::new(text)));
            }
            Err(error) => self.fault(key, format!("{}: {error}", path.display())),
        }
    }

    pub(super) fn readable(&mut self, key: &str, path: &Path) {
        if self.reads(key)
            && let Err(error) = std::fs::File::open(path)
        {
            self.fault(key, format!("{}: {error}", path.display()));
        }
    }
}

/// Whether the authority is the host alone, or has a port after it that there can be: the parser
/// takes one beyond 65535 for none.
fn good_port(url: &http::Uri) -> bool {
    let bare = url.authority().is_some_and(|all| all.as_str().len() == all.host().len());
    bare || url.port_u16().is_some_and(|port| port > 0)
}
