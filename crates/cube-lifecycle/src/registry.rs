//! This replica's row in the registry (lifecycle.md, "Registry").

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cube_metadata::MetadataStore;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::lifecycle::unix_ms;
use crate::{Lifecycle, RegistrySettings};

impl Lifecycle {
    /// Writes the row and the heartbeat, the first time at once, until `ended` resolves, and then
    /// removes both. `ended` is when the process has ended its last stream. Where a successor
    /// takes over, the future is dropped instead: the row stays.
    pub async fn heartbeat(
        self: Arc<Self>,
        store: Arc<dyn MetadataStore>,
        settings: RegistrySettings,
        ended: impl Future<Output = ()> + Send,
    ) {
        let RegistrySettings { proxy_id, admin_url, resume_url, node_ip, interval: every, version, .. } =
            settings;
        let proxy_id = proxy_id.as_str();
        let row = json!({
            "proxy_id": proxy_id,
            "admin_url": admin_url,
            "resume_url": resume_url,
            "node_ip": node_ip.map(|ip| ip.to_string()),
            "started_at": unix_ms(),
            "version": version,
        })
        .to_string();
        let mut ticks = interval(every.max(std::time::Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = std::pin::pin!(ended);
        let mut failing = false;
        loop {
            tokio::select! {
                biased;
                () = &mut ended => break,
                _ = ticks.tick() => {}
            }
            // Not given up in the middle: a row that was written after the removal would stay.
            let now = unix_ms();
            match store.announce(proxy_id, &row, now).await {
                Ok(()) => {
                    self.last_pushed_ms.store(now, Ordering::Relaxed);
                    if failing {
                        tracing::info!("the registry row is written again");
                    }
                    failing = false;
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "the registry row cannot be written; trying on");
                    }
                    failing = true;
                }
            }
        }
        match store.withdraw(proxy_id).await {
            Ok(()) => tracing::info!("the registry row is removed"),
            Err(error) => tracing::warn!(%error, "the registry row cannot be removed"),
        }
    }

    /// When the registry row was last written, unix milliseconds; none before the first time.
    #[must_use]
    pub fn heartbeat_last_pushed_ms(&self) -> Option<u64> {
        Some(self.last_pushed_ms.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }
}

#[cfg(test)]
mod tests;
