use super::*;

const PREFIX: &str = "/sandbox/Abc/80";

/// Path form at `127.0.0.1:9000`, no mask.
const PATH: ResponseRewrite<'_> = ResponseRewrite {
    prefix: Some(PREFIX),
    client_host: "127.0.0.1:9000",
    client_scheme: "http",
    upstream_host: "127.0.0.1:9000",
    container_port: 80,
};

/// Host form, no mask.
const HOST: ResponseRewrite<'_> = ResponseRewrite {
    prefix: None,
    client_host: "80-abc.cube.app",
    client_scheme: "https",
    upstream_host: "80-abc.cube.app",
    container_port: 80,
};

fn text(value: Option<Vec<u8>>) -> Option<String> {
    value.map(|value| String::from_utf8(value).unwrap())
}

/// What becomes of a value; the value itself where it stays. Moving it again changes nothing.
fn moved(value: &str, with: impl Fn(&[u8]) -> Option<Vec<u8>>) -> String {
    let once = text(with(value.as_bytes())).unwrap_or_else(|| value.to_owned());
    assert_eq!(with(once.as_bytes()), None, "{once:?} stays");
    once.replacen(PREFIX, "PREFIX", 1)
}

#[test]
fn path_form_moves_what_leads_to_itself() {
    for (sent, want) in [
        ("/", "PREFIX/"),
        ("/login?next=/a#top", "PREFIX/login?next=/a#top"),
        ("/?x", "PREFIX/?x"),
        ("/sandbox/Abc/8", "PREFIX/sandbox/Abc/8"),
        ("/sandbox/Abc/800", "PREFIX/sandbox/Abc/800"),
        ("/sandbox/Abc/80x", "PREFIX/sandbox/Abc/80x"),
        ("/sandbox/abc/80/x", "PREFIX/sandbox/abc/80/x"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000PREFIX/"),
        ("http://127.0.0.1:9000/x?y#z", "http://127.0.0.1:9000PREFIX/x?y#z"),
        ("http://127.0.0.1:9000?y", "http://127.0.0.1:9000PREFIX/?y"),
        ("http://127.0.0.1:9000#z", "http://127.0.0.1:9000PREFIX/#z"),
        ("HTTPS://127.0.0.1:9000/x", "HTTPS://127.0.0.1:9000PREFIX/x"),
        ("http://127.0.0.1:9000//x", "http://127.0.0.1:9000PREFIX//x"),
        ("/é", "PREFIX/é"),
    ] {
        assert_eq!(moved(sent, |value| PATH.location(value)), want, "{sent}");
    }
}

#[test]
fn path_form_leaves_everything_else() {
    for sent in [
        "",
        "login",
        "./x",
        "../x",
        "?x",
        "#x",
        "//127.0.0.1:9000/x",
        "//x",
        "/\\x",
        "\\x",
        "/sandbox/Abc/80",
        "/sandbox/Abc/80/x",
        "/sandbox/Abc/80?x",
        "/sandbox/Abc/80#x",
        "http://127.0.0.1:9000/sandbox/Abc/80/x",
        "http://127.0.0.1:9000/sandbox/Abc/80",
        "http://127.0.0.1:9001/x",
        "http://127.0.0.1/x",
        "http://other.example/x",
        "http://u@127.0.0.1:9000/x",
        "http://127.0.0.1:9000@other.example/",
        "http://127.0.0.1:9000.other.example/",
        "http:/127.0.0.1:9000/x",
        "http:x",
        "http://127.0.0.1:9000\\x",
        "ftp://127.0.0.1:9000/x",
        "ws://127.0.0.1:9000/x",
        "http://",
        "javascript:alert(1)",
        " /x",
    ] {
        assert_eq!(text(PATH.location(sent.as_bytes())), None, "{sent}");
    }
    assert_eq!(PATH.location(b"http://\xff/x"), None);
    assert_eq!(PATH.location(b"/\xff"), Some([PREFIX.as_bytes(), b"/\xff"].concat()));
}

#[test]
fn the_clients_host_is_known_with_default_ports_and_by_either_scheme() {
    for (client, sent, own) in [
        ("Proxy.example", "http://proxy.EXAMPLE:80/x", true),
        ("proxy.example", "https://proxy.example/x", true),
        ("proxy.example:443", "https://proxy.example./x", true),
        ("proxy.example:443", "http://proxy.example/x", true),
        ("proxy.example:443", "http://proxy.example:80/x", true),
        ("proxy.example:8443", "https://proxy.example/x", false),
        ("[::1]:9000", "http://[0:0::1]:9000/x", true),
    ] {
        let way = ResponseRewrite { client_host: client, upstream_host: client, ..PATH };
        let prefixed = sent.replace("/x", "PREFIX/x");
        let want = if own { &prefixed } else { sent };
        assert_eq!(moved(sent, |value| way.location(value)), *want, "{client} {sent}");
    }
}

#[test]
fn without_prefix_and_mask_nothing_is_touched() {
    for sent in ["/x", "https://80-abc.cube.app/x", "http://80-abc.cube.app:80/x", "//x", "x"] {
        assert_eq!(HOST.location(sent.as_bytes()), None, "{sent}");
    }
    assert_eq!(HOST.refresh(b"5; url=/x"), None);
    assert_eq!(HOST.set_cookie(b"a=1; Domain=x; Path=/"), None);
    assert_eq!(HOST.service_worker_allowed(b"/"), None);
}

#[test]
fn a_masks_host_becomes_the_clients_in_every_form() {
    let host = ResponseRewrite { upstream_host: "localhost:8080", ..HOST };
    let path = ResponseRewrite { upstream_host: "localhost:8080", ..PATH };
    for (way, sent, want) in [
        (host, "http://localhost:8080/x?y#z", "https://80-abc.cube.app/x?y#z"),
        (host, "https://LOCALHOST:8080", "https://80-abc.cube.app"),
        (host, "http://localhost:8080?y", "https://80-abc.cube.app?y"),
        (host, "http://localhost/x", "http://localhost/x"),
        (host, "http://localhost:8080@x/", "http://localhost:8080@x/"),
        (host, "/x", "/x"),
        (host, "//localhost:8080/x", "//localhost:8080/x"),
        (path, "http://localhost:8080/x", "http://127.0.0.1:9000PREFIX/x"),
        (path, "http://localhost:8080", "http://127.0.0.1:9000PREFIX/"),
        (path, "https://localhost:8080/x", "https://127.0.0.1:9000PREFIX/x"),
        (path, "http://localhost:8080/sandbox/Abc/80/x", "http://127.0.0.1:9000PREFIX/x"),
        (path, "http://127.0.0.1:9000/x", "http://127.0.0.1:9000PREFIX/x"),
        (path, "/x", "PREFIX/x"),
    ] {
        assert_eq!(moved(sent, |value| way.location(value)), want, "{sent}");
    }
    let refreshed = moved("0;URL='http://localhost:8080/x'", |value| host.refresh(value));
    assert_eq!(refreshed, "0;URL='https://80-abc.cube.app/x'");
}

#[test]
fn the_sandboxs_own_port_is_lost() {
    let masked = ResponseRewrite { upstream_host: "localhost", ..HOST };
    let masked_path = ResponseRewrite { upstream_host: "localhost", ..PATH };
    for (way, sent, want) in [
        (PATH, "http://127.0.0.1:80/x?y", "http://127.0.0.1:9000PREFIX/x?y"),
        (PATH, "https://127.0.0.1:80", "https://127.0.0.1:9000PREFIX/"),
        (PATH, "http://127.0.0.1:80/sandbox/Abc/80/x", "http://127.0.0.1:9000PREFIX/x"),
        (PATH, "http://127.0.0.1:81/x", "http://127.0.0.1:81/x"),
        (PATH, "http://127.0.0.1/x", "http://127.0.0.1/x"),
        (PATH, "http://other.example:80/x", "http://other.example:80/x"),
        (masked_path, "http://localhost:80/x", "http://127.0.0.1:9000PREFIX/x"),
        (masked, "http://localhost:80/x", "https://80-abc.cube.app/x"),
        (masked, "http://localhost:81/x", "http://localhost:81/x"),
        // Another port of a name of the host form may be somebody else's.
        (HOST, "http://80-abc.cube.app:8080/x", "http://80-abc.cube.app:8080/x"),
    ] {
        assert_eq!(moved(sent, |value| way.location(value)), want, "{sent}");
    }
}

#[test]
fn a_mask_that_is_no_host_matches_nothing() {
    for mask in ["", "a b", "http://localhost", "[::1"] {
        let way = ResponseRewrite { upstream_host: mask, ..HOST };
        assert_eq!(way.location(b"http://localhost/x"), None, "{mask:?}");
    }
}

#[test]
fn the_url_of_a_refresh_is_moved_as_browsers_read_it() {
    for (sent, want) in [
        ("5; url=/next", "5; url=PREFIX/next"),
        ("0;URL=/next", "0;URL=PREFIX/next"),
        (" 5 , uRl = /next ", " 5 , uRl = PREFIX/next "),
        ("5 url=/next", "5 url=PREFIX/next"),
        ("5; /next", "5; PREFIX/next"),
        (".5; /next", ".5; PREFIX/next"),
        ("1.5; /next", "1.5; PREFIX/next"),
        ("5; url='/a;b' rest", "5; url='PREFIX/a;b' rest"),
        ("5; url=\"/a'b\"", "5; url=\"PREFIX/a'b\""),
        ("5; url='/next", "5; url='PREFIX/next"),
        ("5; '/next'", "5; 'PREFIX/next'"),
        ("5; url=http://127.0.0.1:9000/next", "5; url=http://127.0.0.1:9000PREFIX/next"),
        ("5; url=/sandbox/Abc/80/x", "5; url=PREFIX/x"),
        ("5; url=http://other.example/", "5; url=http://other.example/"),
        ("5; url=next", "5; url=next"),
        ("5; url=//x", "5; url=//x"),
        ("5; url /next", "5; url /next"),
        ("5; url=", "5; url="),
        ("5;", "5;"),
        ("5", "5"),
        ("", ""),
        ("/next", "/next"),
        ("x; url=/next", "x; url=/next"),
        ("5x; url=/next", "5x; url=/next"),
        ("; url=/next", "; url=/next"),
        ("-1; url=/next", "-1; url=/next"),
    ] {
        assert_eq!(moved(sent, |value| PATH.refresh(value)), want, "{sent}");
    }
}

#[test]
fn cookies_stay_below_the_prefix_and_lose_their_domain() {
    for (sent, want) in [
        ("a=1; Path=/", "a=1; Path=PREFIX/"),
        ("a=1; Path=/p/q", "a=1; Path=PREFIX/p/q"),
        ("a=1;path=/", "a=1;path=PREFIX/"),
        ("a=1; PATH = /p ; Secure", "a=1; PATH = PREFIX/p ; Secure"),
        ("a=1; Path=//x", "a=1; Path=PREFIX//x"),
        ("a=1; Path=/a; Path=/b", "a=1; Path=PREFIX/a; Path=/sandbox/Abc/80/b"),
        ("a=1; Path=/sandbox/other/80", "a=1; Path=PREFIX/sandbox/other/80"),
        ("a=1; Path=/sandbox/Abc/80/x", "a=1; Path=PREFIX/x"),
        ("a=1; Path=/sandbox/Abc/80", "a=1; Path=PREFIX"),
        ("a=1; HttpOnly", "a=1; HttpOnly"),
        ("a=1; Path", "a=1; Path"),
        ("a=1; Path=", "a=1; Path="),
        ("a=1; Path=p", "a=1; Path=p"),
        ("a=1; Path=\"/p\"", "a=1; Path=\"/p\""),
        ("a=1; XPath=/p", "a=1; XPath=/p"),
        ("a=1; Domain=cube.app", "a=1"),
        ("a=1; dOmAiN = .cube.app; Path=/; Domain; Secure", "a=1; Path=PREFIX/; Secure"),
        ("a=1; Domains=x", "a=1; Domains=x"),
        (
            "b=2; HttpOnly; path=/q; Secure; SameSite=Lax; Max-Age=3; Expires=Thu, 01 Jan 1970 00:00:00 GMT",
            "b=2; HttpOnly; path=PREFIX/q; Secure; SameSite=Lax; Max-Age=3; Expires=Thu, 01 Jan 1970 00:00:00 GMT",
        ),
        ("path=/x; Path=/y", "path=/x; Path=PREFIX/y"),
        ("domain=x; Secure", "domain=x; Secure"),
        ("", ""),
        (";", ";"),
        (";;Path=/", ";;Path=PREFIX/"),
        ("a=\"x; Path=/\"", "a=\"x; Path=PREFIX/\""),
    ] {
        assert_eq!(moved(sent, |value| PATH.set_cookie(value)), want, "{sent}");
    }
    let bytes = PATH.set_cookie(b"a=\xff; Path=/\xfe").unwrap();
    assert_eq!(bytes, [b"a=\xff; Path=", PREFIX.as_bytes(), b"/\xfe"].concat());
}

#[test]
fn a_service_worker_never_reaches_beyond_the_prefix() {
    for (sent, want) in [
        ("/", "PREFIX/"),
        ("/app/", "PREFIX/app/"),
        ("/sandbox/Abc/80/", "PREFIX/"),
        ("/sandbox/Abc/80/app", "PREFIX/app"),
        ("/sandbox/Abc/80", "PREFIX/"),
        ("/sandbox/Abc/8080/", "PREFIX/sandbox/Abc/8080/"),
        ("/sandbox/other/80/", "PREFIX/sandbox/other/80/"),
        ("", "PREFIX/"),
        ("./", "PREFIX/"),
        ("../", "PREFIX/"),
        ("//127.0.0.1:9000/", "PREFIX/"),
        ("/\\x", "PREFIX/"),
        ("http://127.0.0.1:9000/", "PREFIX/"),
        ("/sandbox/Abc/80/../../other/80/", "PREFIX/"),
        ("/sandbox/Abc/80/%2e%2E/", "PREFIX/"),
        ("/sandbox/Abc/80/.\t./", "PREFIX/"),
        ("/sandbox/Abc/80/..\\..", "PREFIX/"),
        ("/sandbox/Abc/80/..?x", "PREFIX/"),
    ] {
        assert_eq!(moved(sent, |value| PATH.service_worker_allowed(value)), want, "{sent}");
    }
}

#[test]
fn removed_names_are_in_lower_case() {
    for name in REMOVED_IN_PATH_FORM {
        assert_eq!(http::HeaderName::from_static(name).as_str(), *name);
    }
}
