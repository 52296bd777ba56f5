use super::*;

#[test]
fn the_upgrade_of_a_head_is_nominated_beside_what_is_there() {
    let head = b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: a\r\nConnection: close\r\n\r\n";
    let changed = nominating_upgrade(head).escape_ascii().to_string();
    assert!(changed.contains("\\r\\nConnection: Upgrade, close\\r\\n"), "{changed}");
    assert_eq!(nominating_upgrade(b"HTTP/1.1 426 x\r\n\r\n"), b"HTTP/1.1 426 x\r\n\r\n");
}

fn watch() -> HeadWatch {
    HeadWatch::new(HeadLimits { head: 1000, headers: 10, target: 100 })
}

#[test]
fn a_line_that_would_be_rewritten_is_seen_however_it_comes_in() {
    for (line, seen) in [
        ("GET / HTTP/1.1\r\n", false),
        ("\r\n\r\nGET / HTTP/1.1\r\n", false),
        ("GET /%20 HTTP/1.1\n", false),
        ("GET /a b HTTP/1.1\r\n", true),
        ("GET  / HTTP/1.1\r\n", true),
        ("GET /\ta HTTP/1.1\r\n", true),
        ("GET /\x01 HTTP/1.1\r\n", true),
        ("GET /\x7f HTTP/1.1\r\n", true),
        ("GET /a\rb HTTP/1.1\r\n", true),
    ] {
        assert_eq!(watch().take(line.as_bytes()).is_some(), seen, "{line:?}");
        let mut piecewise = watch();
        let found = line.bytes().filter_map(|byte| piecewise.take(&[byte])).count();
        assert_eq!(found, usize::from(seen), "{line:?} byte for byte");
    }
}

#[test]
fn a_line_in_the_middle_of_a_head_is_not_taken_for_its_first() {
    let line = b"GET /x HTTP/1.1\r";
    assert!(is_line_of(b"GET /x y HTTP/1.1\r", line));
    assert!(is_line_of(b"GET /\x01 HTTP/1.1", line));
    for other in [&b"gent: a b c d"[..], b"x HTTP/1.1", b"POST /x y HTTP/1.1", b"GET /x y HTTP/1.0", b""] {
        assert!(!is_line_of(other, line), "{}", other.escape_ascii());
    }
}

#[test]
fn empty_lines_are_those_before_the_request_line() {
    for (bytes, empty) in [
        (&b"\r\n"[..], Some(2)),
        (b"\n", Some(1)),
        (b"\r\n\n\r\nGET", Some(5)),
        (b"\r", Some(1)),
        (b"GET\r\n", Some(0)),
        (b"", Some(0)),
        (b"\r\r\n", None),
        (b"\rGET", None),
    ] {
        assert_eq!(watch().empty_lines(bytes), empty, "{}", bytes.escape_ascii());
    }
    let mut cut = watch();
    assert_eq!(cut.empty_lines(b"\r"), Some(1));
    assert_eq!(cut.empty_lines(b"\nGET"), Some(1));
    cut.take(b"GET / HTTP/1.1\r\n");
    assert_eq!(cut.empty_lines(b"\r\n"), Some(0), "the end of the head");
}

#[test]
fn a_head_ends_with_its_empty_line_however_it_comes_in() {
    for (head, behind) in [
        ("GET / HTTP/1.1\r\n\r\n", "GET /2"),
        ("GET / HTTP/1.1\r\nA: b\r\n\r\n", "\r\n"),
        ("GET / HTTP/1.1\nA: b\n\n", ""),
        ("GET / HTTP/1.1\r\nA: b\n\r\n", "0\r\n\r\n"),
        ("GET / HTTP/1.1\r\nA: \r\n\r\r\n\r\n", ""),
    ] {
        let bytes = [head, behind].concat();
        assert_eq!(watch().end_in(bytes.as_bytes()), Some(head.len()), "{head:?}");
        let mut piecewise = watch();
        let end = bytes.bytes().position(|byte| piecewise.end_in(&[byte]).is_some());
        assert_eq!(end, Some(head.len() - 1), "{head:?} byte for byte");
    }
    assert_eq!(watch().end_in(b"GET / HTTP/1.1\r\nA: b\r\n\r"), None);
}

#[test]
fn what_comes_after_the_line_is_not_looked_at() {
    assert_eq!(watch().take(b"GET / HTTP/1.1\r\nA: b  c\x01\r\n\r\n"), None);
}

#[test]
fn a_head_is_refused_while_it_comes_in() {
    let mut endless = watch();
    endless.take(b"GET / HTTP/1.1\r\n");
    assert_eq!(endless.over(), None);
    endless.take(&vec![b'a'; 20_000]);
    assert_eq!(endless.over(), Some(431));
    let mut line = watch();
    line.take(&vec![b'a'; 20_000]);
    assert_eq!((line.over(), line.why_refused()), (Some(414), 414));
    line.restart();
    assert_eq!(line.over(), None);
}

#[test]
fn too_many_fields_are_told_from_a_bad_head() {
    let mut head = watch();
    head.end_in(b"GET / HTTP/1.1\r\n");
    head.end_in("A: b\r\n".repeat(10).as_bytes());
    assert_eq!(head.why_refused(), 400);
    head.end_in("A: b\r\n".repeat(300).as_bytes());
    assert_eq!(head.why_refused(), 431);
}
