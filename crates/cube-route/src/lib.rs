//! Which sandbox and port a request names, and how headers are rewritten between client and sandbox.
//!
//! Pure functions over the request line and headers: no I/O, no clock, nothing of Pingora.
//! The contract is routing.md; docs/architecture.md places this crate among the others.
//!
//! [`parse_request`] turns a request head into a [`ParsedRequest`] under the [`Rules`] of the configuration.
//! [`forwarded_headers`] and [`RequestRewrite`] say what the sandbox sees of it, [`ResponseRewrite`] what
//! the client sees of the response, [`envd_control_route`] which requests are the control plane's alone.
//! [`preview`] has the links that open a private sandbox in a browser (previews.md).

mod absolute_url;
mod byte_class;
mod envd;
mod error;
pub mod forwarded_headers;
#[cfg(any(test, cube_fuzz))]
pub mod fuzz;
mod host;
mod name;
pub mod preview;
mod request;
mod request_rewrite;
mod response_rewrite;
mod rules;
mod target;

pub use envd::envd_control_route;
pub use error::{BadRequest, RulesError};
pub use host::ClientHost;
pub use name::{NameError, Port, RoutingForm, SandboxId};
pub use request::{ListenerKind, ParsedRequest, RequestHead, SandboxTarget, parse_request};
pub use request_rewrite::RequestRewrite;
pub use response_rewrite::{REMOVED_IN_PATH_FORM, ResponseRewrite};
pub use rules::Rules;
