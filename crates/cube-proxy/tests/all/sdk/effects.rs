//! What the SDKs make of the proxy's responses: errors.md is judged by it.

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{BlackHole, Envd, Origin, Sandbox, merge, refused_port, scripts};

use super::{Flavour, Place, Results, Way, until};

/// REST (`read`), unary (`exists`, `kill`) and a stream (`run`).
const STEPS: &str = "is_running,read,exists,kill,run";

/// What a step ends with.
#[derive(Debug, Clone, Copy)]
enum Effect {
    Is(bool),
    /// An exception of that class (`SandboxException`, `SandboxError`: `Sandbox`) with these words.
    Raises(&'static str, &'static str),
}
use Effect::{Is, Raises};

/// One kind of response: what `is_running`, a REST call, a unary call and a stream make of it.
type Row = (&'static str, [Effect; 4]);

const NOT_FOUND: &str = "The sandbox was not found";
const NOT_OPEN: &str = "The sandbox is running but port is not open";
const PAUSED: &str = "The sandbox is paused";
const CHANGING: &str = "The sandbox is still transitioning. Try again in a moment.";
const BUSY: &str = "The sandbox has too many concurrent incoming connections (limit: 1)";
const SILENT: &str = "The sandbox did not answer in time.";
const SECURED: &str = "Sandbox is secured with traffic access token. \
    Token header 'e2b-traffic-access-token' is missing";
/// What the JavaScript SDK says for every `unavailable` at the beginning of a stream.
const PROBABLY: &str = "Sandbox is probably not running anymore";

const PYTHON: [Row; 7] = [
    (
        "nobody",
        [
            Is(false),
            Raises("SandboxNotRunning", NOT_FOUND),
            Raises("SandboxNotRunning", NOT_FOUND),
            Raises("SandboxNotRunning", NOT_FOUND),
        ],
    ),
    (
        "closed",
        [
            Is(false),
            Raises("SandboxUnreachable", NOT_OPEN),
            Raises("SandboxUnreachable", NOT_OPEN),
            Raises("SandboxUnreachable", NOT_OPEN),
        ],
    ),
    (
        "paused",
        [
            Raises("Sandbox", PAUSED),
            Raises("Sandbox", PAUSED),
            Raises("SandboxUnreachable", "its state is unknown"),
            Raises("SandboxUnreachable", "its state is unknown"),
        ],
    ),
    ("pausing", [Raises("Sandbox", CHANGING); 4]),
    (
        "silent",
        [
            Raises("Sandbox", SILENT),
            Raises("Sandbox", SILENT),
            Raises("Timeout", SILENT),
            Raises("Timeout", SILENT),
        ],
    ),
    ("busy", [Raises("RateLimit", BUSY); 4]),
    ("private", [Raises("Sandbox", SECURED); 4]),
];

const JAVASCRIPT: [Row; 7] = [
    (
        "nobody",
        [
            Is(false),
            Raises("Timeout", NOT_FOUND),
            Raises("Timeout", NOT_FOUND),
            Raises("SandboxNotFound", PROBABLY),
        ],
    ),
    (
        "closed",
        [
            Is(false),
            Raises("Timeout", NOT_OPEN),
            Raises("Timeout", NOT_OPEN),
            Raises("SandboxNotFound", PROBABLY),
        ],
    ),
    (
        "paused",
        [
            Raises("Sandbox", PAUSED),
            Raises("Sandbox", PAUSED),
            Raises("Timeout", PAUSED),
            Raises("SandboxNotFound", PROBABLY),
        ],
    ),
    ("pausing", [Raises("Sandbox", CHANGING); 4]),
    (
        "silent",
        [
            Raises("Sandbox", SILENT),
            Raises("Sandbox", SILENT),
            Raises("Timeout", SILENT),
            Raises("Timeout", SILENT),
        ],
    ),
    ("busy", [Raises("RateLimit", BUSY); 4]),
    ("private", [Raises("Sandbox", SECURED); 4]),
];

/// Checks the steps of a row; what is wrong goes to `wrong`.
fn check(results: &Results, (row, effects): Row, wrong: &mut Vec<String>) {
    let [running, rest, unary, stream] = effects;
    let steps =
        [("is_running", running), ("read", rest), ("exists", unary), ("kill", unary), ("run", stream)];
    for (step, effect) in steps {
        let result = results.of(&format!("{row}/{step}"));
        let right = match effect {
            Is(value) => result == json!({ "ok": value }),
            Raises(class, words) => {
                let message = result["message"].as_str().unwrap_or_default();
                result["error"] == class && message.contains(words)
            }
        };
        if !right {
            wrong.push(format!("{row}/{step}: {result} instead of {effect:?}"));
        }
    }
}

fn short_times() -> Value {
    json!({
        "lifecycle": { "pause_wait": "200ms" },
        "upstream": { "connect_timeout": "300ms", "port_open_wait": "200ms" },
    })
}

fn argument(row: &str, sandbox: &Sandbox, steps: &str) -> String {
    format!("{row}:{}:{steps}", sandbox.id)
}

/// A sandbox whose one place is taken, in a proxy with a limit of one.
struct Limited {
    place: Place,
    _origin: Origin,
    _request: cube_testkit::Client,
    busy: Sandbox,
}

impl Limited {
    async fn new(overrides: &Value) -> Self {
        let mut config = short_times();
        let limit = json!({
            "limits": { "requests_per_sandbox": 1 },
            "traffic_token": { "exempt_ports": [] },
        });
        merge(&mut config, &limit);
        merge(&mut config, overrides);
        let place = Place::new(Way::Headers, &config).await;
        let origin = Origin::scripted(scripts::hang).await;
        let busy = place.add(place.env.sandbox(&origin)).await;
        let mut request = place.env.client().await;
        request.request("GET", "/", &[("Host", &busy.host())]).await;
        origin.wait_for(1).await;
        Self { place, _origin: origin, _request: request, busy }
    }
}

async fn the_table(flavour: Flavour) {
    let rows = if flavour == Flavour::JavaScript { JAVASCRIPT } else { PYTHON };
    let place = Place::new(Way::Headers, &short_times()).await;
    let envd = Envd::start().await;
    let nobody = place.env.nobody();
    place.control_plane.know(&nobody, &json!({}));
    let closed = place.add(place.env.sandbox_at(([127, 0, 0, 1], refused_port()).into())).await;
    let (paused, pausing) = (place.sandbox(&envd).await, place.sandbox(&envd).await);
    place.env.push(&paused, "paused").await;
    place.env.push(&pausing, "pausing").await;
    let hole = BlackHole::open("127.0.0.54").await;
    let silent = place.add(place.env.sandbox_at(hole.address())).await;
    let running = place.sandbox(&envd).await;
    let arguments = [
        argument("nobody", &nobody, STEPS),
        argument("closed", &closed, STEPS),
        argument("paused", &paused, STEPS),
        argument("pausing", &pausing, STEPS),
        argument("silent", &silent, STEPS),
        argument("running", &running, "read,exists,kill,vanish"),
    ];
    let mut results = place.run(flavour, "effects", &arguments).await;

    let limited = Limited::new(&json!({})).await;
    let private = limited.place.env.sandbox(envd.origin()).token("example-token");
    let private = limited.place.add(private).await;
    let arguments = [argument("busy", &limited.busy, STEPS), argument("private", &private, STEPS)];
    results.0.extend(limited.place.run(flavour, "effects", &arguments).await.0);

    let mut wrong = Vec::new();
    for row in rows {
        check(&results, row, &mut wrong);
    }
    assert!(wrong.is_empty(), "{flavour:?}:\n{}", wrong.join("\n"));
    // What the application itself answers with a 404 stays what it is.
    assert_eq!(results.of("running/read")["error"], "FileNotFound");
    assert_eq!(
        (results.of("running/exists"), results.of("running/kill")),
        (json!({ "ok": false }), json!({ "ok": false }))
    );
    // The end of a stream without its last message is the application's fault, and looks like one.
    let vanished = results.of("running/vanish")["message"].to_string();
    let words = if flavour == Flavour::JavaScript {
        "missing EndStreamResponse"
    } else {
        "ended without an end event"
    };
    assert!(vanished.contains(words), "{flavour:?}: {vanished}");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_takes_each_response_for_what_it_is() {
    the_table(Flavour::PythonSync).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_async_takes_each_response_for_what_it_is() {
    the_table(Flavour::PythonAsync).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_takes_each_response_for_what_it_is() {
    the_table(Flavour::JavaScript).await;
}

/// A command runs, the sandbox goes: the stream is cut, the SDK asks for `/health`, and says that
/// the sandbox is gone. A stream that merely ended would be somebody else's fault.
async fn a_running_command_ends_with_its_sandbox(flavour: Flavour) {
    for way in [Way::Headers, Way::Hosts] {
        let place = Place::new(way, &short_times()).await;
        let envd = Envd::start().await;
        let sandbox = place.sandbox(&envd).await;
        let arguments = [argument("cut", &sandbox, "long")];
        let gone = async {
            until("a command at envd", || envd.running() == 1).await;
            place.env.redis.command(&["DEL", &sandbox.key()]).await;
        };
        let (results, ()) = tokio::join!(place.run(flavour, "effects", &arguments), gone);
        let result = results.of("cut/long");
        let class = if flavour == Flavour::JavaScript { "Timeout" } else { "SandboxNotRunning" };
        let words = "The sandbox was killed or reached its end of life while the request was in flight";
        let message = result["message"].as_str().unwrap_or_default();
        assert!(result["error"] == class && message.contains(words), "{flavour:?} by {way:?}: {result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sees_a_running_command_end_with_its_sandbox() {
    a_running_command_ends_with_its_sandbox(Flavour::PythonSync).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_async_sees_a_running_command_end_with_its_sandbox() {
    a_running_command_ends_with_its_sandbox(Flavour::PythonAsync).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_sees_a_running_command_end_with_its_sandbox() {
    a_running_command_ends_with_its_sandbox(Flavour::JavaScript).await;
}

/// Why there is another dialect: what the SDKs make of plain responses.
#[tokio::test(flavor = "multi_thread")]
async fn the_cube_dialect_misleads_the_sdks() {
    let cube = json!({ "errors": { "dialect": "cube" } });
    let mut config = short_times();
    merge(&mut config, &cube);
    let place = Place::new(Way::Headers, &config).await;
    let limited = Limited::new(&cube).await;
    let envd = Envd::start().await;
    let nobody = place.env.nobody();
    place.control_plane.know(&nobody, &json!({}));
    let paused = place.sandbox(&envd).await;
    place.env.push(&paused, "paused").await;
    let arguments = [argument("nobody", &nobody, STEPS), argument("paused", &paused, "run")];
    let busy = [argument("busy", &limited.busy, "run")];

    let python = place.run(Flavour::PythonSync, "effects", &arguments).await;
    for step in ["exists", "kill"] {
        assert_eq!(python.of(&format!("nobody/{step}")), json!({ "ok": false }), "silently");
    }
    assert_eq!(python.of("nobody/read")["error"], "FileNotFound");

    let mut javascript = place.run(Flavour::JavaScript, "effects", &arguments).await;
    javascript.0.extend(limited.place.run(Flavour::JavaScript, "effects", &busy).await.0);
    assert_eq!(javascript.of("nobody/read")["error"], "FileNotFound");
    for row in ["paused", "busy"] {
        assert_eq!(javascript.of(&format!("{row}/run"))["error"], "SandboxNotFound");
    }
}
