//! The origin: echoes WebSocket messages, writes events, swallows uploads.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::MissedTickBehavior;

use crate::{ACCEPT, head};

/// One event, in a chunk of its own: what an agent's output looks like.
const EVENT: &[u8] =
    b"42\r\ndata: {\"type\":\"stdout\",\"text\":\"one line of output, as it comes\"}\n\n\r\n";

/// Serves until it is ended.
pub(crate) async fn run(listen: &str) -> io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A client that leaves is no news.
        tokio::spawn(async move { serve(stream).await.ok() });
    }
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(head) = head::read(&mut stream).await? {
        let lower = head.text.to_ascii_lowercase();
        if lower.contains("\r\nupgrade: websocket\r\n") {
            let response = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
            );
            stream.write_all(response.as_bytes()).await?;
            return echo(stream, head.rest).await;
        }
        if let Some(every) = every(&lower) {
            return events(stream, every).await;
        }
        swallow(&mut stream, length(&lower).saturating_sub(head.rest.len())).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello world\n").await?;
    }
    Ok(())
}

/// Bytes of the body that follows.
fn length(head: &str) -> usize {
    let value = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Reads that many bytes and forgets them.
async fn swallow(stream: &mut TcpStream, mut left: usize) -> io::Result<()> {
    let mut piece = vec![0; 256 * 1024];
    while left > 0 {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left = left.saturating_sub(read);
    }
    Ok(())
}

/// The pause that `/events?every=MS` asks for.
fn every(head: &str) -> Option<Duration> {
    let (_, after) = head.lines().next()?.split_once("/events?every=")?;
    after.split(' ').next()?.parse().ok().map(Duration::from_millis)
}

async fn events(mut stream: TcpStream, every: Duration) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\
                X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut tick = tokio::time::interval(every);
    // Late is late: nothing is made up for in a burst.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        stream.write_all(EVENT).await?;
    }
}

/// Sends each message back as it came, unmasked.
async fn echo(mut stream: TcpStream, mut bytes: Vec<u8>) -> io::Result<()> {
    let mut out = Vec::with_capacity(1024);
    loop {
        while let Some(size) = next_echo(&bytes, &mut out) {
            bytes.drain(..size);
        }
        if !out.is_empty() {
            stream.write_all(&out).await?;
            out.clear();
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
}

/// Appends the echo of the first message in `bytes`, if it is whole; its size.
fn next_echo(bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    // Short and masked, as all of the client's are.
    let [first, second, m0, m1, m2, m3, rest @ ..] = bytes else { return None };
    let size = usize::from(second & 0x7f);
    let payload = rest.get(..size)?;
    out.extend([*first, second & 0x7f]);
    out.extend(payload.iter().zip([m0, m1, m2, m3].into_iter().cycle()).map(|(byte, mask)| byte ^ mask));
    Some(6 + size)
}
