use super::*;

fn host(text: &str) -> ClientHost<'_> {
    ClientHost::parse(text).unwrap_or_else(|| panic!("{text:?} is well-formed"))
}

#[test]
fn a_malformed_host_is_none() {
    for bad in [
        "",
        " ",
        ".",
        "..",
        "a..b",
        ".a",
        "a..",
        ":",
        ":80",
        ".:80",
        "a:b",
        "a:80:80",
        "a:-1",
        "a:+80",
        "a: 80",
        "a:65536",
        "a:000080",
        "a:99999999999999999999",
        "a b",
        " a",
        "a ",
        "a\t",
        "a\0",
        "a\r\nb",
        "a/b",
        "a?b",
        "a#b",
        "a\\b",
        "user@a",
        "user:password@a",
        "a%41",
        "a,b",
        "a;b",
        "a*b",
        "*.a",
        "<a>",
        "\"a\"",
        "a`",
        "a^b",
        "a|b",
        "{a}",
        "http://a",
        "bücher.example",
        "a\u{7f}",
        "٣.example",
        "::1",
        "[",
        "[]",
        "[::1",
        "::1]",
        "[::1]x",
        "[::1]:x",
        "[::1]:65536",
        "[::1%25eth0]",
        "[v1.x]",
        "[127.0.0.1]",
        "[[::1]]",
        "[::1]]",
        "[a]",
    ] {
        assert_eq!(ClientHost::parse(bad), None, "{bad:?}");
    }
}

#[test]
fn a_host_is_taken_apart() {
    for (text, name, port, ip) in [
        ("a", "a", None, None),
        ("A_b-C.Example.:8081", "A_b-C.Example", Some(8081), None),
        ("a:", "a", None, None),
        ("a:0", "a", Some(0), None),
        ("a:00080", "a", Some(80), None),
        ("127.0.0.1:65535", "127.0.0.1", Some(65535), Some("127.0.0.1")),
        ("127.0.0.1.", "127.0.0.1", None, Some("127.0.0.1")),
        ("127.1", "127.1", None, None),
        ("0127.0.0.1", "0127.0.0.1", None, None),
        ("[::1]", "::1", None, Some("::1")),
        ("[::FFFF:10.0.0.1]:80", "::FFFF:10.0.0.1", Some(80), Some("::ffff:10.0.0.1")),
    ] {
        let host = host(text);
        let ip: Option<IpAddr> = ip.map(|ip| ip.parse().unwrap());
        assert_eq!((host.name(), host.port(), host.ip()), (name, port, ip), "{text}");
    }
    assert_eq!(host("a.b.c.").labels(), ("a", Some("b.c")));
    assert_eq!(host("a.:80").labels(), ("a", None));
}

#[test]
fn hosts_are_equal_without_case_and_with_default_ports() {
    for (one, two, same, either) in [
        ("A.b", "a.B", true, true),
        ("a.", "a", true, true),
        ("a", "a:80", true, true),
        ("a:443", "a", true, true),
        ("a:443", "a:80", false, true),
        ("a", "a:8080", false, false),
        ("a:8080", "a:8081", false, false),
        ("a:8080", "a:08080", true, true),
        ("a", "b", false, false),
        ("a.b", "a-b", false, false),
        ("[::1]", "[0:0::0:1]:80", true, true),
        ("[::ffff:127.0.0.1]", "127.0.0.1", false, false),
    ] {
        assert_eq!(host(one).same(&host(two)), same, "{one} {two}");
        assert_eq!(host(two).same(&host(one)), same, "{two} {one}");
        assert_eq!(host(one).same_by_either_scheme(&host(two)), either, "{one} {two}");
    }
    assert!(host("a").same_with_default(&host("a:443"), 443));
    assert!(!host("a").same_with_default(&host("a:443"), 80));
}
