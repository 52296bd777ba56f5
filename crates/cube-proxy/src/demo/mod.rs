//! `cube-proxy demo`: everything a newcomer needs in one process.
//!
//! Toy sandboxes, a manager that wakes the one of them that sleeps, and a page on loopback; a store
//! in memory with a record for each, and the configuration of a proxy in front of them. The page is
//! reached through the proxy's own `routing.control_plane`. No Redis, no root, no network.

mod html;
mod manager;
mod page;
mod samples;
mod toys;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use clap::Args;
use cube_metadata::{FileStore, MetadataStore};
use tokio::runtime::Runtime;

use crate::config::{self, Config, Environment, Log, LogFormat, Machine};
use crate::error::StartError;
use crate::serve::{ServeOptions, serve};
use crate::{logging, run as start_up};

pub use samples::{Ports, SampleCommand, samples};

/// The traffic token of the private sandbox. Everybody may know it.
pub const TOKEN: &str = "demo-token-everybody-may-know";

/// The sandbox that sleeps until a request wakes it.
pub const ASLEEP: &str = "asleep";

/// All sandboxes, by the names that the page, the commands and the documents call them.
pub const SANDBOXES: [&str; 4] = ["echo", "live", "private", ASLEEP];

/// How to run the demo.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The proxy's port; the next free one where it is taken
    #[arg(long, value_name = "N", default_value_t = 8081, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
}

/// A demo whose toys run already; the proxy is still to be started with `config` and `store`.
pub struct DemoParts {
    /// For the proxy.
    pub config: Config,
    /// The records of the toy sandboxes.
    pub store: Arc<dyn MetadataStore>,
    /// What to print when the proxy serves.
    pub banner: String,
    /// Where things are.
    pub ports: Ports,
    /// The toys end with it.
    _runtime: Runtime,
}

/// Starts the toys and says how to start the proxy.
///
/// # Errors
/// [`StartError`] when not even a free port of loopback can be had.
pub fn start(options: &Options) -> Result<DemoParts, StartError> {
    let http = free_port(options.port, &[])?;
    let admin = free_port(8082, &[http])?;
    let metrics = free_port(9101, &[http, admin])?;
    let ports = Ports { http, admin, metrics };
    let samples = samples(ports);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("demo")
        .enable_all()
        .build()
        .map_err(|error| StartError::Assembly(format!("no runtime: {error}")))?;
    let echo = host(&runtime, toys::echo())?;
    let live = host(&runtime, toys::live())?;
    let private = host(&runtime, toys::private())?;
    let woken = host(&runtime, toys::asleep())?;
    let manager = Arc::new(manager::DemoManager::default());
    let resume = host(&runtime, manager::router(manager.clone()))?;
    let (page_at, page_socket) = socket()?;
    let config = configuration(ports, page_at, resume)?;
    serve_on(&runtime, page_socket, page::router(&samples, ports, manager, Arc::new(config.clone())))?;

    // HostIP is not this proxy's node_ip, so that the records look as in a fleet: with a mapping.
    let store = FileStore::from_yaml(&format!(
        "sandboxes:\n\
         \x20 echo: {{HostIP: 127.0.0.1, SandboxIP: 127.0.0.1, \"8080\": \"{echo}\"}}\n\
         \x20 live: {{HostIP: 127.0.0.1, SandboxIP: 127.0.0.1, \"8080\": \"{live}\"}}\n\
         \x20 private: {{HostIP: 127.0.0.1, SandboxIP: 127.0.0.1, \"8080\": \"{private}\", \
         AllowPublicTraffic: \"false\", TrafficAccessToken: {TOKEN}}}\n\
         \x20 {ASLEEP}: {{HostIP: 127.0.0.1, SandboxIP: 127.0.0.1, \"8080\": \"{woken}\", Status: paused}}\n"
    ))?;
    let banner = samples::banner(&samples, ports, options.port);
    Ok(DemoParts { config, store, banner, ports, _runtime: runtime })
}

/// Runs the demo until Ctrl-C.
///
/// # Errors
/// [`StartError`] when it cannot start.
pub fn run(options: &Options) -> Result<(), StartError> {
    start_up::raise_file_limit();
    logging::init(Log { level: tracing::Level::WARN, format: LogFormat::Text });
    let parts = start(options)?;
    let banner = parts.banner.clone();
    let show = move || {
        let mut out = std::io::stdout().lock();
        // Somebody who does not read it may still use it.
        let _ = out.write_all(banner.as_bytes()).and_then(|()| out.flush());
    };
    let options = ServeOptions { ready: Some(Box::new(show)), ..ServeOptions::default() };
    serve(parts.config.clone(), Some(parts.store.clone()), options)
}

fn configuration(ports: Ports, page: u16, resume: u16) -> Result<Config, StartError> {
    let Ports { http, admin, metrics } = ports;
    let text = format!(
        "node_ip: 127.0.0.254\n\
         listen: {{http: [\"127.0.0.1:{http}\"], admin: \"127.0.0.1:{admin}\", metrics: \"127.0.0.1:{metrics}\"}}\n\
         routing:\n\
         \x20 control_plane: {{url: \"http://127.0.0.1:{page}\", hosts: [127.0.0.1, localhost]}}\n\
         \x20 envd_control_from: []\n\
         resume: {{url: \"http://127.0.0.1:{resume}\"}}\n\
         upstream: {{cidrs: [127.0.0.0/8]}}\n\
         drain: {{delay: 0s, stop_timeout: 1s}}\n\
         log: {{level: warn}}\n\
         server: {{threads: 2}}\n"
    );
    let none = Environment::default();
    Ok(config::parse(text, "the demo", Path::new(""), &none, &Machine::this())?.config)
}

/// Serves `router` on a free port of loopback.
fn host(runtime: &Runtime, router: Router) -> Result<u16, StartError> {
    let (port, listener) = socket()?;
    serve_on(runtime, listener, router).map(|()| port)
}

fn failed(error: std::io::Error) -> StartError {
    StartError::Assembly(format!("the demo's own servers: {error}"))
}

/// A free port of loopback, bound.
fn socket() -> Result<(u16, TcpListener), StartError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok((listener.local_addr().map_err(failed)?.port(), listener))
}

fn serve_on(runtime: &Runtime, listener: TcpListener, router: Router) -> Result<(), StartError> {
    let _within = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    runtime.spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

/// `wanted`, or the next port that is free and not in `used`.
fn free_port(wanted: u16, used: &[u16]) -> Result<u16, StartError> {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let near = wanted..=wanted.saturating_add(200);
    near.into_iter().find(|port| !used.contains(port) && free(*port)).ok_or_else(|| StartError::Bind {
        option: "--port",
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, wanted)),
        reason: "and the 200 ports after it are taken".to_owned(),
    })
}

#[cfg(test)]
mod tests;
