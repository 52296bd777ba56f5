//! What is known about a sandbox, and the stores it comes from.
//!
//! [`SandboxRecord`] is the parsed Redis hash; [`MetadataStore`] is anything that can read one.
//! The schema is the metadata page of the contract.

mod file;
#[cfg(any(test, cube_fuzz))]
pub mod fuzz;
mod host_mask;
mod record;
mod record_field;
mod redis;
mod settings;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod yaml;
mod yaml_edit;
mod yaml_tab;

pub use file::FileStore;
pub use host_mask::HostMask;
pub use record::{Access, FieldValue, RecordWarning, SandboxRecord, SandboxState, Status};
pub use record_field::{FieldError, RecordField, check_field};
pub use redis::{RedisSettings, RedisStore};
pub use settings::{StoreKind, StoreSettings};
pub use store::{MetadataStore, Snapshot, SnapshotObserver, StoreError, StoreEvent, TrackingSession};
pub use yaml_tab::tab_in_indentation;
