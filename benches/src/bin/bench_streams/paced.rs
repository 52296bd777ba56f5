//! So many requests a second, whatever the responses do, as of many clients that know nothing of each
//! other: the times between them are exponentially distributed. Latency counts from the moment that
//! a request is handed to its connection, so that one which waits there for the one before is late, not
//! left out. That the clock which hands them over may be late itself is no fault of the proxy.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::client::{Latencies, SETUP, say};
use crate::{Load, head};

/// The same arrivals for everyone.
const SEED: u64 = 7;
/// Requests a second; more would gather in memory.
const FASTEST: f64 = 1e6;
/// No response of this bench is longer.
const LONGEST: usize = 1024 * 1024;

/// Sends `rate` requests a second with the header `field`, and counts how long each took.
pub(crate) async fn run(load: Load, rate: f64, field: &str) -> io::Result<()> {
    if !(1.0..=FASTEST).contains(&rate) {
        return Err(io::Error::other(format!("not a rate between 1 and {FASTEST:e}: {rate}")));
    }
    let request =
        format!("GET / HTTP/1.1\r\nHost: {}\r\nUser-Agent: bench/1.0\r\n{field}\r\n\r\n", load.host);
    let mut work = JoinSet::new();
    let mut connections = Vec::with_capacity(load.connections);
    for _ in 0..load.connections {
        let made = tokio::time::timeout(SETUP, connect(&load, &request)).await;
        let socket = made.map_err(|_| io::Error::other("a connection was not set up in time"))??;
        let (send, due) = unbounded_channel();
        connections.push(send);
        work.spawn(serve(socket, request.clone(), due));
    }
    say("ready");
    let begun = Instant::now();
    // A thread of its own: the runtime's clock ticks in milliseconds, which would bunch them.
    let pacer = thread::spawn(move || pace(&connections, rate, load.time));
    let mut took = Vec::new();
    while let Some(done) = work.join_next().await {
        took.extend(done??);
    }
    pacer.join().map_err(|_| io::Error::other("the clock of the requests broke"))?;
    say(&Latencies::new(took).json(begun.elapsed()));
    Ok(())
}

/// A connection after its first request, which makes what is made once: a connection to the sandbox, a route.
async fn connect(load: &Load, request: &str) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(load.address).await?;
    socket.set_nodelay(true)?;
    exchange(&mut socket, request.as_bytes()).await?;
    Ok(socket)
}

/// Says to one connection after the other that a request is due.
fn pace(connections: &[UnboundedSender<Instant>], rate: f64, time: Duration) {
    let mut random = fastrand::Rng::with_seed(SEED);
    let begun = Instant::now();
    let mut due = Duration::ZERO;
    for connection in connections.iter().cycle() {
        // 1 - x is never 0, whose logarithm is none.
        due += Duration::from_secs_f64(-(1.0 - random.f64()).ln() / rate);
        if due >= time {
            return;
        }
        thread::sleep(due.saturating_sub(begun.elapsed()));
        // It fails where the connection has ended, which says so itself.
        let _ = connection.send(Instant::now());
    }
}

/// One connection: a request for each that is due, until there are no more.
async fn serve(
    mut socket: TcpStream,
    request: String,
    mut due: UnboundedReceiver<Instant>,
) -> io::Result<Vec<Duration>> {
    let mut took = Vec::new();
    while let Some(due) = due.recv().await {
        exchange(&mut socket, request.as_bytes()).await?;
        took.push(due.elapsed());
    }
    Ok(took)
}

/// A request and its whole response, which must be a 200 with a length.
async fn exchange(socket: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    socket.write_all(request).await?;
    let head = head::read(socket).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let length = head.text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let good = head.text.starts_with("HTTP/1.1 200 ");
    let Some(length) = length.filter(|length| good && *length <= LONGEST) else {
        return Err(io::Error::other(format!("a response that was not expected: {}", head.text)));
    };
    let mut rest = vec![0; length.saturating_sub(head.rest.len())];
    socket.read_exact(&mut rest).await?;
    Ok(())
}
