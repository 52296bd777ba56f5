//! Keeps fred's clients connected: they are started again whenever fred gives up.

use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::ClientLike;
use tokio::task::AbortHandle;

use crate::StoreError;
use crate::redis::error::store_error;

/// Between attempts to start a client.
const RESTART: Duration = Duration::from_millis(200);

/// Keeps a client running for ever: it ends when the first attempt to connect fails, and on errors
/// after which fred gives up.
pub(crate) async fn keep_connected(client: &Client, failed: impl Fn(StoreError)) {
    loop {
        let task = client.connect();
        let _ends_with_us = AbortOnDrop(task.abort_handle());
        failed(match task.await {
            Ok(Err(error)) => store_error(&error),
            Ok(Ok(())) => StoreError::Unreachable("the connection ended".to_owned()),
            Err(_) => StoreError::Unreachable("the connection's task ended".to_owned()),
        });
        tokio::time::sleep(RESTART).await;
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
