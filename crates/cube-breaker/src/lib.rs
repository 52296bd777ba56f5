//! May this node be dialled? (lifecycle.md "Breaker")
//!
//! Two answers are joined: the faulty set that all replicas share through the store, and what
//! connects of this process have told about a node. While nothing is wrong anywhere, asking costs
//! two loads.

mod breaker;
mod faulty_set;
mod metrics;
mod nodes;
mod permit;
mod settings;

#[cfg(test)]
mod testbed;

pub use breaker::{Breaker, BreakerVerdict};
pub use permit::{ConnectFailure, DialPermit};
pub use settings::{BreakerError, Settings};
