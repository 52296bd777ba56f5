//! What is told of each step of a decision.

use serde_json::Value;

/// A step of the pipeline, in the order in which they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecisionStep {
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

impl DecisionStep {
    /// The word in the output of `explain`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DecisionStep::Target => "target",
            DecisionStep::Head => "head",
            DecisionStep::Envd => "envd",
            DecisionStep::Record => "record",
            DecisionStep::Token => "token",
            DecisionStep::Limits => "limits",
            DecisionStep::Gate => "gate",
            DecisionStep::Route => "route",
            DecisionStep::Breaker => "breaker",
        }
    }
}

/// What a step found, for people: a sentence, and the values that it speaks of.
pub(crate) struct StepText {
    pub(crate) says: String,
    /// An object, or null.
    pub(crate) values: Value,
}

impl From<&str> for StepText {
    fn from(says: &str) -> Self {
        says.to_owned().into()
    }
}

impl From<String> for StepText {
    fn from(says: String) -> Self {
        Self { says, values: Value::Null }
    }
}

impl From<(String, Value)> for StepText {
    fn from((says, values): (String, Value)) -> Self {
        Self { says, values }
    }
}

/// Is told of each step. What it is told is made only where somebody listens.
pub(crate) trait Recorder: Send {
    /// The request goes on behind `step`.
    fn passed<T: Into<StepText>>(&mut self, step: DecisionStep, told: impl FnOnce() -> T);

    /// The request ends at `step`.
    fn stopped<T: Into<StepText>>(&mut self, step: DecisionStep, told: impl FnOnce() -> T);
}

/// Nobody listens: the request path.
pub(crate) struct Unrecorded;

impl Recorder for Unrecorded {
    #[inline]
    fn passed<T: Into<StepText>>(&mut self, _: DecisionStep, _: impl FnOnce() -> T) {}

    #[inline]
    fn stopped<T: Into<StepText>>(&mut self, _: DecisionStep, _: impl FnOnce() -> T) {}
}
