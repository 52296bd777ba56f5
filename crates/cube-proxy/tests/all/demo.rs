//! `cube-proxy demo`: what it prints works when pasted, and its page shows in a real browser.

use std::path::Path;
use std::process::{Command, Output};

use cube_testkit::serde_json::Value;
use cube_testkit::{Client, Guarded, eventually, free_port};

use crate::support::binary;

const WAKES: &str = "A request wakes the sandbox that sleeps, and is answered a second later";
const SLEEPS: &str = "Its manager puts it to sleep again, by the admin API";

/// A running demo.
struct Demo {
    output: std::path::PathBuf,
    port: u16,
    directory: std::path::PathBuf,
    _process: Guarded,
}

impl Demo {
    async fn start() -> Self {
        let directory = std::env::temp_dir().join(cube_testkit::unique_id("cube-demo-"));
        std::fs::create_dir_all(&directory).unwrap();
        let output = directory.join("output");
        let port = free_port("127.0.0.1");
        let file = std::fs::File::create(&output).unwrap();
        let mut command = Command::new(binary());
        command.args(["demo", "--port", &port.to_string()]).stdout(file.try_clone().unwrap()).stderr(file);
        let process = Guarded::spawn(&mut command, Some(&directory));
        let demo = Self { output, port, directory, _process: process };
        eventually("the demo says that it is there", || async {
            demo.text().contains("Ctrl-C").then_some(())
        })
        .await;
        demo
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    /// The command that is printed below that title.
    fn command(&self, title: &str) -> String {
        let text = self.text();
        let mut lines = text.lines().map(str::trim);
        assert!(lines.any(|line| line.strip_prefix("# ") == Some(title)), "no {title:?} in:\n{text}");
        lines.next().unwrap().to_owned()
    }

    /// What the pasted command prints.
    fn paste(&self, title: &str) -> String {
        let command = self.command(title);
        let Output { stdout, stderr, .. } = Command::new("sh").args(["-c", &command]).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_printed_command_does_what_its_title_says() {
    let demo = Demo::start().await;
    for (title, shows) in [
        (WAKES, "Good morning"),
        (SLEEPS, "{\"ok\":true}"),
        ("What would become of a request, step by step", "held while the sandbox is resumed"),
        ("What the proxy knows of a sandbox", "\"state\":\"paused\""),
        ("By host name, <port>-<sandbox-id>.<any domain>", "/hello?a=b"),
        ("By path, on any host", "/hello?a=b"),
        ("By headers, on a shared host", "/hello"),
        ("A form", "hello"),
        ("A redirect stays under the path prefix", "/sandbox/echo/8080/"),
        ("So does a cookie", "Path=/sandbox/echo/8080/"),
        ("A private sandbox with its token", "private"),
        ("Without the token it looks like one that is not there", "{\"error\":\"not found\"}"),
        ("A sandbox that is not there", "{\"error\":\"not found\"}"),
        ("Server-sent events, for three seconds", "data:"),
        ("A WebSocket, for three seconds", "101 Switching Protocols"),
        ("Every response is counted by return code and reason", "retcode=\"310200\""),
    ] {
        let shown = demo.paste(title);
        assert!(shown.contains(shows), "{title}: no {shows:?} in:\n{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_wakes_the_sandbox_that_sleeps_and_the_page_follows() {
    let demo = Demo::start().await;
    let followed = demo.directory.join("states");
    let url = format!("http://127.0.0.1:{}/demo/states", demo.port);
    let mut curl = Command::new("curl");
    curl.args(["-sN", "-m", "60", &url]).stdout(std::fs::File::create(&followed).unwrap());
    let _follower = Guarded::spawn(&mut curl, None);
    let states = || {
        let text = std::fs::read_to_string(&followed).unwrap();
        let told = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let told = told.map(|line| cube_testkit::serde_json::from_str::<Value>(line).unwrap());
        told.map(|states| states["asleep"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let shows = async |want: &[&str]| {
        eventually(&format!("the page to show {want:?}"), || async { (states() == want).then_some(()) })
            .await;
    };
    shows(&["paused"]).await;
    let began = std::time::Instant::now();
    let response = demo.paste(WAKES);
    assert!(
        response.contains("HTTP/1.1 200 OK") && response.contains("X-Cube-Retcode: 310200"),
        "{response}"
    );
    assert!(began.elapsed() >= std::time::Duration::from_secs(1), "it slept, and was not waited for");
    shows(&["paused", "waking", "running"]).await;
    demo.paste(SLEEPS);
    shows(&["paused", "waking", "running", "paused"]).await;
    // What the button of the page does.
    let mut client = Client::connect(([127, 0, 0, 1], demo.port).into()).await;
    demo.paste(WAKES);
    shows(&["paused", "waking", "running", "paused", "waking", "running"]).await;
    let slept = client.call("POST", "/demo/sleep", &[("Host", "127.0.0.1")], b"").await;
    assert_eq!(slept.status, 204);
    shows(&["paused", "waking", "running", "paused", "waking", "running", "paused"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_page_shows_in_a_browser_what_is_running() {
    let demo = Demo::start().await;
    let url = format!("http://127.0.0.1:{}/", demo.port);
    let picture = demo.directory.join("page.png");
    let page = browse(&demo.directory, &url, &picture);
    for shown in ["a fleet of sandboxes", "echo", "live", "private", "asleep", "paused"] {
        assert!(page.contains(shown), "no {shown:?} in:\n{page}");
    }
    let size = std::fs::metadata(&picture).unwrap().len();
    assert!(size > 20_000, "a picture of {size} bytes shows nothing");
    // The links lead somewhere: to sandboxes by host name, as a browser resolves it.
    let host = format!("8080-echo.localhost:{}", demo.port);
    assert!(page.contains(&host), "no link to {host} in:\n{page}");
    let response = Client::connect(([127, 0, 0, 1], demo.port).into())
        .await
        .call("GET", "/", &[("Host", &host)], b"")
        .await;
    assert_eq!(response.status, 200);
}

/// The page's document once its scripts have run; a picture of it is written to `picture`.
fn browse(directory: &Path, url: &str, picture: &Path) -> String {
    let run = |what: &str| {
        let profile = directory.join(cube_testkit::unique_id("profile-"));
        Command::new("timeout")
            .args(["60", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-component-update"])
            .args(["--disable-sync", "--hide-scrollbars", "--window-size=1200,1500"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .args([what, url])
            .output()
            .expect("chromium is installed by scripts/test")
    };
    run(&format!("--screenshot={}", picture.display()));
    String::from_utf8_lossy(&run("--dump-dom").stdout).into_owned()
}
