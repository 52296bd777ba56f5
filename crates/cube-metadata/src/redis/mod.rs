//! The Redis store: records as other components write them (metadata.md), on fred.

mod canary;
mod client;
mod command;
mod discovery;
mod dry_run;
mod error;
mod health;
mod invalidation_channel;
mod keys;
mod metrics;
mod node;
mod reconnect;
mod servers;
mod settings;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use cube_route::SandboxId;
use fred::types::{Map, Value};
use prometheus::Registry;
use tokio::sync::broadcast;

use crate::redis::client::Connector;
use crate::redis::command::Command;
use crate::redis::error::is_about_the_key;
use crate::redis::invalidation_channel::InvalidationChannel;
use crate::redis::keys::Keys;
use crate::redis::metrics::Metrics;
use crate::redis::node::{Node, StoreContext};
use crate::redis::servers::Servers;
use crate::{MetadataStore, SandboxRecord, Snapshot, Status, StoreError, StoreEvent, TrackingSession};

pub use settings::RedisSettings;

const REGISTRY: &str = "cube:v1:shared:cube_proxy:registry";
const HEARTBEAT: &str = "cube:v1:shared:cube_proxy:heartbeat";

/// Records in Redis: a single server, the master behind Sentinels, or a Cluster.
pub struct RedisStore {
    shared: Arc<StoreContext>,
    metrics: Metrics,
    servers: Servers,
}

impl RedisStore {
    /// Checks the settings as [`RedisStore::connect`] does, and connects to nothing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] says which setting does not hold; never a password.
    pub fn check(settings: &RedisSettings) -> Result<(), StoreError> {
        Connector::new(settings)?;
        Keys::new(settings, true).map(drop)
    }

    /// Returns at once and connects in the background, for as long as it takes; needs a tokio
    /// runtime. `follow_redis`: read and follow the lifecycle state too.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the settings do not hold. Not when Redis is away or refuses
    /// the password: that is logged, and [`MetadataStore::has_responded`] stays false.
    pub fn connect(
        settings: RedisSettings,
        follow_redis: bool,
        registry: &Registry,
    ) -> Result<Arc<Self>, StoreError> {
        let connector = Connector::new(&settings)?;
        let keys = Keys::new(&settings, follow_redis)?;
        let metrics = Metrics::register(registry).map_err(|error| StoreError::Invalid(error.to_string()))?;
        let shared = Arc::new(StoreContext {
            keys,
            channel: InvalidationChannel::new(metrics.tracked.clone()),
            has_responded: AtomicBool::new(false),
            tracking: settings.tracking,
            command_timeout: settings.command_timeout,
        });
        let servers = Servers::start(connector, shared.clone());
        Ok(Arc::new(Self { shared, metrics, servers }))
    }

    /// Runs commands, all of which must succeed.
    async fn run_all(&self, commands: &[Command]) -> Result<Vec<Value>, StoreError> {
        let replies = self.servers.run(commands).await.into_iter().map(|reply| reply.value);
        replies.collect::<Result<Vec<Value>, StoreError>>().inspect_err(|error| self.metrics.failed(error))
    }

    async fn lookup(&self, id: &SandboxId) -> Result<Snapshot, StoreError> {
        let keys = &self.shared.keys;
        let record_keys: Vec<String> = keys.records(id.as_str()).collect();
        let mut commands: Vec<Command> =
            record_keys.iter().map(|key| Command::new("HGETALL", key.as_str())).collect();
        commands.extend(keys.state(id.as_str()).map(|key| Command::new("GET", key)));
        let mut replies = self.servers.run(&commands).await.into_iter();
        let mut record = None;
        for (prefix, key) in record_keys.iter().enumerate() {
            let Some(reply) = replies.next() else { break };
            if record.is_some() {
                continue;
            }
            let value = reply.value?;
            let fields = match &value {
                Value::Map(fields) if !fields.is_empty() => fields,
                _ => continue,
            };
            record = Some(parse(fields, u8::try_from(prefix).unwrap_or(u8::MAX)));
            if let Some((node, mark)) = &reply.from {
                node.seen(key, &value, *mark);
            }
            if keys.is_legacy(prefix) {
                self.metrics.legacy_hits.inc();
            }
        }
        let state = match replies.next().map(|reply| reply.value) {
            None | Some(Ok(Value::Null)) => None,
            // Not even text, or no string at all: a word that nobody knows.
            Some(Ok(value)) => Status::parse(value.as_str().as_deref().unwrap_or("\u{fffd}")),
            Some(Err(error)) if is_about_the_key(&error) => Some(Status::Unknown),
            Some(Err(error)) => return Err(error),
        };
        Ok(Snapshot { record, state })
    }
}

fn parse(fields: &Map, prefix: u8) -> SandboxRecord {
    let fields = fields.iter();
    SandboxRecord::parse(
        fields.map(|(name, value)| (name.as_bytes(), value.as_bytes().unwrap_or_default())),
        prefix,
    )
}

#[async_trait]
impl MetadataStore for RedisStore {
    async fn fetch(&self, id: &SandboxId) -> Result<Snapshot, StoreError> {
        let began = Instant::now();
        let outcome = self.lookup(id).await;
        self.metrics.asked(began.elapsed());
        outcome.inspect_err(|error| self.metrics.failed(error))
    }

    async fn faulty_nodes(&self) -> Result<HashSet<IpAddr>, StoreError> {
        let members = self.run_all(&[Command::new("SMEMBERS", self.shared.keys.faulty_set())]).await?;
        let members = members.into_iter().flat_map(|value| match value {
            Value::Array(members) => members,
            _ => Vec::new(),
        });
        let addresses = members.filter_map(|member| member.as_str()?.parse::<IpAddr>().ok());
        Ok(addresses.map(|address| address.to_canonical()).collect())
    }

    fn subscribe(&self) -> broadcast::Receiver<StoreEvent> {
        self.shared.channel.subscribe()
    }

    fn tracking(&self) -> Option<TrackingSession> {
        self.shared.channel.session()
    }

    fn failing(&self) -> bool {
        self.servers.failing()
    }

    fn has_responded(&self) -> bool {
        self.shared.has_responded.load(Ordering::Acquire)
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StoreError> {
        let mut ids = HashSet::new();
        for node in self.servers.all().await? {
            for prefix in self.shared.keys.prefixes() {
                scan(&node, &self.shared.keys, prefix, &mut ids).await?;
            }
        }
        let mut ids: Vec<SandboxId> = ids.into_iter().collect();
        ids.sort();
        Ok(ids)
    }

    async fn get(&self, id: &SandboxId) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        let keys = self.shared.keys.records(id.as_str());
        let commands: Vec<Command> = keys.map(|key| Command::new("HGETALL", key)).collect();
        for reply in self.servers.run(&commands).await {
            let value = reply.value?;
            if let Value::Map(fields) = value
                && !fields.is_empty()
            {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let fields = fields.iter();
                let fields =
                    fields.map(|(n, v)| (text(n.as_bytes()), text(v.as_bytes().unwrap_or_default())));
                return Ok(Some(fields.collect()));
            }
        }
        Ok(None)
    }

    async fn put(&self, id: &SandboxId, fields: &BTreeMap<String, String>) -> Result<(), StoreError> {
        if fields.is_empty() {
            return Ok(());
        }
        let command = Command::new("HSET", self.shared.keys.first(id));
        let command = fields
            .iter()
            .fold(command, |command, (name, value)| command.arg(name.as_str()).arg(value.as_str()));
        self.run_all(&[command]).await.map(drop)
    }

    async fn delete(&self, id: &SandboxId) -> Result<bool, StoreError> {
        let keys = self.shared.keys.records(id.as_str());
        let commands: Vec<Command> = keys.map(|key| Command::new("DEL", key)).collect();
        let removed = self.run_all(&commands).await?;
        Ok(removed.iter().any(|count| count.as_i64().is_some_and(|count| count > 0)))
    }

    fn key_prefix(&self, prefix: u8) -> Option<&str> {
        self.shared.keys.prefixes().get(usize::from(prefix)).map(String::as_str)
    }

    async fn dry_run(&self, registry: bool) -> Vec<StoreError> {
        dry_run::faults(self, registry).await
    }

    async fn announce(&self, proxy_id: &str, row: &str, now_ms: u64) -> Result<(), StoreError> {
        let commands = [
            Command::new("HSET", REGISTRY).arg(proxy_id).arg(row),
            Command::new("ZADD", HEARTBEAT).arg(now_ms.to_string()).arg(proxy_id),
        ];
        self.run_all(&commands).await.map(drop)
    }

    async fn withdraw(&self, proxy_id: &str) -> Result<(), StoreError> {
        let commands =
            [Command::new("HDEL", REGISTRY).arg(proxy_id), Command::new("ZREM", HEARTBEAT).arg(proxy_id)];
        self.run_all(&commands).await.map(drop)
    }
}

/// Adds the sandboxes that `node` has under `prefix`.
async fn scan(
    node: &Node,
    keys: &Keys,
    prefix: &str,
    ids: &mut HashSet<SandboxId>,
) -> Result<(), StoreError> {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for letter in prefix.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('*');
    let mut cursor = "0".to_owned();
    loop {
        let arguments = [cursor.as_str(), "MATCH", &pattern, "COUNT", "1000"]
            .map(|argument| Value::from(argument.to_owned()));
        let page = node.run_keyless_while_healthy("SCAN", arguments.to_vec()).await;
        let Value::Array(page) = page.map_err(|error| error.at(node.server()))? else { return Ok(()) };
        let mut page = page.into_iter();
        cursor = page.next().and_then(Value::into_string).unwrap_or_default();
        if let Some(Value::Array(found)) = page.next() {
            ids.extend(found.iter().filter_map(|key| keys.id(&key.as_str()?)));
        }
        if cursor.is_empty() || cursor == "0" {
            return Ok(());
        }
    }
}
