//! Changes are pushed, and where they were not that is told.

use cube_metadata::{MetadataStore, RedisSettings, StoreEvent};

use crate::server::Redis;
use crate::{connect, event, id, settings, tracked, within};

fn key(id: &str) -> String {
    format!("cube:v1:shared:sandbox:proxy:{id}")
}

#[tokio::test]
async fn every_way_to_change_a_record_is_pushed() {
    let redis = Redis::start(&[]);
    let (_store, mut events) = tracked(&redis).await;
    let changed = StoreEvent::RecordChanged(id("ab"));
    redis.run(&["HSET", &key("ab"), "HostIP", "10.0.0.1"]);
    event(&mut events, &changed, 1).await;
    redis.run(&["HDEL", &key("ab"), "HostIP"]);
    event(&mut events, &changed, 1).await;
    redis.run(&["HSET", "sandbox:proxy:ab", "HostIP", "10.0.0.1"]);
    event(&mut events, &changed, 1).await;
    redis.run(&["RENAME", "sandbox:proxy:ab", &key("cd")]);
    event(&mut events, &changed, 1).await;
    redis.run(&["DEL", &key("cd")]);
    event(&mut events, &StoreEvent::RecordChanged(id("cd")), 1).await;
    redis.run(&["HSET", "bypass_host_proxy:ab", "HostIP", "10.0.0.1"]);
    event(&mut events, &changed, 1).await;
    let told = StoreEvent::StateChanged(id("ab"));
    let state = "cube:v1:shared:sandbox:lifecycle:state:ab";
    redis.run(&["SET", state, "paused"]);
    event(&mut events, &told, 1).await;
    // The same word again.
    redis.run(&["SET", state, "paused", "PX", "50"]);
    event(&mut events, &told, 1).await;
    // And when it runs out.
    event(&mut events, &told, 2).await;
    redis.run(&["SADD", "faulty_backend_set", "10.0.0.2"]);
    event(&mut events, &StoreEvent::FaultyNodes, 1).await;
}

#[tokio::test]
async fn an_id_in_capitals_and_a_strangers_key_do_no_harm() {
    let redis = Redis::start(&[]);
    let (_store, mut events) = tracked(&redis).await;
    redis.run(&["SET", "sandbox:proxy:a.b", "x"]);
    redis.run(&["SET", "sandbox:proxy:", "x"]);
    redis.run(&["SET", "faulty_backend_set_2", "x"]);
    redis.run(&["HSET", "sandbox:proxy:AB", "HostIP", "10.0.0.1"]);
    assert_eq!(events.recv().await.unwrap(), StoreEvent::RecordChanged(id("ab")));
}

#[tokio::test]
async fn a_lost_connection_is_told_and_its_return_is_a_new_session() {
    let redis = Redis::start(&[]);
    let (store, mut events) = tracked(&redis).await;
    let mut last = store.tracking().unwrap();
    for _ in 0..3 {
        redis.run(&["CLIENT", "KILL", "TYPE", "normal"]);
        event(&mut events, &StoreEvent::TrackingLost, 2).await;
        event(&mut events, &StoreEvent::InvalidateAll, 2).await;
        let session = store.tracking().unwrap();
        assert!(session > last);
        last = session;
        redis.run(&["HSET", &key("ab"), "HostIP", "10.0.0.1"]);
        event(&mut events, &StoreEvent::RecordChanged(id("ab")), 1).await;
    }
    assert!(!store.failing(), "a short break is no failure");
}

#[tokio::test]
async fn a_flushed_server_is_distrusted() {
    let redis = Redis::start(&[]);
    redis.run(&["HSET", &key("ab"), "HostIP", "10.0.0.1"]);
    let (store, mut events) = tracked(&redis).await;
    assert!(store.fetch(&id("ab")).await.unwrap().record.is_some());
    let before = store.tracking().unwrap();
    redis.run(&["FLUSHALL"]);
    event(&mut events, &StoreEvent::InvalidateAll, 5).await;
    assert!(store.tracking().unwrap() > before);
}

#[tokio::test]
async fn when_every_watched_record_has_changed_and_none_was_read_since_all_is_distrusted() {
    let redis = Redis::start(&[]);
    redis.run(&["HSET", &key("ab"), "HostIP", "10.0.0.1"]);
    let (store, mut events) = tracked(&redis).await;
    assert!(store.fetch(&id("ab")).await.unwrap().record.is_some());
    redis.run(&["DEL", &key("ab")]);
    event(&mut events, &StoreEvent::RecordChanged(id("ab")), 1).await;
    event(&mut events, &StoreEvent::InvalidateAll, 5).await;
}

#[tokio::test]
async fn a_change_that_was_pushed_is_no_reason_for_distrust() {
    let redis = Redis::start(&[]);
    redis.run(&["HSET", &key("ab"), "HostIP", "10.0.0.1"]);
    let (store, _) = tracked(&redis).await;
    let before = store.tracking();
    // Through two checks of the known key.
    let began = std::time::Instant::now();
    let mut number = 0;
    within("two checks", 10, async || {
        number += 1;
        redis.run(&["HSET", &key("ab"), "8080", &number.to_string()]);
        store.fetch(&id("ab")).await.unwrap();
        began.elapsed() > std::time::Duration::from_secs(5)
    })
    .await;
    assert_eq!(store.tracking(), before);
}

#[tokio::test]
async fn a_burst_of_changes_arrives_whole_or_as_distrust() {
    let redis = Redis::start(&[]);
    let (_store, mut events) = tracked(&redis).await;
    redis.run(&[
        "EVAL",
        "for n = 1, 20000 do redis.call('HSET', 'sandbox:proxy:s' .. n, 'HostIP', '10.0.0.1') end",
        "0",
    ]);
    let mut seen = std::collections::HashSet::new();
    within("all changes", 5, async || {
        while let Ok(event) = events.try_recv() {
            match event {
                StoreEvent::RecordChanged(id) => drop(seen.insert(id)),
                other => panic!("{other:?}"),
            }
        }
        seen.len() == 20000
    })
    .await;
}

#[tokio::test]
async fn without_tracking_there_is_no_session() {
    let redis = Redis::start(&[]);
    let store = connect(RedisSettings { tracking: false, ..settings(&redis) });
    store.fetch(&id("ab")).await.unwrap();
    assert_eq!(store.tracking(), None);
}

#[tokio::test]
async fn a_killed_server_leaves_no_session_and_its_return_is_told() {
    let mut redis = Redis::start(&[]);
    let (store, mut events) = tracked(&redis).await;
    redis.kill();
    event(&mut events, &StoreEvent::TrackingLost, 2).await;
    assert_eq!(store.tracking(), None);
    redis.resume_life();
    event(&mut events, &StoreEvent::InvalidateAll, 2).await;
}
