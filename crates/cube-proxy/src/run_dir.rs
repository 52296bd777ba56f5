//! The run directory: where the pid file lies, so that one process at a time serves from it.
//!
//! `server.run_dir`; where it is null the first of `$RUNTIME_DIRECTORY` (systemd sets it), else a
//! directory of this user alone, at a place that the next start finds again.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, geteuid, test_kill_process};

use crate::config::Environment;
use crate::error::StartError;

const PID_FILE: &str = "cube-proxy.pid";
/// Where the service of the package serves from. Only root can have made it.
const SERVICE: &str = "/run/cube-proxy";

/// Where the process keeps its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
    /// Whether nobody else may be able to put files there.
    private: bool,
}

impl RunDir {
    /// `configured`, or the default for this user. Touches nothing yet.
    #[must_use]
    pub fn locate(configured: Option<&Path>, environment: &Environment) -> Self {
        if let Some(path) = configured {
            return Self { path: path.to_owned(), private: false };
        }
        // systemd names several directories with colons between them.
        let given = environment.get("RUNTIME_DIRECTORY").and_then(|list| std::env::split_paths(list).next());
        if let Some(path) = given.filter(|path| path.is_absolute()) {
            return Self { path, private: false };
        }
        let user = geteuid();
        let own = environment.get("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let path = match own {
            Some(own) => own.join("cube-proxy"),
            None if user.is_root() => PathBuf::from(SERVICE),
            None => std::env::temp_dir().join(format!("cube-proxy-{}", user.as_raw())),
        };
        Self { path, private: true }
    }

    /// The one to look for a running process in: [`RunDir::locate`], or where none is configured and
    /// nobody serves from there, that of the service, which systemd names to its own processes alone.
    #[must_use]
    pub fn of_running(configured: Option<&Path>, environment: &Environment) -> Self {
        let own = Self::locate(configured, environment);
        let service = Self { path: PathBuf::from(SERVICE), private: false };
        let serves = |place: &Self| matches!(place.running(), Ok(Some(_)));
        let may_be_elsewhere = own.private && (own.path == service.path || !serves(&own));
        if may_be_elsewhere && serves(&service) { service } else { own }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory where it is missing. The default one must belong to this user alone,
    /// since its place can be guessed.
    ///
    /// # Errors
    /// [`StartError::RunDir`] when it cannot be made or is somebody else's.
    pub fn create(&self) -> Result<(), StartError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(|source| self.failed(&self.path, source))?;
        if !self.private {
            return Ok(());
        }
        let found = fs::symlink_metadata(&self.path).map_err(|source| self.failed(&self.path, source))?;
        let ours = found.is_dir() && found.uid() == geteuid().as_raw();
        if !ours || found.permissions().mode() & 0o077 != 0 {
            let message = "must be a directory of this user with mode 0700; set server.run_dir to another";
            return Err(self.failed(&self.path, std::io::Error::other(message)));
        }
        Ok(())
    }

    /// The process that serves from here, when one lives.
    ///
    /// # Errors
    /// [`StartError::RunDir`] when there is a pid file that cannot be read.
    pub fn running(&self) -> Result<Option<i32>, StartError> {
        let file = self.path.join(PID_FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed(&file, source)),
        };
        Ok(text.trim().parse().ok().filter(|&pid| lives(pid)))
    }

    /// Writes this process's id into the pid file, which must not name another one that lives.
    /// What is answered removes it again when dropped.
    ///
    /// # Errors
    /// [`StartError::Running`] while another process serves from here, [`StartError::RunDir`] when
    /// the file cannot be written.
    pub fn claim(&self) -> Result<PidFile, StartError> {
        let file = self.path.join(PID_FILE);
        let draft = self.draft()?;
        let outcome = self.link(&draft, &file);
        let _ = fs::remove_file(&draft);
        outcome.map(|()| self.pid_file())
    }

    /// The same for a process that has taken over from the one that the pid file names. There is
    /// never a moment without a pid file.
    ///
    /// # Errors
    /// [`StartError::RunDir`] when the file cannot be written.
    pub fn succeed(&self) -> Result<PidFile, StartError> {
        let file = self.path.join(PID_FILE);
        let draft = self.draft()?;
        match fs::rename(&draft, &file) {
            Ok(()) => Ok(self.pid_file()),
            Err(source) => {
                let _ = fs::remove_file(&draft);
                Err(self.failed(&file, source))
            }
        }
    }

    /// The pid file of this process, wherever it was written: one that is there when what is answered
    /// is dropped goes with it.
    #[must_use]
    pub fn pid_file(&self) -> PidFile {
        PidFile { file: self.path.join(PID_FILE), own: std::process::id(), left: false }
    }

    /// Whether the pid file names this process.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        names(&self.path.join(PID_FILE), std::process::id())
    }

    /// A file beside the pid file with this process's id in it.
    fn draft(&self) -> Result<PathBuf, StartError> {
        let own = std::process::id();
        let draft = self.path.join(format!("{PID_FILE}.{own}"));
        let write = |path: &Path| File::create(path)?.write_all(format!("{own}\n").as_bytes());
        if let Err(source) = write(&draft) {
            // A full disk leaves an empty one.
            let _ = fs::remove_file(&draft);
            return Err(self.failed(&draft, source));
        }
        Ok(draft)
    }

    /// Puts the written file in its place in one step, so that nobody ever sees half of it.
    fn link(&self, draft: &Path, file: &Path) -> Result<(), StartError> {
        loop {
            match fs::hard_link(draft, file) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    if let Some(pid) = self.running()? {
                        return Err(StartError::Running { pid, file: file.to_owned() });
                    }
                    // Left behind by a process that is gone.
                    match fs::remove_file(file) {
                        Err(error) if error.kind() != ErrorKind::NotFound => {
                            return Err(self.failed(file, error));
                        }
                        _ => {}
                    }
                }
                Err(source) => return Err(self.failed(file, source)),
            }
        }
    }

    /// That something about `path`, in this directory, failed.
    pub(crate) fn failed(&self, path: &Path, source: std::io::Error) -> StartError {
        StartError::RunDir { path: path.to_owned(), directory: self.path.clone(), source }
    }
}

/// Whether that pid file names that process.
fn names(file: &Path, pid: u32) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.trim() == pid.to_string())
}

/// Whether a process other than this one has that id. In a container a restarted process often
/// gets the id of the one before.
fn lives(pid: i32) -> bool {
    let Some(id) = (pid > 0).then(|| Pid::from_raw(pid)).flatten() else { return false };
    let own = i32::try_from(std::process::id()).is_ok_and(|own| own == pid);
    !own && !matches!(test_kill_process(id), Err(rustix::io::Errno::SRCH)) && !has_ended(pid)
}

/// Whether the process has ended and only waits for its parent to hear of it, which the init of a
/// container may never do.
fn has_ended(pid: i32) -> bool {
    // The name in brackets may hold anything; the state is the first word behind it.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// The pid file of this process; removed when dropped.
#[derive(Debug)]
pub struct PidFile {
    file: PathBuf,
    own: u32,
    left: bool,
}

impl PidFile {
    /// Leaves the place to a successor, which is about to take it.
    pub fn leave(mut self) {
        self.left = true;
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        // A successor may have put its own there.
        if names(&self.file, self.own) {
            let _ = fs::remove_file(&self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &Path) -> RunDir {
        RunDir::locate(Some(path), &Environment::default())
    }

    #[test]
    fn the_directory_is_the_configured_one_then_systemds_then_the_users_own() {
        let environment = |pairs: &[(&str, &str)]| pairs.iter().copied().collect::<Environment>();
        let both = environment(&[("RUNTIME_DIRECTORY", "/run/a:/run/b"), ("XDG_RUNTIME_DIR", "/run/user/7")]);
        assert_eq!(RunDir::locate(Some(Path::new("/x")), &both).path(), Path::new("/x"));
        assert_eq!(RunDir::locate(None, &both).path(), Path::new("/run/a"));
        let own = environment(&[("XDG_RUNTIME_DIR", "/run/user/7")]);
        assert_eq!(RunDir::locate(None, &own).path(), Path::new("/run/user/7/cube-proxy"));
        assert!(RunDir::locate(None, &environment(&[])).path().is_absolute());
    }

    #[test]
    fn a_process_that_has_ended_does_not_live_though_nobody_has_heard_of_it() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(lives(pid));
        drop(child.stdin.take());
        let ended = (0..1_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            !lives(pid)
        });
        assert!(ended);
        child.wait().unwrap();
    }

    #[test]
    fn a_private_directory_is_made_for_this_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let environment: Environment = [("XDG_RUNTIME_DIR", dir.path())].into_iter().collect();
        let run_dir = RunDir::locate(None, &environment);
        run_dir.create().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(run_dir.path()), 0o700);
        run_dir.create().unwrap();
        fs::set_permissions(run_dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(run_dir.create().unwrap_err().to_string().contains("mode 0700"));
        fs::remove_dir(run_dir.path()).unwrap();
        std::os::unix::fs::symlink(dir.path(), run_dir.path()).unwrap();
        assert!(run_dir.create().is_err(), "a symbolic link may lead anywhere");
    }

    #[test]
    fn a_process_that_lives_keeps_others_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(dir.path().join(PID_FILE), format!("{}\n", other.id())).unwrap();
        let error = at(dir.path()).claim().unwrap_err();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(error.exit_code(), 1);
        let text = error.to_string();
        assert!(text.contains(&other.id().to_string()) && text.contains("server.run_dir"), "{text}");
        // Now that it is gone the file is stale.
        at(dir.path()).claim().unwrap();
    }

    #[test]
    fn the_pid_file_names_this_process_while_it_serves() {
        let dir = tempfile::tempdir().unwrap();
        for stale in ["", "garbage", "0", "-1", "99999999999"] {
            fs::write(dir.path().join(PID_FILE), stale).unwrap();
            let pid_file = at(dir.path()).claim().unwrap();
            let text = fs::read_to_string(dir.path().join(PID_FILE)).unwrap();
            assert_eq!(text, format!("{}\n", std::process::id()), "{stale:?}");
            assert_eq!(at(dir.path()).running().unwrap(), None, "itself does not count");
            drop(pid_file);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
        }
    }

    #[test]
    fn a_successor_replaces_the_pid_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(PID_FILE), "1\n").unwrap();
        let pid_file = at(dir.path()).succeed().unwrap();
        let text = fs::read_to_string(dir.path().join(PID_FILE)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
        drop(pid_file);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_pid_file_of_a_successor_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = at(dir.path()).claim().unwrap();
        fs::write(dir.path().join(PID_FILE), "1\n").unwrap();
        drop(pid_file);
        assert_eq!(fs::read_to_string(dir.path().join(PID_FILE)).unwrap(), "1\n");
        at(dir.path()).succeed().unwrap().leave();
        let text = fs::read_to_string(dir.path().join(PID_FILE)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }
}
