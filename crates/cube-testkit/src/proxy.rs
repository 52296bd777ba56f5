//! The real binary, running with a configuration of the test's own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::env::NODE_IP;
use crate::process::Guarded;
use crate::program::Program;
use crate::service::ServiceManager;
use crate::{Client, Metrics, Response, eventually, free_port, unique_id};

/// The fields of the `cube` access log, in order (operations.md).
pub const LOG_FIELDS: [&str; 26] = [
    "access_time",
    "host",
    "x_real_ip",
    "x_forwarded_for",
    "server_addr",
    "x_forwarded_proto",
    "method",
    "request_uri",
    "args",
    "protocol",
    "uri",
    "status",
    "body_bytes_sent",
    "request_time",
    "connection_requests",
    "upstream_addr",
    "upstream_status",
    "upstream_response_time",
    "user_agent",
    "request_id",
    "instance_id",
    "backend_ip",
    "retcode",
    "sandbox_id",
    "port",
    "reason",
];

/// What tests use for secrets, each the beginning of many: nothing that a proxy writes may have one
/// in it.
pub const SECRETS: [&str; 3] = ["example-token", "example-admin-token", "hush"];

/// The first line of `text` that has a secret in it.
fn leak(text: &str) -> Option<&str> {
    text.lines().find(|line| SECRETS.iter().any(|secret| line.contains(secret)) || has_ticket(line))
}

/// Whether the ticket of a preview link is in `line`.
fn has_ticket(line: &str) -> bool {
    line.match_indices("v1.").any(|(at, start)| {
        let rest = line.get(at + start.len()..).unwrap_or_default();
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        digits >= 9 && rest[digits..].starts_with('.')
    })
}

/// A line of the access log.
#[derive(Debug, Clone)]
pub struct LogLine {
    /// As written.
    pub text: String,
}

impl LogLine {
    /// A field by its name in [`LOG_FIELDS`].
    #[must_use]
    #[track_caller]
    pub fn field(&self, name: &str) -> &str {
        let fields: Vec<&str> = self.text.split("||").collect();
        assert_eq!(fields.len(), LOG_FIELDS.len(), "fields of {:?}", self.text);
        let at = LOG_FIELDS.iter().position(|field| *field == name);
        fields[at.unwrap_or_else(|| panic!("no field {name}"))]
    }
}

/// A proxy that is being described.
pub struct ProxyBuilder {
    binary: PathBuf,
    directory: PathBuf,
    config: Value,
    environment: Vec<(String, String)>,
    manager: Option<ServiceManager>,
}

impl ProxyBuilder {
    /// Merges `overrides` into the configuration: objects are merged, everything else replaced.
    #[must_use]
    pub fn config(mut self, overrides: &Value) -> Self {
        merge(&mut self.config, overrides);
        self
    }

    /// An environment variable of the process.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it as a service manager would: it says how it does, and starts its successors itself.
    #[must_use]
    pub fn managed(mut self) -> Self {
        let manager = ServiceManager::listen(&self.directory.join("notify"));
        self.environment.push(("NOTIFY_SOCKET".to_owned(), manager.path()));
        self.manager = Some(manager);
        self
    }

    /// Starts another program in place of the proxy.
    #[must_use]
    pub fn binary(mut self, binary: &Path) -> Self {
        self.binary = binary.to_owned();
        self
    }

    /// A directory that is removed with the proxy, for files that the configuration names.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts it and waits until `/readyz` says 200.
    pub async fn start(self) -> Proxy {
        let proxy = self.launch();
        proxy.ready().await;
        proxy
    }

    /// Starts it and waits for nothing.
    #[must_use]
    pub fn launch(self) -> Proxy {
        let Self { binary, directory, config, environment, manager } = self;
        let program = Program { binary, directory, environment };
        program.configure(&config);
        let process = Guarded::spawn(&mut program.command(&[], "output"), Some(&program.directory));
        Proxy { process: Mutex::new(process), old: Mutex::default(), config, program, manager }
    }
}

/// Merges `from` into `into`: objects are merged, everything else is replaced.
pub fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// A running proxy; ended when dropped.
pub struct Proxy {
    pub(crate) process: Mutex<Guarded>,
    /// Those that it took over from.
    pub(crate) old: Mutex<Vec<Guarded>>,
    pub(crate) config: Value,
    pub(crate) program: Program,
    pub(crate) manager: Option<ServiceManager>,
}

impl Proxy {
    /// Describes one with defaults for tests: free loopback ports, a fixed node address, loopback
    /// allowed as upstream, an access log, its own run directory. `binary` is
    /// `env!("CARGO_BIN_EXE_cube-proxy")`, which only the binary's own tests know.
    #[must_use]
    pub fn builder(binary: &str) -> ProxyBuilder {
        let directory = std::env::temp_dir().join(unique_id("cube-proxy-"));
        std::fs::create_dir(&directory).expect("a directory");
        let listen = || format!("127.0.0.1:{}", free_port("127.0.0.1"));
        let config = json!({
            "node_ip": NODE_IP,
            "listen": { "http": [listen()], "https": [], "admin": listen(), "metrics": listen() },
            "upstream": { "connect_timeout": "500ms", "cidrs": ["127.0.0.0/16", "::1/128"] },
            "access_log": { "path": directory.join("access.log") },
            "server": { "threads": 2, "run_dir": directory },
        });
        // Every test runs on both exchanges: `CUBE_EXCHANGE=own` and `CUBE_EXCHANGE=pingora`.
        let exchange = std::env::var("CUBE_EXCHANGE").ok();
        let environment = exchange.map(|which| ("CUBE_PROXY_UPSTREAM__EXCHANGE".to_owned(), which));
        let environment = environment.into_iter().collect();
        ProxyBuilder { binary: binary.into(), directory, config, environment, manager: None }
    }

    fn listener(&self, name: &str) -> SocketAddr {
        let value = &self.config["listen"][name];
        let value = if value.is_array() { &value[0] } else { value };
        value.as_str().unwrap_or_else(|| panic!("no {name} listener")).parse().expect("an address")
    }

    /// Where the plain listener is.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        self.listener("http")
    }

    /// Where the TLS listener is.
    #[must_use]
    pub fn https(&self) -> SocketAddr {
        self.listener("https")
    }

    /// Where the h2c listener is.
    #[must_use]
    pub fn grpc(&self) -> SocketAddr {
        self.listener("grpc")
    }

    /// Where the admin listener is.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.listener("admin")
    }

    /// Where the metrics listener is.
    #[must_use]
    pub fn metrics_address(&self) -> SocketAddr {
        self.listener("metrics")
    }

    /// Its directory: configuration, output, access log.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.program.directory
    }

    /// A request to the admin listener, with the configured token.
    pub async fn admin(&self, method: &str, path: &str, body: &str) -> Response {
        let mut headers = vec![("Host", "127.0.0.1"), ("Content-Type", "application/json")];
        if let Some(token) = self.config["admin"]["token"].as_str() {
            headers.push(("X-Cube-Admin-Token", token));
        }
        Client::connect(self.admin_address()).await.call(method, path, &headers, body).await
    }

    /// The status of a GET on the admin listener; `None` while nothing answers there.
    pub async fn probe(&self, path: &str) -> Option<u16> {
        let stream = tokio::net::TcpStream::connect(self.admin_address()).await.ok()?;
        let mut client = Client::over(stream);
        client.request("GET", path, &[("Host", "127.0.0.1")]).await;
        client.try_head().await.ok()?.map(|response| response.status)
    }

    /// Waits until `/readyz` says 200; panics with the output when it does not.
    pub async fn ready(&self) {
        let begin = Instant::now();
        loop {
            if self.probe("/readyz").await == Some(200) {
                return;
            }
            let ended = self.process.lock().unwrap().ended();
            assert!(
                ended.is_none() && begin.elapsed() < Duration::from_secs(20),
                "the proxy is not ready (ended: {ended:?}):\n{}",
                self.output()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What the process has written so far.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.program.directory.join("output")).unwrap_or_default())
            .into_owned()
    }

    /// Waits until the output has a line with all of these words, and gives it.
    pub async fn output_line(&self, words: &[&str]) -> String {
        eventually(&format!("a line of output with {words:?}"), || async {
            let output = self.output();
            let mut lines = output.lines();
            lines.find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
        .await
    }

    /// What `/metrics` says now.
    pub async fn metrics(&self) -> Metrics {
        Metrics::parse(&self.metrics_text().await)
    }

    /// The same as it is written.
    pub async fn metrics_text(&self) -> String {
        let mut client = Client::connect(self.listener("metrics")).await;
        let response = client.call("GET", "/metrics", &[("Host", "127.0.0.1")], "").await;
        assert_eq!(response.status, 200, "GET /metrics");
        response.text()
    }

    /// The configuration it was started with.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Writes its configuration file anew, with these overrides of what it was started with.
    pub fn write_config(&self, overrides: &Value) {
        let mut config = self.config.clone();
        merge(&mut config, overrides);
        self.write_config_text(&serde_json::to_string_pretty(&config).expect("JSON"));
    }

    /// Writes its configuration file anew.
    pub fn write_config_text(&self, text: &str) {
        let (draft, file) = (self.directory().join("draft.yaml"), self.directory().join("cube-proxy.yaml"));
        std::fs::write(&draft, text).expect("a writable directory");
        std::fs::rename(draft, file).expect("a writable directory");
    }

    /// Sends it SIGHUP and waits until it has read its configuration again; whether it was taken.
    pub async fn reload(&self) -> bool {
        const RELOADS: &str = "cube_proxy_config_reloads_total";
        let before = self.metrics().await.sum(RELOADS, &[]);
        self.signal(Signal::HUP);
        eventually("the configuration to be read again", || async {
            (self.metrics().await.sum(RELOADS, &[]) > before).then_some(())
        })
        .await;
        // Of a scrape that began afterwards: the two are not read in one moment.
        self.metrics().await.sum("cube_proxy_config_last_reload_successful", &[]) == 1.0
    }

    /// Has it take these overrides of what it was started with, while it runs.
    pub async fn reconfigure(&self, overrides: &Value) {
        self.write_config(overrides);
        assert!(self.reload().await, "the configuration was refused:\n{}", self.output());
    }

    /// The access log as written so far.
    #[must_use]
    pub fn access_log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.program.directory.join("access.log")).unwrap_or_default())
            .into_owned()
    }

    /// Waits for the access log line of a request.
    pub async fn log_line(&self, request_id: &str) -> LogLine {
        eventually(&format!("an access log line with {request_id}"), || async {
            let log = self.access_log();
            // A line that is still being written has no end yet.
            let mut lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            lines
                .find(|line| line.contains(request_id))
                .map(|line| LogLine { text: line.trim_end().to_owned() })
        })
        .await
    }

    /// Memory that it holds in RAM, in bytes.
    #[must_use]
    pub fn rss(&self) -> u64 {
        self.process.lock().unwrap().resident()
    }

    /// Whether the system may give it huge pages; none where the system does not say.
    #[must_use]
    pub fn has_huge_pages(&self) -> Option<bool> {
        self.process.lock().unwrap().has_huge_pages()
    }

    /// Whether it still runs.
    #[must_use]
    pub fn lives(&self) -> bool {
        self.process.lock().unwrap().ended().is_none()
    }

    /// Sends it SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.lock().unwrap().signal(signal);
    }

    /// Waits until it ends by itself.
    pub async fn ended(&self) -> ExitStatus {
        eventually("the proxy to end", || async { self.process.lock().unwrap().ended() }).await
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The second SIGTERM ends it at once; dropping the process kills what is left.
        let process = self.process.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        process.signal(Signal::TERM);
        if process.wait(Duration::from_millis(50)).is_none() {
            process.signal(Signal::TERM);
            process.wait(Duration::from_millis(1500));
        }
        if std::thread::panicking() {
            eprintln_output(&self.output());
            return;
        }
        for text in [self.output(), self.access_log()] {
            let leak = leak(&text);
            assert!(leak.is_none(), "the proxy has written a secret: {leak:?}");
        }
    }
}

#[allow(clippy::print_stderr, reason = "shown by the test runner for a failed test only")]
fn eprintln_output(output: &str) {
    let from = output.len().saturating_sub(8 * 1024);
    let from = (from..=output.len()).find(|at| output.is_char_boundary(*at)).unwrap_or(0);
    eprintln!("--- output of the proxy\n{}---", &output[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_what_a_proxy_wrote_is_found() {
        assert_eq!(leak("a\nb example-token-7\n"), Some("b example-token-7"));
        assert_eq!(leak("a\nexample-toke\n"), None);
    }

    #[test]
    fn overrides_are_merged_key_by_key() {
        let mut config = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
        merge(&mut config, &json!({"a": {"c": [3]}, "d": {"e": 2}, "f": null}));
        assert_eq!(config, json!({"a": {"b": 1, "c": [3]}, "d": {"e": 2}, "f": null}));
    }

    #[test]
    fn a_log_line_is_read_by_field_name() {
        let line = LogLine { text: (0..26).map(|n| n.to_string()).collect::<Vec<_>>().join("||") };
        assert_eq!((line.field("status"), line.field("reason")), ("11", "25"));
    }
}
