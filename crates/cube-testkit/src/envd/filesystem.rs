//! `filesystem.Filesystem`: directories, and watching them.

use serde_json::{Value, json};

use super::connect::{self, Refusal};
use super::tree::Tree;
use super::{Step, stream};
use crate::Exchange;
use crate::origin::ExchangeResult;

/// The calls with one response.
pub(super) fn call(tree: &Tree, name: &str, message: &Value) -> Result<Value, Refusal> {
    let text = |field: &str| message[field].as_str().unwrap_or_default();
    let entry = |entry: Value| json!({ "entry": entry });
    match name {
        "Stat" => tree.stat(text("path")).map(entry),
        "ListDir" => {
            let depth = message["depth"].as_u64().map_or(1, |depth| usize::try_from(depth).unwrap_or(1));
            tree.list(text("path"), depth.max(1)).map(|entries| json!({ "entries": entries }))
        }
        "MakeDir" => tree.make_directory(text("path")).map(entry),
        "Move" => tree.rename(text("source"), text("destination")).map(entry),
        "Remove" => {
            tree.remove(text("path"));
            Ok(json!({}))
        }
        "CreateWatcher" => {
            let recursive = message["recursive"].as_bool().unwrap_or_default();
            tree.watch_polled(text("path"), recursive).map(|id| json!({ "watcherId": id }))
        }
        "GetWatcherEvents" => tree.poll(text("watcherId")).map(|events| json!({ "events": events })),
        "RemoveWatcher" => tree.unwatch(text("watcherId")).map(|()| json!({})),
        _ => Err(Refusal::new("unimplemented", name)),
    }
}

/// `WatchDir`: the events of a directory until the client leaves or its time is over.
pub(super) async fn watch(mut exchange: Exchange, tree: &Tree) -> ExchangeResult {
    let message = connect::question(&mut exchange).await?;
    connect::open(&mut exchange).await?;
    let path = message["path"].as_str().unwrap_or_default();
    let mut events = match tree.watch(path, message["recursive"].as_bool().unwrap_or_default()) {
        Ok(events) => events,
        Err(refusal) => return connect::end(exchange, Some(&refusal)).await,
    };
    connect::send(&mut exchange, &json!({ "start": {} })).await?;
    let keepalive = json!({ "keepalive": {} });
    stream(exchange, &mut events, &keepalive, || (), |event| Step::Send(json!({ "filesystem": event }))).await
}
