//! The clients: all connections are set up first, then kept busy for the same time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::{EVENTS, KEY, Load, head};

/// For setting up one connection.
pub(crate) const SETUP: Duration = Duration::from_secs(20);
/// Event streams that are set up at a time.
const AT_ONCE: usize = 50;
/// Between the last connection and the first measurement.
const SETTLE: Duration = Duration::from_millis(500);
/// A masked text message of 32 bytes, and the size of its echo, which has no mask.
const MESSAGE: &[u8] = b"\x81\xa0\x00\x00\x00\x00one line typed in a terminal....";
const ECHO: usize = 34;

/// One message at a time on each WebSocket; counts round trips and how long they took.
pub(crate) async fn messages(load: Load) -> io::Result<()> {
    let upgrade = format!(
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
    );
    let mut sockets = Vec::with_capacity(load.connections);
    for _ in 0..load.connections {
        sockets.push(connect(&load, "/ws", &upgrade, "101").await?);
    }
    say("ready");
    let (begun, mut work) = (Instant::now(), JoinSet::new());
    let until = begun + load.time;
    for mut socket in sockets {
        work.spawn(async move {
            let mut took = Vec::new();
            let mut echo = [0; ECHO];
            while Instant::now() < until {
                let sent = Instant::now();
                socket.write_all(MESSAGE).await?;
                socket.read_exact(&mut echo).await?;
                took.push(sent.elapsed());
            }
            Ok::<_, io::Error>(took)
        });
    }
    let mut took = Vec::new();
    while let Some(done) = work.join_next().await {
        took.extend(done??);
    }
    say(&Latencies::new(took).json(begun.elapsed()));
    Ok(())
}

/// How long each of many took.
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn new(mut took: Vec<Duration>) -> Self {
        took.sort_unstable();
        Self(took)
    }

    /// What the bench reads: how many there were in `elapsed`, and percentiles in microseconds.
    pub(crate) fn json(&self, elapsed: Duration) -> String {
        let Self(took) = self;
        let micros = |share: usize| took.get(took.len() * share / 1000).map_or(0, Duration::as_micros);
        format!(
            r#"{{"count": {}, "seconds": {}, "p50": {}, "p99": {}, "p999": {}}}"#,
            took.len(),
            elapsed.as_secs_f64(),
            micros(500),
            micros(990),
            micros(999)
        )
    }
}

/// Many event streams at once; counts the events that arrive while all of them stand.
pub(crate) async fn events(load: Load) -> io::Result<()> {
    let (load, turns, count) =
        (Arc::new(load), Arc::new(Semaphore::new(AT_ONCE)), Arc::new(AtomicUsize::new(0)));
    let (stands, mut standing) = mpsc::unbounded_channel();
    let mut work = JoinSet::new();
    for _ in 0..load.connections {
        let (load, turns, count, stands) =
            (Arc::clone(&load), Arc::clone(&turns), Arc::clone(&count), stands.clone());
        work.spawn(async move {
            let turn = turns.acquire().await.map_err(io::Error::other)?;
            let mut socket = connect(&load, EVENTS, "", "200").await?;
            drop(turn);
            stands.send(()).map_err(io::Error::other)?;
            // Read from the first moment on: what gathers in a socket would be counted as new later.
            let mut bytes = Vec::with_capacity(4096);
            while socket.read_buf(&mut bytes).await? > 0 {
                count.fetch_add(events_in(&bytes), Ordering::Relaxed);
                bytes.clear();
            }
            Err::<(), _>(io::Error::other("an event stream ended"))
        });
    }
    for _ in 0..load.connections {
        tokio::select! {
            _ = standing.recv() => {}
            Some(ended) = work.join_next() => ended??,
        }
    }
    // What gathered while the last ones connected was the proxy's work before.
    tokio::time::sleep(SETTLE).await;
    say("ready");
    let (begun, before) = (Instant::now(), count.load(Ordering::Relaxed));
    tokio::select! {
        () = tokio::time::sleep(load.time) => {}
        Some(ended) = work.join_next() => ended??,
    }
    let events = count.load(Ordering::Relaxed) - before;
    say(&format!(r#"{{"count": {events}, "seconds": {}}}"#, begun.elapsed().as_secs_f64()));
    Ok(())
}

/// Each event has one of these; one that is cut in two by a read has it in one of the halves.
fn events_in(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'{').count()
}

/// Sets one connection up: the request is sent, the head of its response is read.
async fn connect(load: &Load, path: &str, fields: &str, status: &str) -> io::Result<TcpStream> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", load.host);
    let set_up = async {
        let mut socket = TcpStream::connect(load.address).await?;
        socket.set_nodelay(true)?;
        socket.write_all(request.as_bytes()).await?;
        let head = head::read(&mut socket).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if !head.text.starts_with(&format!("HTTP/1.1 {status} ")) {
            return Err(io::Error::other(format!("{path} was answered with {}", head.text)));
        }
        Ok(socket)
    };
    let made = tokio::time::timeout(SETUP, set_up).await;
    made.map_err(|_| io::Error::other("a connection was not set up in time"))?
}

/// A line for whoever started this.
#[expect(clippy::print_stdout)]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
