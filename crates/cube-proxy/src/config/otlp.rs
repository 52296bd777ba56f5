//! `tracing`: where spans go (fleet.md, Tracing).

use cube_settings::Secret;
use http::{HeaderName, HeaderValue};

use super::check::Check;
use super::file;
use super::resolve::{Machine, trust};
use super::types::{Otlp, Tracing};

/// What an export says itself.
const OURS: [&str; 4] = ["content-type", "content-length", "host", "transfer-encoding"];

/// Checks the section.
pub(super) fn resolve(c: &mut Check, file: file::Otlp, machine: &Machine) -> Tracing {
    let sample_ratio = file.sample_ratio;
    let share = (0.0..=1.0).contains(&sample_ratio);
    c.require("tracing.otlp.sample_ratio", share, "must be a share of the requests, from 0 to 1");
    Tracing { otlp: otlp(c, file, machine), sample_ratio }
}

fn otlp(c: &mut Check, file: file::Otlp, machine: &Machine) -> Option<Otlp> {
    if !c.sound(&["tracing.otlp"]) {
        return None;
    }
    let Some(endpoint) = file.endpoint else {
        c.require("tracing.otlp.headers", file.headers.is_empty(), "there is no endpoint to send them to");
        c.require("tracing.otlp.ca_file", file.ca_file.is_none(), "there is no endpoint to verify");
        return None;
    };
    c.require("tracing.otlp.service_name", !file.service_name.is_empty(), "must not be empty");
    let listed = file.headers.into_iter().enumerate();
    let headers = listed.filter_map(|(at, header)| read_header(c, at, header)).collect();
    let endpoint = c.http_or_https_url("tracing.otlp.endpoint", &endpoint)?;
    let https = endpoint.scheme_str() == Some("https");
    let trust = trust(c, "tracing.otlp.ca_file", https, file.ca_file.as_deref());
    let trust = trust.unwrap_or_else(cube_edge::TlsTrust::system);
    let host_name = machine.host_name.clone();
    Some(Otlp { endpoint, trust, headers, service_name: file.service_name, host_name })
}

fn read_header(c: &mut Check, at: usize, header: file::HeaderFile) -> Option<(HeaderName, Secret)> {
    let key = format!("tracing.otlp.headers[{at}]");
    let name = HeaderName::from_bytes(header.name.as_bytes()).ok();
    let good = name.filter(|name| !OURS.contains(&name.as_str()));
    if good.is_none() {
        c.fault(&format!("{key}.name"), format!("{:?} is no header that an export can have", header.name));
    }
    let value = c.secret_file(&format!("{key}.file"), &header.file)?;
    let sendable = HeaderValue::from_bytes(value.expose()).is_ok();
    c.require(&format!("{key}.file"), sendable, "what is in it cannot be the value of a header");
    Some((good?, value))
}
