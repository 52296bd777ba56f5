//! How a connection ends: with its last request, from outside, since its client has left or waits for too long,
//! and whether its client gets to read what it was told.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use pingora::protocols::l4::ext::get_tcp_info;
use tokio::net::TcpStream;

use super::{Conn, ConnectionPhase};

/// How long a request that is ended from outside has for its last words. It has to be over within
/// a second.
pub(in crate::connection) const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long, and how much, a closing connection reads on for a client that is still sending.
pub(in crate::connection) const LINGER_TIME: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 * 1024 * 1024;
/// How long a client has to read what it was told before its connection is reset.
const BEFORE_RESET: Duration = Duration::from_millis(100);

impl Conn {
    /// The connection ends with a reset: a close would look like the end of the body.
    pub(crate) fn reset_on_close(&self) {
        self.closing.reset.store(true, Ordering::Relaxed);
    }

    pub(crate) fn resets_on_close(&self) -> bool {
        self.closing.reset.load(Ordering::Relaxed)
    }

    /// The client is still sending what nobody will read: should the connection end with this
    /// request, it lingers.
    pub(crate) fn linger_on_close(&self) {
        self.closing.linger.store(true, Ordering::Relaxed);
    }

    /// Ends the HTTP/1.1 request under way, and the connection with it: the next read ends, so that
    /// Pingora gives the request up and a response that has not begun can still be written. One
    /// that does not read, since a side of it is stuck in writing, is dropped after a moment.
    pub(crate) fn end_request(&self) {
        // Said first: the end of reading may be noticed at once, and how the connection ends hangs on it.
        self.ending.kill();
        self.kill.kill();
        // An error says that the connection is gone already.
        let _ = rustix::net::shutdown(&*self.tcp, rustix::net::Shutdown::Read);
    }

    /// Ready when the request under way is to end, whose next read is its end.
    pub(crate) fn poll_ending(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.ending.poll_killed(cx)
    }

    /// Returns when a request that was ended should be over by now.
    pub(crate) async fn overdue(&self) {
        self.kill.killed().await;
        if !self.closing.abandoned.load(Ordering::Acquire) {
            tokio::time::sleep(LAST_WORDS).await;
        }
    }

    /// Looks whether the client of a request under way has left, which nobody notices while
    /// Pingora does not read (it is stuck in writing, or has bytes of a next request). Left twice
    /// in a row: Pingora has had its time to notice, and the request is dropped.
    ///
    /// A connection that was found waiting for its next request more than `idle` times in a row is
    /// closed. Counted here, so that no request has a timer for it.
    pub(crate) fn sweep(&self, idle: u32) {
        match self.phase() {
            ConnectionPhase::Open => {}
            ConnectionPhase::Idle => {
                let requests = self.requests();
                let times = match self.sweep.idle_after.swap(requests, Ordering::Relaxed) == requests {
                    true => self.sweep.idle.load(Ordering::Relaxed).saturating_add(1),
                    false => 0,
                };
                self.sweep.idle.store(times, Ordering::Relaxed);
                if times > idle {
                    self.end_idle();
                }
                return;
            }
            ConnectionPhase::Head | ConnectionPhase::Fresh => return,
        }
        let ready = self.tcp.ready(tokio::io::Interest::READABLE).now_or_never();
        let left = match ready {
            Some(Ok(ready)) => ready.is_read_closed(),
            Some(Err(_)) => true,
            None => false,
        };
        if !left {
            self.sweep.left.store(0, Ordering::Relaxed);
        } else if self.sweep.left.fetch_add(1, Ordering::Relaxed) > 0 {
            self.closing.abandoned.store(true, Ordering::Release);
            self.kill.kill();
        }
    }

    /// Closes an HTTP/1.1 connection that ends while its client is still sending: says the end, then
    /// takes for a moment what still comes. Closed at once, a client that is still writing meets a
    /// broken connection before it reads the response, and the kernel's reset may destroy the response.
    pub(in crate::connection) async fn linger(&self) {
        let lingers = self.closing.linger.load(Ordering::Relaxed) && !self.resets_on_close();
        if !lingers || matches!(self.phase(), ConnectionPhase::Idle | ConnectionPhase::Fresh) {
            return;
        }
        close_patiently(&self.tcp, LINGER_TIME).await;
        if self.kill.is_killed() {
            // What ends a request also ends reading for good, and with it all word of room: a client that
            // is stuck in writing hears of the end by a reset alone, once it could have read the response.
            tokio::time::sleep(BEFORE_RESET).await;
            let _ = rustix::net::sockopt::set_socket_linger(&*self.tcp, Some(Duration::ZERO));
        }
    }

    /// Says the end of the connection, and takes what still comes until the client has closed too, for
    /// so long at most.
    pub(in crate::connection) async fn discard(&self, time: Duration) {
        close_patiently(&self.tcp, time).await;
    }

    /// How many packets of what was written the client's side has not acknowledged, and bytes that
    /// wait for room at its side; `None` where there is nothing of either, or the connection is gone.
    pub(in crate::connection) fn undelivered(&self) -> Option<u64> {
        let info = get_tcp_info(self.tcp.as_raw_fd()).ok()?;
        let left = u64::from(info.tcpi_unacked) + u64::from(info.tcpi_notsent_bytes);
        (left > 0).then_some(left)
    }

    /// How many bytes of the connection the client's side has to have acknowledged until everything
    /// that is written by now is there; 0 where the system does not say.
    pub(in crate::connection) fn bytes_to_acknowledge(&self) -> u64 {
        let Ok(info) = get_tcp_info(self.tcp.as_raw_fd()) else { return 0 };
        info.tcpi_bytes_sent
            .saturating_sub(info.tcpi_bytes_retrans)
            .saturating_add(u64::from(info.tcpi_notsent_bytes))
    }

    /// How many it has acknowledged; all there can be where the connection is gone.
    pub(in crate::connection) fn bytes_acknowledged(&self) -> u64 {
        get_tcp_info(self.tcp.as_raw_fd()).map_or(u64::MAX, |info| info.tcpi_bytes_acked)
    }

    /// Ends a connection that waits for a request: it reads its end, and says its own. A request
    /// that has come in meanwhile is still read.
    pub(in crate::connection) fn end_idle(&self) {
        // An error says that the connection is gone already.
        let _ = rustix::net::shutdown(&*self.tcp, rustix::net::Shutdown::Read);
    }

    /// Ends the connection at once, whatever it is doing.
    pub(crate) fn shut(&self) {
        // An error says that the connection is gone already.
        let _ = rustix::net::shutdown(&*self.tcp, rustix::net::Shutdown::Both);
    }
}

/// Says the end of a connection, then takes for so long at most what its client still sends: the reset
/// of one that is closed with something unread may destroy what was said last.
pub(in crate::connection) async fn close_patiently(tcp: &TcpStream, time: Duration) {
    if rustix::net::shutdown(tcp, rustix::net::Shutdown::Write).is_err() {
        return; // gone already
    }
    let closing = async {
        let mut taken = 0;
        while taken < LINGER_BYTES && tcp.readable().await.is_ok() {
            match discard(tcp) {
                Ok(0) => return,
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = tokio::time::timeout(time, closing).await;
}

/// Not async, so that no connection carries the room for it.
fn discard(tcp: &TcpStream) -> io::Result<usize> {
    tcp.try_read(&mut [0u8; 16 * 1024])
}
