//! What is recorded of a traced request while it runs (fleet.md, Tracing). Its spans are made of that when it
//! has ended, in `proxy/spans.rs`.

mod decision;
mod request_trace;
mod settings;

pub(crate) use request_trace::{RequestTrace, Resolve, Wait, WaitKind};
pub use settings::{HeaderFile, OtlpKeys, TracingSettings};
