//! What the demo offers to paste: one command a feature.

use std::fmt::Write;

use super::TOKEN;
use super::html::escape;

/// A command for a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// What it shows.
    pub what: &'static str,
    /// The command, one line.
    pub command: String,
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
pub fn samples(ports: Ports) -> Vec<Sample> {
    let host = |sandbox: &str| format!("http://8080-{sandbox}.localhost:{}", ports.http);
    let path = |sandbox: &str| format!("http://127.0.0.1:{}/sandbox/{sandbox}/8080", ports.http);
    let Ports { http, admin, metrics } = ports;
    let handshake = "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
                     -H 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=='";
    let wake = r#"'{"sandbox_id":"asleep","state":"running"}'"#;
    let list = [
        ("By host name, <port>-<sandbox-id>.<any domain>", format!("curl '{}/hello?a=b'", host("echo"))),
        ("By path, on any host", format!("curl '{}/hello?a=b'", path("echo"))),
        (
            "By headers, on a shared host",
            format!(
                "curl -H 'E2b-Sandbox-Id: echo' -H 'E2b-Sandbox-Port: 8080' 'http://127.0.0.1:{http}/hello'"
            ),
        ),
        ("A form", format!("curl -d word=hello '{}/form'", host("echo"))),
        ("A redirect stays under the path prefix", format!("curl -i '{}/redirect'", path("echo"))),
        ("So does a cookie", format!("curl -i '{}/cookie'", path("echo"))),
        (
            "A private sandbox with its token",
            format!("curl -H 'cube-traffic-access-token: {TOKEN}' '{}/'", host("private")),
        ),
        ("Without the token it looks like one that is not there", format!("curl -i '{}/'", host("private"))),
        ("A sandbox that is not there", format!("curl -i '{}/'", host("nobody"))),
        ("A paused one", format!("curl -i '{}/'", host("asleep"))),
        (
            "Wake it by the admin API, and ask again",
            format!(
                "curl -H 'Content-Type: application/json' -d {wake} 'http://127.0.0.1:{admin}/admin/state' && \
                 curl '{}/'",
                host("asleep")
            ),
        ),
        ("Server-sent events, for three seconds", format!("curl -sN -m 3 '{}/events'", host("live"))),
        (
            "A WebSocket, for three seconds",
            format!("curl -siN -m 3 --http1.1 {handshake} '{}/ws' --output -", host("live")),
        ),
        (
            "Every answer is counted by return code and reason",
            format!("curl -s 'http://127.0.0.1:{metrics}/metrics' | grep cube_proxy_answers_total"),
        ),
    ];
    list.into_iter().map(|(what, command)| Sample { what, command }).collect()
}

/// What the terminal shows. `asked`: the port that was wanted.
pub(super) fn banner(samples: &[Sample], ports: Ports, asked: u16) -> String {
    let mut text = String::new();
    if ports.http != asked {
        let _ = writeln!(text, "Port {asked} is taken; this is {} instead.\n", ports.http);
    }
    let _ = writeln!(text, "Cube Proxy demo. Open http://127.0.0.1:{}/ in a browser, or paste:", ports.http);
    for Sample { what, command } in samples {
        let _ = write!(text, "\n  # {what}\n  {command}\n");
    }
    text.push_str("\nCtrl-C ends it.\n");
    text
}

/// The same for the page.
pub(super) fn as_html(samples: &[Sample]) -> String {
    samples
        .iter()
        .map(|Sample { what, command }| {
            format!(
                "<div class=\"command\"><p>{}<button data-copy>copy</button></p><pre>{}</pre></div>",
                escape(what),
                escape(command)
            )
        })
        .collect()
}
