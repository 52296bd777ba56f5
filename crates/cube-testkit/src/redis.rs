//! A redis-server of the test's own, and just enough of its protocol.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Command;
use std::sync::Mutex;

use rustix::process::Signal;
use tokio::net::TcpStream;

use crate::process::Guarded;
use crate::{Wire, eventually, free_port, within};

/// What Redis answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+` or `$`.
    Text(Vec<u8>),
    /// `:`.
    Number(i64),
    /// Absent.
    Nil,
    /// `*`.
    List(Vec<Reply>),
}

impl Reply {
    /// As text, bytes that are no UTF-8 replaced.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Reply::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => format!("{other:?}"),
        }
    }
}

/// An answer that begins with `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisError(pub String);

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A redis-server on a free loopback port with a directory of its own; killed when dropped.
pub struct RedisServer {
    port: u16,
    directory: PathBuf,
    password: Option<String>,
    process: Mutex<Option<Guarded>>,
}

impl RedisServer {
    /// Starts one and waits until it answers.
    pub async fn start() -> Self {
        let server = Self::unstarted();
        server.restart().await;
        server
    }

    /// Starts one that asks for a password.
    pub async fn with_password(password: &str) -> Self {
        let mut server = Self::unstarted();
        server.password = Some(password.to_owned());
        server.restart().await;
        server
    }

    /// Only takes the port: [`RedisServer::restart`] starts the server there.
    #[must_use]
    pub fn unstarted() -> Self {
        let directory = std::env::temp_dir().join(crate::unique_id("cube-redis-"));
        Self { port: free_port("127.0.0.1"), directory, password: None, process: Mutex::new(None) }
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:<port>/0`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Starts the server on its port, empty, and waits until it answers.
    pub async fn restart(&self) {
        self.stop();
        // The directory goes with the process, so it is made anew.
        std::fs::create_dir_all(&self.directory).expect("a directory");
        let log = std::fs::File::create(self.directory.join("redis.log")).expect("a log");
        let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(program);
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(&self.directory);
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        *self.process.lock().unwrap() = Some(Guarded::spawn(&mut command, Some(&self.directory)));
        eventually("redis-server to answer", || async {
            self.try_command(&["PING"]).await.ok().and_then(Result::ok)
        })
        .await;
    }

    /// Kills the server; its data is gone, its port refuses.
    pub fn stop(&self) {
        *self.process.lock().unwrap() = None;
    }

    /// Stops the process: it hangs, but its port stays open.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.lock().unwrap().as_mut().expect("a running redis-server").signal(signal);
    }

    /// One command, which must succeed.
    pub async fn command(&self, words: &[&str]) -> Reply {
        let reply = within("redis-server's reply", self.try_command(words)).await;
        reply.expect("a redis-server").unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// `HSET key field value ...`.
    pub async fn hset<N: AsRef<str>, V: AsRef<str>>(&self, key: &str, fields: &[(N, V)]) {
        let mut words = vec!["HSET", key];
        words.extend(fields.iter().flat_map(|(name, value)| [name.as_ref(), value.as_ref()]));
        self.command(&words).await;
    }

    /// `DEL key`.
    pub async fn del(&self, key: &str) {
        self.command(&["DEL", key]).await;
    }

    /// One command on a connection of its own, whatever comes of it.
    ///
    /// # Errors
    /// The outer one is the connection's, the inner one Redis's answer.
    pub async fn try_command(&self, words: &[&str]) -> io::Result<Result<Reply, RedisError>> {
        let mut wire = self.connect().await?;
        exchange(&mut wire, words).await
    }

    /// Sees every command that the server gets from now on.
    pub async fn monitor(&self) -> Monitor<'_> {
        let mut wire = self.connect().await.expect("a redis-server");
        exchange(&mut wire, &["MONITOR"]).await.expect("a redis-server").expect("OK");
        Monitor { wire, server: self }
    }

    async fn connect(&self) -> io::Result<Wire<TcpStream>> {
        let mut wire = Wire::new(TcpStream::connect(("127.0.0.1", self.port)).await?);
        if let Some(password) = &self.password {
            let _ = exchange(&mut wire, &["AUTH", password]).await?;
        }
        Ok(wire)
    }
}

/// A connection in MONITOR mode.
pub struct Monitor<'a> {
    wire: Wire<TcpStream>,
    server: &'a RedisServer,
}

impl Monitor<'_> {
    /// The commands seen until now, one line each, as Redis prints them.
    pub async fn lines(&mut self) -> Vec<String> {
        let end = crate::unique_id("end");
        self.server.command(&["ECHO", &end]).await;
        let mut lines = Vec::new();
        loop {
            let line = within("MONITOR", self.wire.line()).await.expect("a redis-server").expect("a line");
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.contains(&end) {
                return lines;
            }
            lines.push(line);
        }
    }
}

/// The connection's error outside, Redis's answer inside.
type Outcome = io::Result<Result<Reply, RedisError>>;

async fn exchange(wire: &mut Wire<TcpStream>, words: &[&str]) -> Outcome {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    wire.send(out).await?;
    read(wire).await
}

fn read(wire: &mut Wire<TcpStream>) -> Pin<Box<dyn Future<Output = Outcome> + Send + '_>> {
    Box::pin(async move {
        let line = wire.line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let rest = String::from_utf8_lossy(&line[1..]).trim_end().to_owned();
        let count = rest.parse::<i64>();
        Ok(Ok(match (line[0], count) {
            (b'+', _) => Reply::Text(rest.into_bytes()),
            (b'-', _) => return Ok(Err(RedisError(rest))),
            (b':', Ok(number)) => Reply::Number(number),
            (b'$' | b'*', Ok(-1)) => Reply::Nil,
            (b'$', Ok(length)) => {
                let length = usize::try_from(length).expect("a length");
                let mut bytes = wire.exactly(length + 2).await?;
                bytes.truncate(length);
                Reply::Text(bytes)
            }
            (b'*', Ok(count)) => {
                let mut items = Vec::new();
                for _ in 0..count {
                    match read(wire).await? {
                        Ok(item) => items.push(item),
                        Err(error) => return Ok(Err(error)),
                    }
                }
                Reply::List(items)
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, rest)),
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_keeps_what_it_is_told_until_it_is_stopped() {
        let redis = RedisServer::start().await;
        redis.hset("key", &[("field", "value"), ("empty", "")]).await;
        assert_eq!(redis.command(&["HGET", "key", "field"]).await, Reply::Text(b"value".to_vec()));
        assert_eq!(redis.command(&["HGET", "key", "none"]).await, Reply::Nil);
        assert_eq!(redis.command(&["HLEN", "key"]).await, Reply::Number(2));
        assert!(redis.try_command(&["NOSUCH"]).await.unwrap().is_err());
        redis.stop();
        assert!(redis.try_command(&["PING"]).await.is_err());
        redis.restart().await;
        assert_eq!(redis.command(&["EXISTS", "key"]).await, Reply::Number(0));
    }

    #[tokio::test]
    async fn a_monitor_sees_the_commands_of_others() {
        let redis = RedisServer::start().await;
        let mut monitor = redis.monitor().await;
        redis.command(&["GET", "watched"]).await;
        let lines = monitor.lines().await;
        assert!(lines.iter().any(|line| line.contains(r#""GET" "watched""#)), "{lines:?}");
    }

    #[tokio::test]
    async fn a_paused_server_takes_connections_and_says_nothing() {
        let redis = RedisServer::start().await;
        redis.pause();
        let silence =
            tokio::time::timeout(std::time::Duration::from_millis(200), redis.try_command(&["PING"]));
        assert!(silence.await.is_err());
        redis.resume();
        assert_eq!(redis.command(&["PING"]).await, Reply::Text(b"PONG".to_vec()));
    }

    #[tokio::test]
    async fn a_password_is_asked_for() {
        let redis = RedisServer::with_password("example-password").await;
        assert_eq!(redis.command(&["PING"]).await.text(), "PONG");
        let mut stranger = Wire::new(TcpStream::connect(("127.0.0.1", redis.port())).await.unwrap());
        assert!(exchange(&mut stranger, &["PING"]).await.unwrap().unwrap_err().0.starts_with("NOAUTH"));
    }
}
