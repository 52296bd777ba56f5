//! Preview links (previews.md): what lets a request in beside the traffic token.
//!
//! What a request brings is read once, with its head ([`Presented`]); [`judge`] says by which right it passes,
//! for requests and for `explain` alike. What upstream and client see of it is with the phases
//! (`proxy/preview_headers.rs`, `proxy/preview_redirect.rs`).

mod judge;
mod result;
mod settings;

pub(crate) use judge::{Judgement, Presented, PreviewHead, Refusal, Right, judge};
pub use result::PreviewResult;
pub use settings::PreviewSettings;
