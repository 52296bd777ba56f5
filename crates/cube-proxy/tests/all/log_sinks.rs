//! What happens to the access log while requests come in (operations.md): it is moved away, its
//! disk fills up, its directory goes, its reader stalls. Lines may be lost, and are counted;
//! requests go on.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cube_testkit::rustix::process::Signal;
use cube_testkit::serde_json::json;
use cube_testkit::{Env, Origin, eventually, serde_json::Value};

use crate::support::{cannot, own};

/// Requests from several clients until it is told to stop; each must be answered.
struct Load {
    over: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    async fn on(env: &Env) -> Self {
        let origin = Box::leak(Box::new(Origin::replying(200, &[], "ok").await));
        let host = env.sandbox(origin).await.host();
        let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut clients = Vec::new();
        for _ in 0..4 {
            let (mut client, host) = (env.client().await, host.clone());
            let (over, sent) = (over.clone(), sent.clone());
            clients.push(tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    client.call("GET", "/", &[("Host", &host)], "").await.passed(200);
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        Self { over, sent, clients }
    }

    /// Waits until that many more requests were answered.
    async fn more(&self, requests: usize) {
        let now = self.sent.load(Ordering::SeqCst);
        eventually("more requests", || async {
            (self.sent.load(Ordering::SeqCst) >= now + requests).then_some(())
        })
        .await;
    }

    /// How many requests there were.
    async fn stop(self) -> usize {
        self.over.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.await.expect("every request is answered");
        }
        self.sent.load(Ordering::SeqCst)
    }
}

/// Waits until each of so many lines is written or lost; how many were written, how many lost.
async fn all_counted(env: &Env, requests: usize) -> (usize, usize) {
    eventually("every line to be counted", || async {
        let metrics = env.proxy.metrics().await;
        let of = |name| metrics.count(name, &[]);
        let (written, lost) =
            (of("cube_proxy_access_log_lines_total"), of("cube_proxy_access_log_dropped_total"));
        assert!(written + lost <= requests, "{written} + {lost} of {requests}");
        (written + lost == requests).then_some((written, lost))
    })
    .await
}

async fn lost(env: &Env) -> f64 {
    env.proxy.metrics().await.sum("cube_proxy_access_log_dropped_total", &[])
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

fn logging_to(path: &Path) -> Value {
    json!({ "access_log": { "path": path }, "limits": { "keepalive_requests": 1_000_000 } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_under_load_loses_no_line() {
    let env = own(json!({ "limits": { "keepalive_requests": 1_000_000 } })).await;
    let path = env.proxy.directory().join("access.log");
    let load = Load::on(&env).await;
    let mut files = vec![path.clone()];
    for round in 0..5 {
        load.more(100).await;
        let old = env.proxy.directory().join(format!("access.log.{round}"));
        std::fs::rename(&path, &old).unwrap();
        env.proxy.signal(Signal::USR1);
        files.push(old);
        eventually("the new file", || async { path.exists().then_some(()) }).await;
    }
    load.more(100).await;
    let requests = load.stop().await;
    assert_eq!(all_counted(&env, requests).await, (requests, 0));
    let counts: Vec<usize> = files.iter().map(|file| lines(file)).collect();
    println!("{requests} requests, lines by file: {counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), requests);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// A file system of its own that is small; none where this may not mount.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(at).output();
        mounted.is_ok_and(|mounted| mounted.status.success()).then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_lines_and_no_request_and_is_written_again_when_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&directory.path().join("disk")) else {
        cannot("not allowed to mount: the full disk is /dev/full, which stays full");
        let env = own(logging_to(Path::new("/dev/full"))).await;
        let load = Load::on(&env).await;
        load.more(200).await;
        let requests = load.stop().await;
        assert_eq!(all_counted(&env, requests).await, (0, requests));
        return;
    };
    let path = disk.0.join("access.log");
    let env = own(logging_to(&path)).await;
    let load = Load::on(&env).await;
    eventually("a full disk", || async { (lost(&env).await > 0.0).then_some(()) }).await;
    load.more(200).await;
    env.proxy.output_line(&["the access log cannot be written", "No space left"]).await;
    // Somebody makes room, as logrotate would.
    let kept = directory.path().join("kept");
    std::fs::copy(&path, &kept).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    env.proxy.output_line(&["the access log is written again"]).await;
    load.more(20).await;
    let requests = load.stop().await;
    let (written, lost) = all_counted(&env, requests).await;
    println!("{requests} requests: {written} lines written, {lost} lost on a full disk");
    assert!(lost > 0 && lines(&path) > 0);
    // The same trouble is one line in the error log, however many lines it costs.
    assert!(env.proxy.output().matches("cannot be written").count() <= 3, "{}", env.proxy.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_directory_loses_lines_until_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let inner = directory.path().join("logs");
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("access.log");
    let env = own(logging_to(&path)).await;
    let load = Load::on(&env).await;
    load.more(50).await;
    std::fs::remove_dir_all(&inner).unwrap();
    eventually("lost lines", || async { (lost(&env).await > 0.0).then_some(()) }).await;
    load.more(50).await;
    std::fs::create_dir(&inner).unwrap();
    eventually("lines in the new file", || async { (lines(&path) > 0).then_some(()) }).await;
    let requests = load.stop().await;
    let (written, lost) = all_counted(&env, requests).await;
    println!("{requests} requests: {written} lines written, {lost} lost with the directory");
    assert!(lost > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stalls_holds_no_request_up_and_gets_lines_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // The proxy keeps one open itself, so it gets no broken pipe either.
    let reader = std::fs::File::options().read(true).custom_flags(0o4000).open(&path).unwrap();
    let env = own(logging_to(&path)).await;
    let load = Load::on(&env).await;
    // More than a pipe and the queue hold between them: the long agent fills the queue.
    let agent = "a".repeat(30_000);
    eventually("lost lines", || async {
        let mut client = env.client().await;
        for _ in 0..50 {
            let headers = [("Host", "nothing.example"), ("User-Agent", agent.as_str())];
            client.call("GET", "/", &headers, "").await.is_bad_request();
        }
        (lost(&env).await > 0.0).then_some(())
    })
    .await;
    load.more(50).await;
    // The reader is back.
    let read = Arc::new(AtomicUsize::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let reading = std::thread::spawn({
        let (read, over) = (read.clone(), over.clone());
        move || {
            use std::io::Read;
            let mut reader = reader;
            let mut buffer = vec![0; 1 << 16];
            while !over.load(Ordering::SeqCst) {
                match reader.read(&mut buffer) {
                    Ok(count) => {
                        read.fetch_add(count, Ordering::SeqCst);
                    }
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
                }
            }
        }
    });
    let before = env.proxy.metrics().await.sum("cube_proxy_access_log_lines_total", &[]);
    eventually("lines to be written again", || async {
        let now = env.proxy.metrics().await.sum("cube_proxy_access_log_lines_total", &[]);
        (now > before + 100.0).then_some(())
    })
    .await;
    let requests = load.stop().await;
    println!(
        "{requests} requests beside a stalled reader, which then read {} bytes",
        read.load(Ordering::SeqCst)
    );
    over.store(true, Ordering::SeqCst);
    reading.join().unwrap();
}
