use super::*;

const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

/// Nodes with a time that the test moves.
struct Testbed {
    nodes: NodeTable,
    settings: Settings,
    now: Instant,
}

impl Testbed {
    fn new() -> Self {
        Self { nodes: NodeTable::default(), settings: Settings::default(), now: Instant::now() }
    }

    fn after(&mut self, seconds: f64) -> &mut Self {
        self.now += Duration::from_secs_f64(seconds);
        self
    }

    fn fail(&mut self, sandbox: &str) -> BreakerChange {
        self.nodes.failed(NODE, &id(sandbox), None, self.now, &self.settings)
    }

    fn ask(&mut self, sandbox: &str) -> DialDecision {
        self.nodes.check(NODE, Some(&id(sandbox)), self.now, &self.settings)
    }

    fn probe(&mut self, sandbox: &str) -> u64 {
        match self.ask(sandbox) {
            DialDecision::Probe(ticket) => ticket,
            other => panic!("no probe but {other:?}"),
        }
    }

    fn fail_probe(&mut self, sandbox: &str) {
        let ticket = self.probe(sandbox);
        self.nodes.failed(NODE, &id(sandbox), Some(ticket), self.now, &self.settings);
    }

    fn trip(&mut self) {
        for sandbox in ["a", "b"] {
            assert_eq!(self.fail(sandbox), BreakerChange::Nothing);
        }
        assert_eq!(self.fail("c"), BreakerChange::Tripped);
    }
}

fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).unwrap()
}

#[test]
fn three_sandboxes_that_cannot_be_reached_open_it() {
    let mut testbed = Testbed::new();
    testbed.trip();
    assert_eq!(testbed.ask("d"), DialDecision::No);
    assert_eq!(
        testbed.nodes.check(IpAddr::from([10, 0, 0, 2]), None, testbed.now, &testbed.settings),
        DialDecision::Yes
    );
}

#[test]
fn one_dead_sandbox_never_opens_it_however_often_it_fails() {
    let mut testbed = Testbed::new();
    for _ in 0..1000 {
        assert_eq!(testbed.after(0.01).fail("a"), BreakerChange::Nothing);
    }
    assert_eq!(testbed.fail("b"), BreakerChange::Nothing);
    assert_eq!(testbed.ask("c"), DialDecision::Yes);
}

#[test]
fn a_connect_that_works_in_between_forgets_the_failed_ones() {
    let mut testbed = Testbed::new();
    testbed.fail("a");
    testbed.fail("b");
    assert_eq!(testbed.nodes.connect_succeeded(NODE), BreakerChange::Nothing);
    assert_eq!(testbed.fail("c"), BreakerChange::Nothing);
    assert_eq!(testbed.fail("d"), BreakerChange::Nothing);
    assert_eq!(testbed.fail("e"), BreakerChange::Tripped);
}

#[test]
fn failed_connects_outside_the_window_do_not_count() {
    let mut testbed = Testbed::new();
    testbed.fail("a");
    testbed.fail("b");
    assert_eq!(testbed.after(10.1).fail("c"), BreakerChange::Nothing);
    assert_eq!(testbed.fail("d"), BreakerChange::Nothing);
}

#[test]
fn it_stays_open_for_its_time_and_then_lets_one_probe_through() {
    let mut testbed = Testbed::new();
    testbed.trip();
    assert_eq!(testbed.after(4.4).ask("d"), DialDecision::No);
    testbed.after(1.2).probe("d");
    assert_eq!(testbed.ask("e"), DialDecision::No, "one at a time");
}

#[test]
fn a_probe_that_works_closes_it() {
    let mut testbed = Testbed::new();
    testbed.trip();
    testbed.after(5.6).probe("d");
    assert_eq!(testbed.nodes.connect_succeeded(NODE), BreakerChange::Healed);
    assert_eq!(testbed.ask("e"), DialDecision::Yes);
    assert_eq!(testbed.nodes.len(), 0);
}

#[test]
fn probes_that_fail_double_the_time_up_to_the_most() {
    let mut testbed = Testbed::new();
    testbed.trip();
    for step in [5.0, 10.0, 20.0, 40.0, 60.0, 60.0] {
        assert_eq!(testbed.after(step * 0.89).ask("a"), DialDecision::No, "{step}");
        testbed.after(step * 0.22).fail_probe("a");
    }
}

#[test]
fn a_probe_given_back_leaves_its_place_to_the_next() {
    let mut testbed = Testbed::new();
    testbed.trip();
    let ticket = testbed.after(5.6).probe("d");
    testbed.nodes.release_probe(NODE, ticket);
    testbed.probe("e");
    testbed.nodes.release_probe(NODE, ticket);
    assert_eq!(testbed.ask("f"), DialDecision::No, "an old ticket frees nobody's place");
}

#[test]
fn a_dead_sandbox_does_not_take_its_neighbours_probes() {
    let mut testbed = Testbed::new();
    testbed.trip();
    testbed.after(5.6).fail_probe("a");
    assert_eq!(testbed.ask("a"), DialDecision::No);
    testbed.probe("neighbour");
    assert_eq!(testbed.nodes.connect_succeeded(NODE), BreakerChange::Healed);
}

#[test]
fn when_enough_sandboxes_have_failed_their_probe_all_wait() {
    let mut testbed = Testbed::new();
    testbed.trip();
    testbed.after(5.6);
    for sandbox in ["a", "b", "c"] {
        testbed.fail_probe(sandbox);
    }
    assert_eq!(testbed.ask("d"), DialDecision::No);
    assert_eq!(testbed.after(8.9).ask("d"), DialDecision::No, "the time doubled once, not thrice");
    testbed.after(2.2).probe("d");
}

#[test]
fn a_connect_that_began_before_it_opened_changes_nothing() {
    let mut testbed = Testbed::new();
    testbed.trip();
    testbed.after(4.0);
    for sandbox in ["d", "e", "f"] {
        assert_eq!(testbed.fail(sandbox), BreakerChange::Nothing);
    }
    testbed.after(1.6).probe("g");
}

#[test]
fn what_is_old_is_forgotten() {
    let mut testbed = Testbed::new();
    testbed.fail("a");
    testbed.after(10.1);
    testbed.nodes.expire(testbed.now, &testbed.settings);
    assert_eq!(testbed.nodes.len(), 0);
    testbed.trip();
    testbed.after(60.0);
    testbed.nodes.expire(testbed.now, &testbed.settings);
    assert_eq!(testbed.nodes.len(), 1);
    testbed.after(6.0);
    testbed.nodes.expire(testbed.now, &testbed.settings);
    assert_eq!(testbed.nodes.len(), 0);
}

#[test]
fn the_table_is_bounded_and_the_quietest_node_goes() {
    let mut testbed = Testbed::new();
    testbed.fail("a");
    for node in 0..u32::try_from(MAX_NODES).unwrap() {
        testbed.after(0.0001);
        let ip = IpAddr::from(node.to_be_bytes());
        testbed.nodes.failed(ip, &id("a"), None, testbed.now, &testbed.settings);
    }
    assert_eq!(testbed.nodes.len(), MAX_NODES);
    assert!(!testbed.nodes.map.contains_key(&NODE));
}
