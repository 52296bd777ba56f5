//! Real applications behind a masked host, seen in a real browser, in the host and the path form
//! (routing.md, "The masked host"): what `scripts/applications` installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cube_testkit::{By, Env, Guarded, Origin, Sandbox, free_port, scripts, unique_id};

use crate::support::{browser, cube};

/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Where `scripts/applications` has put them.
fn installed() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_cube-proxy")).ancestors().nth(2).expect("a target directory");
    let installed = target.join("applications");
    let place = installed.display();
    assert!(installed.join("stamp").exists(), "nothing in {place}: scripts/applications installs them");
    installed
}

/// A file of the tests' own.
fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/applications").join(name)
}

/// A sandbox behind a masked host, its application yet to be started in a directory of its own.
struct Place {
    env: &'static Env,
    by: By,
    port: u16,
    sandbox: Sandbox,
    directory: PathBuf,
    /// Who is told what happens: by applications and by pages of any origin.
    listener: Origin,
}

impl Place {
    async fn new(by: By) -> Self {
        let env = cube().await;
        let port = free_port("127.0.0.1");
        let sandbox = env.sandbox_at(([127, 0, 0, 1], port).into());
        let sandbox = sandbox.field("MaskRequestHost", "localhost:${PORT}").await;
        let directory = std::env::temp_dir().join(unique_id("cube-application-"));
        fs::create_dir(&directory).expect("a writable directory");
        let any = [("Access-Control-Allow-Origin", "*")];
        let listener = Origin::scripted(scripts::reply(200, &any, "")).await;
        Self { env, by, port, sandbox, directory, listener }
    }

    /// Where the application is for a browser; in the path form without the last slash.
    fn url(&self) -> String {
        let proxy = self.env.proxy.http();
        match self.by {
            By::Host => format!("http://8080-{}.cube.localhost:{}", self.sandbox.id, proxy.port()),
            _ => format!("http://{proxy}{}", self.sandbox.prefix()),
        }
    }

    /// Starts the application; its directory goes with it.
    fn start(&self, command: &mut Command) -> Guarded {
        let output = fs::File::create(self.directory.join("output")).expect("a writable directory");
        command.current_dir(&self.directory).env("HOME", &self.directory);
        command.env("PORT", self.port.to_string()).env("VITE_TELL", self.told_at());
        command.stdout(output.try_clone().expect("a file")).stderr(output).stdin(Stdio::null());
        Guarded::spawn(command, Some(&self.directory))
    }

    fn told_at(&self) -> String {
        format!("http://{}", self.listener.address())
    }

    /// Waits until somebody tells one of these words; what was told, word first.
    async fn told(&self, words: &[&str]) -> Vec<String> {
        let begin = Instant::now();
        loop {
            for request in self.listener.received() {
                let told: Vec<String> = request.target.split('/').skip(1).map(str::to_owned).collect();
                if told.first().is_some_and(|word| words.contains(&word.as_str())) {
                    return told;
                }
            }
            let output = || fs::read_to_string(self.directory.join("output")).unwrap_or_default();
            assert!(begin.elapsed() < PATIENCE, "nobody told any of {words:?}: {}", output());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn a_change_reaches_the_open_page(by: By) {
    let place = Place::new(by).await;
    for name in ["index.html", "main.js", "word.js", "vite.config.mjs"] {
        fs::copy(own("vite").join(name), place.directory.join(name)).expect("a file of ours");
    }
    let modules = installed().join("js/node_modules");
    std::os::unix::fs::symlink(&modules, place.directory.join("node_modules")).expect("a writable directory");
    let node = installed().join("../sdk/node");
    let base = if by == By::Path { format!("{}/", place.sandbox.prefix()) } else { "/".to_owned() };
    let mut vite = Command::new(node);
    let _vite = place.start(vite.arg(modules.join("vite/bin/vite.js")).env("BASE", base));
    place.told(&["listening"]).await;
    let _browser = browser(&place.url());
    // The page has its modules, and its WebSocket is open.
    let first = place.told(&["one"]).await;
    place.told(&["connected"]).await;
    fs::write(place.directory.join("word.js"), "export const word = 'two'\n").expect("a writable directory");
    let second = place.told(&["two"]).await;
    assert_eq!(first[1], second[1], "the module was replaced in the page, which was not loaded again");
}

#[tokio::test(flavor = "multi_thread")]
async fn vite_replaces_a_module_in_the_host_form() {
    a_change_reaches_the_open_page(By::Host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vite_that_is_given_its_prefix_replaces_a_module_in_the_path_form() {
    a_change_reaches_the_open_page(By::Path).await;
}

/// Jupyter compares Origin with Host before it takes a WebSocket.
async fn jupyter_takes_its_own_websocket(by: By) {
    let place = Place::new(by).await;
    let page = fs::read_to_string(own("jupyter/page.html")).expect("a file of ours");
    let pages = place.directory.join("pages");
    fs::create_dir(&pages).expect("a writable directory");
    fs::write(pages.join("page.html"), page.replace("TELL", &place.told_at())).expect("a writable directory");
    let mut jupyter = Command::new(installed().join("python/bin/python3"));
    jupyter.args(["-m", "jupyter_server", "--no-browser", "--allow-root", "--IdentityProvider.token="]);
    jupyter.arg(format!("--ServerApp.port={}", place.port)).arg("--ServerApp.port_retries=0");
    jupyter.arg(format!("--ServerApp.extra_static_paths={}", pages.display()));
    for directory in ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"] {
        jupyter.env(directory, place.directory.join(directory));
    }
    let _jupyter = place.start(&mut jupyter);
    let begin = Instant::now();
    while place.env.call(by, &place.sandbox, "GET", "/api", &[], "").await.status != 200 {
        assert!(begin.elapsed() < PATIENCE, "the server does not answer");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let _browser = browser(&format!("{}/static/page.html", place.url()));
    assert_eq!(place.told(&["opened", "refused"]).await, ["opened"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jupyter_takes_its_own_websocket_in_the_host_form() {
    jupyter_takes_its_own_websocket(By::Host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jupyter_takes_its_own_websocket_in_the_path_form() {
    jupyter_takes_its_own_websocket(By::Path).await;
}
