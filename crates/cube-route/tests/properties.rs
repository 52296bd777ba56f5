//! What holds for every input, not only for those that somebody thought of.

use cube_route::forwarded_headers::{
    forwarded_for, forwarded_proto, is_credential, is_reserved_header, request_id,
};
use cube_route::{
    BadRequest, ClientHost, ListenerKind, ParsedRequest, Port, RequestHead, ResponseRewrite, RoutingForm,
    Rules, SandboxId, envd_control_route, parse_request,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::IpAddr;

fn headers_of(pairs: &[(&'static str, Vec<u8>)]) -> HeaderMap {
    pairs
        .iter()
        .filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), HeaderValue::from_bytes(value).ok()?))
        })
        .collect()
}

fn ask<'a>(target: &'a [u8], headers: &'a HeaderMap) -> Result<ParsedRequest<'a>, BadRequest> {
    let head = RequestHead {
        version: Version::HTTP_11,
        method: &Method::GET,
        target,
        authority: None,
        headers,
        listener: ListenerKind::Data,
    };
    parse_request(&head, &Rules::default())
}

/// Bytes that lean towards what means something here.
fn telling_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => proptest::sample::select(vec![
            "/sandbox/", "/sandbox", "/", "//", "..", ".", "%2e", "%2F", "%69nit", "init", "?", "#", "80", "0",
            "65536", "-", "_", "abc", "A", ":", "[", "]", "[::1]", "http://", "https://", "HTTP://", "@", "\\",
            ";", "; ", "Path=", "path = ", "Domain=x", "5; url=", "'", "\"", ",", " ", "\t", "cube.app", "localhost",
            "127.0.0.1", ":80", ":443", "*", "`", "<", "é", "\u{0}", "/sandbox/Abc/80", "h.example", "mask:1",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..4),
    ];
    vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

/// A target that reads as origin form.
fn good_target() -> impl Strategy<Value = Vec<u8>> {
    "/[ -~é]{0,40}(\\?[ -~]{0,40})?"
        .prop_map(|text| text.replace([' ', '<', '>', '#', '"', '`'], "%20").into_bytes())
}

fn id() -> impl Strategy<Value = String> {
    "[A-Za-z0-9_-]{1,128}"
}

/// One of the functions that move a header value.
type Move = fn(&ResponseRewrite<'static>, &[u8]) -> Option<Vec<u8>>;

fn response_rewrite() -> impl Strategy<Value = ResponseRewrite<'static>> {
    let hosts = vec!["h.example", "h.example:80", "H.example:443", "mask:1", "127.0.0.1:9000", "[::1]"];
    let host = proptest::sample::select(hosts);
    let prefix = proptest::sample::select(vec![None, Some("/sandbox/Abc/80")]);
    let scheme = proptest::sample::select(vec!["http", "https"]);
    (prefix, host.clone(), scheme, host).prop_map(|(prefix, client_host, client_scheme, upstream_host)| {
        ResponseRewrite { prefix, client_host, client_scheme, upstream_host, container_port: 80 }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_head_makes_it_panic(
        target in telling_bytes(),
        method in proptest::sample::select(vec![Method::GET, Method::OPTIONS, Method::CONNECT]),
        version in proptest::sample::select(vec![Version::HTTP_10, Version::HTTP_11, Version::HTTP_2]),
        grpc in any::<bool>(),
        suffix in any::<bool>(),
        authority in proptest::option::of(telling_bytes()),
        names in vec((proptest::sample::select(vec!["host", "e2b-sandbox-id", "e2b-sandbox-port"]), telling_bytes()), 0..5),
    ) {
        let headers = headers_of(&names);
        let authority = authority.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let head = RequestHead {
            version,
            method: &method,
            target: &target,
            authority: authority.as_deref(),
            headers: &headers,
            listener: if grpc { ListenerKind::Grpc } else { ListenerKind::Data },
        };
        let rules = Rules::new(&["cube.app".to_owned()], suffix).unwrap();
        if let Ok(request) = parse_request(&head, &rules) && let Some(target) = request.target {
            let _ = target.prefix(&request.origin_form);
            let upstream = target.upstream_target(&request.origin_form).into_owned();
            prop_assert!(upstream.starts_with(b"/") || upstream == b"*");
        }
    }

    #[test]
    fn a_host_that_passes_can_stand_in_a_header_and_a_url(bytes in telling_bytes()) {
        if let Ok(text) = std::str::from_utf8(&bytes) && let Some(host) = ClientHost::parse(text) {
            prop_assert!(host.same(&host));
            prop_assert!(HeaderValue::from_str(text).is_ok());
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:[]".contains(&b)));
        }
    }

    #[test]
    fn a_target_in_the_host_form_renders_back_to_itself(id in id(), port in 1u16.., domain in "(\\.[a-z0-9-]{1,9}){0,3}") {
        let headers = headers_of(&[("host", format!("{port}-{id}{domain}").into_bytes())]);
        let target = ask(b"/", &headers).unwrap().target.unwrap();
        prop_assert_eq!(target.id.as_str(), id.to_ascii_lowercase());
        prop_assert_eq!((target.port.get(), target.form), (port, RoutingForm::Host));
        let again = headers_of(&[("host", target.host_label().into_bytes())]);
        prop_assert_eq!(ask(b"/", &again).unwrap().target.unwrap(), target);
    }

    #[test]
    fn a_target_in_the_path_form_renders_back_to_itself(id in id(), port in 1u16.., rest in "(/[!-~]{0,20})?") {
        let rest = rest.replace(['<', '>', '#', '"', '`'], "");
        let written = format!("/sandbox/{id}/{port}{rest}");
        let headers = headers_of(&[("host", b"localhost".to_vec())]);
        let request = ask(written.as_bytes(), &headers).unwrap();
        let target = request.target.unwrap();
        prop_assert_eq!(&target.id, &SandboxId::parse(&id).unwrap());
        prop_assert_eq!(target.port, Port::new(port).unwrap());
        let prefix = format!("/sandbox/{id}/{port}");
        prop_assert_eq!(target.prefix(&request.origin_form), Some(prefix.as_str()));
        prop_assert_eq!(target.path_prefix(), format!("/sandbox/{}/{port}", id.to_ascii_lowercase()));
        let rendered = target.path_prefix();
        prop_assert_eq!(ask(rendered.as_bytes(), &headers).unwrap().target.unwrap(), target);
    }

    #[test]
    fn every_form_passes_the_target_on_byte_for_byte(target in good_target()) {
        for headers in [
            headers_of(&[("host", b"80-abc.cube.app".to_vec())]),
            headers_of(&[
                ("host", b"[::1]:80".to_vec()),
                ("e2b-sandbox-id", b"abc".to_vec()),
                ("e2b-sandbox-port", b"80".to_vec()),
            ]),
        ] {
            let request = ask(&target, &headers).unwrap();
            prop_assert_eq!(request.target.unwrap().upstream_target(&request.origin_form), target.as_slice());
            let absolute = [b"http://", headers["host"].as_bytes(), &target].concat();
            prop_assert_eq!(ask(&absolute, &headers).unwrap().origin_form, target.as_slice());
        }
        let headers = headers_of(&[("host", b"localhost".to_vec())]);
        let under = [b"/sandbox/Abc/80", target.as_slice()].concat();
        let request = ask(&under, &headers).unwrap();
        prop_assert_eq!(request.target.unwrap().upstream_target(&request.origin_form), target.as_slice());
    }

    /// Pingora keeps a target as `PathAndQuery`; what that refuses or cuts is refused here first.
    #[test]
    fn a_target_passes_exactly_when_pingora_keeps_it(tail in prop_oneof![telling_bytes(), vec(any::<u8>(), 0..20)]) {
        let target = [b"/", tail.as_slice()].concat();
        let headers = headers_of(&[("host", b"80-abc".to_vec())]);
        let kept = PathAndQuery::try_from(target.as_slice()).is_ok_and(|kept| kept.as_str().as_bytes() == target);
        prop_assert_eq!(ask(&target, &headers).is_ok(), kept);
    }

    #[test]
    fn an_accepted_id_and_port_hold_nothing_else(id in telling_bytes(), port in telling_bytes()) {
        let target = [b"/sandbox/", id.as_slice(), b"/", &port].concat();
        let headers = headers_of(&[
            ("host", b"localhost".to_vec()),
            ("e2b-sandbox-id", id),
            ("e2b-sandbox-port", port),
        ]);
        if let Ok(ParsedRequest { target: Some(target), .. }) = ask(&target, &headers) {
            let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
            prop_assert!((1..=128).contains(&target.id.as_str().len()) && target.id.as_str().bytes().all(good));
        }
    }

    #[test]
    fn the_way_back_changes_a_value_once(way in response_rewrite(), value in telling_bytes()) {
        let functions: [(&str, Move); 4] = [
            ("location", ResponseRewrite::location),
            ("refresh", ResponseRewrite::refresh),
            ("set_cookie", ResponseRewrite::set_cookie),
            ("service_worker_allowed", ResponseRewrite::service_worker_allowed),
        ];
        for (name, function) in functions {
            if let Some(once) = function(&way, &value) {
                prop_assert_ne!(&once, &value, "{}: none means untouched", name);
                prop_assert_eq!(function(&way, &once), None, "{} of {}", name, once.escape_ascii());
                let header_safe = HeaderValue::from_bytes(&value).is_err() || HeaderValue::from_bytes(&once).is_ok();
                prop_assert!(header_safe, "{}", name);
            }
        }
    }

    #[test]
    fn a_moved_path_is_under_the_prefix(value in "/[a-z.][!-~]{0,20}") {
        let way = ResponseRewrite {
            prefix: Some("/sandbox/Abc/80"),
            client_host: "h",
            client_scheme: "http",
            upstream_host: "h",
            container_port: 80,
        };
        let moved = way.location(value.as_bytes()).unwrap();
        prop_assert_eq!(moved, format!("/sandbox/Abc/80{value}").into_bytes());
    }

    #[test]
    fn control_routes_are_found_as_a_plain_cleaner_finds_them(path in telling_bytes()) {
        let raw: Vec<u8> = path.split(|b| *b == b'?').next().unwrap().to_vec();
        let mut decoded = Vec::new();
        let mut at = 0;
        while at < raw.len() {
            let escape = raw.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
            match escape.filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit())) {
                Some(hex) if raw[at] == b'%' => {
                    decoded.push(u8::from_str_radix(hex, 16).unwrap());
                    at += 3;
                }
                _ => {
                    decoded.push(raw[at]);
                    at += 1;
                }
            }
        }
        let mut kept: Vec<&[u8]> = Vec::new();
        for segment in decoded.split(|b| *b == b'/') {
            match segment {
                b"" | b"." => {}
                b".." => { kept.pop(); }
                _ => kept.push(segment),
            }
        }
        let cleaned = [b"/", kept.join(&b'/').as_slice()].concat();
        let found = envd_control_route(&path);
        if let Some(route) = found {
            prop_assert_eq!(route.as_bytes(), cleaned.as_slice());
        } else {
            prop_assert_ne!(cleaned, b"/init");
        }
    }

    #[test]
    fn no_header_makes_it_panic(
        names in vec((proptest::sample::select(vec!["x-forwarded-for", "x-forwarded-proto", "x-cube-request-id"]), telling_bytes()), 0..5),
        name in "\\PC{0,24}",
        peer in any::<[u8; 16]>(),
        trusting in any::<bool>(),
    ) {
        let headers = headers_of(&names);
        let _ = (is_reserved_header(&name), is_credential(&name));
        if let Some(id) = request_id(&headers) {
            prop_assert!((1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()));
        }
        let _ = forwarded_proto(&headers, trusting, true);
        let peer = IpAddr::from(peer);
        let got = forwarded_for(&headers, peer, |_| trusting);
        if let Some(chain) = got.chain {
            prop_assert!(trusting && HeaderValue::from_str(&chain).is_ok());
            let tail = [", ", &peer.to_canonical().to_string()].concat();
            prop_assert!(chain.ends_with(&tail), "{}", chain);
        } else {
            prop_assert_eq!(got.real_ip, peer.to_canonical());
        }
    }
}

mod preview {
    use cube_route::preview::query::{PARAMETER, take_parameter};
    use cube_route::preview::{Ticket, TicketCheck, TicketPort, TicketVerdict, cookie};
    use cube_route::{Port, SandboxId};
    use proptest::prelude::*;

    fn check<'a>(id: &'a SandboxId, token: &'a [u8], now: u64) -> TicketCheck<'a> {
        let port = Port::new(3000).unwrap_or(Port::ENVD);
        TicketCheck { id, port, now, max_ttl: 86_400, token: Some(token), stand_in: &[0; 32] }
    }

    proptest! {
        /// Nothing but the one ticket that the token makes is right, however close it comes.
        #[test]
        fn what_is_no_ticket_opens_nothing(
            token in proptest::collection::vec(any::<u8>(), 16..80),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            noise in proptest::collection::vec(any::<u8>(), 0..140),
        ) {
            let id = SandboxId::parse("abc").unwrap();
            let good = Ticket::make(&token, &id, TicketPort::Any, 1_000_060).into_bytes();
            let check = check(&id, &token, 1_000_000);
            prop_assert_eq!(check.judge(&good), TicketVerdict::Right(1_000_060));
            prop_assert_eq!(check.judge(&noise), TicketVerdict::Wrong);
            let mut changed = good.clone();
            changed[at.index(good.len())] = byte;
            if changed != good {
                prop_assert_eq!(check.judge(&changed), TicketVerdict::Wrong);
            }
            let mut longer = good.clone();
            longer.push(byte);
            prop_assert_eq!(check.judge(&longer), TicketVerdict::Wrong);
        }

        /// The parameter goes from wherever it stands among other pairs, and they stay as they are.
        #[test]
        fn a_target_without_the_parameter_keeps_the_rest(
            pairs in proptest::collection::vec("[a-z%=;?/]{0,6}", 1..5),
            at in any::<prop::sample::Index>(),
        ) {
            let mut with = pairs.clone();
            with.insert(at.index(pairs.len() + 1), format!("{PARAMETER}=t"));
            let target = format!("/p?{}", with.join("&"));
            let (rest, _) = take_parameter(target.as_bytes()).unwrap();
            let want = pairs.join("&");
            let want = if want.is_empty() { "/p".to_owned() } else { format!("/p?{want}") };
            prop_assert_eq!(String::from_utf8(rest.clone()).unwrap(), want);
            prop_assert_eq!(take_parameter(&rest), None);
        }

        /// No ticket's cookie is left, and nothing else is lost.
        #[test]
        fn cookies_without_a_ticket_keep_the_others(
            pairs in proptest::collection::vec("[ab]{1,2}=[a-z =]{0,4}[a-z]|cube-preview=[a-z]{0,3}|__Host-cube-preview=x", 1..6),
        ) {
            let value = pairs.join("; ");
            let kept: Vec<&str> =
                pairs.iter().map(String::as_str).filter(|pair| !pair.contains("cube-preview")).collect();
            let want = (kept.len() != pairs.len()).then(|| kept.join("; "));
            let left = cookie::without_tickets(value.as_bytes()).map(|left| String::from_utf8(left).unwrap());
            prop_assert_eq!(left, want);
        }
    }
}
