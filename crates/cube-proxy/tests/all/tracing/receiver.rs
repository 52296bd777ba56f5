//! A collector of the tests' own, and how spans look to it.

use std::collections::BTreeMap;

use cube_testkit::serde_json::{Value, json};
use cube_testkit::{Env, Origin, eventually, unique_id};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;

use crate::support::own;

/// A collector.
pub(super) struct Receiver(pub(super) Origin);

impl Receiver {
    pub(super) async fn start() -> Self {
        Self(Origin::replying(200, &[("Content-Type", "application/x-protobuf")], "").await)
    }

    /// A proxy that traces this share of its requests; access log in JSON.
    pub(super) fn config(&self, ratio: f64) -> Value {
        let otlp = json!({ "endpoint": format!("http://{}", self.0.address()), "sample_ratio": ratio });
        json!({ "tracing": { "otlp": otlp }, "access_log": { "format": "json" } })
    }

    pub(super) async fn env(&self, ratio: f64, more: Value) -> Env {
        let mut config = self.config(ratio);
        cube_testkit::merge(&mut config, &more);
        own(config).await
    }

    pub(super) fn exports(&self) -> Vec<ResourceSpans> {
        let whole = self.0.received().into_iter().filter_map(|request| {
            let length: usize = request.headers.get("content-length")?.parse().ok()?;
            (request.body.len() == length).then_some(request.body)
        });
        let decoded = whole.map(|body| ExportTraceServiceRequest::decode(&body[..]).expect("protobuf"));
        decoded.flat_map(|export| export.resource_spans).collect()
    }

    pub(super) fn all(&self) -> Vec<Span> {
        let scopes = self.exports().into_iter().flat_map(|export| export.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The spans of a trace, once that of the request itself has come; the spans of one request come together.
    pub(super) async fn trace(&self, id: &str) -> Trace {
        eventually("the spans of a request", || async {
            let mut spans: Vec<_> = self.all().into_iter().filter(|span| hex(&span.trace_id) == id).collect();
            spans.sort_by_key(|span| span.start_time_unix_nano);
            let server = spans.iter().position(|span| span.kind == SpanKind::Server as i32)?;
            let server = spans.remove(server);
            Some(Trace { server, children: spans })
        })
        .await
    }
}

pub(super) struct Trace {
    /// The request itself.
    pub(super) server: Span,
    /// What is part of it, in order.
    pub(super) children: Vec<Span>,
}

impl Trace {
    /// The names of the children in order; each is the server span's child and lies within it.
    #[track_caller]
    pub(super) fn names(&self) -> Vec<&str> {
        for child in &self.children {
            assert_eq!(child.parent_span_id, self.server.span_id, "{child:?}");
            assert!(child.start_time_unix_nano >= self.server.start_time_unix_nano, "{self:?}");
            assert!(child.start_time_unix_nano <= child.end_time_unix_nano, "{child:?}");
            assert!(child.end_time_unix_nano <= self.server.end_time_unix_nano, "{self:?}");
        }
        self.children.iter().map(|child| child.name.as_str()).collect()
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#?} {:#?}", self.server, self.children)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn text(value: &AnyValue) -> String {
    match value.value.as_ref().expect("a value") {
        Any::StringValue(text) => text.clone(),
        Any::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn attributes(list: &[KeyValue]) -> BTreeMap<String, String> {
    list.iter().map(|pair| (pair.key.clone(), text(pair.value.as_ref().expect("a value")))).collect()
}

/// An attribute of a span.
pub(super) fn attribute(span: &Span, name: &str) -> Option<String> {
    attributes(&span.attributes).remove(name)
}

#[track_caller]
pub(super) fn has(span: &Span, wanted: &[(&str, &str)]) {
    let all = attributes(&span.attributes);
    for (name, value) in wanted {
        assert_eq!(all.get(*name).map(String::as_str), Some(*value), "{name} of {all:#?}");
    }
}

pub(super) fn failed(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
}

/// A trace that no other request has, and the header that names it.
pub(super) fn parent(flags: &str) -> (String, String) {
    let id = unique_id("");
    let digest: u128 =
        id.bytes().fold(0, |sum: u128, byte| sum.wrapping_mul(1_099_511_628_211) ^ u128::from(byte));
    let trace = format!("{:032x}", digest | 1);
    let header = format!("00-{trace}-00f067aa0ba902b7-{flags}");
    (trace, header)
}
