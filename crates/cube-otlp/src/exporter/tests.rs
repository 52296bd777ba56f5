//! The exporter against a collector that does as it is told.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prometheus::Registry;
use prost::Message;
use rustls::RootCertStore;

use super::*;
use crate::{SpanId, SpanKind, TraceId};

const LONG: Duration = Duration::from_secs(10);

fn start(port: u16, registry: &Registry) -> Exporter {
    let settings = Settings {
        endpoint: format!("http://127.0.0.1:{port}/base/").parse().unwrap(),
        authorities: RootCertStore::empty(),
        headers: vec![("x-key".parse().unwrap(), "hush".parse().unwrap())],
        service_name: "proxy".to_owned(),
        service_version: "1",
        host_name: "node".to_owned(),
    };
    Exporter::start(&settings, Metrics::new(registry).unwrap()).unwrap()
}

fn span() -> Span {
    Span {
        trace: TraceId::random(),
        id: SpanId::random(),
        parent: None,
        parent_is_remote: false,
        trace_state: String::new(),
        name: "GET host".into(),
        kind: SpanKind::Server,
        began: SystemTime::now(),
        ended: SystemTime::now(),
        attributes: vec![("cube.retcode", 310_200.into())],
        failed: false,
    }
}

/// Spans counted under a name and, where it has one, a reason.
fn counted(registry: &Registry, name: &str, reason: &str) -> f64 {
    let all = registry.gather();
    let of_name = all.iter().filter(|family| family.name().ends_with(name));
    let samples = of_name.flat_map(|family| family.get_metric());
    let of_reason = samples.filter(|sample| sample.get_label().iter().all(|label| label.value() == reason));
    of_reason.map(|sample| sample.get_counter().get_value()).sum()
}

/// One request of a connection: its head and its body.
fn request(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

fn respond(stream: &mut TcpStream, status: u16, body: &[u8]) {
    let head = format!("HTTP/1.1 {status} X\r\nRetry-After: 0\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
}

#[test]
fn what_waits_is_exported_at_the_end_and_what_the_collector_rejects_is_counted() {
    let (registry, listener) = (Registry::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let exporter = start(listener.local_addr().unwrap().port(), &registry);
    exporter.submit(vec![span(), span()]);
    exporter.submit(vec![span()]);
    exporter.close(LONG);
    let (mut stream, _) = listener.accept().unwrap();
    let (head, first) = request(&mut stream);
    assert!(head.starts_with("post /base/v1/traces http/1.1"), "{head}");
    for field in ["content-type: application/x-protobuf", "x-key: hush", "host: 127.0.0.1:"] {
        assert!(head.contains(field), "{head}");
    }
    // Sent again, on another connection.
    respond(&mut stream, 503, b"");
    let (mut stream, _) = listener.accept().unwrap();
    let (_, body) = request(&mut stream);
    assert_eq!(first, body);
    let sent = ExportTraceServiceRequest::decode(&body[..]).unwrap();
    assert_eq!(sent.resource_spans[0].scope_spans[0].spans.len(), 3);
    let partial = ExportTracePartialSuccess { rejected_spans: 1, error_message: String::new() };
    let response = ExportTraceServiceResponse { partial_success: Some(partial) };
    respond(&mut stream, 200, &response.encode_to_vec());
    assert!(exporter.closed(LONG));
    assert_eq!(counted(&registry, "exported_total", ""), 2.0);
    assert_eq!(counted(&registry, "dropped_total", "rejected"), 1.0);
    exporter.submit(vec![span()]);
    assert_eq!(counted(&registry, "dropped_total", "unreachable"), 1.0, "nobody takes it any more");
}

#[test]
fn what_a_collector_refuses_is_not_sent_again() {
    let (registry, listener) = (Registry::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let exporter = start(listener.local_addr().unwrap().port(), &registry);
    exporter.submit(vec![span(), span()]);
    exporter.close(LONG);
    let (mut stream, _) = listener.accept().unwrap();
    request(&mut stream);
    respond(&mut stream, 401, b"");
    assert!(exporter.closed(LONG));
    assert_eq!(counted(&registry, "dropped_total", "rejected"), 2.0);
    assert_eq!(counted(&registry, "exported_total", ""), 0.0);
}

#[test]
fn the_queue_is_bounded_and_the_end_does_not_wait_for_a_collector_that_hangs() {
    let (registry, listener) = (Registry::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let exporter = start(listener.local_addr().unwrap().port(), &registry);
    (0..BATCH).for_each(|_| exporter.submit(vec![span()]));
    // It has the first of them, and says nothing.
    let (mut stream, _) = listener.accept().unwrap();
    request(&mut stream);
    (0..2 * QUEUE).for_each(|_| exporter.submit(vec![span(), span()]));
    let full = counted(&registry, "dropped_total", "queue_full");
    assert!(full >= (2 * QUEUE) as f64, "{full}");
    exporter.close(Duration::ZERO);
    assert!(exporter.closed(LONG));
    // Every span is counted once.
    let lost = counted(&registry, "dropped_total", "unreachable");
    assert_eq!(full + lost, (BATCH + 4 * QUEUE) as f64);
}
