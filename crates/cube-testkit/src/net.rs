//! Ports, and addresses where nothing answers.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};

/// Below the range that the kernel hands to outgoing connections, so that nothing takes a port
/// between its choice and its use.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// A port on `host` where nobody listens. Each process walks a stretch of its own, so that test
/// runs side by side rarely meet.
#[must_use]
pub fn free_port(host: &str) -> u16 {
    static STEPS: AtomicU32 = AtomicU32::new(0);
    let host: IpAddr = host.parse().expect("an address");
    let start = std::process::id().wrapping_mul(1_009) % COUNT;
    for _ in 0..COUNT {
        let step = STEPS.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(FIRST + (start + step) % COUNT).expect("below 32000");
        if TcpListener::bind((host, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port on {host}");
}

/// A port on 127.0.0.1 that refuses connections.
#[must_use]
pub fn refused_port() -> u16 {
    free_port("127.0.0.1")
}

/// A port whose accept queue is full: connecting to it never ends.
pub struct BlackHole {
    address: SocketAddr,
    _listener: tokio::net::TcpListener,
    _filling: Vec<TcpStream>,
}

impl BlackHole {
    /// Opens one on that address.
    pub async fn open(host: &str) -> Self {
        let host: IpAddr = host.parse().expect("an address");
        let socket = if host.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
        socket.bind((host, 0).into()).expect("a port");
        let listener = socket.listen(0).expect("a listener");
        let address = listener.local_addr().unwrap();
        let mut filling = Vec::new();
        // A queue of length zero still takes one or two; the first that gets no response shows that it is full.
        while let Ok(stream) =
            tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
        {
            filling.push(stream.expect("a queue that is filling up"));
            assert!(filling.len() < 64, "the accept queue of {address} does not fill");
        }
        Self { address, _listener: listener, _filling: filling }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_black_hole_takes_no_further_connection() {
        let hole = BlackHole::open("127.0.0.1").await;
        let attempt = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(hole.address()));
        assert!(attempt.await.is_err(), "connected");
    }

    #[tokio::test]
    async fn a_refused_port_refuses() {
        let refused = TcpStream::connect(("127.0.0.1", refused_port())).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn ports_are_given_once() {
        assert_ne!(free_port("127.0.0.1"), free_port("127.0.0.1"));
    }
}
