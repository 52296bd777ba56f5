//! A successor that hangs when the sockets are all but its own (operations.md, "Hot
//! restart": whatever becomes of the successor, the old process serves on).

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use cube_testkit::rustix::process::{Pid, Signal, kill_process, test_kill_process};
use cube_testkit::serde_json::json;
use cube_testkit::{Env, Origin, eventually, within};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::hot_restart::successor;
use crate::support::{A_SECOND, binary, own};

/// Says all that a successor says up to where it was told to hang, and nothing after.
const HANGS: &str = r#"
say(say="upgrade", protocol=1, version="9\nforged line")
assert heard() == "sockets"
say(say="ready")
while heard() != "known":
    pass
if sys.argv[1] == "unlearned":
    print("told all", flush=True)
    time.sleep(60)
if sys.argv[1] == "refused":
    say(say="nonsense")
    while heard() != "refused":
        pass
    print("refused", flush=True)
    time.sleep(60)
say(say="taken")
assert heard() == "begin"
print("told to begin", flush=True)
time.sleep(60)
"#;

/// A successor that hangs, and has said `last` before.
async fn hangs(env: &Env, point: &str, last: &str) -> Child {
    let mut hangs = Command::new("python3")
        .args(["-c", &successor(&env.proxy.directory().join("upgrade.sock"), HANGS)])
        .arg(point)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(hangs.stdout.take().unwrap()).lines();
    let word = within("its last word", said.next_line()).await.unwrap();
    assert_eq!(word.as_deref(), Some(last));
    hangs
}

#[tokio::test]
async fn a_successor_that_was_told_to_begin_and_hangs_is_ended_and_the_old_process_serves_on() {
    let env = own(json!({})).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    let mut hangs = hangs(&env, "begun", "told to begin").await;
    env.get(&sandbox, "/").await.passed(200);
    let ended = within("its end", hangs.wait()).await.unwrap();
    assert_eq!(ended.signal(), Some(9));
    env.proxy.output_line(&["was ended"]).await;
    env.get(&sandbox, "/").await.passed(200);
    assert!(!env.proxy.output().lines().any(|line| line.starts_with("forged line")));
    // The next one takes over.
    env.proxy.upgrade().await;
    env.get(&sandbox, "/").await.passed(200);
}

/// Prometheus waits 10 s at most; the old process gives a successor as long for learning.
#[tokio::test]
async fn a_scrape_does_not_wait_for_a_successor_that_hangs() {
    let env = own(json!({})).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    env.get(&sandbox, "/").await.passed(200);
    let _hangs = hangs(&env, "unlearned", "told all").await;
    let metrics = timeout(2 * A_SECOND, env.proxy.metrics()).await.expect("a scrape in time");
    assert_eq!(metrics.sum("cube_proxy_request_total", &[]), 1.0);
    assert_eq!(env.proxy.probe("/readyz").await, Some(200));
}

/// It has a copy of the listening sockets.
#[tokio::test]
async fn a_successor_that_was_refused_and_does_not_end_is_ended() {
    let env = own(json!({})).await;
    let mut hangs = hangs(&env, "refused", "refused").await;
    let ended = within("its end", hangs.wait()).await.unwrap();
    assert_eq!(ended.signal(), Some(9));
    env.proxy.upgrade().await;
}

/// A stop is a stop, whatever a successor does at that moment.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_successor_that_hangs() {
    for (point, last) in [("unlearned", "told all"), ("begun", "told to begin")] {
        let env = own(json!({ "drain": { "delay": "30s" } })).await;
        let mut hangs = hangs(&env, point, last).await;
        env.proxy.signal(Signal::TERM);
        timeout(2 * A_SECOND, async {
            while env.proxy.probe("/readyz").await == Some(200) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("not ready in time");
        within("its end", hangs.wait()).await.unwrap();
    }
}

fn lives(pid: Pid) -> bool {
    // One that has ended and that nobody has taken note of is there, too.
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    test_kill_process(pid).is_ok()
        && std::fs::read_to_string(Path::new(&path)).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The process between a proxy and its successor under a service manager: a successor that is let go
/// lives; one that is not has nobody who expects it.
#[tokio::test]
async fn a_launcher_that_nobody_waits_for_ends_what_it_started() {
    for go in [true, false] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut launcher = Command::new(binary())
            .arg0("cube-proxy-launcher")
            .args(["sleep", "60"])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        let ours = tokio::net::UnixStream::from_std(ours).unwrap();
        let mut told = BufReader::new(ours).lines();
        let line = within("the start", told.next_line()).await.unwrap().unwrap();
        let pid = line.strip_prefix("started ").and_then(|pid| Pid::from_raw(pid.parse().unwrap())).unwrap();
        assert!(lives(pid));
        if go {
            told.get_ref().get_ref().try_write(b"go\n").unwrap();
            assert!(within("its end", launcher.wait()).await.unwrap().success());
            assert!(lives(pid));
            kill_process(pid, Signal::KILL).unwrap();
        } else {
            drop(told);
            within("its end", launcher.wait()).await.unwrap();
            eventually("the end of what it started", || async { (!lives(pid)).then_some(()) }).await;
        }
    }
}
