//! The log as its readers and its operators see it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use cube_otlp::TraceId;
use cube_route::{Port, SandboxId};
use prometheus::Registry;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::error_response::Reason;
use crate::retcode::Retcode;

const FIELDS: usize = 26;

fn entry<'a>() -> LogEntry<'a> {
    LogEntry {
        texts: Texts::default(),
        values: LineValues {
            time: UNIX_EPOCH + Duration::from_millis(1_764_000_000_042),
            server_addr: None,
            protocol: None,
            status: None,
            body_bytes_sent: 0,
            took: Duration::ZERO,
            connection_requests: 1,
            retcode: Retcode::BadRequest,
            port: None,
            reason: Reason::BadTarget,
            trace: None,
        },
        upstreams: &[],
    }
}

/// An entry with these texts.
fn with(texts: Texts<'_>) -> LogEntry<'_> {
    LogEntry { texts, ..entry() }
}

/// What the log writes for one entry.
fn line(format: Format, entry: &LogEntry<'_>) -> String {
    let mut packed = Vec::new();
    let record = entry::QueuedEntry::pack(entry, &mut packed, usize::MAX).unwrap();
    let mut out = Vec::new();
    let redactor = Redactor::new(&Settings::default().redact_query);
    Formatter::new(format, redactor).line(&record, &packed, &mut out);
    String::from_utf8(out).unwrap()
}

fn fields(entry: &LogEntry<'_>) -> Vec<String> {
    let line = line(Format::Cube, entry);
    line.strip_suffix('\n').unwrap().split("||").map(String::from).collect()
}

fn attempt(address: &str, status: Option<u16>, ms: Option<u64>) -> UpstreamTry {
    UpstreamTry { address: address.parse().unwrap(), status, took: ms.map(Duration::from_millis) }
}

fn full<'a>(id: &'a SandboxId, upstreams: &'a [UpstreamTry]) -> LogEntry<'a> {
    LogEntry {
        texts: Texts {
            host: b"8080-abc.example",
            x_real_ip: b"192.0.2.1",
            x_forwarded_for: b"192.0.2.7, 192.0.2.1",
            x_forwarded_proto: b"http",
            method: b"POST",
            request_uri: b"/a%20b?x=1&token=hush",
            uri: b"/a%20b?x=1&token=hush",
            user_agent: b"kit/1",
            x_cube_request_id: b"rid",
            x_cube_instance_id: b"-",
            sandbox_id: id.as_str().as_bytes(),
        },
        values: LineValues {
            server_addr: Some("::ffff:127.0.0.1".parse().unwrap()),
            protocol: Some("HTTP/1.1"),
            status: Some(201),
            body_bytes_sent: 5,
            took: Duration::from_micros(12_345_678),
            connection_requests: 2,
            retcode: Retcode::Passed(201),
            port: Port::new(8080),
            reason: Reason::Ok,
            trace: TraceId::new(0xab),
            ..entry().values
        },
        upstreams,
    }
}

#[test]
fn the_fields_are_the_old_gateways_and_ours_in_order() {
    let id = SandboxId::parse("abc").unwrap();
    let upstreams = [attempt("10.0.0.1:40001", None, None), attempt("10.0.0.2:40002", Some(201), Some(7))];
    let got = fields(&full(&id, &upstreams));
    let want = [
        "8080-abc.example",
        "192.0.2.1",
        "192.0.2.7, 192.0.2.1",
        "127.0.0.1",
        "http",
        "POST",
        "/a%20b?x=1&token=***",
        "x=1&token=***",
        "HTTP/1.1",
        "/a%20b?x=1&token=***",
        "201",
        "5",
        "12.345",
        "2",
        "10.0.0.1:40001, 10.0.0.2:40002",
        "-, 201",
        "-, 0.007",
        "kit/1",
        "rid",
        "\\x2D",
        "10.0.0.2",
        "330201",
        "abc",
        "8080",
        "ok",
    ];
    assert_eq!(got[1..], want);
}

#[test]
fn the_time_is_local_with_milliseconds() {
    let time = &fields(&entry())[0];
    assert_eq!(time.len(), "YYYY-MM-DDTHH:MM:SS.mmm".len());
    let local = chrono::NaiveDateTime::parse_from_str(time, "%Y-%m-%dT%H:%M:%S%.3f").unwrap();
    let utc = local.and_local_timezone(chrono::Local).unwrap().timestamp_millis();
    assert_eq!(utc, 1_764_000_000_042);
}

#[test]
fn an_absent_value_is_a_dash() {
    let got = fields(&entry());
    assert_eq!(got.len(), FIELDS);
    for (at, value) in got.iter().enumerate() {
        let want = match at {
            0 => continue,
            12 => "0",
            13 => "0.000",
            14 => "1",
            22 => "310400",
            25 => "bad_target",
            _ => "-",
        };
        assert_eq!(value, want, "field {at}");
    }
}

#[test]
fn of_many_attempts_the_last_is_listed() {
    let all: Vec<_> = (1..=6).map(|n| attempt(&format!("10.0.0.{n}:80"), None, None)).collect();
    let got = fields(&LogEntry { upstreams: &all, ..entry() });
    assert_eq!(got[15], "10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80, 10.0.0.6:80");
    assert_eq!((got[16].as_str(), got[21].as_str()), ("-", "10.0.0.6"));
}

#[test]
fn json_has_the_same_names_and_values() {
    let id = SandboxId::parse("abc").unwrap();
    let upstreams = [attempt("[2001:db8::1]:80", Some(201), Some(7))];
    let full = full(&id, &upstreams);
    let text =
        line(Format::Json, &LogEntry { texts: Texts { user_agent: b"a\"\n\xff||", ..full.texts }, ..full });
    assert_eq!(text.matches('\n').count(), 1);
    let Value::Object(got) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
    assert_eq!(
        got.keys().collect::<Vec<_>>(),
        [
            "access_time",
            "host",
            "x_real_ip",
            "x_forwarded_for",
            "server_addr",
            "x_forwarded_proto",
            "method",
            "request_uri",
            "args",
            "protocol",
            "uri",
            "status",
            "body_bytes_sent",
            "request_time",
            "connection_requests",
            "upstream_addr",
            "upstream_status",
            "upstream_response_time",
            "user_agent",
            "x_cube_request_id",
            "x_cube_instance_id",
            "backend_ip",
            "retcode",
            "sandbox_id",
            "container_port",
            "reason",
            "trace_id"
        ]
    );
    assert_eq!(got["status"], 201);
    assert_eq!(got["request_time"], 12.345);
    assert_eq!(got["retcode"], 330_201);
    assert_eq!(got["container_port"], 8080);
    assert_eq!(got["upstream_addr"], "[2001:db8::1]:80");
    assert_eq!(got["user_agent"], "a\"\n\u{fffd}||");
    assert_eq!(got["args"], "x=1&token=***");
    assert_eq!(got["trace_id"], "000000000000000000000000000000ab");
    let bare: Value = serde_json::from_str(&line(Format::Json, &entry())).unwrap();
    assert!(bare["host"].is_null() && bare["status"].is_null() && bare["upstream_addr"].is_null());
    assert!(bare["trace_id"].is_null());
}

#[test]
fn json_shows_no_control_character_to_a_terminal() {
    let value = "a\u{7f}\u{80}\u{9b}2J\u{9f}\u{a0}\u{e9}\u{1b}";
    let text = line(Format::Json, &with(Texts { user_agent: value.as_bytes(), ..Texts::default() }));
    assert!(text.contains("\"a\\u007f\\u0080\\u009b2J\\u009f\u{a0}\u{e9}\\u001b\""), "{text}");
    let got: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(got["user_agent"], value);
}

proptest! {
    #[test]
    fn no_value_can_leave_its_field(texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 10)) {
        let text = |at: usize| texts[at].as_slice();
        let entry = with(Texts {
            host: text(0), x_real_ip: text(1), x_forwarded_for: text(2), x_forwarded_proto: text(3),
            method: text(4), request_uri: text(5), uri: text(6), user_agent: text(7), x_cube_request_id: text(8),
            x_cube_instance_id: text(9), ..Texts::default()
        });
        let plain = line(Format::Cube, &entry);
        prop_assert!(plain.strip_suffix('\n').unwrap().bytes().all(|b| (0x20..0x7f).contains(&b)));
        prop_assert_eq!(plain.split("||").count(), FIELDS);
        prop_assert_eq!(plain.matches('|').count(), 2 * (FIELDS - 1));
        let json = line(Format::Json, &entry);
        prop_assert!(!json.strip_suffix('\n').unwrap().contains(char::is_control));
        prop_assert_eq!(serde_json::from_str::<Value>(&json).unwrap().as_object().unwrap().len(), FIELDS + 1);
    }
}

fn metrics() -> EdgeMetrics {
    EdgeMetrics::new(&Registry::new()).unwrap()
}

fn open(path: &Path, metrics: &EdgeMetrics) -> AccessLog {
    let settings = Settings { path: path.to_str().map(str::to_owned), ..Settings::default() };
    AccessLog::open(&settings, metrics).unwrap()
}

/// Waits for `holds`, at most ten seconds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {what}");
}

const LONG: Duration = Duration::from_secs(10);

#[test]
fn what_was_taken_is_written_when_the_log_closes() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), metrics());
    let path = dir.path().join("access.log");
    let log = open(&path, &metrics);
    for n in 0..1000 {
        let id = n.to_string();
        log.submit(&with(Texts { x_cube_request_id: id.as_bytes(), ..Texts::default() }));
    }
    assert!(log.close(LONG));
    log.submit(&entry());
    let text = fs::read_to_string(&path).unwrap();
    let ids: Vec<_> = text.lines().map(|line| line.split("||").nth(19).unwrap()).collect();
    assert_eq!(ids, (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!((metrics.access_log_lines.get(), metrics.access_log_dropped.get()), (1000, 1));
}

#[test]
fn a_line_is_written_without_another_behind_it() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), metrics());
    let path = dir.path().join("access.log");
    let log = open(&path, &metrics);
    for lines in 1..4 {
        log.submit(&entry());
        until("the line", || fs::read_to_string(&path).unwrap().lines().count() == lines);
    }
}

#[test]
fn rotation_loses_no_line() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), metrics());
    let (path, old) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let log = open(&path, &metrics);
    for n in 0..3000 {
        if n == 1500 {
            fs::rename(&path, &old).unwrap();
            log.reopen();
        }
        log.submit(&entry());
    }
    assert!(log.close(LONG));
    let count = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
    assert_eq!(count(&path) + count(&old), 3000);
    assert!(count(&old) >= 1500, "lines of before belong to the old file");
}

#[test]
fn another_style_holds_for_the_lines_that_follow() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), metrics());
    let path = dir.path().join("access.log");
    let log = open(&path, &metrics);
    let some = || with(Texts { request_uri: b"/?token=hush&ticket=hush", ..Texts::default() });
    log.submit(&some());
    let settings =
        Settings { format: Format::Json, redact_query: vec!["ticket".into()], ..Settings::default() };
    log.update(&settings);
    log.submit(&some());
    assert!(log.close(LONG));
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].contains("||/?token=***&ticket=hush||"), "{text}");
    assert!(lines[1].starts_with('{') && lines[1].contains("/?token=hush&ticket=***"), "{text}");
}

#[test]
fn a_full_disk_loses_lines_and_counts_them() {
    let metrics = metrics();
    let log = open(Path::new("/dev/full"), &metrics);
    for _ in 0..100 {
        log.submit(&entry());
    }
    assert!(log.close(LONG));
    assert_eq!((metrics.access_log_lines.get(), metrics.access_log_dropped.get()), (0, 100));
}

#[test]
fn a_removed_directory_loses_lines_until_it_is_back() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), metrics());
    let inner = dir.path().join("logs");
    let path = inner.join("access.log");
    fs::create_dir(&inner).unwrap();
    let log = open(&path, &metrics);
    fs::remove_dir_all(&inner).unwrap();
    log.submit(&entry());
    until("the loss is counted", || metrics.access_log_dropped.get() == 1);
    fs::create_dir(&inner).unwrap();
    until("a line in the new file", || {
        log.submit(&entry());
        fs::read_to_string(&path).is_ok_and(|text| text.lines().count() > 0)
    });
}

#[test]
fn a_reader_that_stalls_holds_nobody_up() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), metrics());
    let path = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let log = open(&path, &metrics);
    let agent = vec![b'a'; 1000];
    // More than the pipe and the buffer take together.
    for _ in 0..40_000 {
        log.submit(&with(Texts { user_agent: &agent, ..Texts::default() }));
    }
    assert!(metrics.access_log_dropped.get() > 0, "the buffer is bounded");
    assert!(!log.close(Duration::from_millis(10)), "closing does not wait for the reader");
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing/access.log").to_str().unwrap().to_owned();
    let error = AccessLog::open(&Settings { path: Some(path.clone()), ..Settings::default() }, &metrics())
        .unwrap_err();
    assert!(error.to_string().contains(&path), "{error}");
}

#[test]
fn what_follows_a_broken_line_begins_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let metrics = metrics();
    let sink = Sink::open(path.to_str().unwrap()).unwrap();
    let mut writer = Writer::new(sink, metrics.access_log_lines.clone(), metrics.access_log_dropped.clone());
    writer.write(b"broken", 0);
    writer.write(b"whole\n", 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), "broken\nwhole\n");
}

#[test]
fn four_addresses_fit_a_record() {
    let address: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let all = [UpstreamTry { address, status: None, took: None }; entry::TRIES];
    assert_eq!(fields(&LogEntry { upstreams: &all, ..entry() })[15].matches("10.0.0.1:80").count(), 4);
}
