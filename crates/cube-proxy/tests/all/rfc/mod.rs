//! What the RFCs of HTTP ask for, a module an RFC, each case with its section.

mod fence;
mod responses;
mod rfc9112;
pub(crate) mod rfc9113;
