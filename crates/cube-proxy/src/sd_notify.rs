//! Telling a service manager how the process does (the protocol of `sd_notify`).

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The manager's socket; `None` inside: there is none, and nothing is said.
#[derive(Debug, Clone)]
pub(crate) struct NotifySocket(Option<OsString>);

impl NotifySocket {
    /// The socket of the manager that started this process, from `NOTIFY_SOCKET`.
    pub(crate) fn of_this_process() -> Self {
        Self(env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()))
    }

    /// Whether there is a manager to tell.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// The listeners are open. `main` for a process that took over: it is the main one now.
    pub(crate) fn ready(&self, main: bool) {
        let main = if main { format!("MAINPID={}\n", std::process::id()) } else { String::new() };
        self.say(&format!("{main}READY=1\nSTATUS=Serving"));
    }

    /// The service is being stopped.
    pub(crate) fn stopping(&self, open: usize) {
        self.say(&format!("STOPPING=1\nSTATUS=Stopping, {open} client connections open"));
    }

    /// How often the manager must be told that the process is alive, where it wants to be. Half of
    /// its patience.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.0.as_ref()?;
        patience(env::var_os("WATCHDOG_USEC").as_deref(), env::var_os("WATCHDOG_PID").as_deref())
    }

    /// Tells the manager's watchdog that the process is alive.
    pub(crate) fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// A manager that does not listen is no reason not to serve.
    fn say(&self, text: &str) {
        let Some(path) = &self.0 else { return };
        let sent = address(path)
            .and_then(|address| UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address));
        if let Err(error) = sent {
            tracing::warn!(%error, "NOTIFY_SOCKET does not take what is said");
        }
    }
}

/// A path, or an abstract name behind an `@`.
fn address(path: &OsStr) -> std::io::Result<SocketAddr> {
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

fn patience(micros: Option<&OsStr>, pid: Option<&OsStr>) -> Option<Duration> {
    let number = |text: &OsStr| text.to_str()?.parse::<u64>().ok();
    let for_us = pid.is_none_or(|pid| number(pid) == Some(u64::from(std::process::id())));
    let micros = micros.and_then(number).filter(|micros| *micros > 0 && for_us)?;
    Some(Duration::from_micros((micros / 2).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("@cube-proxy-test-{}", std::process::id());
        for at in [path.into_os_string(), name.into()] {
            let socket = UnixDatagram::bind_addr(&address(&at).unwrap()).unwrap();
            NotifySocket(Some(at)).ready(true);
            let mut text = [0; 256];
            let length = socket.recv(&mut text).unwrap();
            let expected = format!("MAINPID={}\nREADY=1\nSTATUS=Serving", std::process::id());
            assert_eq!(std::str::from_utf8(&text[..length]).unwrap(), expected);
        }
    }

    #[test]
    fn nobody_listening_is_no_fault() {
        NotifySocket(None).ready(false);
        NotifySocket(Some("/nowhere/at/all".into())).alive();
    }

    #[test]
    fn the_watchdog_is_answered_by_whom_it_watches() {
        let own = std::process::id().to_string();
        let of =
            |micros: Option<&str>, pid: Option<&str>| patience(micros.map(OsStr::new), pid.map(OsStr::new));
        assert_eq!(of(Some("3000000"), None), Some(Duration::from_millis(1_500)));
        assert_eq!(of(Some("3000000"), Some(&own)), Some(Duration::from_millis(1_500)));
        for (micros, pid) in
            [(None, None), (Some("0"), None), (Some("x"), None), (Some("3000000"), Some("1"))]
        {
            assert_eq!(of(micros, pid), None, "{micros:?} {pid:?}");
        }
    }
}
