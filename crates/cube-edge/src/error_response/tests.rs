//! Every row of errors.md in both dialects, and the shapes a response can take.

use cube_route::{Port, SandboxId};
use cube_settings::Auto;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

use super::*;
use crate::retcode::Retcode;

const CUBE: Settings = Settings { dialect: Dialect::Cube, mask_existence: Auto::new(true) };
const CUBE_OPEN: Settings = Settings { dialect: Dialect::Cube, mask_existence: Auto::new(false) };
const E2B: Settings = Settings { dialect: Dialect::E2b, mask_existence: Auto::new(false) };
const E2B_MASKED: Settings = Settings { dialect: Dialect::E2b, mask_existence: Auto::new(true) };

/// What a browser accepts that navigates.
const HTML: &str = "text/html,application/xhtml+xml,*/*;q=0.8";

fn format(method: Method, headers: &[(&str, &str)]) -> ResponseFormat {
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap()))
        .collect();
    ResponseFormat::new(&method, &headers).of(&SandboxId::parse("abc123").unwrap(), Port::new(8080).unwrap())
}

fn get() -> ResponseFormat {
    format(Method::GET, &[])
}

fn header<'a>(response: &'a OwnResponse, name: &str) -> Option<&'a str> {
    let mut found = response.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
    let value = found.next().map(|(_, value)| value.to_str().unwrap());
    assert!(found.next().is_none(), "{name} twice");
    value
}

fn body(response: &OwnResponse) -> &str {
    std::str::from_utf8(&response.body).unwrap()
}

/// Status, return code on the wire, Retry-After.
fn outline(response: &OwnResponse) -> (u16, u32, Option<&str>) {
    let code = header(response, "x-cube-retcode").unwrap().parse().unwrap();
    assert_eq!(code, response.wire_retcode.code());
    (response.status.as_u16(), code, header(response, "retry-after"))
}

#[test]
fn the_cube_dialect_says_what_the_table_says() {
    for (error, status, code, text, retry) in [
        (ProxyError::BadTarget, 400, 310_400, "bad request", None),
        (ProxyError::BadRequest, 400, 310_400, "bad request", None),
        (ProxyError::BadHead, 400, 310_400, "bad request", None),
        (ProxyError::TokenMissing, 403, 310_403, "forbidden", None),
        (ProxyError::TokenWrong, 403, 310_403, "forbidden", None),
        (ProxyError::EnvdControl { path: "/init" }, 404, 310_404, "not found", None),
        (ProxyError::MethodNotAllowed, 405, 310_405, "method not allowed", None),
        (ProxyError::HeadTimeout, 408, 310_408, "request timeout", None),
        (ProxyError::BodyTimeout, 408, 310_408, "request timeout", None),
        (ProxyError::Killed, 410, 310_410, "gone", None),
        (ProxyError::Revoked, 410, 310_410, "gone", None),
        (ProxyError::BodyTooLarge, 413, 310_413, "payload too large", None),
        (ProxyError::TargetTooLong, 414, 310_414, "uri too long", None),
        (ProxyError::HeadTooLarge, 431, 310_431, "header fields too large", None),
        (ProxyError::TooManyForSandbox { limit: 3 }, 429, 310_429, "too many requests", Some("1")),
        (ProxyError::TooManyFromAddress, 429, 310_429, "too many requests", Some("1")),
        (ProxyError::ResumeQuota, 429, 310_429, "too many requests", Some("1")),
        (ProxyError::StoreUnavailable, 503, 310_500, "service unavailable", Some("1")),
        (ProxyError::Internal, 500, 310_501, "internal error", None),
        (ProxyError::OutOfDescriptors, 500, 310_501, "internal error", None),
        (ProxyError::Pausing, 503, 310_503, "service unavailable", Some("2")),
        (ProxyError::Paused, 503, 310_503, "service unavailable", Some("5")),
        (ProxyError::ResumeFailed, 503, 310_503, "service unavailable", Some("5")),
        (ProxyError::HeldTooMany, 503, 310_503, "service unavailable", Some("5")),
        (ProxyError::DrainTimeout, 503, 310_503, "service unavailable", Some("5")),
        (ProxyError::NoRecord, 404, 310_507, "not found", None),
        (ProxyError::NoHostIp, 404, 310_507, "not found", None),
        (ProxyError::NoSandboxIp, 404, 310_507, "not found", None),
        (ProxyError::NoMapping, 404, 310_507, "not found", None),
        (ProxyError::MalformedAddress, 502, 310_508, "bad gateway", None),
        (ProxyError::ForbiddenAddress, 502, 310_508, "bad gateway", None),
        (ProxyError::ConnectRefused, 502, 310_509, "bad gateway", None),
        (ProxyError::ConnectFailed, 502, 310_509, "bad gateway", None),
        (ProxyError::ConnectTimeout, 504, 310_509, "gateway timeout", None),
        (ProxyError::UpstreamCut, 502, 310_509, "bad gateway", None),
        (ProxyError::UpstreamMalformed, 502, 310_509, "bad gateway", None),
        (ProxyError::UpstreamTimeout, 504, 310_509, "gateway timeout", None),
        (ProxyError::ControlPlaneUnresolved, 502, 310_509, "bad gateway", None),
        (ProxyError::ControlPlaneTls, 502, 310_509, "bad gateway", None),
        (ProxyError::FaultyNode, 500, 340_500, "backend unavailable", Some("1")),
        (ProxyError::BreakerOpen, 500, 340_500, "backend unavailable", Some("1")),
    ] {
        let response = render(error, &get(), CUBE_OPEN);
        assert_eq!(outline(&response), (status, code, retry), "{error:?}");
        assert_eq!(body(&response), format!("{{\"error\":\"{text}\"}}\n"), "{error:?}");
        assert_eq!(header(&response, "content-type"), Some("application/json"));
        assert_eq!((response.log_retcode, response.reason), (error.retcode(), error.reason()));
        assert!(!response.success);
    }
}

#[test]
fn the_e2b_dialect_says_what_its_sdks_expect() {
    let not_found = r#"{"sandboxId":"abc123","message":"The sandbox was not found","code":502}"#;
    let not_open = r#"{"sandboxId":"abc123","message":"The sandbox is running but port is not open","port":8080,"code":502}"#;
    let missing = r#"{"sandboxId":"abc123","message":"Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing","code":403}"#;
    let wrong = r#"{"sandboxId":"abc123","message":"Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid","code":403}"#;
    let changing = r#"{"sandboxId":"abc123","message":"The sandbox is still transitioning. Try again in a moment.","code":409}"#;
    let many = r#"{"sandboxId":"abc123","message":"The sandbox has too many concurrent incoming connections (limit: 3)","code":429,"connectionLimit":3}"#;
    let control = r#"{"message":"This endpoint is reserved for the control plane and is not reachable through the sandbox URL","path":"/init","code":404}"#;
    for (error, status, code, retry, text) in [
        (ProxyError::TokenMissing, 403, 310_403, None, missing),
        (ProxyError::TokenWrong, 403, 310_403, None, wrong),
        (ProxyError::EnvdControl { path: "/init" }, 404, 310_404, None, control),
        (ProxyError::Killed, 502, 310_410, None, not_found),
        (ProxyError::Revoked, 502, 310_410, None, not_found),
        (ProxyError::TooManyForSandbox { limit: 3 }, 429, 310_429, Some("1"), many),
        (ProxyError::Pausing, 409, 310_503, Some("2"), changing),
        (ProxyError::NoRecord, 502, 310_507, None, not_found),
        (ProxyError::NoHostIp, 502, 310_507, None, not_found),
        (ProxyError::NoSandboxIp, 502, 310_507, None, not_found),
        (ProxyError::NoMapping, 502, 310_507, None, not_open),
        (ProxyError::MalformedAddress, 502, 310_508, None, not_found),
        (ProxyError::ForbiddenAddress, 502, 310_508, None, not_found),
        (ProxyError::ConnectRefused, 502, 310_509, None, not_open),
        (ProxyError::ConnectFailed, 502, 310_509, None, not_open),
        (ProxyError::UpstreamCut, 502, 310_509, None, not_open),
        (ProxyError::UpstreamMalformed, 502, 310_509, None, not_open),
    ] {
        let response = render(error, &get(), E2B);
        assert_eq!(outline(&response), (status, code, retry), "{error:?}");
        assert_eq!(body(&response), text, "{error:?}");
        assert_eq!(header(&response, "content-type"), Some("application/json; charset=utf-8"));
    }
}

#[test]
fn the_other_responses_of_the_e2b_dialect_cannot_be_taken_for_a_dead_sandbox() {
    for (error, status, code, retry) in [
        (ProxyError::BadTarget, 400, 310_400, None),
        (ProxyError::BadRequest, 400, 310_400, None),
        (ProxyError::BadHead, 400, 310_400, None),
        (ProxyError::MethodNotAllowed, 405, 310_405, None),
        (ProxyError::HeadTimeout, 408, 310_408, None),
        (ProxyError::BodyTimeout, 408, 310_408, None),
        (ProxyError::BodyTooLarge, 413, 310_413, None),
        (ProxyError::TargetTooLong, 414, 310_414, None),
        (ProxyError::HeadTooLarge, 431, 310_431, None),
        (ProxyError::TooManyFromAddress, 429, 310_429, Some("1")),
        (ProxyError::ResumeQuota, 429, 310_429, Some("1")),
        (ProxyError::StoreUnavailable, 503, 310_500, Some("1")),
        (ProxyError::Internal, 500, 310_501, None),
        (ProxyError::OutOfDescriptors, 500, 310_501, None),
        (ProxyError::Paused, 503, 310_503, Some("5")),
        (ProxyError::ResumeFailed, 503, 310_503, Some("5")),
        (ProxyError::HeldTooMany, 503, 310_503, Some("5")),
        (ProxyError::DrainTimeout, 503, 310_503, Some("5")),
        (ProxyError::ConnectTimeout, 504, 310_509, None),
        (ProxyError::UpstreamTimeout, 504, 310_509, None),
        (ProxyError::FaultyNode, 503, 340_500, Some("1")),
        (ProxyError::BreakerOpen, 503, 340_500, Some("1")),
    ] {
        let response = render(error, &get(), E2B);
        assert_eq!(outline(&response), (status, code, retry), "{error:?}");
        let Value::Object(fields) = serde_json::from_slice(&response.body).unwrap() else {
            panic!("{error:?}: no object")
        };
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["sandboxId", "message", "code"], "{error:?}");
        assert_eq!((&fields["sandboxId"], &fields["code"]), (&"abc123".into(), &status.into()));
        let message = fields["message"].as_str().unwrap();
        assert!(!message.contains("was not found") && !message.contains("port is not open"), "{message}");
    }
}

#[test]
fn no_sandbox_id_is_said_where_none_was_read() {
    let response = render(ProxyError::BadTarget, &ResponseFormat::new(&Method::GET, &HeaderMap::new()), E2B);
    assert_eq!(
        body(&response),
        r#"{"message":"The request does not name a sandbox and a port.","code":400}"#
    );
    for error in [ProxyError::ConnectRefused, ProxyError::ControlPlaneUnresolved] {
        let response = render(error, &ResponseFormat::default(), E2B);
        assert_eq!(body(&response), r#"{"message":"The upstream cannot be reached.","code":502}"#);
    }
}

#[test]
fn every_response_has_the_common_headers_once_and_its_length() {
    let askers = [
        get(),
        format(Method::HEAD, &[]),
        format(Method::GET, &[("sec-fetch-mode", "navigate")]),
        format(Method::POST, &[("connect-protocol-version", "1")]),
        format(Method::POST, &[("content-type", "application/grpc")]),
        format(Method::OPTIONS, &[("origin", "https://a.example"), ("access-control-request-method", "PUT")]),
    ];
    for error in ProxyError::all() {
        for (at, format) in askers.iter().enumerate() {
            for settings in [CUBE, CUBE_OPEN, E2B, E2B_MASKED] {
                let response = render(error, format, settings);
                assert_eq!(header(&response, "cache-control"), Some("no-store"));
                assert_eq!(header(&response, "x-content-type-options"), Some("nosniff"));
                assert!(header(&response, "x-cube-retcode").is_some());
                let length =
                    header(&response, "content-length").map(|length| length.parse::<usize>().unwrap());
                match at {
                    5 => assert_eq!((response.status.as_u16(), length), (204, None)),
                    1 => assert!(length > Some(0) && response.body.is_empty()),
                    _ => assert_eq!(length, Some(response.body.len())),
                }
                let head = response.head(HeaderValue::from_static("rid")).unwrap();
                assert_eq!(head.headers.get_all("x-cube-request-id").iter().count(), 1);
                assert_eq!(head.headers.len(), response.headers.len() + 1);
            }
        }
    }
}

#[test]
fn a_refused_token_cannot_be_told_from_an_unknown_sandbox() {
    let askers = [
        get(),
        format(Method::HEAD, &[("origin", "https://a.example")]),
        format(Method::GET, &[("accept", "text/html")]),
        format(
            Method::POST,
            &[("connect-protocol-version", "1"), ("content-type", "application/connect+proto")],
        ),
        format(Method::POST, &[("content-type", "application/grpc+proto")]),
        format(Method::OPTIONS, &[("origin", "https://a.example"), ("access-control-request-method", "PUT")]),
    ];
    for settings in [CUBE, E2B_MASKED] {
        for format in &askers {
            let unknown = render(ProxyError::NoRecord, format, settings);
            for error in [ProxyError::TokenMissing, ProxyError::TokenWrong] {
                let refused = render(error, format, settings);
                assert_eq!(refused.status, unknown.status);
                assert_eq!(refused.headers, unknown.headers);
                assert_eq!(refused.body, unknown.body);
                assert_eq!(refused.wire_retcode, Retcode::NoRoute);
                assert_eq!((refused.log_retcode, refused.reason), (Retcode::Forbidden, error.reason()));
            }
        }
    }
}

#[test]
fn a_405_says_what_is_allowed() {
    let allow = header(&render(ProxyError::MethodNotAllowed, &get(), CUBE), "allow").map(String::from);
    assert_eq!(allow.as_deref(), Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    assert_eq!(header(&render(ProxyError::NoRecord, &get(), CUBE), "allow"), None);
}

#[test]
fn a_page_is_for_browsers_that_navigate() {
    const CHROME: (&str, &str) = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Chrome/130.0");
    const HTML: (&str, &str) = ("accept", super::tests::HTML);
    for (headers, page) in [
        (&[CHROME, HTML][..], true),
        (&[("accept", "Text/HTML;q=0.9, application/json")], true),
        (&[("accept", "application/json, text/html")], false),
        (&[("accept", "*/*"), ("accept", "text/html")], true),
        (&[("sec-fetch-mode", "navigate"), ("accept", "application/json")], true),
        (&[("sec-fetch-mode", "cors"), HTML], false),
        (&[("sec-fetch-mode", "websocket"), HTML], false),
        (&[HTML, ("x-requested-with", "XMLHttpRequest")], false),
        (&[HTML, ("upgrade", "websocket")], false),
        (&[CHROME, ("accept", "*/*")], false),
        (&[CHROME], false),
        (&[("accept", "text/html-like")], false),
    ] {
        let response = render(ProxyError::NoRecord, &format(Method::GET, headers), E2B);
        assert_eq!(outline(&response), (502, 310_507, None), "{headers:?}");
        assert_eq!(body(&response).contains("<html"), page, "{headers:?}");
        let policy = page.then_some("default-src 'none'; style-src 'unsafe-inline'");
        assert_eq!(header(&response, "content-security-policy"), policy);
        let cube = render(ProxyError::NoRecord, &format(Method::GET, headers), CUBE);
        assert_eq!(outline(&cube), (404, 310_507, None), "{headers:?}");
        assert_eq!(body(&cube).contains("<html"), page, "{headers:?}");
        assert_eq!(header(&cube, "content-security-policy"), policy);
    }
}

fn navigation(method: Method) -> ResponseFormat {
    format(method, &[("sec-fetch-mode", "navigate")]).identified(&HeaderValue::from_static("the-id"))
}

#[test]
fn a_page_says_what_happened_and_what_to_quote() {
    for error in ProxyError::all() {
        for settings in [CUBE, CUBE_OPEN, E2B, E2B_MASKED] {
            let response = render(error, &navigation(Method::GET), settings);
            let page = body(&response);
            assert_eq!(header(&response, "content-type"), Some("text/html; charset=utf-8"));
            let code = format!("<dd>{}</dd>", response.wire_retcode);
            let status = format!("\"status\">{} ", response.status.as_u16());
            for part in [&code, &status, "<dd>the-id</dd>", "<dd>abc123</dd>", "<dd>8080</dd>"] {
                assert!(page.contains(part), "{error:?}: no {part} in {page}");
            }
            assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("url("), "{page}");
        }
    }
    let said = |error, settings| body(&render(error, &navigation(Method::GET), settings)).to_owned();
    assert!(said(ProxyError::ConnectRefused, CUBE).contains("<h1>Nothing answers on port 8080</h1>"));
    assert!(said(ProxyError::NoMapping, E2B).contains("<h1>Port 8080 of this sandbox is not open</h1>"));
    // Without a sandbox it is the control plane that was asked.
    let nowhere = ResponseFormat::new(
        &Method::GET,
        &HeaderMap::from_iter([(http::header::ACCEPT, HTML.parse().unwrap())]),
    );
    let page = render(ProxyError::ConnectRefused, &nowhere, CUBE);
    assert!(body(&page).contains("The control plane cannot be reached") && !body(&page).contains("Sandbox<"));
}

/// Where waiting helps, the page does it.
#[test]
fn a_page_reloads_by_itself_where_the_response_says_when_to_try_again() {
    const RELOADS: &str = "http-equiv=\"refresh\"";
    for error in ProxyError::all() {
        for settings in [CUBE, E2B] {
            let response = render(error, &navigation(Method::GET), settings);
            match header(&response, "retry-after") {
                Some(seconds) => {
                    let reload = format!("<meta {RELOADS} content=\"{seconds}\">");
                    assert!(body(&response).contains(&reload), "{error:?}: {}", body(&response));
                    assert!(body(&response).contains("reloads by itself"), "{error:?}");
                }
                None => assert!(!body(&response).contains(RELOADS), "{error:?}"),
            }
            // What was sent is not sent again.
            let posted = render(error, &navigation(Method::POST), settings);
            assert!(!body(&posted).contains(RELOADS) && !body(&posted).contains("reloads by"), "{error:?}");
        }
    }
}

#[test]
fn a_page_takes_nothing_of_the_request_for_its_own() {
    let id = HeaderValue::from_static("<b>\"&'</b>");
    let format = format(Method::GET, &[("sec-fetch-mode", "navigate")]).identified(&id);
    let response = render(ProxyError::NoRecord, &format, CUBE);
    assert!(body(&response).contains("<dd>&lt;b&gt;&quot;&amp;&#39;&lt;/b&gt;</dd>"), "{}", body(&response));
}

#[test]
fn masked_pages_do_not_tell_a_sandbox_that_is_there() {
    for settings in [CUBE, E2B_MASKED] {
        let page = |error| render(error, &navigation(Method::GET), settings).body;
        for error in
            [ProxyError::TokenMissing, ProxyError::TokenWrong, ProxyError::NoHostIp, ProxyError::NoSandboxIp]
        {
            assert_eq!(page(error), page(ProxyError::NoRecord), "{error:?}");
        }
    }
    let cube = |error| render(error, &navigation(Method::GET), CUBE).body;
    assert_eq!(cube(ProxyError::NoMapping), cube(ProxyError::NoRecord));
}

#[test]
fn a_connect_request_gets_a_connect_error() {
    for (error, status, code) in [
        (ProxyError::BadTarget, 400, "invalid_argument"),
        (ProxyError::MethodNotAllowed, 405, "invalid_argument"),
        (ProxyError::TargetTooLong, 414, "invalid_argument"),
        (ProxyError::HeadTooLarge, 431, "invalid_argument"),
        (ProxyError::TokenWrong, 403, "permission_denied"),
        (ProxyError::EnvdControl { path: "/init" }, 404, "unavailable"),
        (ProxyError::Killed, 502, "unavailable"),
        (ProxyError::NoMapping, 502, "unavailable"),
        (ProxyError::Paused, 503, "unavailable"),
        (ProxyError::BodyTimeout, 408, "deadline_exceeded"),
        (ProxyError::UpstreamTimeout, 504, "deadline_exceeded"),
        (ProxyError::Pausing, 409, "aborted"),
        (ProxyError::BodyTooLarge, 413, "resource_exhausted"),
        (ProxyError::ResumeQuota, 429, "resource_exhausted"),
        (ProxyError::Internal, 500, "internal"),
        (ProxyError::StoreUnavailable, 503, "aborted"),
        (ProxyError::FaultyNode, 503, "aborted"),
        (ProxyError::BreakerOpen, 503, "aborted"),
    ] {
        let version = ("connect-protocol-version", "1");
        let calls = |kind: &str| format(Method::POST, &[version, ("content-type", kind)]);
        let message = error.message(true).sentence();
        let said = format!(r#"{{"code":"{code}","message":"{message}"}}"#);

        let unary = render(error, &calls("application/proto"), E2B);
        assert_eq!(outline(&unary), (status, error.retcode().code(), header(&unary, "retry-after")));
        assert_eq!(body(&unary), said);
        assert_eq!(header(&unary, "content-type"), Some("application/json"));

        for kind in ["application/connect+json", "application/connect+proto"] {
            let stream = render(error, &calls(&format!("{kind}; charset=utf-8")), E2B);
            assert_eq!((stream.status.as_u16(), stream.success), (200, false));
            assert_eq!(header(&stream, "content-type"), Some(kind));
            let (frame, end) = stream.body.split_at(5);
            assert_eq!(frame[0], 2);
            assert_eq!(frame[1..], u32::try_from(end.len()).unwrap().to_be_bytes());
            assert_eq!(std::str::from_utf8(end).unwrap(), format!("{{\"error\":{said}}}"));
        }
        let cube = render(error, &calls("application/connect+json"), CUBE);
        assert!(body(&cube).starts_with("{\"error\":\""));
    }
    let other = format(Method::POST, &[("connect-protocol-version", "2")]);
    assert!(body(&render(ProxyError::NoRecord, &other, E2B)).starts_with("{\"sandboxId\""));
}

#[test]
fn a_grpc_request_gets_trailers_in_both_dialects() {
    for (error, code) in [
        (ProxyError::BadTarget, "3"),
        (ProxyError::TokenMissing, "7"),
        (ProxyError::EnvdControl { path: "/init" }, "5"),
        (ProxyError::NoRecord, "5"),
        (ProxyError::NoHostIp, "5"),
        (ProxyError::NoMapping, "14"),
        (ProxyError::MethodNotAllowed, "12"),
        (ProxyError::HeadTimeout, "4"),
        (ProxyError::Killed, "9"),
        (ProxyError::BodyTooLarge, "8"),
        (ProxyError::TargetTooLong, "8"),
        (ProxyError::TooManyForSandbox { limit: 3 }, "8"),
        (ProxyError::HeadTooLarge, "8"),
        (ProxyError::ConnectTimeout, "4"),
        (ProxyError::UpstreamTimeout, "4"),
        (ProxyError::ConnectRefused, "14"),
        (ProxyError::UpstreamCut, "14"),
        (ProxyError::StoreUnavailable, "14"),
        (ProxyError::Internal, "14"),
        (ProxyError::Pausing, "14"),
        (ProxyError::ForbiddenAddress, "14"),
        (ProxyError::FaultyNode, "14"),
    ] {
        let headers = [("content-type", "application/grpc+proto"), ("connect-protocol-version", "1")];
        for (settings, message) in [(CUBE_OPEN, error.text().into()), (E2B, error.message(true).sentence())] {
            let response = render(error, &format(Method::POST, &headers), settings);
            assert_eq!((response.status.as_u16(), response.body.len(), response.success), (200, 0, false));
            assert_eq!(header(&response, "grpc-status"), Some(code), "{error:?}");
            assert_eq!(header(&response, "grpc-message"), Some(&*message), "{error:?}");
            assert_eq!(header(&response, "content-type"), Some("application/grpc"));
            assert_eq!(response.wire_retcode, error.retcode());
        }
    }
    let masked = render(
        ProxyError::TokenMissing,
        &format(Method::POST, &[("content-type", "application/grpc")]),
        CUBE,
    );
    assert_eq!(header(&masked, "grpc-status"), Some("5"));
    // Other media types that begin alike are ordinary requests.
    for kind in ["application/grpc-web+proto", "application/grpc-web", "application/grpcfoo"] {
        let response = render(ProxyError::NoRecord, &format(Method::POST, &[("content-type", kind)]), CUBE);
        assert_eq!((outline(&response).0, header(&response, "grpc-status")), (404, None), "{kind}");
        assert_eq!(body(&response), "{\"error\":\"not found\"}\n", "{kind}");
    }
}

#[test]
fn a_request_with_origin_may_read_the_codes() {
    let response =
        render(ProxyError::NoRecord, &format(Method::GET, &[("origin", "https://a.example")]), CUBE);
    assert_eq!(header(&response, "access-control-allow-origin"), Some("*"));
    assert_eq!(header(&response, "access-control-expose-headers"), Some("X-Cube-Request-Id, X-Cube-Retcode"));
    assert_eq!(header(&render(ProxyError::NoRecord, &get(), CUBE), "access-control-allow-origin"), None);
}

#[test]
fn a_preflight_is_answered_with_what_it_asks_for_and_the_code_it_stands_for() {
    let headers = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "x-one,  x-two"),
        ("access-control-request-headers", "x-three"),
    ];
    for error in ProxyError::all() {
        for settings in [CUBE, E2B] {
            let response = render(error, &format(Method::OPTIONS, &headers), settings);
            assert_eq!(response.status.as_u16(), 204, "{error:?}");
            assert!(response.body.is_empty() && response.success);
            for (name, value) in [
                ("access-control-allow-origin", "*"),
                ("access-control-allow-methods", "PUT"),
                ("access-control-allow-headers", "x-one, x-two, x-three"),
                ("access-control-max-age", "5"),
                ("vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
            ] {
                assert_eq!(header(&response, name), Some(value), "{error:?}");
            }
            assert_eq!(header(&response, "content-type"), None);
            assert_eq!(response.log_retcode, error.retcode());
        }
    }
    let bare = format(Method::OPTIONS, &headers[..2]);
    assert_eq!(header(&render(ProxyError::Paused, &bare, CUBE), "access-control-allow-headers"), None);
}

#[test]
fn a_preflight_that_asks_for_no_token_is_malformed() {
    for bad in [
        &[("access-control-request-method", "PU T")][..],
        &[("access-control-request-method", "")],
        &[("access-control-request-method", "GET"), ("access-control-request-method", "PUT")],
        &[("access-control-request-method", "PUT"), ("access-control-request-headers", "x-one, x two")],
        &[("access-control-request-method", "PUT"), ("access-control-request-headers", "x(one)")],
    ] {
        let headers = [&[("origin", "https://a.example")], bad].concat();
        for error in [ProxyError::NoRecord, ProxyError::TokenWrong] {
            let response = render(error, &format(Method::OPTIONS, &headers), CUBE);
            assert_eq!(outline(&response), (400, 310_400, None), "{bad:?}");
            assert_eq!(body(&response), "{\"error\":\"bad request\"}\n");
        }
    }
}

#[test]
fn options_without_what_makes_a_preflight_is_an_ordinary_request() {
    for headers in [&[][..], &[("origin", "https://a.example")], &[("access-control-request-method", "PUT")]]
    {
        let response = render(ProxyError::NoRecord, &format(Method::OPTIONS, headers), CUBE);
        assert_eq!(outline(&response), (404, 310_507, None));
    }
    let get = [("origin", "https://a.example"), ("access-control-request-method", "PUT")];
    assert_eq!(outline(&render(ProxyError::NoRecord, &format(Method::GET, &get), CUBE)).0, 404);
}

#[test]
fn words_of_the_cube_dialect_need_no_escaping() {
    for error in ProxyError::all() {
        let response = render(error, &get(), CUBE);
        let fields: Value = serde_json::from_slice(&response.body).unwrap();
        assert!(fields["error"].is_string(), "{error:?}");
    }
}
