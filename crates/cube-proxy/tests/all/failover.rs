//! The server that holds the records dies and another takes over, under load (metadata.md):
//! no route is wrong, and what is not cached fails no longer than the fail-over and two seconds.
#![allow(clippy::print_stdout, reason = "figures, for who asks with --nocapture")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use cube_testkit::serde_json::json;
use cube_testkit::{Origin, RedisCluster, RedisServer, Sandbox, Sentinels, eventually};

use crate::store_fixture::{Store, StoreFixture, right_within, who};

/// From the end of a fail-over until everything is answered.
const ANSWERED: Duration = Duration::from_secs(2);

/// Sandboxes that nobody asks for before the fail-over.
const COLD: usize = 300;

/// Sandboxes with an application each, and others that are not in the cache.
struct Served {
    fixture: StoreFixture,
    known: Vec<(Sandbox, Origin)>,
    cold: Vec<Sandbox>,
}

impl Served {
    async fn over(store: Store, sandboxes: usize) -> Self {
        let fixture = StoreFixture::over(store, &json!({})).await;
        let mut known = Vec::new();
        for n in 0..sandboxes {
            let origin = Origin::named(&format!("app{n}")).echo().await;
            let sandbox = fixture.sandbox(&origin).await;
            fixture.warm(&sandbox).await;
            known.push((sandbox, origin));
        }
        let mut cold = Vec::new();
        for _ in 0..COLD {
            cold.push(fixture.sandbox(&known[0].1).await);
        }
        Self { fixture, known, cold }
    }

    /// Asks for the known and for strangers until `event` gives the time at which the fail-over
    /// was over, and for a while longer.
    async fn under_load(&self, event: impl Future<Output = Instant>) -> Instant {
        let end: Mutex<Option<Instant>> = Mutex::new(None);
        let going_on = || end.lock().unwrap().is_none_or(|end| end.elapsed() < 2 * ANSWERED);
        let known = async {
            while going_on() {
                for (n, (sandbox, _)) in self.known.iter().enumerate() {
                    let response = self.fixture.env.get(sandbox, "/").await;
                    assert_eq!(response.status, 200, "{}", response.brief());
                    assert_eq!(response.seen().origin, format!("app{n}"), "a wrong route");
                }
            }
        };
        let strangers = async {
            let mut failed = Vec::new();
            while going_on() {
                let asked = Instant::now();
                let response = self.fixture.env.get(&self.fixture.env.nobody(), "/").await;
                match response.retcode() {
                    Some(310_507) => {}
                    Some(310_500) => failed.push(asked),
                    _ => panic!("{}", response.brief()),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            failed
        };
        // What is there is never said to be missing.
        let cold = async {
            for sandbox in self.cold.iter().cycle() {
                let response = self.fixture.env.get(sandbox, "/").await;
                if response.retcode() != Some(310_500) {
                    assert_eq!(response.seen().origin, "app0");
                }
                if !going_on() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let watch = async {
            let over = event.await;
            *end.lock().unwrap() = Some(over);
            over
        };
        let ((), failed, (), over) = tokio::join!(known, strangers, cold, watch);
        let late: Vec<_> = failed.iter().filter_map(|at| at.checked_duration_since(over)).collect();
        let latest = late.iter().max().copied().unwrap_or_default();
        assert!(latest < ANSWERED, "an unknown id failed {latest:?} after the fail-over");
        println!("{} unknown ids failed, the last {latest:?} after the fail-over", failed.len());
        over
    }

    /// What was changed when nobody but the new primary could know is followed.
    async fn follows_the_new_primary(&self, since: Instant, moved: &[usize]) {
        let right = async || {
            for (n, (sandbox, _)) in self.known.iter().enumerate() {
                let wanted = if moved.contains(&n) { "moved".to_owned() } else { format!("app{n}") };
                let response = self.fixture.env.get(sandbox, "/").await;
                // What changed has to be read, and its server may be the one that is changing hands.
                if response.retcode() == Some(310_500) || who(&response) != Some(wanted) {
                    return false;
                }
            }
            true
        };
        right_within("changes at the new primary", since, ANSWERED, right).await;
    }
}

/// Makes a Cluster's replica the primary. An attempt that the others do not vote on in time lapses,
/// and is made again.
async fn hand_over(replica: &RedisServer) {
    for _ in 0..4 {
        // An error says that one is under way.
        let _ = replica.try_command(&["CLUSTER", "FAILOVER"]).await;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            if replica.command(&["INFO", "replication"]).await.text().contains("role:master") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    panic!("the replica did not become the primary");
}

/// Waits until every key is at every one of these.
async fn in_step(servers: &[&RedisServer]) {
    eventually("the replicas to be in step", || async {
        let mut sizes = Vec::new();
        for server in servers {
            sizes.push(server.command(&["DBSIZE"]).await);
        }
        sizes.windows(2).all(|two| two[0] == two[1]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_another_primary() {
    let served = Served::over(Store::Sentinels(Sentinels::start(2).await), 3).await;
    let Store::Sentinels(sentinels) = &served.fixture.store else { unreachable!() };
    in_step(&sentinels.servers.iter().collect::<Vec<_>>()).await;
    let moved = Origin::named("moved").echo().await;
    let dead = &sentinels.servers[0];
    dead.stop();
    let died = Instant::now();
    let over = served
        .under_load(async {
            sentinels.primary().await;
            Instant::now()
        })
        .await;
    println!("Sentinel: a new primary {:?} after the old one's death", over - died);
    let (first, port) = (&served.known[0].0, moved.port().to_string());
    served.fixture.write(first, &[("8080", &port)]).await;
    served.follows_the_new_primary(Instant::now(), &[0]).await;
    served.fixture.write(first, &[("8080", served.known[0].1.port().to_string())]).await;
    served.follows_the_new_primary(Instant::now(), &[]).await;
    // The old one comes back empty and takes itself for the primary until it is told otherwise.
    dead.restart().await;
    served.under_load(async { Instant::now() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_hand_over_from_a_primary_that_lives() {
    let served = Served::over(Store::Sentinels(Sentinels::start(1).await), 3).await;
    let Store::Sentinels(sentinels) = &served.fixture.store else { unreachable!() };
    let [old, new] = [0, 1].map(|at: usize| &sentinels.servers[at]);
    in_step(&[old, new]).await;
    let moved = Origin::named("moved").echo().await;
    sentinels.sentinels[0].command(&["SENTINEL", "FAILOVER", "mymaster"]).await;
    served
        .under_load(async {
            // The old one goes on as a primary for a while, and nobody writes to it any more.
            sentinels.primary().await;
            Instant::now()
        })
        .await;
    new.hset(&served.known[0].0.key(), &[("8080", moved.port().to_string())]).await;
    served.follows_the_new_primary(Instant::now(), &[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_at_the_moment_of_promotion_is_followed_and_the_old_primary_asked_no_more() {
    let served = Served::over(Store::Sentinels(Sentinels::start(1).await), 2).await;
    let Store::Sentinels(sentinels) = &served.fixture.store else { unreachable!() };
    let [old, new] = [0, 1].map(|at: usize| &sentinels.servers[at]);
    in_step(&[old, new]).await;
    let moved = Origin::named("moved").echo().await;
    // It does not die: it hangs, and goes on later as the primary that it takes itself for.
    old.pause();
    eventually("a new primary", || async {
        new.command(&["INFO", "replication"]).await.text().contains("role:master").then_some(())
    })
    .await;
    let promoted = Instant::now();
    new.hset(&served.known[0].0.key(), &[("8080", moved.port().to_string())]).await;
    served.follows_the_new_primary(promoted, &[0]).await;
    old.resume();
    let resumed = Instant::now();
    while resumed.elapsed() < Duration::from_secs(2) {
        served.follows_the_new_primary(Instant::now() - ANSWERED, &[0]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_the_cluster_takes_over() {
    let served = Served::over(Store::Cluster(RedisCluster::start(1).await), 9).await;
    let Store::Cluster(cluster) = &served.fixture.store else { unreachable!() };
    let replica = &cluster.nodes[3];
    in_step(&[&cluster.nodes[0], replica]).await;
    let moved = Origin::named("moved").echo().await;
    cluster.nodes[0].stop();
    let died = Instant::now();
    let over = served
        .under_load(async {
            eventually("the replica to be the primary", || async {
                let role = replica.command(&["INFO", "replication"]).await.text();
                role.contains("role:master").then_some(())
            })
            .await;
            Instant::now()
        })
        .await;
    println!("Cluster: a new primary {:?} after the old one's death", over - died);
    for (sandbox, _) in &served.known {
        served.fixture.write(sandbox, &[("8080", moved.port().to_string())]).await;
    }
    let all: Vec<usize> = (0..served.known.len()).collect();
    served.follows_the_new_primary(Instant::now(), &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_of_the_cluster_hands_over_to_its_replica() {
    let served = Served::over(Store::Cluster(RedisCluster::start(1).await), 9).await;
    let Store::Cluster(cluster) = &served.fixture.store else { unreachable!() };
    let replica = &cluster.nodes[3];
    in_step(&[&cluster.nodes[0], replica]).await;
    let moved = Origin::named("moved").echo().await;
    hand_over(replica).await;
    let over = Instant::now();
    // As soon as there is somebody to write to.
    for (sandbox, _) in &served.known {
        served.fixture.write(sandbox, &[("8080", moved.port().to_string())]).await;
    }
    let all: Vec<usize> = (0..served.known.len()).collect();
    served.follows_the_new_primary(over, &all).await;
}
