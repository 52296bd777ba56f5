//! Whether a request may go where (routing.md, "Order of decisions"), in one pipeline for the request path
//! and for `explain`.
//!
//! [`head`] judges a head by itself, [`access`] what is known of the sandbox that it names. Neither knows
//! Pingora's session: they take a view of the head and the settings, and return a decision. What the request
//! path takes on its way (a lookup, a slot, a permit) and `explain` only looks at is a
//! [`access::Surroundings`] each; what `explain` shows is what a [`recorder::Recorder`] was told.

pub(crate) mod access;
mod explain;
mod explain_query;
pub(crate) mod head;
pub(crate) mod recorder;
mod seen_from;

pub(crate) use explain::Explanation;
pub use explain_query::{ExplainQuery, ExplainQueryError};
