//! The load bench's own clients, for what wrk and h2load cannot do, and their origin: WebSockets, event
//! streams, and requests at times of their own.
//!
//! ```text
//! bench-streams origin   LISTEN
//! bench-streams messages ADDRESS HOST CONNECTIONS SECONDS   one message under way on each
//! bench-streams events   ADDRESS HOST STREAMS SECONDS       counts what arrives
//! bench-streams paced    ADDRESS HOST CONNECTIONS SECONDS RATE FIELD   so many requests a second
//! ```
//!
//! A client prints `ready` when all connections stand, then measures, then prints one JSON object,
//! so that whoever started it can look at the proxy's clocks at both moments.

mod client;
mod head;
mod origin;
mod paced;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// `GET` with this path is an event stream; the query says how many milliseconds apart.
const EVENTS: &str = "/events?every=100";
/// The sample handshake of RFC 6455, 1.3: both sides are ours, so one key does for all.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// What the command line asks for.
struct Load {
    address: SocketAddr,
    host: String,
    connections: usize,
    time: Duration,
}

impl Load {
    fn read(arguments: &[String]) -> Option<Self> {
        let [address, host, connections, seconds] = arguments else { return None };
        Some(Self {
            address: address.parse().ok()?,
            host: host.clone(),
            connections: connections.parse().ok().filter(|n| *n > 0)?,
            time: Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?,
        })
    }
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stderr)]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((what, [listen])) if what == "origin" => origin::run(listen).await,
        Some((what, [rest @ .., rate, field])) if what == "paced" => match (Load::read(rest), rate.parse()) {
            (Some(load), Ok(rate)) => paced::run(load, rate, field).await,
            _ => return usage(),
        },
        Some((what, rest)) => match (what.as_str(), Load::read(rest)) {
            ("messages", Some(load)) => client::messages(load).await,
            ("events", Some(load)) => client::events(load).await,
            _ => return usage(),
        },
        None => return usage(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-streams: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr)]
fn usage() -> ExitCode {
    eprintln!(
        "usage: bench-streams origin LISTEN | messages|events ADDRESS HOST CONNECTIONS SECONDS | \
         paced ADDRESS HOST CONNECTIONS SECONDS RATE FIELD"
    );
    ExitCode::from(64)
}
