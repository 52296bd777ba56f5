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
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color")
            .output()
            .expect("tmux is installed by scripts/test");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// What is on the screen, with the sequences that colour it.
    fn painted(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
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

/// Whether something on it has a colour of its own.
fn coloured(painted: &str) -> bool {
    let sequences = painted.split("\u{1b}[").skip(1).filter_map(|rest| rest.split('m').next());
    let codes: Vec<u32> =
        sequences.flat_map(|codes| codes.split(';').filter_map(|code| code.parse().ok())).collect();
    codes.iter().any(|code| matches!(code, 30..=38 | 40..=48 | 90..=97 | 100..=107))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_color_and_a_dumb_terminal_are_heard() {
    let env = own(json!({})).await;
    let command = format!("{} top -c {} -i 200ms", binary(), config(&env));
    for (set, colour, screen) in
        [("", true, true), ("NO_COLOR=1 ", false, true), ("TERM=dumb ", false, false)]
    {
        let directory = env.proxy.directory().join(if set.is_empty() { "plain" } else { set.trim() });
        std::fs::create_dir(&directory).unwrap();
        let terminal = Terminal::start(&directory, &format!("{set}{command}"));
        terminal.shows(if screen { "q quits" } else { "req/s" }).await;
        let painted = terminal.painted();
        assert_eq!(coloured(&painted), colour, "{set:?}: {painted:?}");
        assert_eq!(painted.contains("q quits"), screen, "{set:?}: lines where the screen cannot be drawn on");
    }
    // The process's own log, and what a wrong command line is told.
    let file = env.proxy.directory().join("second.yaml");
    std::fs::write(&file, "limits: {headers: 0}").unwrap();
    for (set, colour) in [("", true), ("NO_COLOR=1 ", false), ("TERM=dumb ", false)] {
        let directory = env.proxy.directory().join(format!("log {}", set.trim()));
        std::fs::create_dir(&directory).unwrap();
        let again = format!("{set}{} run -c {}", binary(), config(&env));
        let terminal = Terminal::start(&directory, &format!("{set}{} --bad; {again}", binary()));
        terminal.shows("code=1").await;
        let painted = terminal.painted();
        assert!(painted.contains("already running as process") && painted.contains("--help"), "{painted}");
        assert_eq!(coloured(&painted), colour, "{set:?}: {painted:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bash_completes_every_word() {
    let directory = std::env::temp_dir().join(cube_testkit::unique_id("cube-bash-"));
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink(binary(), directory.join("cube-proxy")).unwrap();
    std::fs::write(directory.join("config-file.yaml"), "").unwrap();
    std::fs::write(directory.join("script"), run(&["completions", "bash"]).stdout).unwrap();
    let at = directory.display();
    let rc = format!(
        "PS1='> '\nPATH={at}:$PATH\n. /usr/share/bash-completion/bash_completion\n. {at}/script\ncd {at}\n"
    );
    std::fs::write(directory.join("rc"), rc).unwrap();
    {
        let terminal = Terminal::start(&directory, &format!("bash --noprofile --rcfile {at}/rc -i"));
        terminal.shows(">").await;
        for (typed, completed) in [
            ("cube-proxy exp", "cube-proxy explain"),
            ("cube-proxy top --on", "cube-proxy top --once"),
            ("cube-proxy run -c x --up", "cube-proxy run -c x --upgrade"),
            ("cube-proxy sandbox -c x lis", "cube-proxy sandbox -c x list"),
            ("cube-proxy sandbox get x --sh", "cube-proxy sandbox get x --show-token"),
            ("cube-proxy sandbox state x res", "cube-proxy sandbox state x resuming"),
            ("cube-proxy completions fi", "cube-proxy completions fish"),
            ("cube-proxy check -c conf", "cube-proxy check -c config-file.yaml"),
            ("./cube-proxy check --str", "./cube-proxy check --strict"),
        ] {
            terminal.tmux(&["send-keys", "-l", typed]);
            terminal.tmux(&["send-keys", "Tab"]);
            terminal.shows(&format!("> {completed}")).await;
            // Ctrl-C would take away what is typed right after it.
            terminal.tmux(&["send-keys", "C-a", "#", "Enter"]);
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
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
    // 300 ms in which it did something: not a whole number of its seconds, and less than all of them.
    let cores = figures["cores"].as_f64().unwrap();
    assert!(cores > 0.0 && cores < 3.0, "{figures}");
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
        let response = env.proxy.admin("GET", &format!("/admin/top{query}"), "").await;
        (response.status, cube_testkit::serde_json::from_slice::<Value>(&response.body).unwrap())
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
async fn the_start_says_each_listener_with_its_address() {
    let env = own(json!({})).await;
    for (listener, address) in
        [("listen.http", env.proxy.http()), ("listen.admin", env.proxy.admin_address())]
    {
        let address = address.to_string();
        env.proxy.output_line(&["listening", listener, &address]).await;
    }
    env.proxy.output_line(&["listening", "listen.metrics"]).await;
}

#[tokio::test]
async fn a_failure_is_json_where_json_is_asked_for() {
    let env = own(json!({})).await;
    let file = config(&env);
    let failed = |arguments: &[&str], code: i32, says: &str| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        let told: Value = cube_testkit::serde_json::from_slice(&output.stdout).unwrap();
        assert!(told["error"].as_str().unwrap().contains(says), "{told}");
        assert!(text(&output.stderr).contains(says), "and people read the other one");
    };
    failed(&["sandbox", "-c", &file, "get", "nobody", "--json"], 1, "nobody: no such sandbox");
    failed(&["sandbox", "-c", &file, "--json", "delete", "nobody"], 1, "nobody: no such sandbox");
    failed(
        &["sandbox", "-c", &file, "--json", "put", "nobody", "HostIp=10.0.0.1"],
        64,
        "did you mean HostIP?",
    );
    failed(&["explain", "-c", &file, "--json", "ftp://a"], 1, "http://host/path");
    failed(&["top", "-c", "/nowhere.yaml", "--json", "--once"], 64, "cannot be read");
}

#[test]
fn a_configuration_file_without_its_option_gets_a_tip() {
    for (arguments, tip) in [
        (&["check", "conf/demo.yaml"][..], Some("tip: a configuration file is named with -c conf/demo.yaml")),
        (&["sandbox", "x.yaml", "list"], Some("tip: a configuration file is named with -c x.yaml")),
        (&["check", "other"], None),
    ] {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert_eq!(said.lines().find(|line| line.contains("with -c")).map(str::trim), tip, "{said}");
    }
}

#[tokio::test]
async fn what_no_record_may_have_is_not_written_and_what_it_may_have_is_routed() {
    let env = own(json!({})).await;
    let origin = Origin::echo().await;
    let (sandbox, fields) = env.sandbox(&origin).described();
    let file = config(&env);
    let put =
        |fields: &[&str]| run(&[&["sandbox", "-c", &file, "put", sandbox.id.as_str()], fields].concat());
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    for bad in ["HostIP=", "3000=abc", "HostIP=999.1.1.1", "AllowPublicTraffic=maybe", "HostIp=10.0.0.1"] {
        let output = put(&[&fields[..], &[bad]].concat());
        assert_eq!(output.status.code(), Some(64), "{bad}: {}", text(&output.stderr));
    }
    env.get(&sandbox, "/").await.is_not_found();
    let output = put(&fields);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    env.get(&sandbox, "/").await.passed(200);
    let output = put(&["3000=abc", "--force"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&run(&["sandbox", "-c", &file, "get", &sandbox.id]).stdout).contains("3000: abc"));
}

#[tokio::test]
async fn a_store_that_is_away_is_named_in_words() {
    let env = own(json!({})).await;
    let port = refused_port();
    let file = env.proxy.directory().join("away.yaml");
    let away = json!({
        "store": { "redis": { "url": format!("redis://127.0.0.1:{port}") } },
        "listen": { "admin": null },
    });
    std::fs::write(&file, away.to_string()).unwrap();
    let file = file.display().to_string();
    for command in [&["list"][..], &["get", "a"], &["put", "a", "HostIP=10.0.0.1"]] {
        let output = run(&[&["sandbox", "-c", &file], command].concat());
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains(&format!("127.0.0.1:{port}: Connection refused")), "{said}");
        assert!(!said.contains('{'), "{said}");
    }
    let output = run(&["explain", "-c", &file, "http://8080-a.cube.test/"]);
    assert_eq!(output.status.code(), Some(1), "as its help says");
    let said = text(&output.stdout);
    assert!(said.contains(&format!("127.0.0.1:{port}: Connection refused")), "{said}");
}

/// The same as [`run`], without the rights by which root reads and writes everything.
fn run_as_others_do(arguments: &[&str]) -> Output {
    if !rustix::process::geteuid().is_root() {
        return run(arguments);
    }
    let rights = "--bounding-set=-dac_override,-dac_read_search";
    Command::new("setpriv").arg(rights).arg(binary()).args(arguments).output().expect("util-linux is there")
}

#[tokio::test]
async fn check_tries_what_run_would_and_tells_all_of_it() {
    let env = own(json!({})).await;
    let directory = env.proxy.directory().join("second");
    std::fs::create_dir(&directory).unwrap();
    let at = |name: &str| directory.join(name);
    std::fs::write(at("file"), "").unwrap();
    let admin = format!("127.0.0.1:{}", free_port("127.0.0.1"));
    let second = json!({
        "listen": { "http": [env.proxy.http()], "admin": admin, "metrics": null },
        "server": { "run_dir": at("file/run") },
        "access_log": { "path": at("missing/access.log") },
        "store": { "kind": "file", "file": at("sandboxes.yaml") },
    });
    std::fs::write(at("sandboxes.yaml"), "sandboxes:\n\ta: {}\n").unwrap();
    let write = |config: &Value| std::fs::write(at("cube-proxy.yaml"), config.to_string()).unwrap();
    write(&second);
    let file = at("cube-proxy.yaml").display().to_string();
    let output = run(&["check", "-c", &file, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let told: Value = cube_testkit::serde_json::from_slice(&output.stdout).unwrap();
    let told: Vec<&str> =
        told["problems"].as_array().unwrap().iter().map(|one| one["message"].as_str().unwrap()).collect();
    for (at, says) in ["server.run_dir: ", "listen.http: ", "access_log.path: ", "a tab; "].iter().enumerate()
    {
        assert!(told.get(at).is_some_and(|told| told.contains(says)), "no {says} in {told:?}");
    }
    assert_eq!(told.len(), 4, "{told:?}");
    // Each of them is what run ends with.
    let output = run(&["run", "-c", &file]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));

    let secret = at("token");
    std::fs::write(&secret, "example-token").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    write(&json!({ "resume": { "token_file": secret }, "limits": { "headers": "many" } }));
    let output = run_as_others_do(&["check", "-c", &file]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("resume.token_file: ") && said.contains("limits.headers: "), "{said}");
}

#[tokio::test]
async fn top_explain_and_sandbox_need_no_right_to_read_keys() {
    let env = own(json!({})).await;
    let key = env.proxy.directory().join("key.pem");
    std::fs::write(&key, "").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    env.proxy.write_config(&json!({
        "listen": { "https": [format!("127.0.0.1:{}", free_port("127.0.0.1"))] },
        "tls": { "certificates": [{ "cert": key, "key": key }] },
        "resume": { "url": "http://127.0.0.1:1", "token_file": key },
    }));
    let file = config(&env);
    for arguments in [
        &["top", "-c", &file, "--once", "-i", "100ms"][..],
        &["ready", "-c", &file],
        &["sandbox", "-c", &file, "list"],
        &["sandbox", "-c", &file, "state", "a", "running"],
        &["explain", "-c", &file, "http://8080-a.cube.test/"],
    ] {
        let output = run_as_others_do(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    }
    assert_eq!(run_as_others_do(&["check", "-c", &file]).status.code(), Some(64), "which the proxy does");
    env.proxy.terminate();
    env.proxy.terminate();
    env.proxy.ended().await;
    let output = run_as_others_do(&["explain", "-c", &file, "http://8080-a.cube.test/"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
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
