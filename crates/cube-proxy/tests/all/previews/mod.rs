//! Links that open a private sandbox in a browser (previews.md).

mod browser;
mod cross_site;
mod links;
mod login;
mod masking;
mod tickets;

use std::time::{SystemTime, UNIX_EPOCH};

use cube_route::preview::{Ticket, TicketPort};
use cube_route::{Port, SandboxId};
use cube_testkit::{Env, Response, Sandbox};

pub(crate) const TOKEN: &str = "example-token-of-a-preview";
const NAVIGATION: [(&str, &str); 2] =
    [("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
const E2B: &str = "e2b-traffic-access-token";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A ticket for a sandbox's port that is right for so many seconds from now on.
fn ticket_for(token: &str, sandbox: &Sandbox, seconds: i64) -> String {
    let port = TicketPort::One(Port::new(sandbox.port).unwrap());
    ticket_of(token, sandbox, port, now().saturating_add_signed(seconds))
}

fn ticket_of(token: &str, sandbox: &Sandbox, port: TicketPort, expiry: u64) -> String {
    Ticket::make(token.as_bytes(), &SandboxId::parse(&sandbox.id).unwrap(), port, expiry)
}

fn ticket(sandbox: &Sandbox) -> String {
    ticket_for(TOKEN, sandbox, 600)
}

/// `target` with a ticket in its query.
fn with(target: &str, ticket: &str) -> String {
    let sign = if target.contains('?') { '&' } else { '?' };
    format!("{target}{sign}cube_preview={ticket}")
}

/// What a metric of previews says.
async fn counted(env: &Env, result: &str) -> f64 {
    env.proxy.metrics().await.sum("cube_proxy_previews_total", &[("result", result)])
}

/// The ticket that a redirect gave as a cookie.
fn cookie(response: &Response) -> String {
    let all = response.headers.all("set-cookie");
    assert_eq!(all.len(), 1, "{}", response.brief());
    all[0].split(';').next().unwrap().to_owned()
}
