//! What settings are made of.
//!
//! Each crate declares its own settings, as one [`section!`] of the configuration file: the name, the
//! meaning, the unit and the default of every key, and whether a running process can take another value.
//! `cube-proxy` puts the sections together to a file and checks what hangs on more than one key. So a new
//! key is its field in the crate's settings, its line in conf/cube-proxy.yaml, and the place that uses it.
//!
//! [`Secret`] is what a key holds that must not be shown, and what tokens are compared with.

mod address;
mod file;
mod secret;
mod section;
mod units;

pub use address::{Address, ListenAddress, Network, PortRange};
pub use file::{FilePath, SecretFile};
pub use secret::Secret;
pub use section::{FileForm, KeyOf, Same, Section, Shape, Takes};
pub use units::{Auto, Count, Described, Given, NonZeroCount, NonZeroSpan, Share, Size, Span, ZeroIsNone};

#[doc(hidden)]
pub use serde;
