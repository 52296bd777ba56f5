//! The grammar of HTTP/1.1 as RFC 9112 has it: pure functions and state machines, without I/O and without a
//! type of Pingora. It says where a message's parts are in the bytes that come in, and refuses what two
//! recipients could read differently.

mod chunks;
#[cfg(any(test, cube_fuzz))]
pub mod fuzz;

pub use chunks::{ChunkWatch, Malformed};
