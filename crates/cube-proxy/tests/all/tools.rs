//! The commands for operators beside `explain` and `sandbox`: `top` in a real terminal and out of
//! one, `ready`, `check` (operations.md, "Commands").

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{By, Client, Env, Guarded, Origin, eventually, free_port, refused_port};

use crate::support::{binary, own};

/// Runs the binary with these arguments.
pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn config(env: &Env) -> String {
    env.proxy.directory().join("cube-proxy.yaml").display().to_string()
}

/// One request after the other until dropped.
struct Traffic(tokio::task::JoinHandle<()>);

impl Traffic {
    fn start(env: &Env, hosts: Vec<String>) -> Self {
        let address = env.proxy.http();
        Self(tokio::spawn(async move {
            loop {
                for host in &hosts {
                    let mut client = Client::connect(address).await;
                    client.call("GET", "/", &[("Host", host)], "").await;
                }
            }
        }))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A terminal that keys are typed into and that is looked at.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    fn start(directory: &Path, command: &str) -> Self {
        let terminal = Self { socket: directory.join("tmux") };
        // The shell after it shows that the terminal is put back.
        let command = format!("{command}; echo code=$?; exec sh");
        terminal.tmux(&["new-session", "-d", "-x", "140", "-y", "45", &command]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(["-f", "/dev/null"])
            .args(arguments)
            .env("TERM", "xterm-256color")
            .output()
            .expect("tmux is installed by scripts/test");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    async fn shows(&self, what: &str) -> String {
        eventually(&format!("{what:?} on the screen"), || async {
            Some(self.screen()).filter(|screen| screen.contains(what))
        })
        .await
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_shows_the_traffic_in_a_terminal_until_q() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let busy = env.sandbox(&origin).await;
    let _traffic = Traffic::start(&env, vec![busy.host(), env.nobody().host()]);
    let command = format!("{} top -c {} -i 200ms", binary(), config(&env));
    let terminal = Terminal::start(env.proxy.directory(), &command);
    // The second look is the first that has counted by sandbox.
    terminal.shows(&busy.id).await;
    let screen = terminal.shows("310507").await;
    for shown in [
        "cube-proxy 0.1.0",
        "ready",
        "% hits",
        "changes are pushed",
        "no_record",
        "peak",
        "q quits",
        "under way",
    ] {
        assert!(screen.contains(shown), "no {shown:?} in\n{screen}");
    }
    terminal.tmux(&["resize-window", "-x", "70", "-y", "20"]);
    terminal.shows("q quits").await;
    terminal.tmux(&["send-keys", "q"]);
    let screen = terminal.shows("code=0").await;
    assert!(!screen.contains("q quits"), "the screen is not put back:\n{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn top_stays_when_the_proxy_goes_and_says_so() {
    let env = own(json!({ "drain": { "delay": "0s" } })).await;
    let command = format!("{} top -c {} -i 200ms", binary(), config(&env));
    let terminal = Terminal::start(env.proxy.directory(), &command);
    terminal.shows("busiest sandboxes").await;
    env.proxy.terminate();
    env.proxy.ended().await;
    terminal.shows("no proxy answers at listen.admin").await;
    terminal.tmux(&["send-keys", "C-c"]);
    terminal.shows("code=0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn top_writes_lines_json_and_a_table_where_there_is_no_terminal() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let busy = env.sandbox(&origin).await;
    let _traffic = Traffic::start(&env, vec![busy.host()]);
    let config = config(&env);

    let output = run(&["top", "-c", &config, "--once", "-i", "300ms"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains(&busy.id) && table.contains("310200  ok"), "{table}");
    assert!(!table.contains('\u{1b}'), "no colours in a file: {table:?}");

    let output = run(&["top", "-c", &config, "--once", "--json", "-i", "300ms"]);
    let figures: Value = cube_testkit::serde_json::from_slice(&output.stdout).unwrap();
    assert!(figures["requests"].as_f64().unwrap() > 0.0, "{figures}");
    assert!(figures["p99_ms"].as_f64().unwrap() > 0.0, "{figures}");
    assert_eq!((&figures["ready"], &figures["cache_tracked"]), (&json!(true), &json!(true)));
    assert_eq!(figures["busiest"][0]["sandbox_id"], json!(busy.id));
    assert!(figures["busiest"][0]["requests"].as_f64().unwrap() > 0.0, "{figures}");

    let written = env.proxy.directory().join("lines");
    let mut command = Command::new(binary());
    command.args(["top", "-c", &config, "-i", "100ms"]);
    let _top = Guarded::spawn(command.stdout(std::fs::File::create(&written).unwrap()), None);
    let lines = eventually("three lines", || async {
        let text = std::fs::read_to_string(&written).unwrap();
        Some(text.lines().map(str::to_owned).collect::<Vec<_>>()).filter(|lines| lines.len() >= 4)
    })
    .await;
    assert!(lines[0].contains("req/s") && lines[0].contains("p99_ms"), "{lines:?}");
    let cells = |line: &String| line.split_whitespace().count();
    assert!(lines.iter().all(|line| cells(line) == cells(&lines[0])), "{lines:?}");
}

#[tokio::test]
async fn without_a_proxy_top_and_ready_say_so() {
    let directory = std::env::temp_dir().join(cube_testkit::unique_id("cube-top-"));
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("cube-proxy.yaml");
    let listen = format!("127.0.0.1:{}", refused_port());
    std::fs::write(&file, json!({ "listen": { "admin": listen } }).to_string()).unwrap();
    for command in ["top", "ready"] {
        let output = run(&[command, "-c", &file.display().to_string()]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let said = text(&output.stderr);
        assert!(said.contains("no proxy answers at listen.admin"), "{said}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn ready_says_what_readyz_says() {
    let env = own(json!({ "drain": { "delay": "30s" } })).await;
    let file = config(&env);
    let output = run(&["ready", "-c", &file]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "ready\n"));
    env.proxy.terminate();
    eventually("readiness to go", || async { (env.proxy.probe("/readyz").await == Some(503)).then_some(()) })
        .await;
    let output = run(&["ready", "-c", &file]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(1), "not ready: draining\n"));
}

#[tokio::test]
async fn busy_sandboxes_are_counted_while_somebody_looks() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let (first, second) = (env.sandbox(&origin).await, env.sandbox(&origin).await);
    let look = async |query: &str| {
        let answer = env.proxy.admin("GET", &format!("/admin/top{query}"), "").await;
        (answer.status, cube_testkit::serde_json::from_slice::<Value>(&answer.body).unwrap())
    };
    env.get(&first, "/").await;
    let (status, told) = look("").await;
    assert_eq!((status, &told["window_ms"]), (200, &json!(0)), "{told}");
    // It may still be under way; what began before the first look is not counted.
    let counted = told["busiest"].as_array().unwrap().iter().any(|busy| busy["requests"] != json!(0));
    assert!(!counted, "{told}");
    for (sandbox, times) in [(&first, 2), (&second, 5)] {
        for _ in 0..times {
            env.call(By::Path, sandbox, "GET", "/", &[], "").await;
        }
    }
    let (_, told) = look("").await;
    let busiest = told["busiest"].as_array().unwrap();
    let counts: Vec<_> = busiest.iter().map(|b| (b["sandbox_id"].clone(), b["requests"].clone())).collect();
    assert_eq!(counts, [(json!(second.id), json!(5)), (json!(first.id), json!(2))], "{told}");
    assert_eq!(look("?most=1").await.1["busiest"].as_array().unwrap().len(), 1);
    assert_eq!(look("?most=0").await.0, 400);
}

#[tokio::test]
async fn check_names_every_port_that_is_taken() {
    let env = own(json!({})).await;
    let (http, admin) = (env.proxy.http(), env.proxy.admin_address());
    let file = env.proxy.directory().join("second.yaml");
    let run_dir = env.proxy.directory().join("second");
    let metrics = format!("127.0.0.1:{}", free_port("127.0.0.1"));
    let second = json!({
        "listen": { "http": [http], "admin": admin, "metrics": metrics },
        "server": { "run_dir": run_dir },
    });
    std::fs::write(&file, second.to_string()).unwrap();
    let output = run(&["check", "-c", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    for taken in [format!("listen.http: {http} is taken"), format!("listen.admin: {admin} is taken")] {
        assert!(said.contains(&taken), "no {taken} in {said}");
    }
}
