use http::HeaderValue;

use super::*;

fn header_map(headers: &[(&'static str, &[u8])]) -> HeaderMap {
    headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap()))
        .collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Trusts 10.0.0.0/8 and ::1.
fn inside(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[0] == 10,
        IpAddr::V6(ip) => ip.is_loopback(),
    }
}

#[test]
fn names_that_are_the_proxys_to_say_are_reserved_in_every_spelling() {
    for name in [
        "forwarded",
        "Forwarded",
        "x-forwarded-for",
        "X-Forwarded-Host",
        "x-forwarded-proto",
        "x-forwarded-prefix",
        "x-forwarded-port",
        "x-forwarded-anything-at-all",
        "x_forwarded_for",
        "x-forwarded_for",
        "X_Forwarded-Ssl",
        "x-real-ip",
        "x_real_ip",
        "x-real_ip",
        "x-cube-request-id",
        "x_cube_request_id",
        "e2b_traffic_access_token",
        "e2b-traffic-access_token",
        "Cube_Traffic_Access_Token",
        "e2b_sandbox_id",
        "e2b-sandbox_port",
    ] {
        assert!(is_reserved_header(name), "{name}");
    }
}

#[test]
fn other_names_are_the_clients() {
    for name in [
        "",
        "x",
        "_",
        "x_under",
        "x-forwarded",
        "xforwarded-for",
        "x-forwardedfor",
        "forwarded-for",
        "x-real-ip2",
        "x-real.ip",
        "x_access_token",
        "x-access-token",
        "authorization",
        "cookie",
        "e2b-sandbox",
        "e2b_other",
        "content_length",
        "ｘ-forwarded-for",
        "x-é",
    ] {
        assert!(!is_reserved_header(name), "{name}");
    }
    for name in CREDENTIAL_HEADERS.iter() {
        assert!(!is_reserved_header(name.as_str()), "{name} has its own switch");
        assert!(is_credential(name.as_str()) && is_credential(&name.as_str().to_ascii_uppercase()));
    }
    assert!(!is_credential("e2b_sandbox_id") && !is_credential("x-access-token"));
}

#[test]
fn a_request_id_is_one_value_of_visible_ascii() {
    let id = |values: &[&[u8]]| {
        let headers: Vec<_> = values.iter().map(|value| ("x-cube-request-id", *value)).collect();
        request_id(&header_map(&headers)).map(str::to_owned)
    };
    assert_eq!(id(&[b"req-1/abc:def"]), Some("req-1/abc:def".into()));
    assert_eq!(id(&[b"!~"]), Some("!~".into()));
    assert_eq!(id(&[&[b'r'; 128]]), Some("r".repeat(128)));
    for bad in [&b""[..], &[b'r'; 129], b"a b", b"a\tb", b"a\xc3\xa9", b"\xff"] {
        assert_eq!(id(&[bad]), None, "{}", bad.escape_ascii());
    }
    assert_eq!(id(&[]), None);
    assert_eq!(id(&[b"a", b"a"]), None);
}

#[test]
fn a_strangers_chain_is_replaced() {
    let headers = header_map(&[("x-forwarded-for", b"1.2.3.4")]);
    let got = forwarded_for(&headers, ip("192.0.2.1"), inside);
    assert_eq!(got, ForwardedFor { chain: None, real_ip: ip("192.0.2.1") });
    let got = forwarded_for(&headers, ip("::ffff:192.0.2.1"), inside);
    assert_eq!(got, ForwardedFor { chain: None, real_ip: ip("192.0.2.1") });
}

/// Values sent, the chain, the real address.
type Case<'a> = (&'a [&'a [u8]], Option<&'a str>, &'a str);

#[test]
fn a_trusted_peer_is_appended_to_its_chain() {
    let cases: [Case<'_>; 16] = [
        (&[], None, "10.0.0.1"),
        (&[b"203.0.113.7"], Some("203.0.113.7, 10.0.0.1"), "203.0.113.7"),
        (&[b"6.6.6.6, 203.0.113.7"], Some("6.6.6.6, 203.0.113.7, 10.0.0.1"), "203.0.113.7"),
        (&[b"6.6.6.6", b"203.0.113.7"], Some("6.6.6.6, 203.0.113.7, 10.0.0.1"), "203.0.113.7"),
        (&[b"203.0.113.7,10.9.9.9"], Some("203.0.113.7,10.9.9.9, 10.0.0.1"), "203.0.113.7"),
        (&[b"10.1.1.1, 10.2.2.2"], Some("10.1.1.1, 10.2.2.2, 10.0.0.1"), "10.1.1.1"),
        (&[b"203.0.113.7:4711"], Some("203.0.113.7:4711, 10.0.0.1"), "203.0.113.7"),
        (&[b"[2001:db8::1]:80"], Some("[2001:db8::1]:80, 10.0.0.1"), "2001:db8::1"),
        (&[b"[2001:db8::1]"], Some("[2001:db8::1], 10.0.0.1"), "2001:db8::1"),
        (&[b"2001:db8::1, ::1"], Some("2001:db8::1, ::1, 10.0.0.1"), "2001:db8::1"),
        (&[b"203.0.113.7, ::ffff:10.2.2.2"], Some("203.0.113.7, ::ffff:10.2.2.2, 10.0.0.1"), "203.0.113.7"),
        (&[b"6.6.6.6, unknown, 10.2.2.2"], Some("6.6.6.6, unknown, 10.2.2.2, 10.0.0.1"), "10.2.2.2"),
        (&[b"203.0.113.7, , "], Some("203.0.113.7, ,, 10.0.0.1"), "203.0.113.7"),
        (&[b""], None, "10.0.0.1"),
        (&[b"\xff\xfe"], None, "10.0.0.1"),
        (&[b"\xff", b"203.0.113.7"], Some("203.0.113.7, 10.0.0.1"), "203.0.113.7"),
    ];
    for (values, chain, real_ip) in cases {
        let headers: Vec<_> = values.iter().map(|value| ("x-forwarded-for", *value)).collect();
        let got = forwarded_for(&header_map(&headers), ip("::ffff:10.0.0.1"), inside);
        let want = ForwardedFor { chain: chain.map(str::to_owned), real_ip: ip(real_ip) };
        assert_eq!(got, want, "{values:?}");
    }
}

#[test]
fn the_scheme_is_the_listeners_unless_a_trusted_peer_knows_better() {
    let proto = |values: &[&[u8]], trusted, secure| {
        let headers: Vec<_> = values.iter().map(|value| ("x-forwarded-proto", *value)).collect();
        forwarded_proto(&header_map(&headers), trusted, secure)
    };
    assert_eq!(proto(&[b"https"], false, false), "http");
    assert_eq!(proto(&[b"http"], false, true), "https");
    assert_eq!(proto(&[b"https"], true, false), "https");
    assert_eq!(proto(&[], true, true), "https");
    for secure in
        [&b"https"[..], b"HTTPS", b"wss", b"WSS", b" https ", b"https, http", b"wss,http", b", https"]
    {
        assert_eq!(proto(&[secure], true, false), "https", "{}", secure.escape_ascii());
    }
    for plain in [&b"http"[..], b"Http", b"ws", b"WS", b"http, https", b"ws , wss"] {
        assert_eq!(proto(&[plain], true, true), "http", "{}", plain.escape_ascii());
    }
    for bad in [&b""[..], b",", b"https://", b"httpsx", b"on", b"ftp, https", b"\xff"] {
        assert_eq!(proto(&[bad], true, false), "http", "{}", bad.escape_ascii());
        assert_eq!(proto(&[bad], true, true), "https", "{}", bad.escape_ascii());
    }
    // Several header lines are one list.
    assert_eq!(proto(&[b"https", b"http"], true, false), "https");
    assert_eq!(proto(&[b"http", b"https"], true, true), "http");
}
