//! Finds the address to dial for a sandbox.
//!
//! [`Resolver`] is the route cache of metadata.md: one entry for each sandbox, invalidated by what the
//! store pushes, filled by one read at a time. [`authorise`] compares traffic tokens, [`route()`]
//! makes the local or remote decision, [`AddressGuard`] says what may never be dialled.

mod address_guard;
mod cache;
mod clock;
mod freshness;
mod invalidation;
mod metrics;
mod resolver;
mod revocation;
mod route;
mod route_entry;
mod settings;
mod single_flight;
mod traffic_token;

#[cfg(test)]
mod model;
#[cfg(test)]
mod testbed;
#[cfg(test)]
mod tests;

pub use address_guard::{AddressGuard, AddressKind, DialRefusal};
pub use resolver::Resolver;
pub use revocation::Revocation;
pub use route::{Route, RouteError, route};
pub use route_entry::{Generation, Inspection, Lookup, Revision, RouteEntry};
pub use settings::{ResolverError, Settings};
pub use traffic_token::{TokenVerdict, authorise, presents_token};
