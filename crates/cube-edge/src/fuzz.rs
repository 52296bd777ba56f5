//! What hostile bytes may not do to this crate, a function a target (fuzz/README.md).

use cube_route::{Port, SandboxId};
use cube_settings::Auto;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

use crate::error_response::{Dialect, OwnResponse, ProxyError, ResponseFormat, Settings, render};
pub use crate::exchange::fuzz::requests;
use crate::{ExplainQuery, decision::ExplainQueryError};

/// The query of `GET /admin/explain`: what is understood is a request that could be sent.
pub fn explain(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ExplainQuery::of_query(text) {
        Ok(_) => {}
        Err(ExplainQueryError::NoUrl) => assert!(
            !text.split('&').any(|pair| pair.len() > 4 && pair.starts_with("url=")) || text.contains("url=&")
        ),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A request's headers, a line each, after two bytes that choose method and error: the proxy's own response
/// is in the grammar of whoever asked, whatever they sent.
pub fn own_response(data: &[u8]) {
    let Some(([method, error], lines)) = data.split_first_chunk::<2>().map(|(first, rest)| (*first, rest))
    else {
        return;
    };
    let methods = [Method::GET, Method::HEAD, Method::POST, Method::OPTIONS];
    let Some(method) = methods.get(usize::from(method) % methods.len()) else { return };
    let Some(error) = ERRORS.get(usize::from(error) % ERRORS.len()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines.split(|b| *b == b'\n') {
        let Some((name, value)) =
            line.iter().position(|b| *b == b':').and_then(|at| line.split_at_checked(at))
        else {
            continue;
        };
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let mut format =
        ResponseFormat::new(method, &headers).allowing(&headers, &["https://platform.example".to_owned()]);
    if let (Ok(id), Some(port)) = (SandboxId::parse("abc"), Port::new(8080)) {
        format = format.of(&id, port);
    }
    if let Some(id) = headers.get("x-cube-request-id") {
        format = format.identified(id);
    }
    for dialect in [Dialect::Cube, Dialect::E2b] {
        for mask_existence in [false, true] {
            let response =
                render(*error, &format, Settings { dialect, mask_existence: Auto::new(mask_existence) });
            check_own_response(&response, *method == Method::HEAD);
        }
    }
}

/// One error of each kind of text.
const ERRORS: &[ProxyError] = &[
    ProxyError::BadRequest,
    ProxyError::TokenMissing,
    ProxyError::TokenWrong,
    ProxyError::PreviewExpired,
    ProxyError::EnvdControl { path: "/init" },
    ProxyError::MethodNotAllowed,
    ProxyError::Killed,
    ProxyError::TooManyForSandbox { limit: 3 },
    ProxyError::StoreUnavailable,
    ProxyError::Paused,
    ProxyError::NoRecord,
    ProxyError::ConnectRefused,
    ProxyError::UpstreamTimeout,
];

fn check_own_response(response: &OwnResponse, head: bool) {
    let header = |name: &str| {
        let mut found = response.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_bytes());
        assert!(found.next().is_none(), "{name} twice");
        value
    };
    let length = header("content-length").map(|length| String::from_utf8_lossy(length).parse::<usize>());
    assert!(length.is_none_or(|length| head || length == Ok(response.body.len())), "length and body differ");
    assert!(header("x-cube-retcode").is_some());
    if header("access-control-allow-credentials").is_some() {
        assert_eq!(header("access-control-allow-origin"), Some(&b"https://platform.example"[..]));
    }
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    match header("content-type") {
        _ if head => assert!(response.body.is_empty()),
        None => assert!(response.body.is_empty()),
        Some(kind) if kind.starts_with(b"application/json") => assert!(json(&response.body).is_object()),
        Some(kind) if kind.starts_with(b"application/connect+") => {
            let Some(([flags, length @ ..], message)) = response.body.split_first_chunk::<5>() else {
                assert!(response.body.len() >= 5, "an envelope without its head");
                return;
            };
            assert_eq!((*flags, u32::from_be_bytes(*length) as usize), (2, message.len()), "the envelope");
            assert!(
                json(message).pointer("/error/code").is_some_and(Value::is_string),
                "the end of a stream"
            );
        }
        Some(kind) if kind.starts_with(b"application/grpc") => {
            let message = header("grpc-message").unwrap_or_default();
            assert!(header("grpc-status").is_some() && message.iter().all(|b| (b' '..=b'~').contains(b)));
        }
        Some(kind) => {
            assert!(kind.starts_with(b"text/html"), "another kind of body");
            let page = String::from_utf8_lossy(&response.body).to_lowercase();
            assert!(!page.contains("<script") && !page.contains("<img"), "the request's text is markup");
        }
    }
}

#[cfg(test)]
mod tests {
    use cube_fuzz::run_corpus;

    #[test]
    fn corpora_of_fuzzing() {
        run_corpus("explain", super::explain);
        run_corpus("own-response", super::own_response);
        run_corpus("requests", super::requests);
    }
}
