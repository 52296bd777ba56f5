//! `routing.control_plane`: its address, resolved beside the request path, and whom to expect there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::upstreams::peer::{HttpPeer, Scheme};

use crate::proxy::pool_key::PoolKey;
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
    /// Targets so far.
    targets: AtomicU64,
    untrusted: AtomicU64,
}

impl ControlPlane {
    /// Follows the configuration; a new target is resolved when it is first needed.
    pub(crate) fn update(&self, target: Option<ControlPlaneSettings>) {
        if **self.target.load() != target {
            self.target.store(Arc::new(target));
            self.addresses.store(Arc::default());
            self.targets.fetch_add(1, Ordering::AcqRel);
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

    /// How many addresses are known.
    pub(crate) fn addresses(&self) -> usize {
        self.addresses.load().len()
    }

    /// Who may share its connections.
    pub(crate) fn pool_key(&self) -> PoolKey {
        PoolKey::ControlPlane(self.targets.load(Ordering::Acquire))
    }

    /// Makes `peer` speak TLS where the URL says so: the host is the name that is asked for and
    /// that the certificate has to be for.
    pub(crate) fn secure(&self, peer: &mut HttpPeer) {
        let target = self.target.load();
        let Some((target, trust)) = target.as_ref().as_ref().and_then(|t| Some((t, t.tls.as_ref()?))) else {
            return;
        };
        peer.scheme = Scheme::HTTPS;
        // Never empty: an empty one would turn verification off.
        peer.sni.clone_from(&target.host);
        peer.options.verify_cert = true;
        peer.options.verify_hostname = true;
        peer.options.ca = trust.authorities();
    }

    /// Says why a handshake failed: the response has only a code and a reason.
    pub(crate) fn handshake_failed(&self, error: &pingora::Error) {
        // A broken control plane must not become a flood of log lines.
        let count = self.untrusted.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(count, %error, "routing.control_plane.url: the TLS handshake failed");
        }
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
        let target =
            |port| ControlPlaneSettings { host: "127.0.0.1".to_owned(), port, hosts: Vec::new(), tls: None };
        control_plane.update(Some(target(81)));
        assert_eq!(control_plane.address().await, Some(([127, 0, 0, 1], 81).into()));
        control_plane.update(Some(target(82)));
        assert_eq!(control_plane.address().await, Some(([127, 0, 0, 1], 82).into()));
        control_plane.update(None);
        assert_eq!(control_plane.address().await, None);
    }

    #[test]
    fn only_an_https_target_is_secured_and_each_target_has_a_pool_of_its_own() {
        let control_plane = ControlPlane::default();
        let target = |tls| ControlPlaneSettings {
            host: "api.example.org".to_owned(),
            port: 443,
            hosts: Vec::new(),
            tls,
        };
        let mut keys = Vec::new();
        for tls in [None, Some(crate::TlsTrust::system())] {
            control_plane.update(Some(target(tls.clone())));
            let mut peer = HttpPeer::new("127.0.0.1:443", false, String::new());
            control_plane.secure(&mut peer);
            let name = if tls.is_some() { "api.example.org" } else { "" };
            assert_eq!((peer.is_tls(), peer.sni.as_str()), (tls.is_some(), name));
            keys.push(control_plane.pool_key());
        }
        assert_ne!(keys[0], keys[1]);
    }
}
