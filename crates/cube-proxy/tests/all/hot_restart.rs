//! Replacing the running process (operations.md, "Hot restart"; lifecycle.md, "Across a hot restart";
//! connections.md, Draining).

use std::time::Duration;

use cube_testkit::rustix::process::Signal;
use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{
    BlackHole, Client, Env, Exchange, Origin, Reply, Sandbox, eventually, never, scripts, unique_id,
};

use crate::support::{own, with_tls};

/// Sends back what comes in, as it comes; a GET is echoed.
pub(crate) async fn mirror(exchange: Exchange) -> cube_testkit::ExchangeResult {
    if exchange.request.method == "GET" {
        scripts::echo(exchange).await
    } else {
        scripts::mirror(exchange).await
    }
}

/// How a scripted successor begins: `say` and `heard` are its end of the conversation.
const SUCCESSOR: &str = r#"#!/usr/bin/env python3
import json, socket, struct, sys, time
link = socket.socket(socket.AF_UNIX)
link.connect("@SOCKET@")
def say(**word):
    text = json.dumps(word).encode()
    link.sendall(struct.pack(">I", len(text)) + text)
def read(size):
    taken = b""
    while len(taken) < size:
        piece = link.recv(size - len(taken))
        assert piece
        taken += piece
    return taken
def heard():
    return json.loads(read(struct.unpack(">I", read(4))[0]))["say"]
"#;

/// The Python text of a successor that talks to the process at `socket`, and does what `then` says.
pub(crate) fn successor(socket: &std::path::Path, then: &str) -> String {
    SUCCESSOR.replace("@SOCKET@", &socket.to_string_lossy()) + then
}

/// A stream through the proxy, both ways.
pub(crate) struct Stream(Client);

impl Stream {
    pub(crate) async fn open(env: &Env, sandbox: &Sandbox) -> Self {
        let mut client = env.client().await;
        let host = sandbox.host();
        client.request("POST", "/", &[("Host", &host), ("Transfer-Encoding", "chunked")]).await;
        assert_eq!(client.head().await.status, 200);
        let mut stream = Self(client);
        stream.moves().await;
        stream
    }

    /// A piece goes there and comes back.
    pub(crate) async fn moves(&mut self) {
        self.0.chunk("tick").await;
        assert_eq!(self.0.next_chunk().await, b"tick");
    }

    pub(crate) async fn end(mut self) {
        self.0.send("0\r\n\r\n").await;
        assert!(self.0.next_chunk().await.is_empty());
    }

    /// It breaks within the second that the contract gives.
    pub(crate) async fn cut(mut self) {
        let cut = tokio::time::timeout(Duration::from_secs(3), self.0.wire().chunk()).await;
        assert!(cut.expect("the stream to end").is_err(), "a cut stream has no clean end");
    }
}

async fn list(env: &Env, since: u64) -> Value {
    let response = env.proxy.admin("GET", &format!("/admin/last_active?since={since}"), "").await;
    serde_json::from_slice(&response.body).unwrap()
}

async fn asks(client: &mut Client, sandbox: &Sandbox) -> cube_testkit::Response {
    client.call("GET", "/", &[("Host", &sandbox.host())], "").await
}

#[tokio::test]
async fn what_was_pushed_to_the_old_process_holds_in_the_new_one() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let (paused, killed, used) =
        (env.sandbox(&origin).await, env.sandbox(&origin).await, env.sandbox(&origin).await);
    env.push(&paused, "paused").await;
    env.push(&killed, "killed").await;
    let body = json!({ "sandbox_id": paused.id, "auto_resume": false }).to_string();
    env.proxy.admin("POST", "/admin/meta/upsert", &body).await;
    env.get(&used, "/").await.passed(200);
    let listed = list(&env, 0).await;
    assert!(listed["entries"][&used.id].is_u64());
    let old = env.proxy.id();
    env.proxy.upgrade().await;
    assert_ne!(env.proxy.id(), old);
    env.proxy.old_ended(0).await;

    env.get(&paused, "/").await.is_own(503, 310_503, r#"{"error":"service unavailable"}"#);
    env.get(&killed, "/").await.is_own(410, 310_410, r#"{"error":"gone"}"#);
    let route = env.proxy.admin("GET", &format!("/admin/routes/{}", paused.id), "").await;
    let route: Value = serde_json::from_slice(&route.body).unwrap();
    assert_eq!((&route["state"], &route["auto_resume"]), (&json!("paused"), &json!(false)));
    // Who goes on asking from where the old process was misses nothing and gets nothing twice.
    assert_eq!(list(&env, 0).await["entries"][&used.id], listed["entries"][&used.id]);
    let since = listed["now"].as_u64().unwrap();
    assert_eq!(list(&env, since).await["entries"], json!({}));
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    env.get(&used, "/").await.passed(200);
    assert!(list(&env, since).await["entries"][&used.id].as_u64().unwrap() > since);
    // The sandbox wakes, and that is told to the new one.
    env.push(&paused, "running").await;
    env.get(&paused, "/").await.passed(200);
}

#[tokio::test]
async fn a_stream_in_an_old_process_stays_in_the_hands_of_the_new_one() {
    let env = own(json!({})).await;
    let origin = Origin::scripted(mirror).await;
    let (living, killed) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let mut stream = Stream::open(&env, &living).await;
    let doomed = Stream::open(&env, &killed).await;
    // Two upgrades: the first process is linked to the second, then to the third.
    for _ in 0..2 {
        env.proxy.upgrade().await;
    }
    env.proxy.old_ended(1).await;
    let begun = list(&env, 0).await["now"].as_u64().unwrap();
    // Stamps are made every five seconds while bytes move.
    let fresh = async {
        loop {
            stream.moves().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            if list(&env, begun).await["entries"].get(&living.id).is_some() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), fresh).await.expect("a stamp at the new process");
    env.push(&killed, "killed").await;
    doomed.cut().await;
    stream.moves().await;
    let body = json!({ "sandbox_id": living.id }).to_string();
    env.proxy.admin("POST", "/admin/meta/delete", &body).await;
    stream.cut().await;
    env.proxy.old_ended(0).await;
}

#[tokio::test]
async fn a_sandbox_that_is_paused_later_is_gated_in_the_old_process_too() {
    let tls = with_tls(&json!({})).await;
    let env = &tls.env;
    let origin = Origin::scripted(mirror).await;
    let (busy, other) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    // The stream keeps the connection, and so the old process.
    let client = tls.h2().await;
    let mut stream = client.open("POST", &busy.host(), "/", &[]).await;
    client.get(&other.host(), "/", &[]).await.passed(200);
    env.proxy.upgrade().await;
    client.get(&other.host(), "/", &[]).await.passed(200);
    env.push(&other, "paused").await;
    let refused = client.get(&other.host(), "/", &[]).await;
    assert_eq!((refused.status, refused.retcode()), (503, Some(310_503)));
    env.push(&other, "running").await;
    client.get(&other.host(), "/", &[]).await.passed(200);
    assert_eq!(env.proxy.old_processes(), 1);
    stream.data("", true).await.unwrap();
    stream.response().await.passed(200);
    // Idle now, so it is told to go, and the process with it.
    env.proxy.old_ended(0).await;
}

#[tokio::test]
async fn an_idle_connection_is_kept_for_one_more_request() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let mut idle = env.client().await;
    asks(&mut idle, &sandbox).await.passed(200);
    let mut fresh = env.client().await;
    // Accepted by the old process.
    eventually("two connections", || async {
        (env.proxy.metrics().await.sum("cube_proxy_client_connections", &[]) == 2.0).then_some(())
    })
    .await;
    env.proxy.upgrade().await;
    assert_eq!(env.proxy.old_processes(), 1);
    for client in [&mut idle, &mut fresh] {
        let response = asks(client, &sandbox).await;
        response.passed(200);
        assert_eq!(response.headers.get("connection"), Some("close"));
        assert!(client.ended().await);
    }
    env.proxy.old_ended(0).await;
}

#[tokio::test]
async fn an_idle_connection_is_kept_as_long_as_ever() {
    let env = own(json!({ "limits": { "keepalive_idle": "2s" } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let mut idle = env.client().await;
    asks(&mut idle, &sandbox).await.passed(200);
    env.proxy.upgrade().await;
    assert!(idle.ended().await);
    env.proxy.old_ended(0).await;
}

#[tokio::test]
async fn the_time_of_old_streams_is_bounded() {
    let env = own(json!({ "drain": { "timeout": "1s" } })).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    stream.cut().await;
    env.proxy.old_ended(0).await;
}

#[tokio::test]
async fn the_admin_api_over_an_old_connection_is_the_new_processs() {
    let env = own(json!({})).await;
    let origin = Origin::scripted(mirror).await;
    let (living, other) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let mut stream = Stream::open(&env, &living).await;
    let local = [("Host", "127.0.0.1")];
    let mut admin = Client::connect(env.proxy.admin_address()).await;
    let mut probe = Client::connect(env.proxy.admin_address()).await;
    let health: Value =
        serde_json::from_slice(&admin.call("GET", "/admin/healthz", &local, "").await.body).unwrap();
    assert_eq!(health["pid"], env.proxy.id());
    probe.call("GET", "/healthz", &local, "").await;
    env.proxy.upgrade().await;
    let body = json!({ "sandbox_id": other.id, "state": "paused" }).to_string();
    let pushed = admin.call("POST", "/admin/state", &local, &body).await;
    assert_eq!((pushed.status, pushed.text().as_str()), (200, r#"{"ok":true}"#));
    assert_eq!(pushed.headers.get("connection"), Some("close"));
    assert_eq!(env.get(&other, "/").await.status, 503);
    // The replica is ready, whoever is asked.
    assert_eq!(probe.call("GET", "/readyz", &local, "").await.status, 200);
    stream.moves().await;
    stream.end().await;
    env.proxy.old_ended(0).await;
}

/// Calls of the manager, one after the other, over upgrades of a proxy that has nothing else to do
/// and so ends at once: they wait, and none is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_the_admin_api_wait_for_the_hand_over() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let body = json!({ "sandbox_id": sandbox.id, "state": "running" }).to_string();
    let local = [("Host", "127.0.0.1"), ("Content-Type", "application/json")];
    let address = env.proxy.admin_address();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (body, stopped) = (body.clone(), stopped.clone());
            tokio::spawn(async move {
                let mut calls = 0;
                while !*stopped.borrow() {
                    let mut client = Client::connect(address).await;
                    let response = client.call("POST", "/admin/state", &local, &body).await;
                    assert_eq!((response.status, response.text().as_str()), (200, r#"{"ok":true}"#));
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    for left in [0; 8] {
        env.proxy.upgrade().await;
        env.proxy.old_ended(left).await;
    }
    stop.send_replace(true);
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }
}

#[tokio::test]
async fn the_admin_token_is_asked_for_before_and_after() {
    let env = own(json!({ "admin": { "token": "example-admin-token" } })).await;
    for _ in 0..2 {
        let mut stranger = Client::connect(env.proxy.admin_address()).await;
        let refused = stranger.call("GET", "/admin/healthz", &[("Host", "127.0.0.1")], "").await;
        assert_eq!(refused.status, 403);
        assert_eq!(env.proxy.admin("GET", "/admin/healthz", "").await.status, 200);
        env.proxy.upgrade().await;
    }
}

#[tokio::test]
async fn stopping_the_new_process_ends_the_old_ones_in_time() {
    let env = own(json!({ "drain": { "delay": "100ms", "stop_timeout": "1s" } })).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let mut stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    // Linked, so that it hears of the stop.
    env.proxy.output_line(&["linked to a draining process"]).await;
    env.proxy.terminate();
    stream.moves().await;
    assert!(env.proxy.lives(), "it waits for the streams of the old process");
    stream.cut().await;
    env.proxy.old_ended(0).await;
    assert!(env.proxy.ended().await.success());
}

#[tokio::test]
async fn a_second_signal_ends_old_processes_at_once() {
    let env = own(json!({})).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    env.proxy.output_line(&["linked to a draining process"]).await;
    // Two signals at the same moment would be one.
    env.proxy.terminate();
    env.proxy.output_line(&["shutdown: draining"]).await;
    env.proxy.terminate();
    stream.cut().await;
    env.proxy.old_ended(0).await;
    assert!(env.proxy.ended().await.success());
}

#[tokio::test]
async fn an_old_process_can_be_ended_by_itself() {
    let env = own(json!({ "drain": { "delay": "0s" } })).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    env.proxy.terminate_old();
    env.proxy.output_line(&["this draining process was asked to stop"]).await;
    env.proxy.terminate_old();
    stream.cut().await;
    env.proxy.old_ended(0).await;
    env.get(&sandbox, "/").await.passed(200);
}

#[tokio::test]
async fn the_access_log_is_opened_anew_by_all() {
    let env = own(json!({})).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    env.proxy.output_line(&["linked to a draining process"]).await;
    let log = env.proxy.directory().join("access.log");
    std::fs::rename(&log, env.proxy.directory().join("access.log.1")).unwrap();
    env.proxy.signal(Signal::USR1);
    // Both made it: the old process's line is in the new file.
    eventually("a new file", || async { log.exists().then_some(()) }).await;
    eventually("the old process to have opened it", || async {
        let open = |name: &str| env.proxy.old_files().iter().any(|file| file == name);
        open(&log.to_string_lossy()).then_some(())
    })
    .await;
    stream.end().await;
    eventually("its line", || async { env.proxy.access_log().contains(&sandbox.id).then_some(()) }).await;
    env.proxy.old_ended(0).await;
}

#[tokio::test]
async fn the_registry_row_stays_and_goes_with_the_last_process() {
    let name = unique_id("proxy-");
    let env = own(json!({
        "registry": { "enabled": true, "proxy_id": name, "interval": "200ms" }, "drain": { "delay": "0s" },
    }))
    .await;
    let row = async || match env.redis.command(&["HGET", "cube:v1:shared:cube_proxy:registry", &name]).await {
        Reply::Text(row) => Some(String::from_utf8(row).unwrap()),
        _ => None,
    };
    let first = eventually("a row", row).await;
    let watched = async {
        loop {
            assert!(row().await.is_some(), "the row was away");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let upgraded = async {
        env.proxy.upgrade().await;
        env.proxy.old_ended(0).await;
        eventually("the row of the new process", || async { row().await.filter(|row| *row != first) }).await;
    };
    tokio::select! {
        () = watched => {}
        () = upgraded => {}
    }
    env.proxy.terminate();
    assert!(env.proxy.ended().await.success());
    assert_eq!(row().await, None);
}

#[tokio::test]
async fn listeners_may_come_and_go() {
    let mut env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let (old, admin) = (env.proxy.http(), env.proxy.admin_address());
    let added = format!("127.0.0.1:{}", cube_testkit::free_port("127.0.0.1"));
    env.proxy.configure_next(&json!({ "listen": { "http": [added] } }));
    env.proxy.upgrade().await;
    env.get(&sandbox, "/").await.passed(200);
    assert_ne!(env.proxy.http(), old);
    eventually("the old listener to close", || async {
        tokio::net::TcpStream::connect(old).await.is_err().then_some(())
    })
    .await;
    // An address that meets one of the running process cannot be had.
    let wide = format!("0.0.0.0:{}", admin.port());
    env.proxy
        .configure_next(&json!({ "listen": { "admin": wide }, "admin": { "token": "example-admin-token" } }));
    let asked = env.proxy.ask_upgrade().await;
    assert_eq!(asked.status.code(), Some(1));
    assert!(asked.output.contains("needs a restart"), "{}", asked.output);
    env.get(&sandbox, "/").await.passed(200);
}

/// That nothing has become of an attempt.
async fn serves_on(env: &Env, sandbox: &Sandbox, pid: u32) {
    assert_eq!((env.proxy.pid(), env.proxy.lives()), (Some(pid), true));
    env.get(sandbox, "/").await.passed(200);
    // The admin API is open, too.
    env.push(sandbox, "paused").await;
    assert_eq!(env.get(sandbox, "/").await.status, 503);
    env.push(sandbox, "running").await;
    let files = std::fs::read_dir(env.proxy.directory()).unwrap();
    let left: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("upgrade.sock.")), "{left:?}");
}

#[tokio::test]
async fn a_new_process_that_fails_leaves_the_old_one_serving() {
    let mut env = own(json!({ "drain": { "upgrade_timeout": "1s" } })).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let pid = env.proxy.id();
    // Its configuration does not hold.
    env.proxy.write_config_text("no_such_key: 1\n");
    let asked = env.proxy.ask_upgrade().await;
    assert_eq!(asked.status.code(), Some(64));
    assert!(asked.output.contains("no_such_key"), "{}", asked.output);
    serves_on(&env, &sandbox, pid).await;
    // It never gets ready: its store takes connections and says nothing.
    let hole = BlackHole::open("127.0.0.1").await;
    let store = env.redis.url();
    env.proxy
        .configure_next(&json!({ "store": { "redis": { "url": format!("redis://{}", hole.address()) } } }));
    let asked = env.proxy.ask_upgrade().await;
    assert_eq!(asked.status.code(), Some(1));
    assert!(asked.output.contains("drain.upgrade_timeout"), "{}", asked.output);
    serves_on(&env, &sandbox, pid).await;
    // It is killed before it is ready.
    let attempt = env.proxy.begin_upgrade();
    eventually("another attempt", || async {
        (env.proxy.output().matches("an upgrade begins").count() == 2).then_some(())
    })
    .await;
    drop(attempt);
    eventually("the attempt to be given up", || async {
        (env.proxy.output().matches("serves on").count() >= 2).then_some(())
    })
    .await;
    serves_on(&env, &sandbox, pid).await;
    // And one that works still does.
    env.proxy.configure_next(&json!({ "store": { "redis": { "url": store } } }));
    env.proxy.upgrade().await;
    env.proxy.old_ended(0).await;
    env.get(&sandbox, "/").await.passed(200);
}

#[tokio::test]
async fn a_run_directory_that_was_emptied_is_put_right() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    let socket = env.proxy.directory().join("upgrade.sock");
    for _ in 0..2 {
        std::fs::remove_file(env.proxy.directory().join("cube-proxy.pid")).unwrap();
        std::fs::remove_file(&socket).unwrap();
        eventually("both to be there again", || async {
            (socket.exists() && env.proxy.pid() == Some(env.proxy.id())).then_some(())
        })
        .await;
        // By a successor, too.
        env.proxy.upgrade().await;
    }
    env.get(&sandbox, "/").await.passed(200);
}

#[tokio::test]
async fn one_upgrade_at_a_time_and_only_of_a_running_process() {
    let mut env = own(json!({})).await;
    let pid = env.proxy.id();
    let hole = BlackHole::open("127.0.0.1").await;
    env.proxy
        .configure_next(&json!({ "store": { "redis": { "url": format!("redis://{}", hole.address()) } } }));
    let attempt = env.proxy.begin_upgrade();
    env.proxy.output_line(&["an upgrade begins"]).await;
    let asked = env.proxy.ask_upgrade().await;
    assert_eq!(asked.status.code(), Some(1));
    assert!(asked.output.contains("another upgrade"), "{}", asked.output);
    // Stopping is stronger.
    env.proxy.terminate();
    let ended = attempt.ended().await;
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.output.contains("is being stopped"), "{ended:?}");
    let asked = env.proxy.ask_upgrade().await;
    assert!(asked.output.contains("is being stopped"), "{}", asked.output);
    env.proxy.terminate();
    assert!(env.proxy.ended().await.success());
    assert_eq!(env.proxy.pid(), None, "{pid} has ended");
    let asked = env.proxy.ask_upgrade().await;
    assert_eq!(asked.status.code(), Some(1));
    assert!(asked.output.contains("no process serves from"), "{}", asked.output);
}

#[tokio::test]
async fn sigquit_alone_does_nothing() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.proxy.signal(Signal::QUIT);
    env.proxy.output_line(&["SIGQUIT"]).await;
    env.get(&sandbox, "/").await.passed(200);
    assert_eq!(env.proxy.probe("/readyz").await, Some(200));
}

#[tokio::test]
async fn under_a_service_manager_the_running_process_starts_its_successor() {
    let builder = crate::support::builder(&json!({ "drain": { "upgrade_timeout": "2s" } })).managed();
    let link = builder.directory().join("cube-proxy");
    std::os::unix::fs::symlink(crate::support::binary(), &link).unwrap();
    let mut env = Env::start_with(builder.binary(&link).environment("WATCHDOG_USEC", "400000")).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let mut stream = Stream::open(&env, &sandbox).await;
    let told =
        |env: &Env, what: &str| env.proxy.service().told().iter().filter(|text| text.contains(what)).count();
    eventually("readiness", || async { (told(&env, "READY=1") == 1).then_some(()) }).await;
    eventually("signs of life", || async { (told(&env, "WATCHDOG=1") >= 2).then_some(()) }).await;
    assert_eq!(env.proxy.service().main_pid(), None);

    // What fails is told to who asked, with the exit code of the new process.
    let pid = env.proxy.id();
    env.proxy.write_config_text("no_such_key: 1\n");
    assert_eq!(env.proxy.ask_upgrade().await.status.code(), Some(64));
    env.proxy.configure_next(&json!({}));
    env.proxy.swap_binary(&link, std::path::Path::new("/bin/false"));
    let asked = env.proxy.ask_upgrade_of(&crate::support::binary()).await;
    assert_eq!(asked.status.code(), Some(1));
    assert!(asked.output.contains("ended before it was ready"), "{}", asked.output);
    let script = env.proxy.directory().join("bad-configuration");
    std::fs::write(&script, "#!/bin/sh\nexit 64\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    env.proxy.swap_binary(&link, &script);
    assert_eq!(env.proxy.ask_upgrade_of(&crate::support::binary()).await.status.code(), Some(64));
    // One that does not even ask for the sockets.
    env.proxy.swap_binary(&link, std::path::Path::new("/usr/bin/yes"));
    let asked = env.proxy.ask_upgrade_of(&crate::support::binary()).await;
    assert_eq!(asked.status.code(), Some(1));
    serves_on(&env, &sandbox, pid).await;
    assert_eq!(env.proxy.service().main_pid(), None);

    // The file of the running program has been replaced by now.
    env.proxy.swap_binary(&link, std::path::Path::new(&crate::support::binary()));
    for _ in 0..2 {
        env.proxy.upgrade().await;
        assert_eq!(env.proxy.pid(), env.proxy.service().main_pid());
        assert_ne!(env.proxy.pid(), Some(pid));
    }
    stream.moves().await;
    env.get(&sandbox, "/").await.passed(200);
    // The main process answers the watchdog, and nobody else would hide its silence.
    let before = told(&env, "WATCHDOG=1");
    eventually("signs of life", || async { (told(&env, "WATCHDOG=1") > before + 1).then_some(()) }).await;
    env.proxy.signal(Signal::STOP);
    let before = eventually("silence", || async {
        let seen = told(&env, "WATCHDOG=1");
        tokio::time::sleep(Duration::from_millis(300)).await;
        (told(&env, "WATCHDOG=1") == seen).then_some(seen)
    })
    .await;
    never("a sign of life of an old process", Duration::from_secs(1), || told(&env, "WATCHDOG=1") > before)
        .await;
    env.proxy.signal(Signal::CONT);
    env.proxy.terminate();
    eventually("the end to be told", || async { (told(&env, "STOPPING=1") == 1).then_some(()) }).await;
    stream.end().await;
    env.proxy.old_ended(0).await;
    env.proxy.terminate();
    env.proxy.ended().await;
}

#[tokio::test]
async fn neither_a_process_nor_its_successor_has_huge_pages() {
    let env = own(json!({})).await;
    assert_ne!(env.proxy.has_huge_pages(), Some(true));
    env.proxy.upgrade().await;
    assert_ne!(env.proxy.has_huge_pages(), Some(true), "the successor");
}
