//! What is told of a piece of work that has ended.

use std::borrow::Cow;
use std::time::SystemTime;

use crate::{SpanId, TraceId};

/// On which side of a call a span stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work within this process.
    Internal,
    /// A request that this process serves.
    Server,
    /// A request that this process makes.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// Name and value.
pub type Attribute = (&'static str, Value);

/// A span.
#[derive(Debug, Clone)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub id: SpanId,
    /// The span that it is part of; `None`: it is the first of its trace.
    pub parent: Option<SpanId>,
    /// Whether `parent` was recorded by another process.
    pub parent_is_remote: bool,
    /// `tracestate`, as it came with the parent.
    pub trace_state: String,
    /// Its name, of a closed list.
    pub name: Cow<'static, str>,
    /// On which side it stands.
    pub kind: SpanKind,
    /// When the work began.
    pub began: SystemTime,
    /// When it ended.
    pub ended: SystemTime,
    /// What else is known.
    pub attributes: Vec<Attribute>,
    /// Whether the work failed.
    pub failed: bool,
}
