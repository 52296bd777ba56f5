//! The breaker: both sources combined. While nothing is wrong anywhere, asking costs two loads.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use cube_metadata::{MetadataStore, StoreEvent};
use cube_route::SandboxId;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{Notify, broadcast};

use crate::metrics::Metrics;
use crate::nodes::{BreakerChange, DialDecision, NodeTable};
use crate::{BreakerError, DialPermit, Settings};

/// Whether a node may be dialled.
#[derive(Debug)]
pub enum BreakerVerdict {
    /// Yes; what becomes of it is reported on the permit.
    Pass(DialPermit),
    /// No: it is in the faulty set that replicas share.
    Faulty,
    /// No: this process's breaker for the node is open.
    Open,
}

/// The breaker (lifecycle.md "Breaker").
pub struct Breaker {
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) changed: Notify,
    /// Subscribed before the set is first read, until `run` takes it.
    pub(crate) events: Mutex<Option<broadcast::Receiver<StoreEvent>>>,
    faulty: ArcSwap<HashSet<IpAddr>>,
    nodes: Mutex<NodeTable>,
    /// How many nodes `nodes` holds; while none, nobody locks it.
    troubled_nodes: AtomicUsize,
    metrics: Metrics,
}

impl Breaker {
    /// A breaker that knows nothing yet. [`Breaker::run`] must be spawned.
    ///
    /// # Errors
    /// [`BreakerError`] when the metrics exist already.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        settings: Settings,
        registry: &Registry,
    ) -> Result<Arc<Self>, BreakerError> {
        Ok(Arc::new(Self {
            events: Mutex::new(Some(store.subscribe())),
            settings: ArcSwap::from_pointee(settings),
            changed: Notify::new(),
            faulty: ArcSwap::default(),
            nodes: Mutex::default(),
            troubled_nodes: AtomicUsize::new(0),
            metrics: Metrics::new(registry)?,
            store,
        }))
    }

    /// Whether `address`, of a sandbox on `node` (its HostIP), may be dialled. An address other
    /// than the node's is a sandbox on this node itself: the own breaker has no say there, since
    /// no connect tells a node about itself.
    #[must_use]
    pub fn check(self: &Arc<Self>, node: IpAddr, address: IpAddr) -> BreakerVerdict {
        self.decide(node, address, None)
    }

    /// The same for a known sandbox. Better than [`Breaker::check`]: while a breaker is open, a
    /// dead sandbox that is asked for all the time does not take the probes of its neighbours.
    #[must_use]
    pub fn check_for(self: &Arc<Self>, node: IpAddr, address: IpAddr, sandbox: &SandboxId) -> BreakerVerdict {
        self.decide(node, address, Some(sandbox))
    }

    fn decide(
        self: &Arc<Self>,
        node: IpAddr,
        address: IpAddr,
        sandbox: Option<&SandboxId>,
    ) -> BreakerVerdict {
        let (node, address) = (node.to_canonical(), address.to_canonical());
        let faulty = self.faulty.load();
        if !faulty.is_empty() && (faulty.contains(&node) || faulty.contains(&address)) {
            return BreakerVerdict::Faulty;
        }
        if node != address {
            return BreakerVerdict::Pass(DialPermit::new(self, None, None));
        }
        if self.troubled_nodes.load(Ordering::Acquire) == 0 {
            return BreakerVerdict::Pass(DialPermit::new(self, Some(node), None));
        }
        let settings = self.settings.load();
        match self.nodes.lock().check(node, sandbox, Instant::now(), &settings) {
            DialDecision::Yes => BreakerVerdict::Pass(DialPermit::new(self, Some(node), None)),
            DialDecision::Probe(ticket) => {
                BreakerVerdict::Pass(DialPermit::new(self, Some(node), Some(ticket)))
            }
            DialDecision::No => BreakerVerdict::Open,
        }
    }

    /// The nodes that the own breaker refuses, probed ones too.
    #[must_use]
    pub fn open_nodes(&self) -> Vec<IpAddr> {
        self.nodes.lock().open().collect()
    }

    /// The shared faulty set as last read.
    #[must_use]
    pub fn faulty(&self) -> Vec<IpAddr> {
        self.faulty.load().iter().copied().collect()
    }

    /// Applies new settings; breakers that are open stay so for the time they were given.
    pub fn update(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
        self.changed.notify_one();
    }

    pub(crate) fn set_faulty(&self, nodes: HashSet<IpAddr>) {
        let nodes: HashSet<_> = nodes.into_iter().map(|node| node.to_canonical()).collect();
        if nodes != **self.faulty.load() {
            tracing::info!(nodes = nodes.len(), "the shared set of faulty nodes changed");
            self.faulty.store(Arc::new(nodes));
        }
    }

    pub(crate) fn connect_succeeded(&self, node: IpAddr) {
        if self.troubled_nodes.load(Ordering::Acquire) != 0 {
            self.report(node, |nodes, _| nodes.connect_succeeded(node));
        }
    }

    pub(crate) fn failed(&self, node: IpAddr, sandbox: &SandboxId, probe: Option<u64>) {
        self.report(node, |nodes, settings| nodes.failed(node, sandbox, probe, Instant::now(), settings));
    }

    pub(crate) fn release_probe(&self, node: IpAddr, probe: u64) {
        self.nodes.lock().release_probe(node, probe);
    }

    pub(crate) fn expire(&self) {
        if self.troubled_nodes.load(Ordering::Acquire) != 0 {
            let settings = self.settings.load();
            let mut nodes = self.nodes.lock();
            nodes.expire(Instant::now(), &settings);
            self.count(&nodes);
        }
    }

    fn report(&self, node: IpAddr, change: impl FnOnce(&mut NodeTable, &Settings) -> BreakerChange) {
        let settings = self.settings.load();
        let mut nodes = self.nodes.lock();
        let before = nodes.len();
        let change = change(&mut nodes, &settings);
        if change != BreakerChange::Nothing || nodes.len() != before {
            self.count(&nodes);
        }
        drop(nodes);
        match change {
            BreakerChange::Nothing => {}
            BreakerChange::Tripped => {
                self.metrics.trips.inc();
                tracing::warn!(%node, "connects to different sandboxes of a node fail: it is not dialled for a while");
            }
            BreakerChange::Healed => tracing::info!(%node, "a node can be reached again"),
        }
    }

    fn count(&self, nodes: &NodeTable) {
        self.troubled_nodes.store(nodes.len(), Ordering::Release);
        self.metrics.open_nodes.set(i64::try_from(nodes.open().count()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests;
