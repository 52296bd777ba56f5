//! What runs on port 49983 of a sandbox, scripted: files in memory, commands that are lines in a
//! table, and the protocol that the real SDKs speak (e2b.md, "What the SDKs ask for").

mod connect;
mod files;
mod filesystem;
mod process;
mod script;
mod tree;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

use crate::origin::ExchangeResult;
use crate::{Exchange, Origin, OriginBuilder};
use connect::Refusal;
use process::Processes;
use tree::Tree;

/// Longer than any test.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

#[derive(Default)]
struct EnvdState {
    tree: Tree,
    processes: Processes,
}

/// A running envd; its port and connections close when it is dropped.
pub struct Envd {
    origin: Origin,
    world: Arc<EnvdState>,
}

impl Envd {
    /// One on 127.0.0.1.
    pub async fn start() -> Self {
        Self::over(Origin::named("envd")).await
    }

    /// One that listens where the builder says.
    pub async fn over(builder: OriginBuilder) -> Self {
        let world = Arc::new(EnvdState::default());
        let serving = Arc::clone(&world);
        let origin = builder.serve(move |exchange| response(exchange, Arc::clone(&serving))).await;
        Self { origin, world }
    }

    /// What has arrived there.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The commands that run now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.world.processes.count()
    }

    /// The content of a file.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<Vec<u8>> {
        self.world.tree.read(path).map(Vec::from)
    }
}

async fn response(mut exchange: Exchange, world: Arc<EnvdState>) -> ExchangeResult {
    let EnvdState { tree, processes } = &*world;
    let path = exchange.request.target.split('?').next().unwrap_or_default().to_owned();
    match (exchange.request.method.as_str(), path.as_str()) {
        ("GET", "/health") => exchange.reply(204, &[], "").await,
        ("GET", "/files") => files::download(exchange, tree).await,
        ("POST", "/files") => files::upload(exchange, tree).await,
        ("POST", "/filesystem.Filesystem/WatchDir") => filesystem::watch(exchange, tree).await,
        ("POST", "/process.Process/Start") => process::start(exchange, processes).await,
        ("POST", "/process.Process/Connect") => process::connect(exchange, processes).await,
        ("POST", "/process.Process/StreamInput") => process::stream_input(exchange, processes).await,
        ("POST", path) => {
            let called = match path.split_at_checked(path.rfind('/').unwrap_or_default()) {
                Some(("/filesystem.Filesystem", name)) => {
                    let message = connect::message(&mut exchange).await?;
                    filesystem::call(tree, &name[1..], &message)
                }
                Some(("/process.Process", name)) => {
                    let message = connect::message(&mut exchange).await?;
                    processes.call(&name[1..], &message)
                }
                _ => return exchange.reply(404, &[], "404 page not found\n").await,
            };
            connect::reply(exchange, called).await
        }
        _ => exchange.reply(404, &[], "404 page not found\n").await,
    }
}

/// What becomes of an event.
enum Step {
    Send(Value),
    /// The last message of a stream that ends well.
    Last(Value),
    /// The end of the response where a message belongs.
    Vanish,
    /// The end of the connection.
    Break,
}

/// Streams events with a keepalive message in each pause (`Keepalive-Ping-Interval`, seconds), until
/// the last one, the client's leaving, or the end of its patience (`Connect-Timeout-Ms`), which is
/// `over` for what was streamed.
async fn stream<E>(
    mut exchange: Exchange,
    events: &mut UnboundedReceiver<E>,
    keepalive: &Value,
    over: impl FnOnce(),
    step: impl Fn(E) -> Step,
) -> ExchangeResult {
    let number = |name| exchange.request.headers.get(name).and_then(|value| value.parse().ok());
    let pause = number("keepalive-ping-interval").map_or(FOREVER, Duration::from_secs);
    let deadline = Instant::now() + number("connect-timeout-ms").map_or(FOREVER, Duration::from_millis);
    loop {
        let step = tokio::select! {
            event = events.recv() => event.map_or(Step::Vanish, &step),
            () = tokio::time::sleep(pause) => Step::Send(keepalive.clone()),
            () = sleep_until(deadline) => {
                over();
                let refusal = Refusal::new("deadline_exceeded", "context deadline exceeded");
                return connect::end(exchange, Some(&refusal)).await;
            }
            () = exchange.gone() => return exchange.close().await,
        };
        match step {
            Step::Send(message) => connect::send(&mut exchange, &message).await?,
            Step::Last(message) => {
                connect::send(&mut exchange, &message).await?;
                return connect::end(exchange, None).await;
            }
            Step::Vanish => return exchange.end().await,
            Step::Break => return exchange.reset().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Client;

    const JSON: (&str, &str) = ("Content-Type", "application/json");

    /// The messages of a stream: flags and JSON.
    fn frames(mut bytes: &[u8]) -> Vec<(u8, Value)> {
        let mut frames = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            frames.push((head[0], serde_json::from_slice(&rest[..length]).unwrap()));
            bytes = &rest[length..];
        }
        frames
    }

    async fn run(envd: &Envd, line: &str, headers: &[(&str, &str)]) -> Vec<(u8, Value)> {
        let message = json!({ "process": { "cmd": "/bin/bash", "args": ["-l", "-c", line] } }).to_string();
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend_from_slice(message.as_bytes());
        let mut client = Client::connect(envd.origin().address()).await;
        let response = client.call("POST", "/process.Process/Start", headers, body).await;
        assert_eq!(response.headers.get("content-type"), Some("application/connect+json"));
        frames(&response.body)
    }

    #[tokio::test]
    async fn a_file_goes_up_and_comes_down_again() {
        let envd = Envd::start().await;
        let mut client = Client::connect(envd.origin().address()).await;
        let octets = [("Content-Type", "application/octet-stream")];
        let written = client.call("POST", "/files?path=%2Ftmp%2Fa+b", &octets, "hi").await;
        assert_eq!(written.text(), r#"[{"name":"a b","type":"file","path":"/tmp/a b"}]"#);
        assert_eq!(client.call("GET", "/files?path=/tmp/a%20b", &[], "").await.text(), "hi");
        assert_eq!(client.call("GET", "/files?path=/none", &[], "").await.status, 404);
        let packed = client.call("GET", "/files?path=/tmp/a%20b", &[("Accept-Encoding", "gzip")], "").await;
        assert_eq!(packed.headers.get("content-encoding"), Some("gzip"));
        let stat = client.call("POST", "/filesystem.Filesystem/Stat", &[JSON], r#"{"path":"/none"}"#).await;
        assert_eq!((stat.status, stat.text().contains(r#""code":"not_found""#)), (404, true));
    }

    #[tokio::test]
    async fn a_command_streams_what_it_does_with_keepalives_in_its_pauses() {
        let envd = Envd::start().await;
        let told = run(&envd, "echo a; sleep 1.5; exit 3", &[("Keepalive-Ping-Interval", "1")]).await;
        let events: Vec<&Value> = told.iter().map(|(_, message)| &message["event"]).collect();
        assert_eq!(events[0]["start"]["pid"], 42);
        assert_eq!(events[1]["data"]["stdout"], "YQo=");
        assert_eq!(*events[2], json!({ "keepalive": {} }));
        assert_eq!(events[3]["end"]["exitCode"], 3);
        assert_eq!(told[4], (2, json!({})));
        assert_eq!(envd.running(), 0);
    }

    #[tokio::test]
    async fn a_command_ends_with_the_patience_of_its_client() {
        let envd = Envd::start().await;
        let told = run(&envd, "sleep 60", &[("Connect-Timeout-Ms", "50")]).await;
        let (flags, last) = told.last().unwrap();
        assert_eq!((*flags, &last["error"]["code"]), (2, &json!("deadline_exceeded")));
        assert_eq!(envd.running(), 0);
    }

    #[tokio::test]
    async fn a_stream_can_end_without_its_end() {
        let envd = Envd::start().await;
        let told = run(&envd, "echo a; vanish", &[]).await;
        assert!(told.len() == 2 && told.iter().all(|(flags, _)| *flags == 0), "{told:?}");
    }
}
