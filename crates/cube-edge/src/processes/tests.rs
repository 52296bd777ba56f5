use prometheus::{IntCounter, IntGauge};

use super::*;

/// The metrics of one process.
struct Process {
    processes: Arc<Processes>,
    requests: IntCounter,
    open: IntGauge,
    pid: u32,
}

impl Process {
    fn new(pid: u32) -> Self {
        let registry = Registry::new();
        let requests = IntCounter::new("cube_proxy_request_total", "Requests.").unwrap();
        let open = IntGauge::new("cube_proxy_open_streams", "Open.").unwrap();
        registry.register(Box::new(requests.clone())).unwrap();
        registry.register(Box::new(open.clone())).unwrap();
        Self { processes: Processes::new(registry, STARTED), requests, open, pid }
    }

    fn standing(&self) -> ProcessStanding {
        ProcessStanding { pid: self.pid, ..self.processes.own_standing() }
    }

    fn successor(&self, pid: u32) -> Self {
        let new = Self::new(pid);
        let ledger = self.processes.ledger(self.standing(), 1);
        let text = serde_json::to_string(&ledger).unwrap();
        new.processes.take(serde_json::from_str(&text).unwrap(), 2_000);
        new
    }

    /// A draining process links to this one and says what it has counted.
    fn linked(&self, old: &Self) -> LinkedProcess {
        let link = self.processes.link(old.pid, Some(old.standing()));
        link.report(old.standing(), old.processes.own());
        link
    }

    /// Requests and open streams, as they are scraped.
    fn scraped(&self) -> (u64, i64) {
        let families = self.processes.gather();
        let of = |name: &str| families.iter().find(|family| family.name() == name).unwrap();
        let counter = of("cube_proxy_request_total").get_metric()[0].get_counter().get_value();
        let gauge = of("cube_proxy_open_streams").get_metric()[0].get_gauge().get_value();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small whole numbers")]
        (counter as u64, gauge as i64)
    }
}

/// After the process of these tests began, whose id some of them have.
const STARTED: u64 = u64::MAX / 2;

/// No process has such an id: the system's are smaller.
const GONE: u32 = 0x7fff_fff0;

#[test]
fn no_counter_falls_through_any_number_of_hot_restarts() {
    let mut main = Process::new(GONE);
    let mut counted = 0;
    for n in 1..5 {
        main.requests.inc_by(10);
        main.open.set(1);
        counted += 10;
        assert_eq!(main.scraped(), (counted, 1), "before {n}");
        let old = main;
        main = old.successor(GONE + n);
        // From its first moment, before the old process has linked.
        assert_eq!(main.scraped(), (counted, 1), "after {n}");
        assert_eq!(main.processes.draining()[0].draining_since, Some(2_000));
        let link = main.linked(&old);
        assert_eq!(main.scraped(), (counted, 1), "linked {n}");
        old.requests.inc_by(5);
        counted += 5;
        // Only what changed is said.
        let changed = old.processes.own().since(&Counted::default());
        link.report(old.standing(), changed);
        assert_eq!(main.scraped(), (counted, 1));
        assert_eq!(main.processes.draining().len(), 1);
        drop(link);
        assert_eq!(main.scraped(), (counted, 0), "what it counted stays, what was open does not");
        assert!(main.processes.draining().is_empty());
    }
}

#[test]
fn a_process_that_links_again_counts_once() {
    let old = Process::new(std::process::id());
    old.requests.inc_by(10);
    let main = old.successor(GONE);
    for _ in 0..3 {
        let link = main.linked(&old);
        assert_eq!(main.scraped(), (10, 0));
        drop(link);
        // The link broke, the process lives: this is not the end of it.
        assert_eq!(main.scraped(), (10, 0));
    }
    // A link that is still believed to be there when the next one comes does not end it.
    let first = main.linked(&old);
    let second = main.linked(&old);
    drop(first);
    assert_eq!(main.processes.draining().len(), 1);
    let next = main.successor(GONE + 1);
    drop(second);
    let _link = next.linked(&old);
    assert_eq!(next.scraped(), (10, 0));
}

#[test]
fn one_of_an_older_version_is_listed_and_adds_nothing() {
    let main = Process::new(GONE);
    main.requests.inc();
    let _link = main.processes.link(77, None);
    assert_eq!(main.processes.draining(), [ProcessStanding { pid: 77, ..ProcessStanding::default() }]);
    assert_eq!(main.scraped(), (1, 0));
}

#[tokio::test]
async fn one_that_is_to_end_hears_of_it_and_its_end_is_waited_for() {
    let main = Process::new(GONE);
    let patience = Duration::from_secs(10);
    assert_eq!(main.processes.end(77, patience).await, None);
    let link = main.processes.link(77, None);
    let other = main.processes.link(78, None);
    let ending = tokio::spawn(async move {
        link.end_wanted().await;
        drop(link);
    });
    assert_eq!(main.processes.end(77, patience).await, Some(true));
    ending.await.unwrap();
    assert_eq!(main.processes.draining().len(), 1);
    assert_eq!(main.processes.end(78, Duration::from_millis(50)).await, Some(false), "it hangs");
    other.end_wanted().await;
}

#[test]
fn the_earlier_deadline_stays() {
    let process = Process::new(GONE);
    process.processes.end_by(9_000);
    process.processes.end_by(5_000);
    process.processes.end_by(7_000);
    assert_eq!(process.standing().deadline, Some(5_000));
}

#[test]
fn another_process_of_the_same_id_is_not_the_one_that_is_gone() {
    let own = std::process::id();
    let now = began(own).unwrap();
    assert!(is_there(own, now) && is_there(own, now + 60_000), "it said when it began later on");
    assert!(is_there(own, 0), "of a version that did not say");
    assert!(!is_there(own, now - 1_000) && !is_there(GONE, now));
}
