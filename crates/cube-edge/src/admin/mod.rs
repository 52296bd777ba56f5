//! The admin API (lifecycle.md), and the listeners for probes and scrapes (operations.md).
//!
//! [`AdminApp`] and [`MetricsApp`] are what Pingora serves. What concerns lifecycles is
//! answered by [`Lifecycle::admin`]; here is who may ask, and what operators see of routes.

mod apps;
mod auth;
mod forwarding;
mod health;
mod link;
mod processes;
mod response;
mod router;
pub(crate) mod routes;
mod scrape;
mod settings;
#[cfg(test)]
mod tests;
mod top;

pub use apps::{AdminApp, MetricsApp, OperatorApp, read_head};
pub use forwarding::{AdminForwarding, DrainerCommand, ForwardedRequest, PendingRequest, Push};
pub use health::Readiness;
pub use router::{AdminApi, admin_routes};
pub use settings::AdminSettings;
