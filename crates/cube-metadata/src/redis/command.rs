//! Commands and the server's replies.

use fred::clients::{Client, Pipeline};
use fred::error::Error;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};

use crate::StoreError;

/// A command; the first argument, where there is one, is its key.
#[derive(Clone)]
pub(crate) struct Command {
    pub(crate) verb: &'static str,
    pub(crate) arguments: Vec<Value>,
}

impl Command {
    pub(crate) fn new(verb: &'static str, key: impl Into<Value>) -> Self {
        Self { verb, arguments: vec![key.into()] }
    }

    pub(crate) fn arg(mut self, argument: impl Into<Value>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Whether lookups of sandboxes are made of such commands.
    pub(crate) fn is_lookup_command(&self) -> bool {
        matches!(self.verb, "HGETALL" | "GET")
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.arguments.first().and_then(Value::as_bytes).unwrap_or_default()
    }
}

/// One reply for each command, in the order of the commands; an error is one that the server replied.
pub(crate) type Replies = Vec<Result<Value, StoreError>>;

/// Adds a command to a pipeline; nothing is sent yet.
pub(crate) async fn queue(
    pipeline: &Pipeline<Client>,
    verb: &'static str,
    arguments: Vec<Value>,
) -> Result<(), Error> {
    let command = CustomCommand::new_static(verb, ClusterHash::FirstKey, false);
    pipeline.custom::<Value, Value>(command, arguments).await.map(drop)
}
