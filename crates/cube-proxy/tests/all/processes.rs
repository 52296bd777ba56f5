//! The processes that drain after a hot restart are not invisible (fleet.md, "Processes that
//! drain"): listed, counted, and ended by request.

use std::collections::BTreeMap;

use cube_testkit::rustix::process::{Pid, Signal, kill_process};
use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{Client, Env, Metrics, Origin, Sandbox, eventually};

use crate::hot_restart::{Stream, mirror};
use crate::support::own;
use crate::tools::run;

async fn told(env: &Env) -> Value {
    let response = env.proxy.admin("GET", "/admin/processes", "").await;
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

/// What is listed of the one process that drains, once it has reported that it has `streams`.
async fn draining(env: &Env, streams: u64) -> Value {
    eventually("one draining process", || async {
        let told = told(env).await;
        let processes = told["processes"].as_array().unwrap();
        // A deadline says that it has linked; before, it is what the old process said of itself.
        let said = processes.len() == 1 && processes[0]["deadline"].is_u64();
        (said && processes[0]["streams"] == streams).then(|| processes[0].clone())
    })
    .await
}

fn signal(process: &Value, signal: Signal) {
    let pid = i32::try_from(process["pid"].as_u64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

async fn end(env: &Env, pid: &Value) -> (u16, String) {
    let response = env.proxy.admin("POST", &format!("/admin/processes/{pid}/end"), "").await;
    (response.status, response.text())
}

/// Everything that only rises, looked at again and again.
#[derive(Default)]
struct Counters(BTreeMap<String, f64>);

impl Counters {
    fn see(&mut self, metrics: &Metrics, when: &str) {
        let rises = ["_total", "_bucket", "_count", "_sum"];
        let mut seen = 0;
        for (name, labels, value) in metrics.samples() {
            if !rises.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            let known = self.0.entry(format!("{name} {labels:?}")).or_default();
            assert!(value >= *known, "{name} {labels:?} fell from {known} to {value} {when}");
            *known = value;
            seen += 1;
        }
        assert!(self.0.len() <= seen, "series are missing {when}");
    }
}

fn requests(metrics: &Metrics) -> f64 {
    metrics.sum("cube_proxy_request_total", &[])
}

async fn counted(env: &Env, wanted: f64) -> Metrics {
    eventually(&format!("{wanted} requests"), || async {
        let metrics = env.proxy.metrics().await;
        (requests(&metrics) >= wanted).then_some(metrics)
    })
    .await
}

async fn asks(env: &Env, sandbox: &Sandbox, times: usize) {
    for _ in 0..times {
        env.get(sandbox, "/").await.passed(200);
    }
}

#[tokio::test]
async fn a_draining_process_is_listed_and_can_be_ended_by_itself() {
    let env = own(json!({ "drain": { "timeout": "10m" } })).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let main = told(&env).await;
    assert_eq!((&main["main"]["pid"], &main["processes"]), (&json!(env.proxy.id()), &json!([])));
    let file = env.proxy.directory().join("cube-proxy.yaml").display().to_string();
    let ready = || String::from_utf8(run(&["ready", "-c", &file]).stdout).unwrap();
    assert_eq!(ready(), "ready\n");

    let old = env.proxy.id();
    let mut stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    let listed = draining(&env, 1).await;
    assert_eq!((&listed["pid"], &listed["connections"]), (&json!(old), &json!(1)));
    assert_eq!(listed["version"], told(&env).await["main"]["version"]);
    let times =
        ["started", "oldest", "draining_since", "deadline"].map(|name| listed[name].as_u64().unwrap());
    assert!(times.is_sorted(), "{listed}");
    let now = told(&env).await["now"].as_u64().unwrap();
    assert!(times[2] <= now && (500_000..=601_000).contains(&(times[3] - times[2])), "{listed} at {now}");
    assert_eq!(ready(), "ready; 1 process of before a hot restart still drains\n");
    let top = String::from_utf8(run(&["top", "-c", &file, "-i", "100ms", "--once"]).stdout).unwrap();
    assert!(top.contains(&format!("draining     {old} (")), "{top}");

    for pid in [json!(env.proxy.id()), json!(1), json!("x")] {
        assert_eq!(end(&env, &pid).await.0, 404, "{pid}");
    }
    stream.moves().await;
    assert_eq!(end(&env, &listed["pid"]).await, (200, r#"{"ok":true}"#.to_owned()));
    stream.cut().await;
    env.proxy.old_ended(0).await;
    assert_eq!(told(&env).await["processes"], json!([]));
    assert_eq!(end(&env, &listed["pid"]).await.0, 404);
    asks(&env, &sandbox, 1).await;
}

/// The request goes from the old process to the main one and ends the process that it came to.
#[tokio::test]
async fn a_draining_process_can_be_ended_over_its_own_admin_connection() {
    let env = own(json!({ "drain": { "timeout": "10m" } })).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    asks(&env, &sandbox, 3).await;
    let old = env.proxy.id();
    let stream = Stream::open(&env, &sandbox).await;
    let headers = [("Host", "127.0.0.1"), ("Content-Type", "application/json")];
    let mut kept = Client::connect(env.proxy.admin_address()).await;
    assert_eq!(kept.call("GET", "/admin/processes", &headers, "").await.status, 200);
    env.proxy.upgrade().await;
    let ended = kept.call("POST", &format!("/admin/processes/{old}/end"), &headers, "").await;
    assert_eq!((ended.status, ended.text()), (200, r#"{"ok":true}"#.to_owned()));
    stream.cut().await;
    env.proxy.old_ended(0).await;
    assert!(!env.proxy.output().contains("it is killed"), "{}", env.proxy.output());
    // Its last report came, too: the stream was in no earlier one.
    assert_eq!(requests(&counted(&env, 4.0).await), 4.0);
}

#[tokio::test]
async fn no_counter_falls_and_what_old_processes_answer_counts() {
    let env = own(json!({})).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let mut counters = Counters::default();
    let mut sent = 0.0;
    // Kept from before, as a scraper does.
    let mut scraper = Client::connect(env.proxy.metrics_address()).await;
    for round in 0..3 {
        let mut stream = Stream::open(&env, &sandbox).await;
        asks(&env, &sandbox, 5).await;
        sent += 5.0;
        counters.see(&counted(&env, sent).await, "before");
        let scraped = scraper.call("GET", "/metrics", &[("Host", "127.0.0.1")], "").await;
        counters.see(&Metrics::parse(&scraped.text()), "over a connection that is kept");
        env.proxy.upgrade().await;
        let over = scraper.call("GET", "/metrics", &[("Host", "127.0.0.1")], "").await;
        assert_eq!(over.status, 200);
        counters.see(&Metrics::parse(&over.text()), "asked of the old process");
        scraper = Client::connect(env.proxy.metrics_address()).await;
        let metrics = env.proxy.metrics().await;
        counters.see(&metrics, "right after");
        assert_eq!(requests(&metrics), sent);
        asks(&env, &sandbox, 5).await;
        sent += 5.0;
        draining(&env, 1).await;
        let metrics = counted(&env, sent).await;
        counters.see(&metrics, "while it drains");
        assert_eq!(requests(&metrics), sent, "round {round}");
        for (gauge, open) in [
            ("cube_proxy_inflight_requests", 1.0),
            ("cube_proxy_open_streams", 1.0),
            ("cube_proxy_draining_processes", 1.0),
            ("cube_proxy_build_info", 1.0),
            ("cube_proxy_ready", 1.0),
            ("cube_proxy_cache_tracked", 1.0),
        ] {
            assert_eq!(metrics.sum(gauge, &[]), open, "{gauge}");
        }
        stream.moves().await;
        stream.end().await;
        sent += 1.0;
        env.proxy.old_ended(0).await;
        let metrics = counted(&env, sent).await;
        counters.see(&metrics, "after its end");
        assert_eq!(requests(&metrics), sent);
        assert_eq!(metrics.sum("cube_proxy_open_streams", &[]), 0.0);
        assert_eq!(metrics.sum("cube_proxy_draining_processes", &[]), 0.0);
        // Its last line is in the log by then.
        eventually("every line to be counted", || async {
            let lines = env.proxy.metrics().await.sum("cube_proxy_access_log_lines_total", &[]);
            (lines == sent).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_process_that_is_killed_or_hangs_leaves_what_it_last_said() {
    let env = own(json!({})).await;
    let origin = Origin::scripted(mirror).await;
    let sandbox = env.sandbox(&origin).await;
    let started = env.proxy.metrics().await.sum("cube_proxy_service_start_time_seconds", &[]);
    let mut counters = Counters::default();
    asks(&env, &sandbox, 3).await;
    counters.see(&counted(&env, 3.0).await, "before");
    let stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    signal(&draining(&env, 1).await, Signal::KILL);
    stream.cut().await;
    env.proxy.old_ended(0).await;
    eventually("it to be gone", || async { (told(&env).await["processes"] == json!([])).then_some(()) })
        .await;
    let metrics = env.proxy.metrics().await;
    counters.see(&metrics, "after it was killed");
    assert_eq!((requests(&metrics), metrics.sum("cube_proxy_open_streams", &[])), (3.0, 0.0));

    let stream = Stream::open(&env, &sandbox).await;
    env.proxy.upgrade().await;
    let hung = draining(&env, 1).await;
    signal(&hung, Signal::STOP);
    asks(&env, &sandbox, 3).await;
    let metrics = counted(&env, 6.0).await;
    counters.see(&metrics, "while one hangs");
    assert_eq!(metrics.sum("cube_proxy_open_streams", &[]), 1.0);
    assert_eq!(end(&env, &hung["pid"]).await.0, 200);
    stream.cut().await;
    env.proxy.old_ended(0).await;
    let metrics = env.proxy.metrics().await;
    counters.see(&metrics, "after it was ended");
    assert_eq!(metrics.sum("cube_proxy_service_start_time_seconds", &[]), started);
}
