use http::{HeaderName, HeaderValue};

use super::*;

type Headers<'a> = &'a [(&'a str, &'a [u8])];

fn header_map(headers: Headers<'_>) -> HeaderMap {
    headers
        .iter()
        .map(|(name, value)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap())
        })
        .collect()
}

/// A request over HTTP/1.1: its target, or why there is none.
fn ask(
    target: &str,
    headers: Headers<'_>,
    rules: &Rules,
    listener: ListenerKind,
) -> Result<SandboxTarget, BadRequest> {
    let headers = header_map(headers);
    let head = RequestHead {
        version: Version::HTTP_11,
        method: &Method::GET,
        target: target.as_bytes(),
        authority: None,
        headers: &headers,
        listener,
    };
    parse_request(&head, rules).and_then(|request| request.target.ok_or(BadRequest::NoForm))
}

fn named(target: &str, headers: Headers<'_>) -> Result<(String, u16, RoutingForm), BadRequest> {
    ask(target, headers, &Rules::default(), ListenerKind::Data)
        .map(|target| (target.id.to_string(), target.port.get(), target.form))
}

fn by_host(host: &str) -> Result<(String, u16, RoutingForm), BadRequest> {
    named("/", &[("host", host.as_bytes())])
}

fn rules(domains: &[&str], client_id_suffix: bool) -> Rules {
    Rules::new(&domains.iter().map(ToString::to_string).collect::<Vec<_>>(), client_id_suffix).unwrap()
}

#[test]
fn a_host_names_port_and_id() {
    let good = [
        "8080-abc.cube.app",
        "8080-abc",
        "8080-abc.",
        "8080-abc:8081",
        "8080-abc.cube.app.:8081",
        "8080-abc.a.b.example.org",
        "8080-ABC.CUBE.App",
        "8080-abc.10.0.0.1",
    ];
    for host in good {
        assert_eq!(by_host(host), Ok(("abc".into(), 8080, RoutingForm::Host)), "{host}");
    }
    assert_eq!(by_host("1-a-b_c-.x"), Ok(("a-b_c-".into(), 1, RoutingForm::Host)));
    assert_eq!(
        by_host(&format!("65535-{}", "a".repeat(128))),
        Ok(("a".repeat(128), 65535, RoutingForm::Host))
    );
}

#[test]
fn a_host_that_means_a_sandbox_and_names_none_is_refused() {
    for (host, error) in [
        ("0-abc.cube.app", BadRequest::Port(RoutingForm::Host)),
        ("65536-abc.cube.app", BadRequest::Port(RoutingForm::Host)),
        ("99999999999999999999-abc", BadRequest::Port(RoutingForm::Host)),
        ("08080-abc.cube.app", BadRequest::Port(RoutingForm::Host)),
        ("8080-.cube.app", BadRequest::Id(RoutingForm::Host)),
        ("8080-", BadRequest::Id(RoutingForm::Host)),
    ] {
        assert_eq!(by_host(host), Err(error), "{host}");
        // The path does not rescue it.
        let path = named("/sandbox/abc/80/", &[("host", host.as_bytes())]);
        assert_eq!(path, Err(error), "{host}");
    }
    assert_eq!(by_host(&format!("80-{}", "a".repeat(129))), Err(BadRequest::Id(RoutingForm::Host)));
}

#[test]
fn a_host_without_digits_and_hyphen_names_nothing() {
    for host in
        ["cube.app", "8080_abc.cube.app", "127.0.0.1", "[::1]", "8080", "-abc", "a8080-abc", "80a-abc"]
    {
        assert_eq!(by_host(host), Err(BadRequest::NoForm), "{host}");
    }
}

#[test]
fn a_malformed_host_is_refused() {
    for bad in [
        " ",
        ".",
        "..",
        "8080-abc..cube.app",
        ".8080-abc",
        "8080-abc..",
        ":80",
        "8080-abc:x",
        "8080-abc:80:80",
        "8080-abc:65536",
        "8080-abc:+1",
        "8080-a b",
        "8080-a\tb",
        "8080-a/b",
        "8080-a?b",
        "8080-a#b",
        "8080-a\\b",
        "x@8080-abc",
        "8080-a%41",
        "8080-a:b",
        "8080-a{b}",
        "8080-a,b",
        "8080-a;b",
        "8080-a*",
        "8080-a'b",
        "8080-a\"b",
        "8080-a<b>",
        "8080-a$b",
        "8080-a(b)",
        "8080-a!b",
        "8080-a=b",
        "8080-a~b",
        "8080-é",
        "٨-abc",
        "http://8080-abc",
        "[::1",
        "[::1]x",
        "[x]",
        "::1",
        "8080-abc[",
        "[8080-abc]",
    ] {
        assert_eq!(by_host(bad), Err(BadRequest::HostMalformed), "{bad:?}");
    }
    assert_eq!(named("/", &[("host", b"8080-a\xff")]), Err(BadRequest::HostMalformed));
}

#[test]
fn host_must_be_there_once() {
    assert_eq!(named("/", &[]), Err(BadRequest::NoHost));
    assert_eq!(named("http://8080-abc/", &[]), Err(BadRequest::NoHost));
    assert_eq!(named("/", &[("host", b"")]), Err(BadRequest::HostEmpty));
    let same = named("/", &[("host", b"8080-abc"), ("host", b"8080-abc")]);
    assert_eq!(same, Err(BadRequest::HostTwice));
}

#[test]
fn host_agrees_with_the_absolute_form() {
    for (target, host, good) in [
        ("http://8080-abc.x/y", "8080-ABC.x", true),
        ("http://8080-abc.x:80/y", "8080-abc.x", true),
        ("https://8080-abc.x/y", "8080-abc.x.:443", true),
        ("http://8080-abc.x/y", "8080-abc.x:443", false),
        ("http://8080-abc.x:81/y", "8080-abc.x", false),
        ("http://8080-abd.x/y", "8080-abc.x", false),
    ] {
        let want =
            if good { Ok(("abc".into(), 8080, RoutingForm::Host)) } else { Err(BadRequest::HostMismatch) };
        assert_eq!(named(target, &[("host", host.as_bytes())]), want, "{target} {host}");
    }
}

#[test]
fn on_http2_the_authority_is_the_host() {
    let ask = |authority: Option<&str>, headers: Headers<'_>| {
        let headers = header_map(headers);
        let head = RequestHead {
            version: Version::HTTP_2,
            method: &Method::GET,
            target: b"/",
            authority,
            headers: &headers,
            listener: ListenerKind::Data,
        };
        parse_request(&head, &Rules::default()).map(|request| request.host.to_owned())
    };
    assert_eq!(ask(Some("80-a.x"), &[]), Ok("80-a.x".into()));
    assert_eq!(ask(None, &[("host", b"80-a.x")]), Ok("80-a.x".into()));
    assert_eq!(ask(Some("80-A.x"), &[("host", b"80-a.x:443")]), Ok("80-A.x".into()));
    assert_eq!(ask(Some("80-a.x"), &[("host", b"80-b.x")]), Err(BadRequest::HostMismatch));
    assert_eq!(ask(Some("80-a.x"), &[("host", b"")]), Err(BadRequest::HostEmpty));
    assert_eq!(ask(Some("80-a.x"), &[("host", b"80-a.x"), ("host", b"80-a.x")]), Err(BadRequest::HostTwice));
    assert_eq!(ask(Some(""), &[("host", b"80-a.x")]), Err(BadRequest::HostEmpty));
    assert_eq!(ask(Some("u@80-a.x"), &[]), Err(BadRequest::HostMalformed));
    assert_eq!(ask(None, &[]), Err(BadRequest::NoHost));
}

#[test]
fn configured_domains_decide_where_the_host_form_applies() {
    let rules = rules(&["cube.test", "other.test"], false);
    for (host, data, grpc) in [
        ("80-abc.cube.test", true, true),
        ("80-abc.CUBE.TEST.:1", true, true),
        ("80-abc.other.test", true, true),
        ("80-abc.x.cube.test", false, false),
        ("80-abc.test", false, false),
        ("80-abc.xcube.test", false, false),
        ("80-abc", false, true),
        ("10-0-0-5.example.org", false, false),
    ] {
        for (listener, good) in [(ListenerKind::Data, data), (ListenerKind::Grpc, grpc)] {
            let got = ask("/", &[("host", host.as_bytes())], &rules, listener);
            assert_eq!(got.is_ok(), good, "{host} {listener:?}");
        }
        // Where it does not apply, the path may.
        let path = ask("/sandbox/xyz/90", &[("host", host.as_bytes())], &rules, ListenerKind::Data).unwrap();
        assert_eq!(path.id.as_str(), if data { "abc" } else { "xyz" }, "{host}");
    }
}

#[test]
fn an_old_client_id_is_cut_off_in_the_host_form_only() {
    let rules = rules(&[], true);
    let id = |target, headers| {
        ask(target, headers, &rules, ListenerKind::Data).map(|target| target.id.to_string())
    };
    assert_eq!(id("/", &[("host", b"80-abc-6532622b.e2b.app")]), Ok("abc".into()));
    assert_eq!(id("/", &[("host", b"80-abc-x-y.e2b.app")]), Ok("abc".into()));
    assert_eq!(id("/", &[("host", b"80-abc-")]), Ok("abc".into()));
    assert_eq!(id("/", &[("host", b"80-abc.e2b.app")]), Ok("abc".into()));
    assert_eq!(id("/", &[("host", b"80--abc.e2b.app")]), Err(BadRequest::Id(RoutingForm::Host)));
    assert_eq!(id("/sandbox/a-b/80", &[("host", b"x")]), Ok("a-b".into()));
    let headers: Headers<'_> =
        &[("host", b"localhost"), ("e2b-sandbox-id", b"a-b"), ("e2b-sandbox-port", b"1")];
    assert_eq!(id("/", headers), Ok("a-b".into()));
    assert_eq!(by_host("80-abc-6532622b.cube.app"), Ok(("abc-6532622b".into(), 80, RoutingForm::Host)));
}

#[test]
fn headers_name_a_sandbox_on_a_shared_host() {
    let id_and_port: [(&str, &[u8]); 2] = [("E2B-Sandbox-Id", b"Abc"), ("e2b-sandbox-port", b"49983")];
    for host in [
        "127.0.0.1",
        "127.0.0.1:80",
        "[::1]:80",
        "localhost",
        "LOCALHOST.:1",
        "Sandbox.cube.app",
        "sandbox.x",
    ] {
        let got = named("/sandbox/other/80", &[("host", host.as_bytes()), id_and_port[0], id_and_port[1]]);
        assert_eq!(got, Ok(("abc".into(), 49983, RoutingForm::Header)), "{host}");
    }
    for host in ["proxy.example.org", "sandbox", "xsandbox.cube.app", "a.localhost", "127.1"] {
        let got = named("/sandbox/other/80", &[("host", host.as_bytes()), id_and_port[0], id_and_port[1]]);
        assert_eq!(got, Ok(("other".into(), 80, RoutingForm::Path)), "{host}");
    }
    let own = named("/", &[("host", b"80-own.cube.app"), id_and_port[0], id_and_port[0]]);
    assert_eq!(own, Ok(("own".into(), 80, RoutingForm::Host)), "ignored on a sandbox's own host");
}

#[test]
fn the_shared_host_follows_the_configured_domains() {
    let rules = rules(&["cube.test"], false);
    for (host, data, grpc) in [
        ("sandbox.cube.test", true, true),
        ("sandbox.other.test", false, false),
        ("sandbox", false, true),
        ("localhost", true, true),
        ("10.0.0.1", true, true),
    ] {
        for (listener, good) in [(ListenerKind::Data, data), (ListenerKind::Grpc, grpc)] {
            let headers: Headers<'_> =
                &[("host", host.as_bytes()), ("e2b-sandbox-id", b"abc"), ("e2b-sandbox-port", b"80")];
            assert_eq!(ask("/", headers, &rules, listener).is_ok(), good, "{host} {listener:?}");
        }
    }
}

#[test]
fn headers_on_a_shared_host_are_one_pair() {
    let id: (&str, &[u8]) = ("e2b-sandbox-id", b"abc");
    let port: (&str, &[u8]) = ("e2b-sandbox-port", b"80");
    for (headers, error) in [
        (vec![id], BadRequest::HeaderPair),
        (vec![port], BadRequest::HeaderPair),
        (vec![id, id, port], BadRequest::HeaderTwice),
        (vec![id, port, port], BadRequest::HeaderTwice),
        (vec![id, id], BadRequest::HeaderTwice),
        (vec![("e2b-sandbox-id", b"a:b"), port], BadRequest::Id(RoutingForm::Header)),
        (vec![("e2b-sandbox-id", b"a.b"), port], BadRequest::Id(RoutingForm::Header)),
        (vec![("e2b-sandbox-id", b""), port], BadRequest::Id(RoutingForm::Header)),
        (vec![("e2b-sandbox-id", b"a\xff"), port], BadRequest::Id(RoutingForm::Header)),
        (vec![id, ("e2b-sandbox-port", b"0")], BadRequest::Port(RoutingForm::Header)),
        (vec![id, ("e2b-sandbox-port", b"+80")], BadRequest::Port(RoutingForm::Header)),
        (vec![id, ("e2b-sandbox-port", b"80, 81")], BadRequest::Port(RoutingForm::Header)),
        (vec![id, ("e2b-sandbox-port", b"\xff")], BadRequest::Port(RoutingForm::Header)),
    ] {
        let headers: Vec<_> = [("host", &b"127.0.0.1"[..])].into_iter().chain(headers).collect();
        // The path does not rescue it.
        assert_eq!(named("/sandbox/x/80", &headers), Err(error), "{headers:?}");
    }
}

#[test]
fn a_path_names_id_and_port_and_keeps_the_rest() {
    for (target, upstream) in [
        ("/sandbox/Abc/80", "/"),
        ("/sandbox/Abc/80/", "/"),
        ("/sandbox/Abc/80?x=1", "/?x=1"),
        ("/sandbox/Abc/80?", "/?"),
        ("/sandbox/Abc/80?/x", "/?/x"),
        ("/sandbox/Abc/80/a%2Fb/../%40//c?d=/e&f", "/a%2Fb/../%40//c?d=/e&f"),
        ("/sandbox/Abc/80//x", "//x"),
        ("/sandbox/Abc/80/sandbox/x/1", "/sandbox/x/1"),
    ] {
        let got = ask(target, &[("host", b"x")], &Rules::default(), ListenerKind::Data).unwrap();
        assert_eq!((got.id.as_str(), got.port.get(), got.form), ("abc", 80, RoutingForm::Path), "{target}");
        assert_eq!(got.prefix(target.as_bytes()), Some("/sandbox/Abc/80"), "{target}");
        assert_eq!(got.upstream_target(target.as_bytes()), upstream.as_bytes(), "{target}");
        assert_eq!(got.path_prefix(), "/sandbox/abc/80");
    }
    // `/` is put in front, and nothing else copied.
    let got = ask("/sandbox/a/80?x", &[("host", b"x")], &Rules::default(), ListenerKind::Data).unwrap();
    assert!(matches!(got.upstream_target(b"/sandbox/a/80"), Cow::Borrowed(b"/")));
    assert!(matches!(got.upstream_target(b"/sandbox/a/80/y"), Cow::Borrowed(b"/y")));
}

#[test]
fn a_path_that_means_a_sandbox_and_names_none_is_refused() {
    for (target, error) in [
        ("/sandbox", BadRequest::PathForm),
        ("/sandbox?x", BadRequest::PathForm),
        ("/sandbox/", BadRequest::PathForm),
        ("/sandbox/x", BadRequest::PathForm),
        ("/sandbox/x?/80/", BadRequest::PathForm),
        ("/sandbox/x/", BadRequest::Port(RoutingForm::Path)),
        ("/sandbox/x/abc", BadRequest::Port(RoutingForm::Path)),
        ("/sandbox/x/80foo", BadRequest::Port(RoutingForm::Path)),
        ("/sandbox/x/65536/", BadRequest::Port(RoutingForm::Path)),
        ("/sandbox/x/080/", BadRequest::Port(RoutingForm::Path)),
        ("/sandbox/x/%38%30/", BadRequest::Port(RoutingForm::Path)),
        ("/sandbox/x//80/", BadRequest::Port(RoutingForm::Path)),
        ("/sandbox//80/", BadRequest::Id(RoutingForm::Path)),
        ("/sandbox//x/80/", BadRequest::Port(RoutingForm::Path)),
        ("/sandbox/a%41/80/", BadRequest::Id(RoutingForm::Path)),
        ("/sandbox/a.b/80/", BadRequest::Id(RoutingForm::Path)),
        ("/sandbox/../80/", BadRequest::Id(RoutingForm::Path)),
        ("/sandbox/a:b/80/", BadRequest::Id(RoutingForm::Path)),
        ("/sandbox/{a}/80/", BadRequest::Id(RoutingForm::Path)),
        ("/sandbox/é/80/", BadRequest::Id(RoutingForm::Path)),
        ("/sandbox/a/٨", BadRequest::Port(RoutingForm::Path)),
    ] {
        assert_eq!(named(target, &[("host", b"x")]), Err(error), "{target}");
    }
    let long = format!("/sandbox/{}/80", "a".repeat(129));
    assert_eq!(named(&long, &[("host", b"x")]), Err(BadRequest::Id(RoutingForm::Path)));
    let longest = format!("/sandbox/{}/65535", "a".repeat(128));
    assert_eq!(named(&longest, &[("host", b"x")]), Ok(("a".repeat(128), 65535, RoutingForm::Path)));
}

#[test]
fn a_path_that_only_looks_like_the_form_names_nothing() {
    for target in [
        "/sandboxes/x/80",
        "/Sandbox/x/80",
        "//sandbox/x/80",
        "/%73andbox/x/80",
        "/./sandbox/x/80",
        "/?/sandbox/x/80",
    ] {
        assert_eq!(named(target, &[("host", b"x")]), Err(BadRequest::NoForm), "{target}");
    }
}

#[test]
fn a_host_that_names_a_sandbox_wins_over_path_and_headers() {
    let headers: Headers<'_> =
        &[("host", b"80-one"), ("e2b-sandbox-id", b"two"), ("e2b-sandbox-port", b"81")];
    let target = "/sandbox/three/82/x?y";
    let got = ask(target, headers, &Rules::default(), ListenerKind::Data).unwrap();
    assert_eq!((got.id.as_str(), got.form, got.prefix(target.as_bytes())), ("one", RoutingForm::Host, None));
    assert!(
        matches!(got.upstream_target(target.as_bytes()), Cow::Borrowed(rest) if rest == target.as_bytes())
    );
    assert_eq!(got.host_label(), "80-one");
}

#[test]
fn a_bad_target_is_refused_in_every_form() {
    for target in ["a/b", "", "*", "/ ", "/#", "/x?\"", "ftp://80-a/"] {
        for host in ["80-a", "127.0.0.1"] {
            assert!(
                named(target, &[("host", host.as_bytes())]).is_err_and(|e| e != BadRequest::NoForm),
                "{target}"
            );
        }
    }
}
