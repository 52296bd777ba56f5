//! A real redis-server of the test's own, and enough of its protocol to speak to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A server that is started anew on the same port after it was killed, and ends with the test.
pub(crate) struct Redis {
    pub(crate) port: u16,
    arguments: Vec<String>,
    directory: tempfile::TempDir,
    child: Option<Child>,
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Redis {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut redis = Self::absent(arguments);
        redis.resume_life();
        redis
    }

    /// A port where nobody listens yet.
    pub(crate) fn absent(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        Self { port: free_port(), arguments, directory: tempfile::tempdir().unwrap(), child: None }
    }

    /// Arguments that name a port or files come from the caller.
    pub(crate) fn start_on(port: u16, arguments: &[String]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut redis = Self { port, arguments: arguments.to_vec(), directory, child: None };
        redis.resume_life();
        redis
    }

    /// A Sentinel, which needs a file of its own.
    pub(crate) fn sentinel(configuration: &str) -> Self {
        let mut sentinel = Self::absent(&["--sentinel"]);
        std::fs::write(sentinel.directory.path().join("sentinel.conf"), configuration).unwrap();
        sentinel.resume_life();
        sentinel
    }

    /// Starts it, empty, where it was.
    pub(crate) fn resume_life(&mut self) {
        let file = self.directory.path().join("sentinel.conf");
        let child = Command::new("redis-server")
            .args(file.exists().then_some(&file))
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(self.directory.path())
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "redis-server did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn freeze(&self, frozen: bool) {
        let child = self.child.as_ref().unwrap();
        kill_process(Pid::from_child(child), if frozen { Signal::STOP } else { Signal::CONT }).unwrap();
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// One command on a connection of its own; the reply in one line.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        self.run_as(None, words)
    }

    pub(crate) fn run_as(&self, password: Option<&str>, words: &[&str]) -> String {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut replies = BufReader::new(stream);
        if let Some(password) = password {
            call(&mut replies, &["AUTH", password]);
        }
        call(&mut replies, words)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn call(stream: &mut BufReader<TcpStream>, words: &[&str]) -> String {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    read_reply(stream)
}

fn read_reply(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let line = line.trim_end();
    let (kind, rest) = line.split_at(1);
    match kind {
        "$" if rest != "-1" => {
            let mut body = vec![0; rest.parse::<usize>().unwrap() + 2];
            stream.read_exact(&mut body).unwrap();
            String::from_utf8_lossy(&body[..body.len() - 2]).into_owned()
        }
        "*" => {
            let parts: Vec<String> = (0..rest.parse::<i64>().unwrap()).map(|_| read_reply(stream)).collect();
            parts.join(" ")
        }
        _ => rest.to_owned(),
    }
}
