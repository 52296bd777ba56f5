//! Replacing a process that a service manager holds, or that a container is tied to (operations.md,
//! "systemd and upgrades"). `just systemd` does the same under a real one.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cube_testkit::serde_json::json;
use cube_testkit::{Env, Origin};

use crate::hot_restart::successor;
use crate::support::{binary, builder, cannot};

/// A managed proxy, started through a link that can be pointed at another program.
async fn managed() -> Env {
    let builder = builder(&json!({})).managed();
    let link = builder.directory().join("cube-proxy");
    std::os::unix::fs::symlink(binary(), &link).unwrap();
    Env::start_with(builder.binary(&link)).await
}

fn executable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    parent.trim().parse().unwrap()
}

/// systemd waits at a stop for a main process that is its child, and learns of its end. It looks
/// once: when the process is announced.
#[tokio::test]
async fn a_successor_is_no_child_of_the_process_that_started_it() {
    let env = managed().await;
    let origin = Origin::scripted(cube_testkit::scripts::hang).await;
    let sandbox = env.sandbox(&origin).await;
    let host = sandbox.host();
    // A request under way keeps the first process, which would else lose its children by ending.
    let mut open = env.client().await;
    open.request("GET", "/", &[("Host", &host)]).await;
    origin.wait_for(1).await;
    let first = env.proxy.id();
    let mut before = vec![first];
    for _ in 0..2 {
        env.proxy.upgrade().await;
        let main = env.proxy.service().main_pid().unwrap();
        assert!(!before.contains(&parent(main)), "{main} is a child of a process that it took over from");
        before.push(main);
    }
    assert!(Path::new(&format!("/proc/{first}")).exists(), "it serves its request still");
}

/// What a successor says, the last of it late.
const LATE: &str = r#"
say(say="upgrade", protocol=1, version="9")
assert heard() == "sockets"
say(say="ready")
while heard() != "known":
    pass
say(say="taken")
assert heard() == "begin"
say(say="serving")
time.sleep(2)
say(say="settled")
"#;

/// An idle process is at its end as soon as its successor serves, long before that one has settled.
#[tokio::test]
async fn who_asked_hears_that_it_succeeded_from_a_process_that_has_nothing_more_to_do() {
    let env = managed().await;
    let directory = env.proxy.directory();
    let script = directory.join("late");
    executable(&script, &successor(&directory.join("upgrade.sock"), LATE));
    env.proxy.swap_binary(&directory.join("cube-proxy"), &script);
    let asked = env.proxy.ask_upgrade_of(&binary()).await;
    assert!(asked.status.success(), "{asked:?}\n{}", env.proxy.output());
    assert!(asked.output.contains("has taken over from"), "{asked:?}");
}

#[tokio::test]
async fn process_1_of_a_container_does_not_hand_over() {
    let allowed = std::process::Command::new("unshare").args(["-rpf", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return cannot("unshare -rpf is not allowed");
    }
    let builder = builder(&json!({}));
    let script = builder.directory().join("contained");
    executable(&script, &format!("#!/bin/sh\nexec unshare -rpf --kill-child {} \"$@\"\n", binary()));
    let env = Env::start_with(builder.binary(&script)).await;
    assert_eq!(env.proxy.pid(), Some(1));
    let asked = env.proxy.ask_upgrade_of(&binary()).await;
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    for words in ["process 1 of its container", "Start another container"] {
        assert!(asked.output.contains(words), "{asked:?}");
    }
    let origin = Origin::echo().await;
    let sandbox = env.sandbox(&origin).await;
    env.get(&sandbox, "/").await.passed(200);
}
