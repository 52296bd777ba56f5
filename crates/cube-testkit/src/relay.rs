//! A wire between the proxy and redis-server that a test can bend.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::{RedisServer, free_port};

#[derive(Clone)]
enum Mode {
    Pass,
    Slow(Duration),
    Refuse(String),
    Cut(usize),
}

struct Shared {
    server: u16,
    mode: Mutex<Mode>,
    connections: AtomicUsize,
    refused: AtomicUsize,
    /// Connections up to this number carry nothing any more.
    silenced: AtomicUsize,
}

/// Forwards connections to a redis-server, well or badly; ends with everything when dropped.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// Bytes for the client, and when they may go.
type ToClient = mpsc::UnboundedSender<(Instant, Vec<u8>)>;

impl Relay {
    /// Opens one in front of `server`.
    pub async fn to(server: &RedisServer) -> Self {
        let port = free_port("127.0.0.1");
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a port for the relay");
        let shared = Arc::new(Shared {
            server: server.port(),
            mode: Mutex::new(Mode::Pass),
            connections: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            silenced: AtomicUsize::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Self { port, shared, task }
    }

    /// `redis://` through the relay.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Connections taken so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Commands refused so far.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Forwards as it should, from now on.
    pub fn pass(&self) {
        self.set(Mode::Pass);
    }

    /// Everything the server says comes that much later, pushes too.
    pub fn slow(&self, by: Duration) {
        self.set(Mode::Slow(by));
    }

    /// Every command is answered with this error (`LOADING ...`) and does not reach the server.
    pub fn refuse(&self, error: &str) {
        self.set(Mode::Refuse(error.to_owned()));
    }

    /// Of what the server says next on any connection only so many bytes come, then its end.
    pub fn cut(&self, after: usize) {
        self.set(Mode::Cut(after));
    }

    /// What is connected now carries nothing any more and is not told; new connections are well.
    pub fn silence(&self) {
        self.shared.silenced.store(self.connections(), Ordering::SeqCst);
    }

    fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn mode(&self) -> Mode {
        self.mode.lock().unwrap().clone()
    }

    /// Never returns for a connection that is silenced.
    async fn unless_silenced(&self, connection: usize) {
        if connection <= self.silenced.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and the connections with it.
    let mut carrying = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let shared = Arc::clone(&shared);
        // What breaks a connection is what the test is about; it looks at its own side.
        carrying.spawn(async move { carry(client, number, &shared).await });
    }
}

async fn carry(client: TcpStream, number: usize, shared: &Shared) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", shared.server)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (sender, mut told) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let pumps = async move {
        // One that ends takes the other along; what was told goes out all the same.
        let _: io::Result<()> = tokio::select! {
            ended = up(from_client, to_server, &sender, number, shared) => ended,
            ended = down(from_server, &sender, number, shared) => ended,
        };
    };
    let write = async move {
        let mut to_client: OwnedWriteHalf = to_client;
        while let Some((due, bytes)) = told.recv().await {
            sleep_until(due).await;
            to_client.write_all(&bytes).await?;
        }
        to_client.shutdown().await
    };
    tokio::join!(pumps, write).1
}

/// From the client to the server.
async fn up(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    client: &ToClient,
    number: usize,
    shared: &Shared,
) -> io::Result<()> {
    let mut refused = Vec::new();
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        shared.unless_silenced(number).await;
        match shared.mode() {
            Mode::Refuse(error) => {
                refused.extend_from_slice(&bytes[..count]);
                let commands = take_commands(&mut refused);
                shared.refused.fetch_add(commands, Ordering::SeqCst);
                let responses = format!("-{error}\r\n").repeat(commands);
                let _ = client.send((Instant::now(), responses.into_bytes()));
            }
            Mode::Pass | Mode::Slow(_) | Mode::Cut(_) => to.write_all(&bytes[..count]).await?,
        }
    }
}

/// From the server to the client.
async fn down(mut from: OwnedReadHalf, client: &ToClient, number: usize, shared: &Shared) -> io::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        shared.unless_silenced(number).await;
        let (due, length) = match shared.mode() {
            Mode::Slow(by) => (Instant::now() + by, count),
            Mode::Cut(after) => (Instant::now(), count.min(after)),
            Mode::Pass | Mode::Refuse(_) => (Instant::now(), count),
        };
        let _ = client.send((due, bytes[..length].to_vec()));
        if length < count {
            return Ok(());
        }
    }
}

/// Takes the whole commands off the front; how many.
fn take_commands(bytes: &mut Vec<u8>) -> usize {
    let mut taken = 0;
    while let Some(length) = command_length(bytes) {
        bytes.drain(..length);
        taken += 1;
    }
    taken
}

/// The length of the command at the front: an array of bulk strings.
fn command_length(bytes: &[u8]) -> Option<usize> {
    let (words, mut at) = number(bytes, 0)?;
    for _ in 0..words {
        let (length, from) = number(bytes, at)?;
        at = from + length + 2;
    }
    (at <= bytes.len()).then_some(at)
}

/// The number behind the letter at `at`, and where the next line begins.
fn number(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let line = bytes.get(at + 1..)?;
    let length = line.windows(2).position(|two| two == b"\r\n")?;
    let number = std::str::from_utf8(&line[..length]).ok()?.parse().ok()?;
    Some((number, at + 1 + length + 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Wire, within};

    async fn ping(wire: &mut Wire<TcpStream>) -> io::Result<Option<String>> {
        wire.send("*1\r\n$4\r\nPING\r\n").await?;
        let line = within("a response", wire.line()).await?;
        Ok(line.map(|line| String::from_utf8(line).unwrap()))
    }

    async fn connect(relay: &Relay) -> Wire<TcpStream> {
        Wire::new(TcpStream::connect(("127.0.0.1", relay.port)).await.unwrap())
    }

    #[tokio::test]
    async fn a_relay_forwards_late_refuses_and_cuts_as_it_is_told() {
        let redis = RedisServer::start().await;
        let relay = Relay::to(&redis).await;
        let mut wire = connect(&relay).await;
        assert_eq!(ping(&mut wire).await.unwrap().unwrap(), "+PONG\r\n");
        relay.slow(Duration::from_millis(300));
        let begun = Instant::now();
        assert_eq!(ping(&mut wire).await.unwrap().unwrap(), "+PONG\r\n");
        assert!(begun.elapsed() >= Duration::from_millis(300));
        relay.refuse("LOADING wait");
        for _ in 0..2 {
            assert_eq!(ping(&mut wire).await.unwrap().unwrap(), "-LOADING wait\r\n");
        }
        assert_eq!(relay.refused(), 2);
        relay.pass();
        assert_eq!(ping(&mut wire).await.unwrap().unwrap(), "+PONG\r\n");
        relay.cut(3);
        let cut = ping(&mut wire).await.unwrap_err();
        assert!(cut.to_string().contains("+PO"), "{cut}");
        assert_eq!(relay.connections(), 1);
    }

    #[tokio::test]
    async fn a_silenced_connection_stays_open_and_says_nothing() {
        let redis = RedisServer::start().await;
        let relay = Relay::to(&redis).await;
        let mut old = connect(&relay).await;
        ping(&mut old).await.unwrap();
        relay.silence();
        old.send("*1\r\n$4\r\nPING\r\n").await.unwrap();
        let silence = tokio::time::timeout(Duration::from_millis(200), old.some(1)).await;
        assert!(silence.is_err(), "{silence:?}");
        assert_eq!(ping(&mut connect(&relay).await).await.unwrap().unwrap(), "+PONG\r\n");
    }

    #[test]
    fn commands_are_taken_when_they_are_whole() {
        let mut bytes = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPI".to_vec();
        assert_eq!(take_commands(&mut bytes), 1);
        bytes.extend_from_slice(b"NG\r\n");
        assert_eq!(take_commands(&mut bytes), 1);
        assert!(bytes.is_empty());
    }
}
