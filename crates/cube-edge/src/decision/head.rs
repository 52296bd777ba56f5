//! What a head says by itself: whom it names, and whether its size, method and framing may pass.

use std::net::IpAddr;

use cube_route::{BadRequest, ParsedRequest, Port, RequestHead, envd_control_route, parse_request};
use http::{HeaderMap, Method, Version, header};
use serde_json::json;

use super::recorder::{DecisionStep, Recorder};
use crate::error_response::ProxyError;
use crate::settings::Settings;

/// The most pieces of a cookie in one HTTP/2 request. Browsers keep at most some hundreds of cookies
/// for a site, and each piece costs the client only a few bytes.
const COOKIE_CRUMBS: usize = 1_000;

/// What of a request's head is judged.
pub(crate) struct HeadView<'a> {
    pub(crate) head: RequestHead<'a>,
    /// Who sends it; none where nobody does (`explain`).
    pub(crate) peer: Option<IpAddr>,
    /// Bytes of the head as it came in; none where that cannot be told (HTTP/2).
    pub(crate) bytes: Option<usize>,
    /// The head arrived as it was sent, and its body ends in one place (RFC 9112, 6).
    pub(crate) sound: bool,
    /// `Content-Length`, where there is a number in it.
    pub(crate) content_length: Option<u64>,
}

/// Whom a head names.
pub(crate) struct NamedTarget<'a> {
    pub(crate) parsed: Result<ParsedRequest<'a>, BadRequest>,
    /// The host is one of `routing.control_plane`, so that no sandbox is meant.
    pub(crate) control_plane: bool,
}

impl<'a> NamedTarget<'a> {
    /// Reads it, before anything may refuse the request, so that log and response can say it.
    pub(crate) fn read(head: &RequestHead<'a>, settings: &Settings) -> Self {
        let parsed = parse_request(head, &settings.rules);
        let control_plane = parsed
            .as_ref()
            .is_ok_and(|read| read.target.is_none() && settings.is_control_plane(&read.client_host));
        Self { parsed, control_plane }
    }
}

/// Judges a head. `rate_allows`: whether the limit of requests from one address lets it pass; called once.
///
/// # Errors
/// Why it is refused.
pub(crate) fn check(
    view: &HeadView<'_>,
    named: &NamedTarget<'_>,
    settings: &Settings,
    rate_allows: impl FnOnce() -> bool,
    recorder: &mut impl Recorder,
) -> Result<(), ProxyError> {
    // Before anything else may refuse it: a request that is malformed counts as well.
    if !rate_allows() {
        return Err(ProxyError::TooManyFromAddress);
    }
    tell_of_sandbox(view, named, recorder);
    check_size(view, settings, recorder)?;
    let method = view.head.method;
    if matches!(*method, Method::TRACE | Method::CONNECT) {
        recorder.stopped(DecisionStep::Head, || format!("{method} is not forwarded"));
        return Err(ProxyError::MethodNotAllowed);
    }
    if !view.sound {
        recorder.stopped(DecisionStep::Head, || "the head is malformed");
        return Err(ProxyError::BadRequest);
    }
    check_named(view, named, recorder)?;
    check_envd_route(view, named, settings, recorder)?;
    if let (Some(limit), Some(length)) = (*settings.limits.body, view.content_length)
        && length > limit
    {
        recorder
            .stopped(DecisionStep::Head, || format!("the body has {length} bytes; limits.body is {limit}"));
        return Err(ProxyError::BodyTooLarge);
    }
    Ok(())
}

/// The length of the head, the number of its headers, and the length of the target.
fn check_size(
    view: &HeadView<'_>,
    settings: &Settings,
    recorder: &mut impl Recorder,
) -> Result<(), ProxyError> {
    let (head, limits) = (&view.head, &settings.limits);
    let length = head.target.len();
    if length > limits.target {
        recorder.stopped(DecisionStep::Head, || {
            format!("the target has {length} bytes; limits.target is {}", limits.target)
        });
        return Err(ProxyError::TargetTooLong);
    }
    let crumbs = cookie_crumbs(head);
    // They reach the sandbox as one header, and count as one.
    let headers = head.headers.len() - crumbs.saturating_sub(1);
    let bytes = view.bytes.unwrap_or_else(|| headers_len(head.headers) + length);
    // On HTTP/2 the authority stands for Host, which counts.
    let authority = usize::from(head.authority.is_some() && !head.headers.contains_key(header::HOST));
    if crumbs > COOKIE_CRUMBS || bytes > limits.head || headers + authority > limits.headers {
        recorder.stopped(DecisionStep::Head, || {
            format!(
                "{bytes} bytes and {} headers; limits.head and limits.headers allow less",
                headers + authority
            )
        });
        return Err(ProxyError::HeadTooLarge);
    }
    Ok(())
}

/// Tells of a sandbox that the head names. It was read before anything could refuse the request.
fn tell_of_sandbox(view: &HeadView<'_>, named: &NamedTarget<'_>, recorder: &mut impl Recorder) {
    if let Ok(ParsedRequest { target: Some(target), .. }) = &named.parsed {
        recorder.passed(DecisionStep::Target, || {
            let form = target.form.as_str();
            (
                format!("sandbox {}, port {}, named by {form}", target.id, target.port),
                json!({
                    "sandbox_id": target.id.as_str(), "port": target.port.get(), "form": form,
                    "host": host_of(&view.head),
                }),
            )
        });
    }
}

/// Whether the head names a sandbox or the control plane.
fn check_named(
    view: &HeadView<'_>,
    named: &NamedTarget<'_>,
    recorder: &mut impl Recorder,
) -> Result<(), ProxyError> {
    let values = || json!({ "host": host_of(&view.head) });
    match &named.parsed {
        Ok(read) if read.target.is_some() => Ok(()),
        Ok(_) if named.control_plane => {
            let says = "names no sandbox, and the host is one of routing.control_plane";
            recorder.passed(DecisionStep::Target, || (says.to_owned(), values()));
            Ok(())
        }
        Ok(_) => {
            recorder.stopped(DecisionStep::Target, || {
                let says = format!(
                    "{}: a host is <port>-<sandbox-id>.<domain>, a path /sandbox/<sandbox-id>/<port>/, headers \
                     are E2b-Sandbox-Id and E2b-Sandbox-Port",
                    BadRequest::NoForm
                );
                (says, values())
            });
            Err(ProxyError::BadTarget)
        }
        Err(error) => {
            recorder.stopped(DecisionStep::Target, || (error.to_string(), values()));
            Err(error_of(error))
        }
    }
}

/// The control routes of envd, which are for `routing.envd_control_from` only.
fn check_envd_route(
    view: &HeadView<'_>,
    named: &NamedTarget<'_>,
    settings: &Settings,
    recorder: &mut impl Recorder,
) -> Result<(), ProxyError> {
    let Ok(ParsedRequest { target: Some(target), origin_form, .. }) = &named.parsed else { return Ok(()) };
    let allowed = view
        .peer
        .map_or(settings.routing.envd_control_from.is_none(), |peer| settings.allows_envd_control(peer));
    if target.port != Port::ENVD {
        return Ok(());
    }
    let Some(path) = envd_control_route(&target.upstream_target(origin_form)) else { return Ok(()) };
    if allowed {
        recorder.passed(DecisionStep::Envd, || format!("{path} is a control route, open to everyone"));
        return Ok(());
    }
    recorder.stopped(DecisionStep::Envd, || {
        let peers = settings.routing.envd_control_from.iter().flatten().map(ToString::to_string);
        let peers: Vec<String> = peers.collect();
        let says = format!("{path} is a control route, for peers in routing.envd_control_from only");
        (says, json!({ "from": peers }))
    });
    Err(ProxyError::EnvdControl { path })
}

/// A head that names no sandbox in any form is told so; one that is no good head, that.
fn error_of(error: &BadRequest) -> ProxyError {
    match error {
        BadRequest::Id(_)
        | BadRequest::Port(_)
        | BadRequest::HeaderPair
        | BadRequest::HeaderTwice
        | BadRequest::PathForm
        | BadRequest::NoForm => ProxyError::BadTarget,
        _ => ProxyError::BadRequest,
    }
}

/// `Host` as it came, for people.
fn host_of(head: &RequestHead<'_>) -> String {
    let host = head.headers.get(header::HOST);
    host.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned()).unwrap_or_default()
}

/// The pieces into which an HTTP/2 client cut its cookie (RFC 9113, 8.2.3); 0 in HTTP/1, where
/// each header is a header.
fn cookie_crumbs(head: &RequestHead<'_>) -> usize {
    if head.version != Version::HTTP_2 {
        return 0;
    }
    head.headers.get_all(header::COOKIE).iter().count()
}

/// The bytes of the header section as HTTP/1.1 would write it, cookie crumbs joined: between two of
/// them is `; `.
fn headers_len(headers: &HeaderMap) -> usize {
    let mut cookies = 0;
    let mut bytes = 0;
    for (name, value) in headers {
        bytes += name.as_str().len() + value.len() + 4;
        cookies += usize::from(name == header::COOKIE);
    }
    // The name and line of all but the first make room for the separator.
    bytes - cookies.saturating_sub(1) * "cookie: \r\n".len().saturating_sub("; ".len())
}
