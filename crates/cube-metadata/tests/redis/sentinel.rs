//! A master behind a Sentinel.

use std::collections::BTreeMap;

use cube_metadata::{MetadataStore, RedisSettings, StoreEvent};
use cube_settings::Secret;

use crate::server::Redis;
use crate::{connect, event, id, within};

/// Master, replica, Sentinel.
async fn watched(sentinel_password: Option<&str>) -> (Redis, Redis, Redis) {
    let master = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let mut text = format!(
        "sentinel monitor mymaster 127.0.0.1 {} 1\nsentinel down-after-milliseconds mymaster 500\n\
         sentinel failover-timeout mymaster 2000\n",
        master.port
    );
    if let Some(password) = sentinel_password {
        text.push_str(&format!("requirepass {password}\n"));
    }
    let sentinel = Redis::sentinel(&text);
    within("the Sentinel knows the replica", 20, async || {
        sentinel
            .run_as(sentinel_password, &["SENTINEL", "replicas", "mymaster"])
            .contains(&replica.port.to_string())
    })
    .await;
    (master, replica, sentinel)
}

#[tokio::test]
async fn a_fail_over_is_followed() {
    let (mut master, replica, sentinel) = watched(None).await;
    let url = format!("redis-sentinel://127.0.0.1:{}/0?sentinelServiceName=mymaster", sentinel.port);
    let store = connect(RedisSettings { url: Secret::new(url), ..RedisSettings::default() });
    within("tracking", 5, async || store.tracking().is_some()).await;
    let mut events = store.subscribe();
    let before = store.tracking().unwrap();
    let fields = |address: &str| BTreeMap::from([("HostIP".to_owned(), address.to_owned())]);
    store.put(&id("ab"), &fields("10.0.0.1")).await.unwrap();
    event(&mut events, &StoreEvent::RecordChanged(id("ab")), 1).await;
    within("replicated", 5, async || replica.run(&["DBSIZE"]) == "1").await;
    master.kill();
    event(&mut events, &StoreEvent::TrackingLost, 3).await;
    within("a new master", 30, async || store.put(&id("ab"), &fields("10.0.0.2")).await.is_ok()).await;
    assert_eq!(replica.run(&["HGET", "cube:v1:shared:sandbox:proxy:ab", "HostIP"]), "10.0.0.2");
    within("tracking", 5, async || store.tracking().is_some_and(|session| session > before)).await;
    replica.run(&["HSET", "cube:v1:shared:sandbox:proxy:cd", "HostIP", "10.0.0.2"]);
    event(&mut events, &StoreEvent::RecordChanged(id("cd")), 1).await;
}

#[tokio::test]
async fn the_servers_password_is_not_tried_on_the_sentinels() {
    let (_master, _replica, sentinel) = watched(Some("example-sentinel")).await;
    let url = format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=mymaster", sentinel.port);
    let wrong = RedisSettings {
        url: Secret::new(url),
        password: Secret::non_empty("example-sentinel"),
        ..RedisSettings::default()
    };
    let store = connect(wrong.clone());
    assert!(store.fetch(&id("ab")).await.is_err());
    let right =
        RedisSettings { password: None, sentinel_password: Secret::non_empty("example-sentinel"), ..wrong };
    assert!(connect(right).fetch(&id("ab")).await.is_ok());
}
