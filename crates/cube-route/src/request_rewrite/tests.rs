use super::*;

const MASKED: RequestRewrite<'_> =
    RequestRewrite { prefix: None, client_host: "8080-abc.cube.app", upstream_host: "localhost:8080" };
const PATH: RequestRewrite<'_> = RequestRewrite {
    prefix: Some("/sandbox/Abc/80"),
    client_host: "127.0.0.1:9000",
    upstream_host: "127.0.0.1:9000",
};
const MASKED_PATH: RequestRewrite<'_> = RequestRewrite { upstream_host: "localhost", ..PATH };

/// What becomes of a value; the value itself where it stays.
fn sent(value: &str, with: impl Fn(&[u8]) -> Option<Vec<u8>>) -> String {
    with(value.as_bytes()).map_or_else(|| value.to_owned(), |value| String::from_utf8(value).unwrap())
}

#[test]
fn the_clients_own_origin_becomes_the_masked_one() {
    for (value, want) in [
        ("https://8080-abc.cube.app", "https://localhost:8080"),
        ("http://8080-abc.cube.app", "http://localhost:8080"),
        ("https://8080-ABC.cube.app:443", "https://localhost:8080"),
        ("http://8080-abc.cube.app:80", "http://localhost:8080"),
    ] {
        assert_eq!(sent(value, |value| MASKED.origin(value)), want);
        let (referer, want) = (format!("{value}/a?b=c"), format!("{want}/a?b=c"));
        assert_eq!(sent(&referer, |value| MASKED.referer(value)), want);
    }
    assert_eq!(sent("http://127.0.0.1:9000", |value| MASKED_PATH.origin(value)), "http://localhost");
}

#[test]
fn another_origin_never_looks_like_the_sandboxs() {
    for value in [
        "",
        "null",
        "https://evil.example",
        "https://8080-abc.cube.app.evil.example",
        "https://evil-8080-abc.cube.app",
        "https://8080-abd.cube.app",
        "https://8081-abc.cube.app",
        // Another port of the same name, the default of the other scheme too.
        "https://8080-abc.cube.app:8443",
        "https://8080-abc.cube.app:80",
        "http://8080-abc.cube.app:443",
        "ftp://8080-abc.cube.app",
        "8080-abc.cube.app",
        "//8080-abc.cube.app",
        "https://user@8080-abc.cube.app",
        "https://8080-abc.cube.app@evil.example",
        "https://8080-abc.cube.app\\@evil.example",
        "https://8080-abc.cube.app https://evil.example",
        "https://8080-abc.cube.app, https://evil.example",
        // The mask itself, said by somebody else, is none of the client's.
        "https://localhost:8080",
    ] {
        assert_eq!(sent(value, |value| MASKED.origin(value)), value);
        assert_eq!(sent(value, |value| MASKED.referer(value)), value);
    }
    assert_eq!(MASKED.origin(b"https://8080-abc.cube.app/"), None, "no origin has a path");
    assert_eq!(PATH.origin(b"http://127.0.0.1:9000"), None, "nothing masks it");
    assert_eq!(PATH.referer(b"http://127.0.0.1:9000/sandbox/Abc/80/x"), None);
}

#[test]
fn a_destination_under_the_prefix_loses_it() {
    for (value, want, masked) in [
        (
            "http://127.0.0.1:9000/sandbox/Abc/80/b%20c",
            "http://127.0.0.1:9000/b%20c",
            "http://localhost/b%20c",
        ),
        ("http://127.0.0.1:9000/sandbox/Abc/80", "http://127.0.0.1:9000/", "http://localhost/"),
        ("/sandbox/Abc/80/b", "/b", "/b"),
        ("/sandbox/Abc/80", "/", "/"),
    ] {
        assert_eq!(sent(value, |value| PATH.destination(value)), want);
        assert_eq!(sent(value, |value| MASKED_PATH.destination(value)), masked);
    }
    for stays in [
        "http://127.0.0.1:9000/b",
        "http://127.0.0.1:9000/sandbox/Abc/800/b",
        "http://127.0.0.1:9000/sandbox/other/80/b",
        "http://127.0.0.1:9001/sandbox/Abc/80/b",
        "http://evil.example/sandbox/Abc/80/b",
        "/b",
        "/sandbox/abc/80/b",
        "//127.0.0.1:9000/sandbox/Abc/80/b",
    ] {
        assert_eq!(sent(stays, |value| PATH.destination(value)), stays);
        assert_eq!(sent(stays, |value| MASKED_PATH.destination(value)), stays);
    }
    let own = "https://8080-abc.cube.app/b";
    assert_eq!(sent(own, |value| MASKED.destination(value)), "https://localhost:8080/b");
}
