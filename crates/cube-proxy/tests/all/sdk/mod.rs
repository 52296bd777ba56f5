//! E2B's real SDKs through the whole proxy (e2b.md): what `scripts/sdk` installed, a scripted
//! envd in the sandbox, a scripted control plane beside it.

mod calls;
mod effects;
mod quiet;
mod upgrade;
mod upgrade_load;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use cube_testkit::serde_json::{self, Value, json};
use cube_testkit::{Authority, ControlPlane, Env, Envd, Sandbox, SandboxBuilder, free_port, merge};
use tokio::process::Command;

use crate::support::builder;

/// Where envd listens, for the SDKs.
const ENVD: u16 = 49983;
/// The domain of sandboxes. A name below `localhost` is this machine for the Python SDK, whose
/// resolver reads no patch of ours.
const DOMAIN: &str = "e2b.localhost";
/// How long one run of a script may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Which SDK, and which of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    PythonSync,
    PythonAsync,
    JavaScript,
}

impl Flavour {
    /// The words that run a script.
    fn command(self, script: &str) -> Vec<PathBuf> {
        let installed = installed();
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk");
        let python = |kind: &str| {
            let script = scripts.join(format!("python/{script}.py"));
            vec![installed.join("python/bin/python3"), script, kind.into()]
        };
        match self {
            Flavour::PythonSync => python("sync"),
            Flavour::PythonAsync => python("async"),
            Flavour::JavaScript => {
                vec![installed.join("node"), scripts.join(format!("js/{script}.cjs")), "js".into()]
            }
        }
    }
}

/// Where `scripts/sdk` has put the SDKs: the pinned ones, or with `SDK_UNDER_TEST=newest` those.
fn installed() -> PathBuf {
    let newest = std::env::var("SDK_UNDER_TEST").is_ok_and(|which| which == "newest");
    let target = Path::new(env!("CARGO_BIN_EXE_cube-proxy")).ancestors().nth(2).expect("a target directory");
    let installed = target.join(if newest { "sdk-newest" } else { "sdk" });
    assert!(
        installed.join("stamp").exists(),
        "no SDKs in {}: scripts/sdk installs them",
        installed.display()
    );
    installed
}

/// A proxy, a control plane, and the variables that point an SDK at them.
struct Place {
    env: Env,
    control_plane: ControlPlane,
    variables: BTreeMap<&'static str, String>,
}

/// How the SDKs get to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Plain HTTP/1.1, sandboxes named by headers; the control plane is asked directly.
    Headers,
    /// The same, and the control plane too is found at the proxy's address.
    OneAddress,
    /// TLS, HTTP/2 where the SDK has it, a host name for each sandbox and one for the control plane.
    Hosts,
}

impl Place {
    /// In the `e2b` dialect, with these overrides.
    async fn new(way: Way, overrides: &Value) -> Self {
        let control_plane = ControlPlane::start().await;
        let mut config = json!({ "errors": { "dialect": "e2b" } });
        let through = |host: &str| json!({ "routing": { "control_plane": { "url": control_plane.url(), "hosts": [host] } } });
        match way {
            Way::Headers => {}
            Way::OneAddress => merge(&mut config, &through("127.0.0.1")),
            Way::Hosts => merge(&mut config, &through(&format!("api.{DOMAIN}"))),
        }
        merge(&mut config, overrides);
        let builder = builder(&config);
        let root = builder.directory().join("root.pem");
        let authority = Authority::new();
        std::fs::write(&root, authority.root_pem()).unwrap();
        let (chain, key) = authority.issue(builder.directory(), "server", &[&format!("*.{DOMAIN}")]);
        let listen = format!("127.0.0.1:{}", free_port("127.0.0.1"));
        let env = Env::start_with(builder.config(&json!({
            "listen": { "https": [listen] },
            "tls": { "certificates": [{ "cert": chain, "key": key }] },
        })))
        .await;
        let proxy = format!("http://{}", env.proxy.http());
        let mut variables = BTreeMap::from([("E2B_API_KEY", "e2b_0000".to_owned())]);
        match way {
            Way::Headers => {
                variables.extend([("E2B_API_URL", control_plane.url()), ("E2B_SANDBOX_URL", proxy)]);
            }
            Way::OneAddress => {
                variables.extend([("E2B_API_URL", proxy.clone()), ("E2B_SANDBOX_URL", proxy)]);
            }
            Way::Hosts => {
                let root = root.to_string_lossy().into_owned();
                variables.extend([
                    ("E2B_DOMAIN", format!("{DOMAIN}:{}", env.proxy.https().port())),
                    ("SSL_CERT_FILE", root.clone()),
                    ("NODE_EXTRA_CA_CERTS", root),
                ]);
            }
        }
        Self { env, control_plane, variables }
    }

    /// A sandbox with that envd.
    async fn sandbox(&self, envd: &Envd) -> Sandbox {
        self.add(self.env.sandbox(envd.origin())).await
    }

    /// A described sandbox, reached where envd is, that the control plane knows.
    async fn add(&self, described: SandboxBuilder<'_>) -> Sandbox {
        let sandbox = described.port(ENVD).await;
        self.control_plane.know(&sandbox, &json!({}));
        sandbox
    }

    /// Runs a script; what it says of each of its steps.
    async fn run(&self, flavour: Flavour, script: &str, arguments: &[String]) -> Results {
        let words = flavour.command(script);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(arguments).env_clear().envs(&self.variables);
        command.env("HOME", self.env.proxy.directory()).env("PATH", "/usr/bin:/bin");
        command.env("NODE_PATH", installed().join("js/node_modules")).env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("{flavour:?} {script}: not within {PATIENCE:?}"));
        let output = output.expect("the SDK's interpreter");
        let said = String::from_utf8_lossy(&output.stdout);
        let results = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
        let errors = String::from_utf8_lossy(&output.stderr);
        Results(results.unwrap_or_else(|| panic!("{flavour:?} {script} said {said:?}:\n{errors}")))
    }
}

/// Waits for what a script brings about, as long as a script may take.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What became of each step of a script: `{"ok": ...}`, or `{"error": <class>, "message": ...}`.
struct Results(BTreeMap<String, Value>);

impl Results {
    /// The result of a step, names of classes without the ending that differs between the SDKs.
    fn of(&self, step: &str) -> Value {
        let mut result = self.0.get(step).unwrap_or_else(|| panic!("no step {step}")).clone();
        trim_classes(&mut result);
        result
    }
}

fn trim_classes(value: &mut Value) {
    match value {
        Value::String(text) => {
            for ending in ["Exception", "Error"] {
                if let Some(bare) = text.strip_suffix(ending) {
                    *text = bare.to_owned();
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(trim_classes),
        Value::Object(fields) => fields.values_mut().for_each(trim_classes),
        _ => {}
    }
}
