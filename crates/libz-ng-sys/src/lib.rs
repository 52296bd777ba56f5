//! zlib under the name of zlib-ng.
//!
//! Pingora links zlib-ng for a compression module that this proxy never enables; building
//! zlib-ng needs cmake, which a machine with nothing but Rust and a C compiler does not have. The
//! two libraries share one interface as far as Pingora goes, so plain zlib takes its place
//! (docs/decisions/0003-zlib-for-zlib-ng.md).

pub use libz_sys::*;
