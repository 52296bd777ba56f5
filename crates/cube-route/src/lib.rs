//! Which sandbox and port a request names, and the way back.
//!
//! Pure functions over the request line and headers: no I/O, no clock, nothing of the engine.
//! The contract is routing.md; docs/architecture.md places this crate among the others.
//!
//! [`read`] turns a request head into a [`Request`] under the [`Rules`] of the configuration.
//! [`sandbox_view`] and [`WayUp`] say what the sandbox sees of it, [`WayBack`] what the client sees of the
//! answer, [`envd_control_route`] which requests are not for everybody.

mod byte_class;
mod envd;
mod error;
mod host;
mod name;
mod request;
mod rules;
pub mod sandbox_view;
mod target;
mod way_back;
mod way_up;

pub use envd::envd_control_route;
pub use error::{BadRequest, RulesError};
pub use host::ClientHost;
pub use name::{Form, NameError, Port, SandboxId};
pub use request::{Listener, Request, RequestHead, Target, read};
pub use rules::Rules;
pub use way_back::{REMOVED_IN_PATH_FORM, WayBack};
pub use way_up::WayUp;
