//! Starting the successor so that the service manager takes it for a process of its own.
//!
//! A service manager learns of a process's end only when it is that process's parent, and it asks
//! once who the parent is: when `MAINPID=` is said. So the successor must have lost its parent by
//! then. It is started through a *launcher*: this binary under another name, which starts the
//! program, tells how it ends, and goes away when it is told to. The kernel then gives the successor
//! to the manager (process 1, or a user's manager, which is a subreaper). Where the socket closes
//! before that word, nobody expects the successor any more, and the launcher ends it: on its own it
//! would ask for an upgrade as anybody may, and get another successor started.
//!
//! The launcher's standard input is a socket to the process that started it, so that standard output
//! and error stay the successor's own.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::PROMPT;

/// The name under which this binary is the launcher.
const NAME: &str = "cube-proxy-launcher";
/// This binary, which runs and therefore can be run, also when its file has been replaced.
const THIS_BINARY: &str = "/proc/self/exe";
/// What the launcher is told when it is to let the successor go.
const GO: &[u8] = b"go\n";

/// A successor that is still held by its launcher.
pub(super) struct Launched {
    /// The successor's process id.
    pub(super) pid: i32,
    launcher: Child,
    told: Lines<BufReader<tokio::net::UnixStream>>,
}

impl Launched {
    /// Starts `program` with `arguments`, at most [`PROMPT`] long.
    ///
    /// # Errors
    /// What the system says when it cannot be started.
    pub(super) async fn start(program: &std::path::Path, arguments: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) = tokio::net::UnixStream::pair()?;
        let theirs = theirs.into_std()?;
        theirs.set_nonblocking(false)?;
        let launcher = Command::new(THIS_BINARY)
            .arg0(NAME)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Names this process; the successor answers the watchdog as well.
            .env_remove("WATCHDOG_PID")
            // Not killed when this is dropped: it could not end the successor then.
            .spawn()?;
        let mut told = BufReader::new(ours).lines();
        let line = timeout(PROMPT, told.next_line())
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let line = line.unwrap_or_default();
        match (line.strip_prefix("started ").map(str::parse), line.strip_prefix("failed ")) {
            (Some(Ok(pid)), _) => Ok(Self { pid, launcher, told }),
            (_, Some(reason)) => Err(io::Error::other(reason.to_owned())),
            _ => Err(io::Error::other("what starts the new process has ended")),
        }
    }

    /// How the successor ends. May be dropped and called again until it has returned.
    ///
    /// # Errors
    /// When the launcher itself is gone.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        let line = self.told.next_line().await?.unwrap_or_default();
        let raw = line.strip_prefix("ended ").and_then(|raw| raw.parse().ok());
        raw.map(ExitStatus::from_raw)
            .ok_or_else(|| io::Error::other("what started the new process has ended"))
    }

    /// Ends the launcher: from here on the successor is the service manager's, and how it ends is
    /// not told here any more.
    ///
    /// # Errors
    /// When the launcher is gone, or cannot be ended.
    pub(super) async fn let_go(mut self) -> io::Result<()> {
        self.told.get_mut().get_mut().write_all(GO).await?;
        if timeout(PROMPT, self.launcher.wait()).await.is_err() {
            self.launcher.kill().await?;
        }
        Ok(())
    }
}

/// The launcher's whole life, where this process was started as one.
pub(crate) fn main() -> Option<ExitCode> {
    let mut arguments = env::args_os();
    (arguments.next()? == NAME).then(|| match launch(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn launch(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let program = arguments.next().unwrap_or_default();
    let started = std::process::Command::new(program).args(arguments).stdin(Stdio::null()).spawn();
    let mut successor = match started {
        Ok(successor) => successor,
        Err(error) => return writeln!(socket, "failed {error}"),
    };
    let told = writeln!(socket, "started {}", successor.id()).and_then(|()| obey(&socket, &successor));
    if told.is_err() {
        // Nobody waits for it any more.
        successor.kill()?;
    }
    let status = successor.wait()?;
    writeln!(socket, "ended {}", status.into_raw())
}

/// Has a thread wait for the word of whoever started this process.
fn obey(socket: &UnixStream, successor: &std::process::Child) -> io::Result<()> {
    let mut word = socket.try_clone()?;
    let successor = i32::try_from(successor.id()).ok().and_then(Pid::from_raw);
    std::thread::Builder::new().spawn(move || {
        match (word.read(&mut [0]), successor) {
            (Ok(1), _) | (_, None) => {}
            // Whoever it was has given the successor up, or has ended. An error: it is gone already.
            (_, Some(successor)) => {
                let _ = kill_process(successor, Signal::KILL);
            }
        }
        std::process::exit(0);
    })?;
    Ok(())
}
