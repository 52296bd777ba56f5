use std::time::Duration;

use cube_metadata::testing::{BACKLOG, ScriptedStore};

use super::*;
use crate::ConnectFailure::{Other, Refused, TimedOut, Unreachable};

const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

/// A store with this faulty set.
fn scripted(nodes: &[&str]) -> Arc<ScriptedStore> {
    let store = Arc::<ScriptedStore>::default();
    store.set_faulty(addresses(nodes));
    store
}

fn addresses(nodes: &[&str]) -> impl Iterator<Item = IpAddr> {
    nodes.iter().map(|node| node.parse().unwrap())
}

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
    let set = scripted(&["10.0.0.1", "::ffff:192.168.0.7"]);
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
    let set = scripted(&[]);
    let breaker = breaker(&set);
    let run = tokio::spawn(Arc::clone(&breaker).run());
    until(|| set.faulty_reads() == 1).await;
    for (event, nodes) in [
        (StoreEvent::FaultyNodes, &["10.0.0.1"][..]),
        (StoreEvent::InvalidateAll, &[]),
        (StoreEvent::FaultyNodes, &["10.0.0.1"]),
    ] {
        set.set_faulty(addresses(nodes));
        set.events.send(event).unwrap();
        until(|| breaker.faulty().len() == nodes.len()).await;
    }
    run.abort();
}

#[tokio::test]
async fn a_follower_that_missed_pushes_reads_the_set() {
    let set = scripted(&[]);
    let breaker = breaker(&set);
    for _ in 0..=2 * BACKLOG {
        set.events.send(StoreEvent::TrackingLost).unwrap();
    }
    let run = tokio::spawn(Arc::clone(&breaker).run());
    until(|| set.faulty_reads() == 2).await;
    run.abort();
}

#[tokio::test]
async fn the_shared_set_is_polled_without_any_push() {
    let set = scripted(&[]);
    let breaker = breaker(&set);
    let run = tokio::spawn(Arc::clone(&breaker).run());
    until(|| set.faulty_reads() == 1).await;
    set.set_faulty(addresses(&["10.0.0.1"]));
    breaker.update(Settings { shared_poll: Duration::from_millis(5), ..Settings::default() });
    until(|| breaker.faulty() == [NODE]).await;
    run.abort();
}

#[tokio::test]
async fn a_store_that_cannot_answer_leaves_the_last_known_set() {
    let set = scripted(&["10.0.0.1"]);
    let breaker = breaker(&set);
    let run = tokio::spawn(Arc::clone(&breaker).run());
    until(|| breaker.faulty() == [NODE]).await;
    *set.faulty.lock() = None;
    let reads = set.faulty_reads();
    set.events.send(StoreEvent::FaultyNodes).unwrap();
    until(|| set.faulty_reads() > reads).await;
    assert!(matches!(breaker.check(NODE, NODE), BreakerVerdict::Faulty));
    run.abort();
}

#[test]
fn only_what_tells_about_the_node_opens_its_breaker() {
    let breaker = breaker(&scripted(&[]));
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
    let breaker = breaker(&scripted(&[]));
    fail(&breaker, "a", TimedOut);
    fail(&breaker, "b", TimedOut);
    fail(&breaker, "closed-port", Refused);
    fail(&breaker, "c", TimedOut);
    assert!(breaker.open_nodes().is_empty());
}

#[test]
fn sandboxes_on_this_node_tell_nothing_about_a_node() {
    let breaker = breaker(&scripted(&[]));
    for inside in 1..=4 {
        let permit = pass(&breaker, NODE, IpAddr::from([192, 168, 0, inside]));
        permit.failed(&SandboxId::parse(&format!("s{inside}")).unwrap(), TimedOut);
    }
    assert!(breaker.open_nodes().is_empty());
}

#[test]
fn a_probe_that_is_dropped_gives_its_place_back_and_one_that_connects_heals() {
    let breaker = breaker(&scripted(&[]));
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
    let set = scripted(&[]);
    Breaker::new(Arc::clone(&set) as _, Settings::default(), &registry).unwrap();
    assert!(Breaker::new(set as _, Settings::default(), &registry).is_err());
}
