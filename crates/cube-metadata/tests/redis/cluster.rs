//! A Cluster of three primaries: every one answers for its slots and pushes its changes.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use cube_metadata::{MetadataStore, RedisSettings, RedisStore, StoreEvent};
use cube_settings::Secret;
use tokio::sync::broadcast;

use crate::server::{Redis, free_port};
use crate::{connect, event, id, within};

fn node() -> (Redis, u16) {
    let bus = free_port();
    let arguments = [
        "--cluster-enabled yes",
        "--cluster-node-timeout 1000",
        "--cluster-require-full-coverage no",
        "--cluster-replica-validity-factor 0",
        &format!("--cluster-port {bus}"),
    ];
    let arguments: Vec<String> =
        arguments.iter().flat_map(|pair| pair.split(' ')).map(str::to_owned).collect();
    (Redis::start_on(free_port(), &arguments), bus)
}

/// Three primaries, and as many replicas of the first as wanted.
async fn cluster(replicas: usize) -> Vec<Redis> {
    let nodes: Vec<(Redis, u16)> = (0..3 + replicas).map(|_| node()).collect();
    for (at, (redis, _)) in nodes.iter().enumerate() {
        redis.run(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        if at < 3 {
            let range = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]][at];
            assert_eq!(redis.run(&["CLUSTER", "ADDSLOTSRANGE", range[0], range[1]]), "OK");
        }
    }
    for (redis, bus) in &nodes[1..] {
        let (port, bus) = (redis.port.to_string(), bus.to_string());
        assert_eq!(nodes[0].0.run(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]), "OK");
    }
    let all = nodes.len().to_string();
    within("a whole cluster", 20, async || {
        nodes.iter().all(|(redis, _)| {
            let info = redis.run(&["CLUSTER", "INFO"]);
            let has = |line: &str| info.lines().any(|found| found == line);
            has("cluster_state:ok")
                && has("cluster_slots_assigned:16384")
                && has(&format!("cluster_known_nodes:{all}"))
        })
    })
    .await;
    let first = nodes[0].0.run(&["CLUSTER", "MYID"]);
    for (redis, _) in &nodes[3..] {
        assert_eq!(redis.run(&["CLUSTER", "REPLICATE", &first]), "OK");
        within("a replica", 20, async || {
            redis.run(&["INFO", "replication"]).contains("master_link_status:up")
        })
        .await;
    }
    nodes.into_iter().map(|(redis, _)| redis).collect()
}

async fn tracked(nodes: &[Redis]) -> (std::sync::Arc<RedisStore>, broadcast::Receiver<StoreEvent>) {
    let url = format!("redis-cluster://127.0.0.1:{}?node=127.0.0.1:{}", nodes[0].port, nodes[1].port);
    let store = connect(RedisSettings { url: Secret::new(url), ..RedisSettings::default() });
    within("tracking", 5, async || store.tracking().is_some()).await;
    let events = store.subscribe();
    (store, events)
}

fn record(address: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("HostIP".to_owned(), address.to_owned())])
}

#[tokio::test]
async fn records_of_all_slots_are_read_written_listed_and_followed() {
    let nodes = cluster(0).await;
    let (store, mut events) = tracked(&nodes).await;
    let ids: Vec<_> = (0..60).map(|number| id(&format!("s{number}"))).collect();
    for id in &ids {
        store.put(id, &record("10.0.0.1")).await.unwrap();
    }
    let mut changed = HashSet::new();
    within("all changes", 2, async || {
        while let Ok(event) = events.try_recv() {
            match event {
                StoreEvent::RecordChanged(id) => drop(changed.insert(id)),
                other => panic!("{other:?}"),
            }
        }
        changed.len() == ids.len()
    })
    .await;
    for id in &ids {
        assert!(store.fetch(id).await.unwrap().record.is_some());
    }
    assert!(store.fetch(&id("other")).await.unwrap().record.is_none());
    assert_eq!(store.list().await.unwrap().len(), ids.len());
    store.announce("p1", "{}", 1).await.unwrap();
    store.withdraw("p1").await.unwrap();
    assert!(store.faulty_nodes().await.unwrap().is_empty());
    for id in &ids {
        assert!(store.delete(id).await.unwrap());
    }
    assert!(store.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_slot_on_its_way_is_followed_to_its_new_owner() {
    let nodes = cluster(0).await;
    let (store, _events) = tracked(&nodes).await;
    let (mover, gone) = (id("mover"), id("gone"));
    // The tag puts both keys into one slot.
    let key = "cube:v1:shared:sandbox:proxy:mover";
    store.put(&mover, &record("10.0.0.1")).await.unwrap();
    let slot = nodes[0].run(&["CLUSTER", "KEYSLOT", key]);
    let number: u16 = slot.parse().unwrap();
    let from = usize::from(number > 5460) + usize::from(number > 10922);
    let to = (from + 1) % 3;
    let (source, target) = (&nodes[from], &nodes[to]);
    let (source_id, target_id) = (source.run(&["CLUSTER", "MYID"]), target.run(&["CLUSTER", "MYID"]));
    assert_eq!(target.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]), "OK");
    assert_eq!(source.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]), "OK");
    assert!(store.fetch(&mover).await.unwrap().record.is_some(), "still at the source");
    let port = target.port.to_string();
    assert_eq!(source.run(&["MIGRATE", "127.0.0.1", &port, key, "0", "2000"]), "OK");
    assert!(store.fetch(&mover).await.unwrap().record.is_some(), "asked for at the target");
    for redis in [target, source, &nodes[(from + 2) % 3]] {
        assert_eq!(redis.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]), "OK");
    }
    assert!(store.fetch(&mover).await.unwrap().record.is_some(), "moved to the target");
    assert!(store.fetch(&gone).await.unwrap().record.is_none());
    assert!(!store.failing());
}

#[tokio::test]
async fn a_primary_that_dies_takes_only_its_slots_along_until_its_replica_takes_over() {
    let mut nodes = cluster(1).await;
    let (store, mut events) = tracked(&nodes).await;
    let ids: Vec<_> = (0..60).map(|number| id(&format!("s{number}"))).collect();
    for id in &ids {
        store.put(id, &record("10.0.0.1")).await.unwrap();
    }
    // Until the replica has them, too.
    within("replicated", 5, async || nodes[0].run(&["DBSIZE"]) == nodes[3].run(&["DBSIZE"])).await;
    let before = store.tracking().unwrap();
    nodes[0].kill();
    event(&mut events, &StoreEvent::TrackingLost, 3).await;
    within("all slots answered", 20, async || {
        let mut good = 0;
        for id in &ids {
            match store.fetch(id).await {
                Ok(snapshot) => good += usize::from(snapshot.record.is_some()),
                Err(_) => continue,
            }
        }
        assert!(good > 0 && !store.failing(), "the other primaries answer throughout");
        good == ids.len()
    })
    .await;
    event(&mut events, &StoreEvent::InvalidateAll, 5).await;
    assert!(store.tracking().unwrap() > before);
    store.put(&ids[0], &record("10.0.0.2")).await.unwrap();
    event(&mut events, &StoreEvent::RecordChanged(ids[0].clone()), 1).await;
}

#[tokio::test]
async fn a_server_that_is_no_cluster_is_an_error_and_no_end() {
    let redis = Redis::start(&[]);
    let url = format!("redis-cluster://127.0.0.1:{}", redis.port);
    let store = connect(RedisSettings { url: Secret::new(url), ..RedisSettings::default() });
    let began = std::time::Instant::now();
    assert!(store.fetch(&id("ab")).await.is_err());
    assert!(began.elapsed() < Duration::from_millis(2500));
    assert_eq!(store.tracking(), None);
}
