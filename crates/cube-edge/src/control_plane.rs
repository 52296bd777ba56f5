//! `routing.control_plane`: its address, resolved beside the request path.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::settings::ControlPlaneSettings;

/// How often the name is resolved again.
const EVERY: Duration = Duration::from_secs(30);
/// How long one resolution may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where the control plane is.
#[derive(Default)]
pub(crate) struct ControlPlane {
    target: ArcSwap<Option<ControlPlaneSettings>>,
    addresses: ArcSwap<Vec<SocketAddr>>,
    turn: AtomicUsize,
}

impl ControlPlane {
    /// Follows the configuration; a new target is resolved when it is first needed.
    pub(crate) fn update(&self, target: Option<ControlPlaneSettings>) {
        if **self.target.load() != target {
            self.target.store(Arc::new(target));
            self.addresses.store(Arc::default());
        }
    }

    /// An address to dial, one after the other; none if the name does not resolve.
    pub(crate) async fn address(&self) -> Option<SocketAddr> {
        if self.addresses.load().is_empty() {
            self.resolve().await;
        }
        let addresses = self.addresses.load();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(addresses.len())?;
        addresses.get(turn).copied()
    }

    /// Resolves the name again and again; what was known stays while that fails.
    pub(crate) async fn run(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.resolve().await;
        }
    }

    async fn resolve(&self) {
        let target = self.target.load_full();
        let Some(target) = target.as_ref() else { return };
        let looking = tokio::net::lookup_host((target.host.as_str(), target.port));
        match tokio::time::timeout(PATIENCE, looking).await {
            Ok(Ok(found)) => {
                let found: Vec<_> = found.collect();
                if !found.is_empty() {
                    self.addresses.store(Arc::new(found));
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(host = %target.host, %error, "routing.control_plane.url does not resolve");
            }
            Err(_) => {
                tracing::warn!(host = %target.host, "routing.control_plane.url: resolving took too long")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_target_is_resolved_when_needed_and_forgotten_when_it_changes() {
        let control_plane = ControlPlane::default();
        assert_eq!(control_plane.address().await, None);
        let target = |port| ControlPlaneSettings { host: "127.0.0.1".to_owned(), port, hosts: Vec::new() };
        control_plane.update(Some(target(81)));
        assert_eq!(control_plane.address().await, Some(([127, 0, 0, 1], 81).into()));
        control_plane.update(Some(target(82)));
        assert_eq!(control_plane.address().await, Some(([127, 0, 0, 1], 82).into()));
        control_plane.update(None);
        assert_eq!(control_plane.address().await, None);
    }
}
