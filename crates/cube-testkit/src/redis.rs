//! A redis-server of the test's own, and just enough of its protocol.

mod cluster;
mod resp;
mod sentinel;

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use rustix::process::Signal;
use tokio::net::TcpStream;

use crate::process::Guarded;
use crate::{Wire, eventually, free_port, within};
pub use cluster::RedisCluster;
pub use resp::{RedisError, Reply};
use resp::{encode, exchange, read};
pub use sentinel::Sentinels;

/// A redis-server on a free loopback port with a directory of its own; killed when dropped.
pub struct RedisServer {
    port: u16,
    directory: PathBuf,
    password: Option<String>,
    arguments: Vec<String>,
    /// A file that it reads first, and rewrites (a Sentinel does).
    configuration: Option<String>,
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

    /// Starts one with further arguments.
    pub async fn with_arguments(arguments: &[&str]) -> Self {
        let mut server = Self::unstarted();
        server.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        server.restart().await;
        server
    }

    /// Only takes the port: [`RedisServer::restart`] starts the server there.
    #[must_use]
    pub fn unstarted() -> Self {
        let directory = std::env::temp_dir().join(crate::unique_id("cube-redis-"));
        Self {
            port: free_port("127.0.0.1"),
            directory,
            password: None,
            arguments: Vec::new(),
            configuration: None,
            process: Mutex::new(None),
        }
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
        self.start_over(None).await;
    }

    /// Starts the server on its port with what another one [dumped](RedisServer::dump).
    pub async fn restart_with(&self, dump: &[u8]) {
        self.start_over(Some(dump)).await;
    }

    /// All that it holds, for [`RedisServer::restart_with`].
    pub async fn dump(&self) -> Vec<u8> {
        self.command(&["SAVE"]).await;
        std::fs::read(self.directory.join("dump.rdb")).expect("what was saved")
    }

    async fn start_over(&self, dump: Option<&[u8]>) {
        self.stop();
        // The directory goes with the process, so it is made anew.
        std::fs::create_dir_all(&self.directory).expect("a directory");
        if let Some(dump) = dump {
            std::fs::write(self.directory.join("dump.rdb"), dump).expect("a writable directory");
        }
        let log = std::fs::File::create(self.directory.join("redis.log")).expect("a log");
        let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(program);
        if let Some(text) = &self.configuration {
            let file = self.directory.join("redis.conf");
            std::fs::write(&file, text).expect("a writable directory");
            command.arg(file);
        }
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(&self.directory);
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        command.args(&self.arguments);
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

    /// Many commands in one go, each of which must succeed.
    pub async fn pipeline<W: AsRef<str>>(&self, commands: &[Vec<W>]) -> Vec<Reply> {
        let mut wire = self.connect().await.expect("a redis-server");
        let mut out = Vec::new();
        for words in commands {
            encode(words, &mut out);
        }
        within("redis-server to read", wire.send(out)).await.expect("a redis-server");
        let mut replies = Vec::with_capacity(commands.len());
        for _ in commands {
            let reply = within("redis-server's reply", read(&mut wire)).await.expect("a redis-server");
            replies.push(reply.unwrap_or_else(|error| panic!("{error}")));
        }
        replies
    }

    /// A number that `INFO` tells, 0 where it says nothing of that name: `expired_keys`, or with
    /// `part`, `cmdstat_hgetall` and `calls`.
    pub async fn info(&self, section: &str, name: &str, part: Option<&str>) -> u64 {
        let text = self.command(&["INFO", section]).await.text();
        let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
        let number = match part {
            None => value,
            Some(part) => value
                .and_then(|value| value.split(',').find_map(|one| one.strip_prefix(part)?.strip_prefix('='))),
        };
        number.map_or(0, |number| number.parse().expect("a number"))
    }

    /// Commands of that name that it has carried out so far.
    pub async fn calls(&self, command: &str) -> u64 {
        self.info("commandstats", &format!("cmdstat_{command}"), Some("calls")).await
    }

    /// Ends the connections that have asked for pushes; how many those were.
    pub async fn kill_tracking(&self) -> usize {
        let list = self.command(&["CLIENT", "LIST"]).await.text();
        let field = |line: &str, name: &str| {
            line.split(' ').find_map(|field| field.strip_prefix(name).map(str::to_owned))
        };
        let mut killed = 0;
        for line in list.lines().filter(|line| field(line, "flags=").is_some_and(|f| f.contains('t'))) {
            let id = field(line, "id=").expect("an id");
            self.command(&["CLIENT", "KILL", "ID", &id]).await;
            killed += 1;
        }
        killed
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
    /// The outer one is the connection's, the inner one Redis's reply.
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
    async fn what_a_server_held_goes_over_to_another() {
        let (one, two) = (RedisServer::start().await, RedisServer::unstarted());
        one.pipeline(&[vec!["SET", "a", "1"], vec!["INCR", "a"]]).await;
        two.restart_with(&one.dump().await).await;
        assert_eq!(two.command(&["GET", "a"]).await.text(), "2");
        assert_eq!((one.calls("incr").await, one.calls("decr").await), (1, 0));
        assert_eq!(two.info("keyspace", "db0", Some("keys")).await, 1);
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
