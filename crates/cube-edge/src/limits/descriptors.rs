//! File descriptors: what the data plane leaves to the rest of the process (connections.md,
//! "Limits").
//!
//! The system gives each new descriptor the lowest number that is free. So the number of a socket
//! that was just made tells how many descriptors are open at least, whatever they are: clients,
//! streams of HTTP/2 connections (each with an upstream socket of its own), idle upstream
//! connections, files. Nothing has to be counted, and nothing can be forgotten in counting.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pingora::{Error, ErrorType, Result};
use tokio::net::TcpSocket;

/// Why a dial ends that would take a descriptor which is kept for something else.
pub(crate) const OUT_OF_DESCRIPTORS: ErrorType = ErrorType::Custom("OutOfDescriptors");

/// The most descriptors that are kept for each of the two purposes; with a small limit it is an
/// eighth of it.
const KEPT: u64 = 256;
/// Upstream sockets beside the idle ones, with the smallest limit.
const FEWEST_UPSTREAMS: u64 = 64;

type SocketCheck = dyn Fn(&TcpSocket) -> Result<()> + Send + Sync;

/// The ceilings of one process.
pub(crate) struct Descriptors {
    /// The lowest number that no client connection gets: admin, metrics, store, log and files
    /// have the rest to themselves.
    clients: RawFd,
    upstreams: Arc<Upstreams>,
    /// `upstreams` as Pingora asks it. Made once: each request hands Pingora one, whether or not
    /// a connection is made for it.
    check: Arc<SocketCheck>,
    /// Upstream connections that failed on this side for another reason than the ceiling.
    failed: AtomicU64,
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, upstreams, check: _, failed } = self;
        f.debug_struct("Descriptors")
            .field("clients", clients)
            .field("upstreams", upstreams)
            .field("failed", failed)
            .finish_non_exhaustive()
    }
}

/// The ceiling of upstream connections.
#[derive(Debug)]
struct Upstreams {
    /// The lowest number that none of them gets: new clients have room while upstreams use up theirs,
    /// and hear that there is none left.
    most: RawFd,
    /// How many were refused for it.
    refused: AtomicU64,
}

impl Upstreams {
    fn check(&self, socket: &impl AsRawFd) -> Result<()> {
        if socket.as_raw_fd() < self.most {
            return Ok(());
        }
        if let Some(count) = worth_a_line(&self.refused) {
            tracing::warn!(
                count,
                most = self.most,
                "no upstream connection made: too many files are open; raise the limit (ulimit -n, LimitNOFILE)"
            );
        }
        Err(Error::new(OUT_OF_DESCRIPTORS))
    }
}

/// Counts one more. Must not become a flood of log lines: the first is worth one, then each power of
/// two.
fn worth_a_line(counter: &AtomicU64) -> Option<u64> {
    let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
    count.is_power_of_two().then_some(count)
}

impl Descriptors {
    /// The descriptors of this process, by its limit of open files as it is now.
    pub(crate) fn of_this_process() -> Arc<Self> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Arc::new(Self::of(limit.current.unwrap_or(u64::MAX)))
    }

    fn of(limit: u64) -> Self {
        let kept = KEPT.min(limit / 8);
        let ceiling = |number: u64| RawFd::try_from(number).unwrap_or(RawFd::MAX);
        let upstreams = Arc::new(Upstreams { most: ceiling(limit - 2 * kept), refused: AtomicU64::new(0) });
        let asked = Arc::clone(&upstreams);
        Self {
            clients: ceiling(limit - kept),
            upstreams,
            check: Arc::new(move |socket: &TcpSocket| asked.check(socket)),
            failed: AtomicU64::new(0),
        }
    }

    /// Whether a client connection that was just accepted may stay.
    pub(crate) fn has_room_for_client(&self, socket: &impl AsRawFd) -> bool {
        socket.as_raw_fd() < self.clients
    }

    /// Whether an upstream connection may be made with a socket that was just opened.
    ///
    /// # Errors
    /// [`OUT_OF_DESCRIPTORS`] when its number is one of those that are kept.
    pub(crate) fn check_upstream(&self, socket: &impl AsRawFd) -> Result<()> {
        self.upstreams.check(socket)
    }

    /// [`Descriptors::check_upstream`] as Pingora calls it between opening and connecting.
    pub(crate) fn upstream_check(&self) -> Arc<SocketCheck> {
        Arc::clone(&self.check)
    }

    /// Whether a dial that this side could not make failed for want of descriptors; says in the
    /// log that it failed.
    pub(crate) fn ran_out(&self, error: &Error) -> bool {
        if let Some(count) = worth_a_line(&self.failed) {
            tracing::error!(count, %error, "no upstream connection made");
        }
        error.root_cause().downcast_ref::<io::Error>().is_some_and(is_out_of_descriptors)
    }

    /// How many of `wanted` idle upstream connections may be kept, so that they do not take the
    /// room of those that are in use.
    pub(crate) fn idle_upstreams(&self, wanted: usize) -> usize {
        let upstreams = u64::try_from(self.upstreams.most).unwrap_or(0);
        let most = upstreams.saturating_sub(2 * FEWEST_UPSTREAMS).max(1);
        wanted.min(usize::try_from(most).unwrap_or(usize::MAX))
    }
}

/// Whether the process, or the system, has no descriptor (or no memory for one) left.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .iter()
        .any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A descriptor by its number.
    struct Number(RawFd);

    impl AsRawFd for Number {
        fn as_raw_fd(&self) -> RawFd {
            self.0
        }
    }

    #[test]
    fn upstreams_end_before_clients_and_clients_before_the_limit() {
        for (limit, upstreams, clients) in [(65_536, 65_024, 65_280), (2300, 1788, 2044), (400, 300, 350)] {
            let descriptors = Descriptors::of(limit);
            assert!(descriptors.check_upstream(&Number(upstreams - 1)).is_ok(), "{limit}");
            let refused = descriptors.check_upstream(&Number(upstreams)).unwrap_err();
            assert_eq!(*refused.etype(), OUT_OF_DESCRIPTORS, "{limit}");
            assert!(descriptors.has_room_for_client(&Number(clients - 1)), "{limit}");
            assert!(!descriptors.has_room_for_client(&Number(clients)), "{limit}");
        }
        assert!(Descriptors::of(u64::MAX).check_upstream(&Number(RawFd::MAX - 1)).is_ok());
    }

    #[test]
    fn requests_share_one_check() {
        let descriptors = Descriptors::of(400);
        assert!(Arc::ptr_eq(&descriptors.upstream_check(), &descriptors.upstream_check()));
    }

    #[test]
    fn a_failure_is_worth_a_line_however_many_refusals_came_before_it() {
        let descriptors = Descriptors::of(400);
        for _ in 0..3 {
            assert!(descriptors.check_upstream(&Number(300)).is_err());
        }
        let in_use = Error::because(
            ErrorType::BindError,
            "",
            io::Error::from_raw_os_error(rustix::io::Errno::ADDRNOTAVAIL.raw_os_error()),
        );
        assert!(!descriptors.ran_out(&in_use));
        // One of two is the next that is worth a line, for each of the two kinds.
        assert_eq!(worth_a_line(&descriptors.failed), Some(2));
        assert_eq!(worth_a_line(&descriptors.upstreams.refused), Some(4));
    }

    #[test]
    fn idle_connections_leave_room_for_those_in_use() {
        // The default of `limits.connections` with this limit is 144: as many clients, as many upstreams.
        assert_eq!(Descriptors::of(2300).idle_upstreams(1500), 1500);
        assert_eq!(Descriptors::of(1024).idle_upstreams(1500), 640);
        assert_eq!(Descriptors::of(64).idle_upstreams(1500), 1);
    }
}
