//! Which sandbox and port a request names, and the way back.
//!
//! Pure functions over the request line and headers: no I/O, no clock, nothing of the engine.
//! The contract is the routing page of the specification; docs/architecture.md places this
//! crate among the others.

mod name;

pub use name::{Form, NameError, Port, SandboxId};
