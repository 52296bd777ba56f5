//! What is told of each step of a decision.

use serde_json::Value;

/// A step of the pipeline, in the order in which they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Whom the head names.
    Target,
    /// The limits of a head, its method and its framing.
    Head,
    /// The control routes of envd.
    Envd,
    /// The record.
    Record,
    /// The traffic token.
    Token,
    /// The limit on requests to one sandbox.
    Limits,
    /// The state of the sandbox.
    Gate,
    /// The address that is dialled.
    Route,
    /// The breaker of the node.
    Breaker,
}

impl Step {
    /// The word in the output of `explain`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Step::Target => "target",
            Step::Head => "head",
            Step::Envd => "envd",
            Step::Record => "record",
            Step::Token => "token",
            Step::Limits => "limits",
            Step::Gate => "gate",
            Step::Route => "route",
            Step::Breaker => "breaker",
        }
    }
}

/// Words and values for people.
pub(crate) struct Told {
    pub(crate) says: String,
    /// An object, or null.
    pub(crate) values: Value,
}

impl From<&str> for Told {
    fn from(says: &str) -> Self {
        says.to_owned().into()
    }
}

impl From<String> for Told {
    fn from(says: String) -> Self {
        Self { says, values: Value::Null }
    }
}

impl From<(String, Value)> for Told {
    fn from((says, values): (String, Value)) -> Self {
        Self { says, values }
    }
}

/// Is told of each step. What it is told is made only where somebody listens.
pub(crate) trait Recorder: Send {
    /// The request goes on behind `step`.
    fn passed<T: Into<Told>>(&mut self, step: Step, told: impl FnOnce() -> T);

    /// The request ends at `step`.
    fn stopped<T: Into<Told>>(&mut self, step: Step, told: impl FnOnce() -> T);
}

/// Nobody listens: the request path.
pub(crate) struct Unrecorded;

impl Recorder for Unrecorded {
    #[inline]
    fn passed<T: Into<Told>>(&mut self, _: Step, _: impl FnOnce() -> T) {}

    #[inline]
    fn stopped<T: Into<Told>>(&mut self, _: Step, _: impl FnOnce() -> T) {}
}
