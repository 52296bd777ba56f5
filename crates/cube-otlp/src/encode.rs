//! Spans as OTLP writes them.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span as WireSpan, SpanFlags, Status, span, status,
};
use prost::Message;

use crate::{Attribute, Settings, Span, SpanKind, Value};

/// Whose spans these are.
pub(crate) fn resource(settings: &Settings) -> Resource {
    let pid = i64::from(std::process::id());
    let attributes: [Attribute; 4] = [
        ("service.name", settings.service_name.clone().into()),
        ("service.version", settings.service_version.into()),
        ("host.name", settings.host_name.clone().into()),
        // Two processes serve at a time during a hot restart.
        ("process.pid", pid.into()),
    ];
    Resource { attributes: attributes.map(attribute).into(), ..Resource::default() }
}

/// The body of an export.
pub(crate) fn request(spans: Vec<Span>, resource: &Resource) -> Bytes {
    let scope = InstrumentationScope {
        name: "cube-proxy".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let spans = spans.into_iter().map(wire_span).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let all = ResourceSpans { resource: Some(resource.clone()), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![all] }.encode_to_vec().into()
}

/// How many spans the collector says that it has not taken, in the body of a success.
pub(crate) fn rejected(body: &[u8]) -> usize {
    let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    let rejected = response.partial_success.map_or(0, |partial| partial.rejected_spans);
    usize::try_from(rejected).unwrap_or(0)
}

fn wire_span(span: Span) -> WireSpan {
    let kind = match span.kind {
        SpanKind::Internal => span::SpanKind::Internal,
        SpanKind::Server => span::SpanKind::Server,
        SpanKind::Client => span::SpanKind::Client,
    };
    // Sampled, as every span that is exported; and what is known of the parent.
    let mut flags = 1 | SpanFlags::ContextHasIsRemoteMask as u32;
    if span.parent_is_remote {
        flags |= SpanFlags::ContextIsRemoteMask as u32;
    }
    let code = if span.failed { status::StatusCode::Error } else { status::StatusCode::Unset };
    WireSpan {
        trace_id: span.trace.bytes().into(),
        span_id: span.id.bytes().into(),
        trace_state: span.trace_state,
        parent_span_id: span.parent.map(|parent| parent.bytes().into()).unwrap_or_default(),
        flags,
        name: span.name.into_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.began),
        end_time_unix_nano: nanos(span.ended),
        attributes: span.attributes.into_iter().map(attribute).collect(),
        status: Some(Status { code: code.into(), ..Status::default() }),
        ..WireSpan::default()
    }
}

fn attribute((key, value): Attribute) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::StringValue(text.into_owned()),
        Value::Number(number) => any_value::Value::IntValue(number),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
