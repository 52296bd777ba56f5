//! May this node be dialled? (lifecycle.md "Breaker")
//!
//! Two sources decide: the faulty set that all replicas share through the store, and how connects of
//! this process to a node ended. While nothing is wrong anywhere, asking costs
//! two loads.

mod breaker;
mod faulty_set;
mod metrics;
mod nodes;
mod permit;
mod settings;

pub use breaker::{Breaker, BreakerVerdict};
pub use permit::{ConnectFailure, DialPermit};
pub use settings::{BreakerError, Settings};
