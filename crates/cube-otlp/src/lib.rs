//! Traces for an OpenTelemetry collector (fleet.md, "Tracing").
//!
//! [`TraceParent`] is the W3C trace context that a request brings and takes on; [`Span`] is what is told of a
//! piece of work that has ended; [`Exporter`] takes spans without ever waiting and sends them from a thread of
//! its own, as protobuf over HTTP.

mod collector;
mod encode;
mod error;
mod exporter;
mod id;
mod metrics;
mod settings;
mod span;
mod trace_parent;

pub use error::OtlpError;
pub use exporter::Exporter;
pub use id::{SpanId, TraceId};
pub use metrics::{DropReason, Metrics};
pub use settings::Settings;
pub use span::{Attribute, Span, SpanKind, Value};
pub use trace_parent::TraceParent;
