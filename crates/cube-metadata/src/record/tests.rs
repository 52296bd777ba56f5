use super::*;

fn record(fields: &[(&str, &[u8])]) -> SandboxRecord {
    SandboxRecord::parse(fields.iter().map(|(name, value)| (name.as_bytes(), *value)), 1)
}

fn port(number: u16) -> Port {
    Port::new(number).unwrap()
}

#[test]
fn a_whole_record_is_read() {
    let record = record(&[
        ("HostIP", b"10.0.0.1"),
        ("SandboxIP", b"fd00::7"),
        ("8080", b"49983"),
        ("22", b"2222"),
        ("AllowPublicTraffic", b"false"),
        ("TrafficAccessToken", b"example-token"),
        ("MaskRequestHost", b"localhost:${PORT}"),
        ("CreatedAt", b"1733000000000000000"),
        ("Status", b"paused"),
    ]);
    assert_eq!(record.host_ip, FieldValue::Value("10.0.0.1".parse().unwrap()));
    assert_eq!(record.sandbox_ip, FieldValue::Value("fd00::7".parse().unwrap()));
    assert_eq!(record.host_port(port(8080)), FieldValue::Value(port(49983)));
    assert_eq!(record.host_port(port(22)), FieldValue::Value(port(2222)));
    assert_eq!(record.host_port(port(80)), FieldValue::Missing);
    assert_eq!(record.created_at.as_deref(), Some("1733000000000000000"));
    assert_eq!(record.status, Some(Status::Known(SandboxState::Paused)));
    assert_eq!(record.prefix, 1);
    assert!(matches!(&record.access, Access::Token(token) if token.matches(b"example-token")));
    assert_eq!(record.warnings().count(), 0);
}

#[test]
fn an_empty_field_is_missing_and_rubbish_is_malformed() {
    let empty = record(&[("HostIP", b""), ("SandboxIP", b""), ("8080", b""), ("MaskRequestHost", b"")]);
    assert_eq!((empty.host_ip, empty.sandbox_ip), (FieldValue::Missing, FieldValue::Missing));
    assert_eq!(empty.host_port(port(8080)), FieldValue::Missing);
    assert_eq!(empty.mask_request_host, FieldValue::Missing);
    assert_eq!((empty.created_at, empty.status), (None, None));
    let bad: [&[u8]; 10] = [
        b"localhost",
        b"127.0.0.1:80",
        b"fe80::1%eth0",
        b"[::1]",
        b" 10.0.0.1",
        b"10.0.0.1\n",
        b"010.0.0.1",
        b"10.0.0",
        b"\xff\xfe",
        b"\0",
    ];
    for value in bad {
        let record = record(&[("HostIP", value), ("SandboxIP", value)]);
        assert_eq!(record.host_ip, FieldValue::Malformed, "{value:?}");
        assert_eq!(record.sandbox_ip, FieldValue::Malformed, "{value:?}");
    }
    for value in [&b"0"[..], b"65536", b"http", b"08", b"-1", b"\xff"] {
        let record = record(&[("8080", value)]);
        assert_eq!(record.host_port(port(8080)), FieldValue::Malformed, "{value:?}");
        assert_eq!(record.warnings().collect::<Vec<_>>(), [RecordWarning::HostPort(port(8080))]);
    }
}

#[test]
fn an_ipv4_address_in_an_ipv6_one_is_the_ipv4_address() {
    assert_eq!(
        record(&[("HostIP", b"::ffff:10.0.0.1")]).host_ip,
        FieldValue::Value("10.0.0.1".parse().unwrap())
    );
}

#[test]
fn only_decimal_keys_are_ports() {
    let record =
        record(&[("hostip", b"1.2.3.4"), ("Port", b"80"), ("080", b"80"), ("99999", b"80"), ("+1", b"80")]);
    assert!(record.ports().is_empty());
    assert_eq!(record.host_ip, FieldValue::Missing);
    assert_eq!(SandboxRecord::parse([(&b"\xff\xff"[..], &b"80"[..])].into_iter(), 0).ports().len(), 0);
}

#[test]
fn public_access_fails_closed() {
    let token: (&str, &[u8]) = ("TrafficAccessToken", b"example-token");
    assert!(matches!(record(&[]).access, Access::Public));
    assert!(matches!(record(&[("TrafficAccessToken", b"")]).access, Access::Public));
    assert!(matches!(record(&[("AllowPublicTraffic", b"true"), token]).access, Access::Public));
    assert!(matches!(record(&[token]).access, Access::Token(_)));
    for value in [&b"false"[..], b"True", b"1", b"yes", b"", b"\xff", b"true "] {
        let with = record(&[("AllowPublicTraffic", value), token]);
        assert!(matches!(with.access, Access::Token(_)), "{value:?}");
        let without = record(&[("AllowPublicTraffic", value)]);
        assert!(matches!(without.access, Access::Closed), "{value:?}");
        let odd = without.warnings().any(|warning| warning == RecordWarning::AllowPublicTraffic);
        assert_eq!(odd, value != b"false", "{value:?}");
    }
}

#[test]
fn an_unknown_status_is_kept_as_unknown() {
    assert_eq!(record(&[("Status", b"dreaming")]).status, Some(Status::Unknown));
    assert_eq!(record(&[("Status", b"\xff")]).status, Some(Status::Unknown));
    assert_eq!(record(&[("Status", b"")]).status, None);
    assert_eq!(record(&[("Status", b"killed")]).status, Some(Status::Known(SandboxState::Killed)));
}

#[test]
fn a_token_is_never_shown() {
    let shown = format!("{:?}", record(&[("TrafficAccessToken", b"example-token")]));
    assert!(!shown.contains("example"), "{shown}");
}

#[test]
fn a_record_is_small() {
    // A million of them are cached; what hangs off it is exactly as long as its text.
    assert!(size_of::<SandboxRecord>() <= 128, "{}", size_of::<SandboxRecord>());
    assert!(size_of::<(Port, FieldValue<Port>)>() <= 6);
}
