//! Is a sandbox awake, and if not, what then: its state, the gate, resume, last activity and this
//! replica's registry row.
//!
//! [`Lifecycle`] is built once. It learns of states from the admin API ([`Lifecycle::admin`]),
//! from every snapshot the store is asked for ([`cube_metadata::SnapshotObserver`]) and from its
//! own resume calls; [`Lifecycle::gate`] is what a request asks. The contract is lifecycle.md.

mod activity;
mod admin;
mod call;
mod clock;
mod gate;
mod handover;
mod lifecycle;
mod metrics;
mod places;
mod registry;
mod resume;
mod settings;
mod states;

pub use activity::LastActive;
pub use admin::{AdminAnswer, Upsert};
pub use gate::{Gate, Held, Outlook, Refusal};
pub use handover::{Listings, StateRow};
pub use lifecycle::{Hooks, Lifecycle};
pub use settings::{BearerToken, LifecycleError, RegistrySettings, ResumeSettings, Settings};

#[cfg(test)]
mod testing;
