//! What is known of an HTTP/2 frame by its first nine bytes (RFC 9113, section 4.1).

/// Bytes of the head of a frame: three for the length of the payload, the kind, the flags, four for the stream.
pub(super) const HEAD: usize = 9;

/// The kinds of frames that open, end or give up a stream.
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const CONTINUATION: u8 = 9;

/// Flag of DATA and HEADERS: the last frame of its stream.
pub(super) const END_STREAM: u8 = 1;
/// Flag of HEADERS and CONTINUATION: the last frame of its block of headers.
pub(super) const END_HEADERS: u8 = 4;
