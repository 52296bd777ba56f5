//! `tracing`: where spans go (fleet.md, Tracing).

use cube_edge::{HeaderFile, OtlpKeys, TlsTrust};
use cube_settings::Secret;
use http::{HeaderName, HeaderValue};

use super::check::Check;
use super::resolve::{Machine, trust};
use super::types::Otlp;

/// What an export says itself.
const OURS: [&str; 4] = ["content-type", "content-length", "host", "transfer-encoding"];

/// What the section means; `None`: no request is traced.
pub(super) fn resolve(c: &mut Check, keys: &mut OtlpKeys, machine: &Machine) -> Option<Otlp> {
    if !c.sound(&["tracing.otlp"]) {
        return None;
    }
    let Some(endpoint) = &keys.endpoint else {
        c.require("tracing.otlp.headers", keys.headers.is_empty(), "there is no endpoint to send them to");
        c.require("tracing.otlp.ca_file", keys.ca_file.is_none(), "there is no endpoint to verify");
        return None;
    };
    c.require("tracing.otlp.service_name", !keys.service_name.is_empty(), "must not be empty");
    let listed = keys.headers.iter_mut().enumerate();
    let headers = listed.filter_map(|(at, header)| read_header(c, at, header)).collect();
    let endpoint = c.http_or_https_url("tracing.otlp.endpoint", endpoint)?;
    let https = endpoint.scheme_str() == Some("https");
    let trust = trust(c, "tracing.otlp.ca_file", https, keys.ca_file.as_mut());
    let trust = trust.unwrap_or_else(TlsTrust::system);
    let (service_name, host_name) = (keys.service_name.clone(), machine.host_name.clone());
    Some(Otlp { endpoint, trust, headers, service_name, host_name })
}

fn read_header(c: &mut Check, at: usize, header: &mut HeaderFile) -> Option<(HeaderName, Secret)> {
    let key = format!("tracing.otlp.headers[{at}]");
    let name = HeaderName::from_bytes(header.name.as_bytes()).ok();
    let good = name.filter(|name| !OURS.contains(&name.as_str()));
    if good.is_none() {
        c.fault(&format!("{key}.name"), format!("{:?} is no header that an export can have", header.name));
    }
    c.secret_file(&format!("{key}.file"), &mut header.file);
    let value = header.file.secret()?;
    let sendable = HeaderValue::from_bytes(value.expose()).is_ok();
    c.require(&format!("{key}.file"), sendable, "what is in it cannot be the value of a header");
    Some((good?, value.clone()))
}
