//! Is a sandbox awake, and if not, what then: its state, the gate, resume, last activity and this
//! replica's registry row.
//!
//! [`Lifecycle`] is built once. It learns of states from the admin API ([`Lifecycle::admin`]),
//! from every snapshot the store is asked for ([`cube_metadata::SnapshotObserver`]) and from its
//! own resume calls; [`Lifecycle::gate`] is what a request asks. The contract is lifecycle.md.

mod activity;
mod admin;
mod clock;
#[cfg(any(test, cube_fuzz))]
pub mod fuzz;
mod gate;
mod handover;
mod hold_queue;
mod lifecycle;
mod metrics;
mod registry;
mod resume;
mod resume_client;
mod settings;
mod state_table;

pub use activity::LastActive;
pub use admin::{LIFECYCLE_ROUTES, LifecycleResponse, LifecycleRoute, Upsert};
pub use gate::{GateForecast, GateRefusal, GateVerdict, HoldOutcome};
pub use handover::{ListingCursors, StateRow};
pub use lifecycle::{Lifecycle, LifecycleHooks};
pub use settings::{LifecycleError, RegistrySettings, ResumeSettings, Settings};

#[cfg(test)]
mod testbed;
