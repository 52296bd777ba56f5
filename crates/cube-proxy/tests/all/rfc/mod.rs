//! What the RFCs of HTTP ask for, a module an RFC, each case with its section.

pub(crate) mod rfc9113;
