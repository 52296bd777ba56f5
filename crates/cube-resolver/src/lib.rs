//! From a sandbox to the address that is dialled.
//!
//! [`Resolver`] is the route cache of metadata.md: one entry a sandbox, kept true by what the
//! store pushes, filled by one read at a time. [`authorise`] compares traffic tokens, [`route()`]
//! makes the local or remote decision, [`AddressGuard`] says what may never be dialled.

mod cache;
mod clock;
mod entry;
mod flight;
mod follow;
mod guard;
mod life;
mod metrics;
mod resolver;
mod revoke;
mod route;
mod settings;
mod token;

#[cfg(test)]
mod model;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;

pub use entry::{Entry, Generation, Inspection, Lookup, Revision};
pub use guard::{AddressGuard, Dial, Refusal};
pub use resolver::Resolver;
pub use revoke::Revocation;
pub use route::{Route, RouteError, route};
pub use settings::{ResolverError, Settings};
pub use token::{TokenVerdict, authorise};
