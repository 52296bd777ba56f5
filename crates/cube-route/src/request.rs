//! From a request head to the sandbox and port that it names: the three forms, in order.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, Method, Version, header};

use crate::error::BadRequest;
use crate::host::ClientHost;
use crate::name::{Port, RoutingForm, SandboxId};
use crate::rules::Rules;
use crate::target::{RawTarget, path_of};

/// The header that names the sandbox on a shared host.
pub(crate) static SANDBOX_ID: HeaderName = HeaderName::from_static("e2b-sandbox-id");
/// The header that names the port on a shared host.
pub(crate) static SANDBOX_PORT: HeaderName = HeaderName::from_static("e2b-sandbox-port");

/// Which kind of listener took the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// A listener for HTTP or HTTPS.
    Data,
    /// The plaintext HTTP/2 listener for gRPC, where a host may do without a domain.
    Grpc,
}

/// What of a request decides where it goes.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    /// The version that the client speaks.
    pub version: Version,
    /// The method.
    pub method: &'a Method,
    /// The request target exactly as received: origin, absolute or asterisk form; on HTTP/2 the
    /// `:path`.
    pub target: &'a [u8],
    /// `:authority`, on HTTP/2.
    pub authority: Option<&'a str>,
    /// The headers as received.
    pub headers: &'a HeaderMap,
    /// The listener that took the request.
    pub listener: ListenerKind,
}

/// A well-formed request, and the sandbox that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedRequest<'a> {
    /// The client's Host (on HTTP/2 its `:authority`), as sent.
    pub host: &'a str,
    /// The same host, parsed.
    pub client_host: ClientHost<'a>,
    /// Path and query in origin form, the client's bytes; `*` with OPTIONS.
    pub origin_form: Cow<'a, [u8]>,
    /// What the request names; none if no form applies.
    pub target: Option<SandboxTarget>,
}

/// The sandbox and port that a request names, and how it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxTarget {
    /// The sandbox.
    pub id: SandboxId,
    /// The port inside it.
    pub port: Port,
    /// In which form the request named them.
    pub form: RoutingForm,
    /// Bytes of `/sandbox/<id>/<port>` at the head of the origin form; 0 but in the path form.
    prefix_len: u8,
}

impl SandboxTarget {
    /// Path form: `/sandbox/<id>/<port>` as the client wrote it. `origin_form` is the one that
    /// this target was read from.
    #[must_use]
    pub fn prefix<'r>(&self, origin_form: &'r [u8]) -> Option<&'r str> {
        if self.prefix_len == 0 {
            return None;
        }
        origin_form.get(..usize::from(self.prefix_len)).and_then(|prefix| std::str::from_utf8(prefix).ok())
    }

    /// The request target that the sandbox gets: the client's bytes, in the path form without
    /// the prefix, and with a `/` put in front when nothing else would stand there.
    #[must_use]
    pub fn upstream_target<'r>(&self, origin_form: &'r [u8]) -> Cow<'r, [u8]> {
        let rest = origin_form.get(usize::from(self.prefix_len)..).unwrap_or_default();
        match rest.first() {
            _ if self.prefix_len == 0 => Cow::Borrowed(origin_form),
            Some(b'/') => Cow::Borrowed(rest),
            None => Cow::Borrowed(&b"/"[..]),
            Some(_) => Cow::Owned([b"/", rest].concat()),
        }
    }

    /// The first label of the host form: `<port>-<id>`.
    #[must_use]
    pub fn host_label(&self) -> String {
        format!("{}-{}", self.port, self.id)
    }

    /// The prefix of the path form: `/sandbox/<id>/<port>`.
    #[must_use]
    pub fn path_prefix(&self) -> String {
        format!("/sandbox/{}/{}", self.id, self.port)
    }
}

/// Checks Host and the request target, then tries the three forms in their order; the first that
/// applies decides.
///
/// # Errors
/// The rule that the request breaks. A request to which no form applies is no error here
/// ([`ParsedRequest::target`] is none), since it may be the control plane's.
pub fn parse_request<'a>(head: &RequestHead<'a>, rules: &Rules) -> Result<ParsedRequest<'a>, BadRequest> {
    let (text, host) = parse_host(head)?;
    let raw = RawTarget::parse(head.version, head.method, head.target)?;
    if let Some((authority, default_port)) = raw.authority
        && !authority.same_with_default(&host, default_port)
    {
        return Err(BadRequest::HostMismatch);
    }
    let origin_form = raw.origin_form;
    let target = match host_form(&host, rules, head.listener)? {
        Some(target) => Some(target),
        None => match header_form(&host, head.headers, rules, head.listener)? {
            Some(target) => Some(target),
            None => path_form(&origin_form)?,
        },
    };
    Ok(ParsedRequest { host: text, client_host: host, origin_form, target })
}

/// The request's single Host.
fn parse_host<'a>(head: &RequestHead<'a>) -> Result<(&'a str, ClientHost<'a>), BadRequest> {
    let parse = |text: &'a str| {
        if text.is_empty() {
            return Err(BadRequest::HostEmpty);
        }
        ClientHost::parse(text).map(|host| (text, host)).ok_or(BadRequest::HostMalformed)
    };
    let mut values = head.headers.get_all(header::HOST).iter();
    let header = match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => Some(parse(value.to_str().map_err(|_| BadRequest::HostMalformed)?)?),
        (Some(_), Some(_)) => return Err(BadRequest::HostTwice),
    };
    let authority = head.authority.map(parse).transpose()?;
    match (authority, header) {
        (Some((_, one)), Some((_, two))) if !one.same(&two) => Err(BadRequest::HostMismatch),
        (Some(host), _) | (None, Some(host)) => Ok(host),
        (None, None) => Err(BadRequest::NoHost),
    }
}

/// `<port>-<id>[.<domain>]`.
fn host_form(
    host: &ClientHost<'_>,
    rules: &Rules,
    listener: ListenerKind,
) -> Result<Option<SandboxTarget>, BadRequest> {
    if host.ip().is_some() {
        return Ok(None);
    }
    let (label, domain) = host.labels();
    let Some((port, id)) = label.split_once('-') else { return Ok(None) };
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if !digits || !rules.allow(domain, listener) {
        return Ok(None);
    }
    let id = match id.split_once('-') {
        Some((id, _client_id)) if rules.client_id_suffix() => id,
        _ => id,
    };
    sandbox_target(RoutingForm::Host, id, port).map(Some)
}

/// `E2b-Sandbox-Id` and `E2b-Sandbox-Port`, on a host that names no sandbox of its own.
fn header_form(
    host: &ClientHost<'_>,
    headers: &HeaderMap,
    rules: &Rules,
    listener: ListenerKind,
) -> Result<Option<SandboxTarget>, BadRequest> {
    if !is_shared(host, rules, listener) {
        return Ok(None);
    }
    match (single_header(headers, &SANDBOX_ID)?, single_header(headers, &SANDBOX_PORT)?) {
        (None, None) => Ok(None),
        (Some(id), Some(port)) => {
            let id = std::str::from_utf8(id).map_err(|_| BadRequest::Id(RoutingForm::Header))?;
            let port = std::str::from_utf8(port).map_err(|_| BadRequest::Port(RoutingForm::Header))?;
            sandbox_target(RoutingForm::Header, id, port).map(Some)
        }
        _ => Err(BadRequest::HeaderPair),
    }
}

/// An IP literal, `localhost`, or `sandbox.<domain>`.
fn is_shared(host: &ClientHost<'_>, rules: &Rules, listener: ListenerKind) -> bool {
    if host.ip().is_some() || host.name().eq_ignore_ascii_case("localhost") {
        return true;
    }
    let (label, domain) = host.labels();
    label.eq_ignore_ascii_case("sandbox")
        && (domain.is_some() || listener == ListenerKind::Grpc)
        && rules.allow(domain, listener)
}

/// The one value of a header, if it is there.
fn single_header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h [u8]>, BadRequest> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(BadRequest::HeaderTwice);
    }
    Ok(first.map(|value| value.as_bytes()))
}

/// `/sandbox/<id>/<port>[/<rest>]`.
fn path_form(origin_form: &[u8]) -> Result<Option<SandboxTarget>, BadRequest> {
    let path = path_of(origin_form);
    let Some(rest) = path.strip_prefix(b"/sandbox") else { return Ok(None) };
    if !matches!(rest.first(), None | Some(b'/')) {
        return Ok(None);
    }
    let mut segments = rest.split(|b| *b == b'/').skip(1);
    let (Some(id), Some(port)) = (segments.next(), segments.next()) else {
        return Err(BadRequest::PathForm);
    };
    let prefix_len = "/sandbox//".len() + id.len() + port.len();
    let id = std::str::from_utf8(id).map_err(|_| BadRequest::Id(RoutingForm::Path))?;
    let port = std::str::from_utf8(port).map_err(|_| BadRequest::Port(RoutingForm::Path))?;
    let mut target = sandbox_target(RoutingForm::Path, id, port)?;
    // Cannot fail: id and port have passed, 10 + 128 + 5 bytes at most.
    target.prefix_len = u8::try_from(prefix_len).map_err(|_| BadRequest::PathForm)?;
    Ok(Some(target))
}

fn sandbox_target(form: RoutingForm, id: &str, port: &str) -> Result<SandboxTarget, BadRequest> {
    let port = Port::parse(port).map_err(|error| BadRequest::name(form, error))?;
    let id = SandboxId::parse(id).map_err(|error| BadRequest::name(form, error))?;
    Ok(SandboxTarget { id, port, form, prefix_len: 0 })
}

#[cfg(test)]
mod tests;
