//! What the demo offers to try: one command a feature, for a terminal, and the same from its page.

use std::fmt::Write;

use super::html::escape;
use super::{ASLEEP, TOKEN};

/// A command for a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleCommand {
    /// What it shows.
    pub what: &'static str,
    /// The command, one line.
    pub command: String,
    /// The same from the demo's page.
    here: Here,
}

/// How a page does what a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Here {
    /// A request of its own: method, path, then headers, `Name: value`.
    Request(&'static str, String, Vec<String>),
    /// Opens this.
    Link(String),
    /// Listens to events there.
    Events(String),
    /// Talks over a WebSocket there.
    Socket(String),
}

/// Ports that the commands name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Of the proxy.
    pub http: u16,
    /// Of its admin API.
    pub admin: u16,
    /// Of its metrics.
    pub metrics: u16,
}

/// All of them, in the order to try them.
#[must_use]
pub fn samples(ports: Ports) -> Vec<SampleCommand> {
    [waking(ports), naming(ports), passing(ports), refusing(ports), looking(ports)].concat()
}

fn sample(what: &'static str, command: String, here: Here) -> SampleCommand {
    SampleCommand { what, command, here }
}

fn get(path: impl Into<String>) -> Here {
    Here::Request("GET", path.into(), Vec::new())
}

fn by_host(ports: Ports, sandbox: &str) -> String {
    format!("http://8080-{sandbox}.localhost:{}", ports.http)
}

fn by_path(ports: Ports, sandbox: &str) -> String {
    format!("http://127.0.0.1:{}/sandbox/{sandbox}/8080", ports.http)
}

fn waking(ports: Ports) -> Vec<SampleCommand> {
    let pushed = format!(r#"'{{"sandbox_id":"{ASLEEP}","state":"paused"}}'"#);
    vec![
        sample(
            "A request wakes the sandbox that sleeps, and is answered a second later",
            format!(r"curl -i -w '\n%{{time_total}} s\n' '{}/'", by_host(ports, ASLEEP)),
            get(format!("/sandbox/{ASLEEP}/8080/")),
        ),
        sample(
            "Its manager puts it to sleep again, by the admin API",
            format!(
                "curl -H 'Content-Type: application/json' -d {pushed} 'http://127.0.0.1:{}/admin/state'",
                ports.admin
            ),
            Here::Request("POST", "/demo/sleep".to_owned(), Vec::new()),
        ),
    ]
}

fn naming(ports: Ports) -> Vec<SampleCommand> {
    let host = by_host(ports, "echo");
    let headers = ["E2b-Sandbox-Id: echo", "E2b-Sandbox-Port: 8080"];
    vec![
        sample(
            "By host name, <port>-<sandbox-id>.<any domain>",
            format!("curl '{host}/hello?a=b'"),
            Here::Link(format!("{host}/hello?a=b")),
        ),
        sample(
            "By path, on any host",
            format!("curl '{}/hello?a=b'", by_path(ports, "echo")),
            get("/sandbox/echo/8080/hello?a=b"),
        ),
        sample(
            "By headers, on a shared host",
            format!(
                "curl {} 'http://127.0.0.1:{}/hello'",
                headers.map(|header| format!("-H '{header}'")).join(" "),
                ports.http
            ),
            Here::Request("GET", "/hello".to_owned(), headers.map(str::to_owned).to_vec()),
        ),
    ]
}

fn passing(ports: Ports) -> Vec<SampleCommand> {
    let (path, live) = (by_path(ports, "echo"), by_host(ports, "live"));
    let handshake = "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
                     -H 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=='";
    vec![
        sample(
            "A form",
            format!("curl -d word=hello '{}/form'", by_host(ports, "echo")),
            Here::Request(
                "POST",
                "/sandbox/echo/8080/form".to_owned(),
                vec!["Content-Type: application/x-www-form-urlencoded".to_owned()],
            ),
        ),
        sample(
            "A redirect stays under the path prefix",
            format!("curl -i '{path}/redirect'"),
            get("/sandbox/echo/8080/redirect"),
        ),
        sample("So does a cookie", format!("curl -i '{path}/cookie'"), get("/sandbox/echo/8080/cookie")),
        sample(
            "Server-sent events, for three seconds",
            format!("curl -sN -m 3 '{live}/events'"),
            Here::Events("/sandbox/live/8080/events".to_owned()),
        ),
        sample(
            "A WebSocket, for three seconds",
            format!("curl -siN -m 3 --http1.1 {handshake} '{live}/ws' --output -"),
            Here::Socket("/sandbox/live/8080/ws".to_owned()),
        ),
    ]
}

fn refusing(ports: Ports) -> Vec<SampleCommand> {
    let private = by_host(ports, "private");
    let token = format!("cube-traffic-access-token: {TOKEN}");
    let there = "/sandbox/private/8080/".to_owned();
    vec![
        sample(
            "A private sandbox with its token",
            format!("curl -H '{token}' '{private}/'"),
            Here::Request("GET", there.clone(), vec![token]),
        ),
        sample(
            "Without the token it looks like one that is not there",
            format!("curl -i '{private}/'"),
            get(there),
        ),
        sample(
            "A sandbox that is not there",
            format!("curl -i '{}/'", by_host(ports, "nobody")),
            get("/sandbox/nobody/8080/"),
        ),
    ]
}

fn looking(ports: Ports) -> Vec<SampleCommand> {
    let admin = format!("http://127.0.0.1:{}/admin", ports.admin);
    let explain = format!("{admin}/explain?url={}/", by_host(ports, ASLEEP));
    let route = format!("{admin}/routes/{ASLEEP}");
    let metrics = format!("http://127.0.0.1:{}/metrics", ports.metrics);
    vec![
        sample(
            "What would become of a request, step by step",
            format!("curl -s '{explain}'"),
            Here::Link(explain),
        ),
        sample("What the proxy knows of a sandbox", format!("curl -s '{route}'"), Here::Link(route)),
        sample(
            "Every response is counted by return code and reason",
            format!("curl -s '{metrics}' | grep cube_proxy_answers_total"),
            Here::Link(metrics),
        ),
    ]
}

/// What the terminal shows. `asked`: the port that was wanted.
pub(super) fn banner(samples: &[SampleCommand], ports: Ports, asked: u16) -> String {
    let Ports { http, admin, metrics } = ports;
    let mut text = String::new();
    if http != asked {
        let _ = writeln!(text, "Port {asked} is taken; this is {http} instead.\n");
    }
    let _ = writeln!(
        text,
        "Cube Proxy demo. Open http://127.0.0.1:{http}/ in a browser, or paste what follows.\n\
         Sandboxes: {}, each at http://8080-<name>.localhost:{http}/\n\
         Admin API: http://127.0.0.1:{admin}/admin/healthz   Metrics: http://127.0.0.1:{metrics}/metrics",
        super::SANDBOXES.join(", ")
    );
    for SampleCommand { what, command, .. } in samples {
        let _ = write!(text, "\n  # {what}\n  {command}\n");
    }
    text.push_str("\nCtrl-C ends it.\n");
    text
}

impl Here {
    /// The button or link that does it.
    fn as_html(&self) -> String {
        let button = |kind: &str, path: &str, more: &str| {
            format!(r#"<button data-{kind}="{}"{more}>run here</button>"#, escape(path))
        };
        match self {
            Here::Request(method, path, headers) => {
                let headers = escape(&headers.join("\n"));
                button("request", path, &format!(r#" data-method="{method}" data-headers="{headers}""#))
            }
            Here::Link(to) => {
                format!(r#"<a class="button" href="{}" target="_blank" rel="noopener">open</a>"#, escape(to))
            }
            Here::Events(path) => button("events", path, ""),
            Here::Socket(path) => button("socket", path, ""),
        }
    }
}

/// The same for the page.
pub(super) fn as_html(samples: &[SampleCommand]) -> String {
    samples
        .iter()
        .map(|SampleCommand { what, command, here }| {
            format!(
                "<section class=\"command\"><h3>{}</h3><div class=\"row\">{}\
                 <button class=\"quiet\" data-copy>copy</button></div>\
                 <pre class=\"shell\">{}</pre><pre class=\"log\" hidden></pre></section>",
                escape(what),
                here.as_html(),
                escape(command)
            )
        })
        .collect()
}
