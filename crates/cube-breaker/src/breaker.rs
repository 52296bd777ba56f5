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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ConnectFailure::{Other, Refused, TimedOut, Unreachable};
    use crate::testbed::ScriptedStore;

    const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn breaker(set: &Arc<ScriptedStore>) -> Arc<Breaker> {
        let settings = Settings { shared_poll: Duration::from_secs(3600), ..Settings::default() };
        Breaker::new(Arc::clone(set) as _, settings, &Registry::new()).unwrap()
    }

    fn pass(breaker: &Arc<Breaker>, node: IpAddr, address: IpAddr) -> DialPermit {
        match breaker.check(node, address) {
            BreakerVerdict::Pass(permit) => permit,
            other => panic!("{other:?}"),
        }
    }

    fn fail(breaker: &Arc<Breaker>, sandbox: &str, failure: crate::ConnectFailure) {
        let id = SandboxId::parse(sandbox).unwrap();
        if let BreakerVerdict::Pass(permit) = breaker.check_for(NODE, NODE, &id) {
            permit.failed(&id, failure);
        }
    }

    async fn until(condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("in time");
    }

    #[tokio::test]
    async fn a_node_in_the_shared_set_is_refused_by_its_own_and_by_the_dialled_address() {
        let set = ScriptedStore::new(&["10.0.0.1", "::ffff:192.168.0.7"]);
        let breaker = breaker(&set);
        let run = tokio::spawn(Arc::clone(&breaker).run());
        until(|| breaker.faulty().len() == 2).await;
        assert!(matches!(breaker.check(NODE, NODE), BreakerVerdict::Faulty));
        assert!(matches!(breaker.check(NODE, IpAddr::from([192, 168, 0, 1])), BreakerVerdict::Faulty));
        assert!(matches!(breaker.check(OTHER, IpAddr::from([192, 168, 0, 7])), BreakerVerdict::Faulty));
        assert!(matches!(breaker.check(OTHER, OTHER), BreakerVerdict::Pass(_)));
        run.abort();
    }

    #[tokio::test]
    async fn a_pushed_change_of_the_shared_set_is_followed() {
        let set = ScriptedStore::new(&[]);
        let breaker = breaker(&set);
        let run = tokio::spawn(Arc::clone(&breaker).run());
        until(|| set.reads.load(Ordering::SeqCst) == 1).await;
        for (event, nodes) in [
            (StoreEvent::FaultyNodes, &["10.0.0.1"][..]),
            (StoreEvent::InvalidateAll, &[]),
            (StoreEvent::FaultyNodes, &["10.0.0.1"]),
        ] {
            set.set(nodes);
            set.events.send(event).unwrap();
            until(|| breaker.faulty().len() == nodes.len()).await;
        }
        run.abort();
    }

    #[tokio::test]
    async fn a_follower_that_missed_pushes_reads_the_set() {
        let set = ScriptedStore::new(&[]);
        let breaker = breaker(&set);
        for _ in 0..20 {
            set.events.send(StoreEvent::TrackingLost).unwrap();
        }
        let run = tokio::spawn(Arc::clone(&breaker).run());
        until(|| set.reads.load(Ordering::SeqCst) == 2).await;
        run.abort();
    }

    #[tokio::test]
    async fn the_shared_set_is_polled_without_any_push() {
        let set = ScriptedStore::new(&[]);
        let breaker = breaker(&set);
        let run = tokio::spawn(Arc::clone(&breaker).run());
        until(|| set.reads.load(Ordering::SeqCst) == 1).await;
        set.set(&["10.0.0.1"]);
        breaker.update(Settings { shared_poll: Duration::from_millis(5), ..Settings::default() });
        until(|| breaker.faulty() == [NODE]).await;
        run.abort();
    }

    #[tokio::test]
    async fn a_store_that_cannot_answer_leaves_the_last_known_set() {
        let set = ScriptedStore::new(&["10.0.0.1"]);
        let breaker = breaker(&set);
        let run = tokio::spawn(Arc::clone(&breaker).run());
        until(|| breaker.faulty() == [NODE]).await;
        *set.nodes.lock() = None;
        let reads = set.reads.load(Ordering::SeqCst);
        set.events.send(StoreEvent::FaultyNodes).unwrap();
        until(|| set.reads.load(Ordering::SeqCst) > reads).await;
        assert!(matches!(breaker.check(NODE, NODE), BreakerVerdict::Faulty));
        run.abort();
    }

    #[test]
    fn only_what_tells_about_the_node_opens_its_breaker() {
        let breaker = breaker(&ScriptedStore::new(&[]));
        for sandbox in ["a", "b", "c", "d"] {
            fail(&breaker, sandbox, Refused);
            fail(&breaker, sandbox, Other);
        }
        assert!(breaker.open_nodes().is_empty());
        fail(&breaker, "a", TimedOut);
        fail(&breaker, "b", Unreachable);
        fail(&breaker, "c", TimedOut);
        assert_eq!(breaker.open_nodes(), [NODE]);
        assert!(matches!(breaker.check(NODE, NODE), BreakerVerdict::Open));
        assert!(matches!(breaker.check(OTHER, OTHER), BreakerVerdict::Pass(_)));
        assert_eq!((breaker.metrics.trips.get(), breaker.metrics.open_nodes.get()), (1, 1));
    }

    #[test]
    fn a_refused_connect_shows_that_the_node_lives() {
        let breaker = breaker(&ScriptedStore::new(&[]));
        fail(&breaker, "a", TimedOut);
        fail(&breaker, "b", TimedOut);
        fail(&breaker, "closed-port", Refused);
        fail(&breaker, "c", TimedOut);
        assert!(breaker.open_nodes().is_empty());
    }

    #[test]
    fn sandboxes_on_this_node_tell_nothing_about_a_node() {
        let breaker = breaker(&ScriptedStore::new(&[]));
        for inside in 1..=4 {
            let permit = pass(&breaker, NODE, IpAddr::from([192, 168, 0, inside]));
            permit.failed(&SandboxId::parse(&format!("s{inside}")).unwrap(), TimedOut);
        }
        assert!(breaker.open_nodes().is_empty());
    }

    #[test]
    fn a_probe_that_is_dropped_gives_its_place_back_and_one_that_connects_heals() {
        let breaker = breaker(&ScriptedStore::new(&[]));
        breaker.update(Settings { open_min: Duration::ZERO, ..Settings::default() });
        for sandbox in ["a", "b", "c"] {
            fail(&breaker, sandbox, TimedOut);
        }
        let probe = pass(&breaker, NODE, NODE);
        assert!(matches!(breaker.check(NODE, NODE), BreakerVerdict::Open));
        drop(probe);
        let probe = pass(&breaker, NODE, NODE);
        probe.connected();
        assert!(breaker.open_nodes().is_empty());
        assert_eq!(breaker.metrics.open_nodes.get(), 0);
        assert_eq!(breaker.troubled_nodes.load(Ordering::SeqCst), 0, "nothing is looked up any more");
    }

    #[test]
    fn metrics_that_exist_already_are_an_error() {
        let registry = Registry::new();
        let set = ScriptedStore::new(&[]);
        Breaker::new(Arc::clone(&set) as _, Settings::default(), &registry).unwrap();
        assert!(Breaker::new(set as _, Settings::default(), &registry).is_err());
    }
}
