//! Lookups, and a server at its worst.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use cube_metadata::{FieldValue, MetadataStore, RedisSettings, SandboxState, Status, StoreError};
use cube_settings::Secret;

use crate::server::Redis;
use crate::{connect, id, settings, within};

const FIRST: &str = "cube:v1:shared:sandbox:proxy:";
const SECOND: &str = "sandbox:proxy:";
const LEGACY: &str = "bypass_host_proxy:";
const STATE: &str = "cube:v1:shared:sandbox:lifecycle:state:";

#[tokio::test]
async fn the_first_key_that_is_not_empty_wins() {
    let redis = Redis::start(&[]);
    let store = connect(settings(&redis));
    let prefix = async || store.fetch(&id("ab")).await.unwrap().record.map(|record| record.prefix);
    assert_eq!(prefix().await, None);
    for (at, key) in [(2, LEGACY), (1, SECOND), (0, FIRST)] {
        redis.run(&["HSET", &format!("{key}ab"), "HostIP", "10.0.0.1", "8080", "49983"]);
        assert_eq!(prefix().await, Some(at));
    }
    let record = store.fetch(&id("ab")).await.unwrap().record.unwrap();
    assert_eq!(record.host_ip, FieldValue::Value("10.0.0.1".parse().unwrap()));
    assert_eq!(record.ports().len(), 1);
}

#[tokio::test]
async fn the_state_comes_with_the_record_where_it_is_followed() {
    let redis = Redis::start(&[]);
    redis.run(&["SET", &format!("{STATE}ab"), "paused"]);
    let store = connect(settings(&redis));
    let state = async || store.fetch(&id("ab")).await.unwrap().state;
    assert_eq!(state().await, Some(Status::Known(SandboxState::Paused)));
    redis.run(&["SET", &format!("{STATE}ab"), "x"]);
    assert_eq!(state().await, Some(Status::Unknown));
    redis.run(&["DEL", &format!("{STATE}ab")]);
    redis.run(&["HSET", &format!("{STATE}ab"), "not", "a string"]);
    assert_eq!(state().await, Some(Status::Unknown));
    let blind =
        cube_metadata::RedisStore::connect(settings(&redis), false, &prometheus::Registry::new()).unwrap();
    assert_eq!(blind.fetch(&id("ab")).await.unwrap().state, None);
}

#[tokio::test]
async fn an_error_on_a_higher_key_is_an_error_and_does_not_stop_other_lookups() {
    let redis = Redis::start(&[]);
    redis.run(&["SET", &format!("{FIRST}ab"), "a string"]);
    redis.run(&["HSET", &format!("{SECOND}ab"), "HostIP", "10.0.0.1"]);
    redis.run(&["HSET", &format!("{FIRST}cd"), "HostIP", "10.0.0.1"]);
    redis.run(&["SET", &format!("{SECOND}cd"), "a string"]);
    let store = connect(settings(&redis));
    let error = store.fetch(&id("ab")).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(text) if text.starts_with("WRONGTYPE")), "{error}");
    assert!(!store.failing());
    assert!(store.fetch(&id("cd")).await.unwrap().record.is_some());
}

/// What a user may not write says nothing about what it may read.
#[tokio::test]
async fn a_refused_write_names_its_command_and_leaves_lookups_alone() {
    let redis = Redis::start(&[]);
    redis.run(&["HSET", &format!("{FIRST}ab"), "HostIP", "10.0.0.1"]);
    redis.run(&["SET", &format!("{FIRST}cd"), "a string"]);
    redis.run(&[
        "ACL",
        "SETUSER",
        "cube",
        "on",
        ">example-pass",
        "~*",
        "+@all",
        "-zadd",
        "-hset",
        "-smembers",
    ]);
    let url = redis.url().replace("redis://", "redis://cube:example-pass@");
    let store = connect(RedisSettings { url: Secret::new(url), ..settings(&redis) });
    assert!(store.fetch(&id("ab")).await.unwrap().record.is_some());
    let fields = BTreeMap::from([("HostIP".to_owned(), "10.0.0.2".to_owned())]);
    for error in [
        store.put(&id("ab"), &fields).await.unwrap_err(),
        store.announce("proxy-1", "{}", 1).await.unwrap_err(),
    ] {
        let said = error.to_string();
        assert!(said.contains("NOPERM") && said.contains("(HSET)"), "{said}");
        assert!(!said.contains("10.0.0.2") && !said.contains("example-pass"), "{said}");
        assert!(!store.failing(), "{said}");
    }
    assert!(store.faulty_nodes().await.unwrap_err().to_string().contains("(SMEMBERS)"));
    assert!(!store.failing());
    assert!(store.fetch(&id("ab")).await.unwrap().record.is_some());
    redis.run(&["ACL", "SETUSER", "cube", "+hset"]);
    let said = store.put(&id("cd"), &fields).await.unwrap_err().to_string();
    assert!(said.contains("WRONGTYPE") && said.contains("(HSET)"), "{said}");
    assert!(!store.failing());
    // What lookups need tells.
    redis.run(&["ACL", "SETUSER", "cube", "-hgetall"]);
    let said = store.fetch(&id("ab")).await.unwrap_err().to_string();
    assert!(said.contains("NOPERM") && said.contains("(HGETALL)"), "{said}");
    assert!(store.failing());
}

#[tokio::test]
async fn bytes_that_are_no_text_are_malformed() {
    let redis = Redis::start(&[]);
    redis.run(&[
        "EVAL",
        "redis.call('HSET', KEYS[1], 'HostIP', '\\255', '\\254', 'x')",
        "1",
        &format!("{FIRST}ab"),
    ]);
    let record = connect(settings(&redis)).fetch(&id("ab")).await.unwrap().record.unwrap();
    assert_eq!(record.host_ip, FieldValue::Malformed);
}

#[tokio::test]
async fn faulty_nodes_are_the_addresses_of_the_set() {
    let redis = Redis::start(&[]);
    let store = connect(settings(&redis));
    assert_eq!(store.faulty_nodes().await.unwrap(), HashSet::new());
    redis.run(&["SADD", "faulty_backend_set", "10.0.0.2", "::ffff:10.0.0.3", "rubbish"]);
    let wanted = HashSet::from(["10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap()]);
    assert_eq!(store.faulty_nodes().await.unwrap(), wanted);
}

#[tokio::test]
async fn operators_list_read_write_and_remove_records() {
    let redis = Redis::start(&[]);
    let store = connect(settings(&redis));
    for number in 0..2500 {
        let fields =
            BTreeMap::from([("HostIP".to_owned(), format!("10.0.{}.{}", number / 250, number % 250))]);
        store.put(&id(&format!("s{number}")), &fields).await.unwrap();
    }
    redis.run(&["HSET", &format!("{LEGACY}s1"), "HostIP", "10.9.9.9"]);
    redis.run(&["HSET", "sandbox:proxy:not.an.id", "HostIP", "10.9.9.9"]);
    assert_eq!(store.list().await.unwrap().len(), 2500);
    store.put(&id("s1"), &BTreeMap::from([("8080".into(), "49983".into())])).await.unwrap();
    let wanted = BTreeMap::from([("8080".into(), "49983".into()), ("HostIP".into(), "10.0.0.1".into())]);
    assert_eq!(store.get(&id("s1")).await.unwrap(), Some(wanted));
    assert!(store.delete(&id("s1")).await.unwrap());
    assert!(!store.delete(&id("s1")).await.unwrap());
    assert_eq!(store.get(&id("s1")).await.unwrap(), None, "under no prefix");
}

#[tokio::test]
async fn a_replica_is_announced_and_withdrawn() {
    let redis = Redis::start(&[]);
    let store = connect(settings(&redis));
    store.announce("p1", "{}", 1_733_000_000_123).await.unwrap();
    assert_eq!(redis.run(&["HGET", "cube:v1:shared:cube_proxy:registry", "p1"]), "{}");
    assert_eq!(redis.run(&["ZSCORE", "cube:v1:shared:cube_proxy:heartbeat", "p1"]), "1733000000123");
    store.withdraw("p1").await.unwrap();
    assert_eq!(
        redis.run(&["EXISTS", "cube:v1:shared:cube_proxy:registry", "cube:v1:shared:cube_proxy:heartbeat"]),
        "0"
    );
}

#[tokio::test]
async fn the_database_of_the_url_is_used() {
    let redis = Redis::start(&[]);
    let store =
        connect(RedisSettings { url: Secret::new(format!("{}/3", redis.url())), ..RedisSettings::default() });
    store.put(&id("ab"), &BTreeMap::from([("HostIP".into(), "10.0.0.1".into())])).await.unwrap();
    assert!(store.fetch(&id("ab")).await.unwrap().record.is_some());
    let elsewhere = connect(settings(&redis));
    assert!(elsewhere.fetch(&id("ab")).await.unwrap().record.is_none());
}

#[tokio::test]
async fn a_server_that_is_absent_at_the_start_may_come_later() {
    let mut redis = Redis::absent(&[]);
    let store = connect(settings(&redis));
    let began = Instant::now();
    let error = store.fetch(&id("ab")).await.unwrap_err();
    assert_eq!(
        error,
        StoreError::Unreachable(format!("127.0.0.1:{}: Connection refused", redis.port)),
        "the server by name, and the system's words alone"
    );
    assert!(began.elapsed() < Duration::from_millis(2500));
    assert!(store.failing() && !store.has_responded());
    redis.resume_life();
    within("a reply", 1, async || store.fetch(&id("ab")).await.is_ok()).await;
    assert!(store.has_responded());
}

#[tokio::test]
async fn a_wrong_password_is_no_exit_and_the_right_one_is_taken_when_it_is_set() {
    let redis = Redis::start(&["--requirepass", "example-other"]);
    let store = connect(RedisSettings { password: Secret::non_empty("example-pass"), ..settings(&redis) });
    let error = store.fetch(&id("ab")).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(text) if text.starts_with("WRONGPASS")), "{error}");
    assert!(!store.has_responded());
    redis.run_as(Some("example-other"), &["CONFIG", "SET", "requirepass", "example-pass"]);
    within("a reply", 2, async || store.fetch(&id("ab")).await.is_ok()).await;
}

#[tokio::test]
async fn host_names_and_ipv6_addresses_are_reached() {
    let redis = Redis::start(&["--bind", "127.0.0.1", "::1"]);
    for host in ["localhost", "[::1]"] {
        let url = format!("redis://{host}:{}", redis.port);
        assert!(
            connect(RedisSettings { url: Secret::new(url), ..RedisSettings::default() })
                .fetch(&id("ab"))
                .await
                .is_ok(),
            "{host}"
        );
    }
}

#[tokio::test]
async fn a_server_that_begins_to_refuse_is_an_error_and_heals() {
    let redis = Redis::start(&[]);
    let store = connect(RedisSettings { password: Secret::non_empty("example-pass"), ..settings(&redis) });
    assert!(store.fetch(&id("ab")).await.is_ok());
    // The commands of a lookup are taken from the user that is connected.
    redis.run(&["ACL", "SETUSER", "default", "-hgetall"]);
    let error = store.fetch(&id("ab")).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(text) if text.starts_with("NOPERM")), "{error}");
    assert!(store.failing());
    redis.run(&["ACL", "SETUSER", "default", "+hgetall"]);
    within("healed", 1, async || store.fetch(&id("ab")).await.is_ok()).await;
}

/// With HGETALL and without GET no lookup succeeds: that must not look like a server that comes and goes.
#[tokio::test]
async fn a_user_who_may_not_read_states_is_refused_all_the_time() {
    let redis = Redis::start(&[]);
    redis.run(&["ACL", "SETUSER", "cube", "on", ">example-pass", "~*", "+@all", "-get"]);
    let url = redis.url().replace("redis://", "redis://cube:example-pass@");
    let store = connect(RedisSettings { url: Secret::new(url), ..settings(&redis) });
    within("failing", 5, async || store.failing()).await;
    // Several beats.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let error = store.fetch(&id("ab")).await.unwrap_err().to_string();
        assert!(error.contains("(GET)"), "{error}");
        let _ = store.faulty_nodes().await;
        assert!(store.failing() && !store.has_responded());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    redis.run(&["ACL", "SETUSER", "cube", "+get"]);
    within("healed", 2, async || store.has_responded()).await;
}

#[tokio::test]
async fn what_a_proxy_needs_and_may_not_is_found_and_nothing_is_written() {
    let redis = Redis::start(&[]);
    redis.run(&["ACL", "SETUSER", "cube", "on", ">example-pass", "~*", "+@all"]);
    let url = redis.url().replace("redis://", "redis://cube:example-pass@");
    let tried = async |registry| {
        let settings = RedisSettings { url: Secret::new(&url), ..settings(&redis) };
        connect(settings).dry_run(registry).await.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(tried(true).await, [""; 0]);
    assert_eq!(redis.run(&["DBSIZE"]), redis.run(&["EVAL", "return 0", "0"]), "nothing was written");
    for (rights, lacks, registry) in [
        ("hgetall", "(HGETALL)", false),
        ("get", "(GET)", false),
        ("client|tracking", "tracking", false),
        ("hset", "(HSET)", true),
        ("zadd", "(ZADD)", true),
        ("zrem", "(ZREM)", true),
    ] {
        redis.run(&["ACL", "SETUSER", "cube", &format!("-{rights}")]);
        let faults = tried(true).await;
        assert!(faults.iter().any(|fault| fault.contains("NOPERM") && fault.contains(lacks)), "{faults:?}");
        assert_eq!(tried(false).await.is_empty(), registry, "{rights}");
        redis.run(&["ACL", "SETUSER", "cube", &format!("+{rights}")]);
    }
}

#[tokio::test]
async fn a_refused_connection_is_the_reason_for_as_long_as_there_is_none() {
    let mut redis = Redis::start(&[]);
    let timeout = Duration::from_millis(100);
    let store = connect(RedisSettings { command_timeout: timeout, ..settings(&redis) });
    store.fetch(&id("ab")).await.unwrap();
    redis.kill();
    let refused = async || store.fetch(&id("ab")).await.is_err_and(|e| e.to_string().contains("refused"));
    within("refused", 5, refused).await;
    let begun = Instant::now();
    while begun.elapsed() < 15 * timeout {
        assert!(refused().await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn an_acl_user_is_let_in() {
    let redis = Redis::start(&[]);
    redis.run(&["ACL", "SETUSER", "cube", "on", ">example-pass", "~*", "+@all"]);
    redis.run(&["CONFIG", "SET", "requirepass", "example-other"]);
    let url = format!("redis://cube:example-pass@127.0.0.1:{}", redis.port);
    let store = connect(RedisSettings { url: Secret::new(url), ..RedisSettings::default() });
    assert!(store.fetch(&id("ab")).await.is_ok());
}

#[tokio::test]
async fn a_killed_server_fails_at_once_and_heals_within_a_second_of_its_return() {
    let mut redis = Redis::start(&[]);
    let store = connect(settings(&redis));
    store.fetch(&id("ab")).await.unwrap();
    redis.kill();
    let began = Instant::now();
    assert!(store.fetch(&id("ab")).await.is_err());
    assert!(began.elapsed() < Duration::from_millis(2500), "{:?}", began.elapsed());
    within("failing", 2, async || store.failing()).await;
    let began = Instant::now();
    for _ in 0..1000 {
        assert!(store.fetch(&id("ab")).await.is_err());
    }
    assert!(began.elapsed() < Duration::from_millis(500), "nobody is asked while it fails");
    redis.resume_life();
    within("healed", 1, async || store.fetch(&id("ab")).await.is_ok()).await;
}

#[tokio::test]
async fn a_frozen_server_costs_no_lookup_more_than_its_bound() {
    let redis = Redis::start(&[]);
    let store = connect(settings(&redis));
    store.fetch(&id("ab")).await.unwrap();
    redis.freeze(true);
    let began = Instant::now();
    let error = store.fetch(&id("ab")).await.unwrap_err();
    assert_eq!(error, StoreError::TimeoutAt(format!("127.0.0.1:{}", redis.port)));
    assert!(began.elapsed() < Duration::from_millis(2600), "{:?}", began.elapsed());
    // Long enough for the connection to be given up, too.
    within("untracked", 5, async || store.tracking().is_none()).await;
    assert!(store.failing());
    redis.freeze(false);
    within("healed", 1, async || store.fetch(&id("ab")).await.is_ok()).await;
    within("tracking again", 2, async || store.tracking().is_some()).await;
}
