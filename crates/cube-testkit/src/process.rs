//! Child processes that never outlive the test binary.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process and the shell that watches over it.
///
/// Tests share processes through statics, and statics are never dropped. So beside each child runs
/// a shell that reads from a pipe whose other end only the test binary holds: however the test
/// binary ends, the pipe closes, and the shell kills the child and removes its directory. Before, it
/// looks for secrets, and for tickets of preview links, in what such a child has written: lines with one
/// go to the directory that `CUBE_TEST_LEAKS` names, where `scripts/test` finds them.
pub struct Guarded {
    /// Missing for a process that somebody else started.
    child: Option<Child>,
    pid: Pid,
    watcher: Child,
    pipe: Option<ChildStdin>,
    directory: Option<PathBuf>,
}

const WATCH: &str = r#"trap "" INT TERM HUP
[ -z "$CUBE_TEST_LEAKS" ] || touch "$CUBE_TEST_LEAKS/watching.$1"
if ! read -r word; then
    kill -CONT "$1"; kill -KILL "$1"
    if [ -n "$CUBE_TEST_LEAKS" ] && [ -n "$3" ] && [ -n "$2" ]; then
        {
            printf %s "$3" | grep -ahF -f - "$2/output" "$2/access.log"
            grep -ahE 'v1\.[0-9]{9,}\.' "$2/output" "$2/access.log"
        } >"$CUBE_TEST_LEAKS/leak.$1" 2>/dev/null
        [ -s "$CUBE_TEST_LEAKS/leak.$1" ] || rm -f "$CUBE_TEST_LEAKS/leak.$1"
    fi
    [ -z "$2" ] || rm -rf "$2"
fi
[ -z "$CUBE_TEST_LEAKS" ] || rm -f "$CUBE_TEST_LEAKS/watching.$1""#;

impl Guarded {
    /// Starts `command`; `directory` is removed when all is over.
    #[must_use]
    pub fn spawn(command: &mut Command, directory: Option<&Path>) -> Self {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {:?}: {error}", command.get_program()));
        let pid = Pid::from_child(&child);
        Self::watch(pid, Some(child), directory)
    }

    /// Watches over a process that was started by another one: its end is seen, its exit code is
    /// not.
    #[must_use]
    pub fn adopt(id: u32) -> Self {
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process id");
        Self::watch(pid, None, None)
    }

    fn watch(pid: Pid, child: Option<Child>, directory: Option<&Path>) -> Self {
        let mut watcher = Command::new("/bin/sh")
            .args(["-c", WATCH, "watch", &pid.as_raw_nonzero().to_string()])
            .arg(directory.unwrap_or(Path::new("")))
            .arg(crate::SECRETS.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("/bin/sh starts");
        let pipe = watcher.stdin.take();
        Self { child, pid, watcher, pipe, directory: directory.map(Path::to_owned) }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        match &mut self.child {
            Some(child) => child.try_wait().expect("a child of ours"),
            // Whoever started it may never ask how it ended, which leaves it as a zombie.
            None => {
                self.status("State:").is_none_or(|state| state.starts_with('Z')).then(ExitStatus::default)
            }
        }
    }

    /// Sends a signal; a process that has ended gets none.
    pub fn signal(&mut self, signal: Signal) {
        // Not yet waited for, so the id still is this child's.
        if self.ended().is_none() {
            let sent = kill_process(self.pid, signal);
            assert!(sent.is_ok() || self.child.is_none(), "a signal to a child of ours: {sent:?}");
        }
    }

    /// Waits until it ends, at most that long.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            let ended = self.ended();
            if ended.is_some() || begin.elapsed() > limit {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Memory that it holds in RAM, in bytes.
    #[must_use]
    pub fn resident(&self) -> u64 {
        let line = self.status("VmRSS:").expect("a running process");
        line.trim_end_matches(" kB").trim().parse::<u64>().expect("a number") * 1024
    }

    /// Whether the system may give it huge pages; none where the system does not say.
    #[must_use]
    pub fn has_huge_pages(&self) -> Option<bool> {
        self.status("THP_enabled:").map(|line| line.trim() == "1")
    }

    /// What each of its open files is.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.id())).expect("a running process");
        // One may be closed meanwhile.
        let names = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    fn status(&self, name: &str) -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = kill_process(self.pid, Signal::KILL);
            if let Some(child) = &mut self.child {
                let _ = child.wait();
            }
        }
        if let Some(mut pipe) = self.pipe.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.watcher.wait();
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_whose_test_binary_is_gone_is_killed_and_its_directory_removed() {
        let directory = tempfile::tempdir().unwrap().keep();
        let mut sleeping = Guarded::spawn(Command::new("sleep").arg("600"), Some(&directory));
        // What the kernel does when this process ends.
        drop(sleeping.pipe.take());
        assert!(sleeping.wait(Duration::from_secs(10)).is_some(), "the child lives");
        sleeping.watcher.wait().unwrap();
        assert!(!directory.exists());
    }

    /// What the watcher of a child that wrote `text` finds in it.
    fn found_in(text: &str) -> Vec<String> {
        let (directory, leaks) = (tempfile::tempdir().unwrap().keep(), tempfile::tempdir().unwrap());
        std::fs::write(directory.join("output"), "nothing\n").unwrap();
        std::fs::write(directory.join("access.log"), text).unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let watched = Command::new("/bin/sh")
            .args(["-c", WATCH, "watch", &child.id().to_string()])
            .arg(&directory)
            .arg(crate::SECRETS.join("\n"))
            .env("CUBE_TEST_LEAKS", leaks.path())
            .stdin(Stdio::null())
            .status();
        assert!(watched.unwrap().success());
        child.wait().unwrap();
        let files = std::fs::read_dir(leaks.path()).unwrap().map(|file| file.unwrap().path());
        files.flat_map(|file| lines_of(&file)).collect()
    }

    fn lines_of(file: &Path) -> Vec<String> {
        std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn secrets_and_tickets_in_what_a_shared_child_wrote_are_found() {
        assert_eq!(found_in("GET /?cube_preview=- v1.2.3 v1.12345678 10.0.0.1\n"), [""; 0]);
        assert_eq!(found_in("a\nb example-token-x\n"), ["b example-token-x"]);
        assert_eq!(found_in("a\nb v1.1900000000.any.AAAA\n"), ["b v1.1900000000.any.AAAA"]);
    }

    #[test]
    fn dropping_ends_the_child_and_its_watcher() {
        let sleeping = Guarded::spawn(Command::new("sleep").arg("600"), None);
        let watcher = format!("/proc/{}", sleeping.watcher.id());
        let child = format!("/proc/{}", sleeping.id());
        assert!(Path::new(&child).exists() && Path::new(&watcher).exists());
        drop(sleeping);
        assert!(!Path::new(&child).exists() && !Path::new(&watcher).exists());
    }
}
