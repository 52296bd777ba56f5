//! The process's own log: one line an event on standard error, people's or a machine's. Where that
//! is systemd's journal each line has its priority.

pub(crate) mod journal;
mod json;
mod rate;

use std::sync::OnceLock;

use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use self::journal::Prioritised;
use crate::config::{Log, LogFormat};
use crate::terminal;

/// Libraries whose everyday words are of no use to an operator, and the most they may say, at
/// every level: what they write for their own developers shows heads and commands, and with them
/// tokens and passwords. Pingora reports every client that goes away at `error`: such requests
/// are in the access log, with a reason.
const QUIET: &[(&str, &str)] = &[
    ("pingora_core", "warn"),
    // An error a time that a pooled connection turns out to be closing: a new one is made instead.
    ("pingora_core::connectors", "off"),
    ("pingora_proxy", "off"),
    ("pingora_cache", "warn"),
    ("pingora_pool", "warn"),
    ("fred", "error"),
    ("h2", "warn"),
    ("hyper", "warn"),
    ("rustls", "warn"),
    ("tungstenite", "warn"),
];

/// What is written at `level`, in the words of a filter.
fn filter(level: tracing::Level) -> String {
    let mut filter = level.as_str().to_lowercase();
    for (name, most) in QUIET {
        let most = if level == tracing::Level::ERROR && *most == "warn" { "error" } else { most };
        filter.push_str(&format!(",{name}={most}"));
    }
    filter
}

/// The filter in force, for [`set_level`].
static FILTER: OnceLock<Handle<EnvFilter, Registry>> = OnceLock::new();

/// Installs the log for the whole process, once; what libraries write with `log` goes there too.
/// A second call changes nothing.
pub fn init(log: Log) {
    let ansi = terminal::takes_colour(&std::io::stderr());
    let writer = match log.format {
        LogFormat::Text => BoxMakeWriter::new(std::io::stderr),
        LogFormat::Json => BoxMakeWriter::new(|| json::Escaped(std::io::stderr())),
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(ansi);
    let (filter, handle) = reload::Layer::new(EnvFilter::new(filter(log.level)));
    let registry = tracing_subscriber::registry().with(filter).with(rate::LogRateLimit::new());
    // Fails only when one is installed already.
    let installed = match (log.format, journal::is_stderr()) {
        (LogFormat::Text, false) => registry.with(layer).try_init(),
        (LogFormat::Text, true) => {
            registry.with(layer.without_time().map_event_format(Prioritised)).try_init()
        }
        (LogFormat::Json, false) => registry.with(layer.json().flatten_event(true)).try_init(),
        // Who reads the objects may not see what the journal keeps besides, so they keep their time.
        (LogFormat::Json, true) => {
            registry.with(layer.json().flatten_event(true).map_event_format(Prioritised)).try_init()
        }
    };
    if installed.is_ok() {
        // Set nowhere else, so it is empty.
        let _ = FILTER.set(handle);
    }
}

/// Writes at another level from now on (`log.level`).
pub fn set_level(level: tracing::Level) {
    let Some(handle) = FILTER.get() else { return };
    if let Err(error) = handle.reload(EnvFilter::new(filter(level))) {
        tracing::error!(%error, "log.level cannot be changed");
        return;
    }
    // What libraries write with `log` is cut off by a bound of its own, set when it was installed.
    log::set_max_level(match level {
        tracing::Level::ERROR => log::LevelFilter::Error,
        tracing::Level::WARN => log::LevelFilter::Warn,
        tracing::Level::INFO => log::LevelFilter::Info,
        tracing::Level::DEBUG => log::LevelFilter::Debug,
        tracing::Level::TRACE => log::LevelFilter::Trace,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_quiet_at_every_level() {
        let info = filter(tracing::Level::INFO);
        assert!(info.starts_with("info,") && info.contains("pingora_core=warn"), "{info}");
        assert!(filter(tracing::Level::ERROR).contains("fred=error"));
        let debug = filter(tracing::Level::DEBUG);
        assert!(debug.starts_with("debug,") && debug.contains("h2=warn"), "{debug}");
        assert!(debug.contains("pingora_proxy=off"), "its lines show heads: {debug}");
        for level in
            [tracing::Level::ERROR, tracing::Level::WARN, tracing::Level::INFO, tracing::Level::TRACE]
        {
            assert!(EnvFilter::try_new(filter(level)).is_ok(), "{level}");
        }
    }
}
