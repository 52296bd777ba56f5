//! Commands to one server: sent together, tried twice, bounded, and judged for what they say of the server.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fred::error::Error;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};

use super::Node;
use crate::StoreError;
use crate::redis::command::{Command, Replies, queue};
use crate::redis::error::{is_about_the_key, store_error};

/// Between the two attempts of a lookup.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

impl Node {
    /// Sends all commands in one go and waits for all replies: two tries, all bounded
    /// (metadata.md). An error in the list is the server's reply to that command.
    pub(crate) async fn execute(&self, commands: &[Command]) -> Result<Replies, StoreError> {
        self.health.check()?;
        let bound = self.shared.command_timeout.mul_f32(2.5);
        let outcome = tokio::select! {
            biased;
            outcome = self.attempt_twice(commands) => outcome,
            error = self.health.wait_for_failure() => return Err(error),
            () = tokio::time::sleep(bound) => Err(StoreError::Timeout),
        };
        let outcome = outcome.map_err(|error| self.cause(error));
        match &outcome {
            Err(error) => self.fail(error),
            Ok(replies) => {
                let refused = |lookups: bool| {
                    let mut both = replies.iter().zip(commands);
                    both.find_map(|(reply, command)| {
                        let error = reply.as_ref().err().filter(|error| !is_about_the_key(error))?;
                        (!lookups || command.is_lookup_command()).then_some(error)
                    })
                };
                // A user who may read and not write is refused the one and not the other: only what
                // lookups are made of tells whether the server is good for them.
                if let Some(error) = refused(true) {
                    self.fail(error);
                } else if let Some(error) = refused(false) {
                    self.health.refused(error);
                } else if self.shared.keys.is_lookup(commands) {
                    self.shared.has_responded.store(true, Ordering::Release);
                }
            }
        }
        outcome
    }

    async fn attempt_twice(&self, commands: &[Command]) -> Result<Replies, StoreError> {
        match self.attempt(commands).await {
            Ok(replies) => Ok(replies),
            Err(_) => {
                tokio::time::sleep(RETRY_PAUSE).await;
                self.attempt(commands).await
            }
        }
    }

    /// Sends the commands once.
    pub(crate) async fn attempt(&self, commands: &[Command]) -> Result<Replies, StoreError> {
        let pipeline = self.client.pipeline();
        for command in commands {
            queue(&pipeline, command.verb, command.arguments.clone()).await.map_err(|e| store_error(&e))?;
        }
        let replies = pipeline.try_all::<Value>().await;
        let replies: Replies = replies
            .into_iter()
            .zip(commands)
            .map(|(reply, command)| with_command_name(reply, command))
            .collect();
        // The pipeline failed as a whole, or the connection broke in the middle: that must not
        // look like the server's reply to a command.
        let broken = |error: &&StoreError| matches!(error, StoreError::Unreachable(_) | StoreError::Timeout);
        if let Some(error) = replies.iter().filter_map(|reply| reply.as_ref().err()).find(broken) {
            return Err(error.clone());
        }
        if replies.len() == commands.len() {
            return Ok(replies);
        }
        let error = replies.into_iter().find_map(Result::err);
        Err(error.unwrap_or_else(|| StoreError::Unreachable("the server sent too few replies".to_owned())))
    }

    /// One command for a slot that is being migrated to this server; sent once, after ASKING.
    pub(crate) async fn attempt_asking(&self, command: &Command) -> Result<Value, StoreError> {
        let commands = [Command { verb: "ASKING", arguments: Vec::new() }, command.clone()];
        let mut replies = self.attempt(&commands).await?;
        replies.pop().unwrap_or_else(|| Err(StoreError::Unreachable("no reply".to_owned())))
    }

    /// As [`Node::run_keyless`], and ends at once with what is wrong while the server fails.
    pub(crate) async fn run_keyless_while_healthy(
        &self,
        verb: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, StoreError> {
        self.health.check()?;
        tokio::select! {
            biased;
            reply = self.run_keyless(verb, arguments) => reply,
            error = self.health.wait_for_failure() => Err(error),
        }
    }

    /// A command that has no key.
    pub(crate) async fn run_keyless(
        &self,
        verb: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, StoreError> {
        let command = CustomCommand::new_static(verb, ClusterHash::FirstKey, false);
        self.client.custom(command, arguments).await.map_err(|error| store_error(&error))
    }
}

/// The reply to a command; an error of the server's names the command that it refused.
fn with_command_name(reply: Result<Value, Error>, command: &Command) -> Result<Value, StoreError> {
    reply.map_err(|error| match store_error(&error) {
        StoreError::Refused(told) => StoreError::Refused(format!("{told} ({})", command.verb)),
        error => error,
    })
}
