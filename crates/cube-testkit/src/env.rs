//! A store, a proxy and the sandboxes of a test.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::{Client, Origin, Proxy, ProxyBuilder, RedisServer, Response, WebSocket, eventually};

/// The node that the proxy under test believes it runs on.
pub const NODE_IP: &str = "127.0.0.9";
/// On this machine, but outside the addresses that the proxy under test may dial.
pub const OUTSIDE: &str = "127.99.0.1";
/// The first key prefix of records (metadata.md).
const PREFIX: &str = "cube:v1:shared:sandbox:proxy:";

/// A name that no other test uses.
#[must_use]
pub fn unique_id(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos();
    format!("{prefix}{:x}p{}n{}", now, std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The three ways to name a sandbox (routing.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `<port>-<id>.cube.test` in Host.
    Host,
    /// `E2b-Sandbox-Id` and `E2b-Sandbox-Port`.
    Header,
    /// `/sandbox/<id>/<port>`.
    Path,
}

impl By {
    /// All three.
    pub const ALL: [By; 3] = [By::Host, By::Header, By::Path];
}

/// A running proxy and the Redis that it reads from.
pub struct Env {
    /// The proxy.
    pub proxy: Proxy,
    /// The store.
    pub redis: RedisServer,
}

impl Env {
    /// Starts both, with these overrides of the test configuration.
    pub async fn start(binary: &str, overrides: &Value) -> Self {
        Self::start_with(Proxy::builder(binary).config(overrides)).await
    }

    /// Starts a described proxy with a Redis of its own.
    pub async fn start_with(builder: ProxyBuilder) -> Self {
        let redis = RedisServer::start().await;
        let store = json!({ "store": { "kind": "redis", "redis": { "url": redis.url() } } });
        let proxy = builder.config(&store).start().await;
        Self { proxy, redis }
    }

    /// Describes a sandbox whose application is `origin`: on another node, behind a mapped port.
    #[must_use]
    pub fn sandbox(&self, origin: &Origin) -> SandboxBuilder<'_> {
        self.sandbox_at(origin.address())
    }

    /// Describes a sandbox whose application is, or is not, at an address.
    #[must_use]
    pub fn sandbox_at(&self, address: SocketAddr) -> SandboxBuilder<'_> {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos();
        let fields = BTreeMap::from([
            ("HostIP".to_owned(), address.ip().to_string()),
            ("SandboxIP".to_owned(), "127.0.0.77".to_owned()),
            ("CreatedAt".to_owned(), created.to_string()),
            ("8080".to_owned(), address.port().to_string()),
        ]);
        SandboxBuilder { redis: &self.redis, sandbox: Sandbox::named(&unique_id("s")), address, fields }
    }

    /// A sandbox that the store does not know.
    #[must_use]
    pub fn nobody(&self) -> Sandbox {
        Sandbox::named(&unique_id("none"))
    }

    /// A connection to the plain listener.
    pub async fn client(&self) -> Client {
        Client::connect(self.proxy.http()).await
    }

    /// One request, header fields exactly as given, on a connection of its own.
    pub async fn raw(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Response {
        self.client().await.call(method, target, headers, body).await
    }

    /// GET in the host form.
    pub async fn get(&self, sandbox: &Sandbox, target: &str) -> Response {
        self.get_with(sandbox, target, &[]).await
    }

    /// GET in the host form with further header fields.
    pub async fn get_with(&self, sandbox: &Sandbox, target: &str, headers: &[(&str, &str)]) -> Response {
        self.call(By::Host, sandbox, "GET", target, headers, "").await
    }

    /// POST in the host form.
    pub async fn post(&self, sandbox: &Sandbox, target: &str, body: impl AsRef<[u8]>) -> Response {
        self.call(By::Host, sandbox, "POST", target, &[], body).await
    }

    /// Any request in any form, on a connection of its own.
    pub async fn call(
        &self,
        by: By,
        sandbox: &Sandbox,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Response {
        let (target, named) = self.naming(by, sandbox, target);
        let mut all: Vec<(&str, &str)> = named.iter().map(|(n, v)| (*n, v.as_str())).collect();
        all.extend_from_slice(headers);
        self.raw(method, &target, &all, body).await
    }

    /// The target and header fields that name a sandbox in that form.
    #[must_use]
    pub fn naming(&self, by: By, sandbox: &Sandbox, target: &str) -> (String, Vec<(&'static str, String)>) {
        let shared = self.proxy.http().to_string();
        match by {
            By::Host => (target.to_owned(), vec![("Host", sandbox.host())]),
            By::Header => (
                target.to_owned(),
                vec![
                    ("Host", shared),
                    ("E2b-Sandbox-Id", sandbox.id.clone()),
                    ("E2b-Sandbox-Port", sandbox.port.to_string()),
                ],
            ),
            By::Path => (format!("{}{target}", sandbox.prefix()), vec![("Host", shared)]),
        }
    }

    /// Opens a WebSocket.
    ///
    /// # Errors
    /// With the response when it is no 101.
    pub async fn websocket(
        &self,
        by: By,
        sandbox: &Sandbox,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<WebSocket, tokio_tungstenite::tungstenite::Error> {
        let (target, named) = self.naming(by, sandbox, target);
        let mut all: Vec<(&str, &str)> = named.iter().map(|(n, v)| (*n, v.as_str())).collect();
        all.extend_from_slice(headers);
        WebSocket::open(self.proxy.http(), &target, &all).await
    }

    /// Pushes a state of a sandbox to the admin API.
    pub async fn push(&self, sandbox: &Sandbox, state: &str) {
        let body = json!({ "sandbox_id": sandbox.id, "state": state }).to_string();
        let response = self.proxy.admin("POST", "/admin/state", &body).await;
        assert_eq!((response.status, response.text().as_str()), (200, r#"{"ok":true}"#), "{state}");
    }

    /// When the sandbox was last active, unix milliseconds, as the admin API lists it.
    pub async fn last_active(&self, sandbox: &Sandbox) -> Option<u64> {
        let response = self.proxy.admin("GET", "/admin/last_active", "").await;
        let listed: Value = serde_json::from_slice(&response.body).expect("JSON");
        listed["entries"][&sandbox.id].as_u64()
    }

    /// Waits until that many requests are held, over all sandboxes.
    pub async fn wait_for_held(&self, count: u64) {
        eventually(&format!("{count} held requests"), || async {
            let response = self.proxy.admin("GET", "/admin/healthz", "").await;
            let health: Value = serde_json::from_slice(&response.body).expect("JSON");
            (health["held"].as_u64() == Some(count)).then_some(())
        })
        .await;
    }

    /// Writes fields of a sandbox's record.
    pub async fn write(&self, sandbox: &Sandbox, fields: &[(&str, &str)]) {
        self.redis.hset(&sandbox.key(), fields).await;
    }
}

/// A sandbox as a client names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// The container port that requests go to.
    pub port: u16,
}

impl Sandbox {
    /// With that id, port 8080.
    #[must_use]
    pub fn named(id: &str) -> Self {
        Self { id: id.to_owned(), port: 8080 }
    }

    /// The same sandbox, another port.
    #[must_use]
    pub fn at_port(&self, port: u16) -> Self {
        Self { id: self.id.clone(), port }
    }

    /// `<port>-<id>.cube.test`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}-{}.cube.test", self.port, self.id)
    }

    /// `/sandbox/<id>/<port>`.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("/sandbox/{}/{}", self.id, self.port)
    }

    /// The key of its record under the first prefix.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{PREFIX}{}", self.id)
    }
}

/// A sandbox that is being described; awaiting it writes its record.
pub struct SandboxBuilder<'a> {
    redis: &'a RedisServer,
    sandbox: Sandbox,
    address: SocketAddr,
    fields: BTreeMap<String, String>,
}

impl SandboxBuilder<'_> {
    /// With that id.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.sandbox.id = id.to_owned();
        self
    }

    /// Reached at that container port instead of 8080.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        let mapped = self.fields.remove(&self.sandbox.port.to_string());
        self.sandbox.port = port;
        self.fields.extend(mapped.map(|mapped| (port.to_string(), mapped)));
        self
    }

    /// On the proxy's own node: dialled at its own address, where the container port is the
    /// application's.
    #[must_use]
    pub fn local(self) -> Self {
        let (ip, port) = (self.address.ip().to_string(), self.address.port());
        let mut local = self.field("HostIP", NODE_IP).field("SandboxIP", &ip).without("8080");
        local.sandbox.port = port;
        local
    }

    /// Private: a token is needed.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.field("AllowPublicTraffic", "false").field("TrafficAccessToken", token)
    }

    /// A field of the record.
    #[must_use]
    pub fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The sandbox and the record that would be written, for a store that the test writes to itself.
    #[must_use]
    pub fn described(self) -> (Sandbox, Vec<(String, String)>) {
        (self.sandbox, self.fields.into_iter().collect())
    }

    /// A field that the record lacks.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.fields.remove(name);
        self
    }
}

impl<'a> IntoFuture for SandboxBuilder<'a> {
    type Output = Sandbox;
    type IntoFuture = Pin<Box<dyn Future<Output = Sandbox> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let fields: Vec<_> = self.fields.iter().collect();
            self.redis.hset(&self.sandbox.key(), &fields).await;
            self.sandbox
        })
    }
}
