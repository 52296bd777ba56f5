//! What is known about a sandbox, and the stores it comes from.
//!
//! [`SandboxRecord`] is the parsed Redis hash; [`MetadataStore`] is anything that can read one.
//! The schema is the metadata page of the contract.

mod field;
mod file;
mod mask;
mod record;
mod redis;
mod secret;
mod store;
mod yaml;
mod yaml_edit;
mod yaml_tab;

pub use field::{FieldFault, RecordField, check_field};
pub use file::FileStore;
pub use mask::HostMask;
pub use record::{Access, Field, Oddity, SandboxRecord, SandboxState, Status, TrafficToken};
pub use redis::{RedisSettings, RedisStore};
pub use secret::Secret;
pub use store::{MetadataStore, Snapshot, SnapshotObserver, StoreError, StoreEvent, TrackingSession};
pub use yaml_tab::tab_in_indentation;
