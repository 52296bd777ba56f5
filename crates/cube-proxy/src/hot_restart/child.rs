//! How the successor is started: by this process, so that it lives in the cgroup of the service.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use super::init;
use super::launcher::Launched;
use crate::error::EXIT_FAILURE;

/// How this process was started, for starting its successor in the same way.
#[derive(Debug, Clone)]
pub(crate) struct StartedAs {
    program: PathBuf,
    config: PathBuf,
    parent: Option<i32>,
}

impl StartedAs {
    /// The program of this process, and its configuration file as it was named.
    ///
    /// The program is looked for where it was started from, by name: the file of the running one
    /// may have been replaced, which is the point.
    pub(crate) fn this_process(config: &Path) -> Self {
        let name = env::args_os().next().unwrap_or_default();
        let program = locate(&name, env::var_os("PATH").as_ref())
            .or_else(|| env::current_exe().ok())
            .unwrap_or_else(|| PathBuf::from("cube-proxy"));
        Self { program, config: config.to_owned(), parent: init::parent() }
    }

    /// Why this process can never hand over, where it cannot. `managed`: a service manager listens.
    pub(crate) fn obstacle(&self, managed: bool) -> Option<String> {
        init::obstacle(std::process::id(), self.parent, managed, init::contained())
    }

    /// The program that will be started.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts the successor. It outlives this process.
    pub(super) async fn start(&self) -> io::Result<Launched> {
        let arguments = ["run".into(), "-c".into(), self.config.clone().into(), "--upgrade".into()];
        Launched::start(&self.program, &arguments).await
    }
}

/// As the shell finds a program: a name with a slash is a path, another one is looked for in PATH.
fn locate(name: &OsString, search: Option<&OsString>) -> Option<PathBuf> {
    let name = Path::new(name);
    if name.components().count() > 1 {
        // Not resolved: a link may lead to another program by then.
        return std::path::absolute(name).ok();
    }
    env::split_paths(search?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// How a child ended, in words and as an exit code for who asked.
pub(super) fn ended(status: ExitStatus) -> (String, u8) {
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    let code_or_failure = code.unwrap_or(EXIT_FAILURE);
    let text = match code {
        Some(crate::error::EXIT_CONFIG) => {
            "the new process ended with code 64: its configuration does not hold; its log says why".to_owned()
        }
        _ => format!("the new process ended before it was ready ({status}); its log says why"),
    };
    (text, code_or_failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_name_and_links_are_not_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("proxy");
        std::os::unix::fs::symlink("/bin/true", &link).unwrap();
        let found = |name: &Path, search: &str| locate(&name.into(), Some(&search.into()));
        assert_eq!(found(&link, ""), Some(link.clone()));
        let search = format!("/nowhere:{}", dir.path().display());
        assert_eq!(found(Path::new("proxy"), &search), Some(link));
        assert_eq!(found(Path::new("proxy"), "/nowhere"), None);
        assert!(found(Path::new("./proxy"), "").unwrap().is_absolute());
    }
}
