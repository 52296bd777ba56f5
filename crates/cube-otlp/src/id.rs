//! Ids of traces and spans.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// The id of a trace: 16 bytes, not all of them zero. Shown as 32 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId(NonZeroU128);

impl TraceId {
    /// A random one.
    #[must_use]
    pub fn random() -> Self {
        Self(NonZeroU128::new(fastrand::u128(..)).unwrap_or(NonZeroU128::MIN))
    }

    /// That of this number; zero is none.
    #[must_use]
    pub fn new(number: u128) -> Option<Self> {
        NonZeroU128::new(number).map(Self)
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The id of a span: 8 bytes, not all of them zero. Shown as 16 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanId(NonZeroU64);

impl SpanId {
    /// A random one.
    #[must_use]
    pub fn random() -> Self {
        Self(NonZeroU64::new(fastrand::u64(..)).unwrap_or(NonZeroU64::MIN))
    }

    /// That of this number; zero is none.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    pub(crate) fn bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
