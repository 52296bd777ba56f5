//! Whether the user of the settings has the rights that a proxy needs, for `cube-proxy check`.

use std::time::Duration;

use cube_route::SandboxId;

use crate::redis::command::Command;
use crate::redis::{HEARTBEAT, REGISTRY, RedisStore};
use crate::{MetadataStore, StoreError};

/// An id that no sandbox is given: looking it up needs the rights and finds nothing.
const NOBODY: &str = "cube-proxy-check";
/// Between two looks whether pushes have begun.
const LOOK: Duration = Duration::from_millis(10);

/// Everything that is refused. Nothing is written.
pub(super) async fn faults(store: &RedisStore, registry: bool) -> Vec<StoreError> {
    let mut faults = Vec::new();
    match SandboxId::parse(NOBODY) {
        Ok(id) => faults.extend(store.lookup(&id).await.err()),
        Err(error) => faults.push(StoreError::Invalid(error.to_string())),
    }
    // Before lookups work nothing is pushed, whatever the rights.
    if faults.is_empty() && store.shared.tracking {
        faults.extend(pushes(store).await.err());
    }
    if registry {
        faults.extend(announcing(store).await.err());
    }
    faults
}

/// Waits until changes are pushed; else why they are not, where the server says it.
async fn pushes(store: &RedisStore) -> Result<(), StoreError> {
    let begun = async {
        while store.tracking().is_none() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(store.shared.command_timeout, begun).await.is_ok() {
        return Ok(());
    }
    for node in store.servers.all().await? {
        node.run_keyless_while_healthy("CLIENT", vec!["TRACKING".into(), "OFF".into()])
            .await
            .map_err(|error| error.at(node.server()))?;
    }
    Err(StoreError::Refused("changes are not pushed (CLIENT TRACKING)".to_owned()))
}

/// Whether the registry row may be written and removed. Redis looks at the rights, and at whether it
/// takes writes at all, before it looks at the arguments; those of HSET and ZADD are one too many here,
/// and what HDEL and ZREM name is not there.
async fn announcing(store: &RedisStore) -> Result<(), StoreError> {
    let commands = [
        Command::new("HSET", REGISTRY).arg(NOBODY).arg("").arg(NOBODY),
        Command::new("ZADD", HEARTBEAT).arg("0").arg(NOBODY).arg("0"),
        Command::new("HDEL", REGISTRY).arg(NOBODY),
        Command::new("ZREM", HEARTBEAT).arg(NOBODY),
    ];
    let refused = store.servers.run(&commands).await.into_iter().filter_map(|reply| reply.value.err());
    match refused.into_iter().find(|error| !is_about_arguments(error)) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Whether the server would have done it, had the arguments been right.
fn is_about_arguments(error: &StoreError) -> bool {
    let StoreError::Refused(told) = error else { return false };
    told.starts_with("ERR syntax error") || told.starts_with("ERR wrong number of arguments")
}
