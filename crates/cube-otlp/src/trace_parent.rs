//! The `traceparent` header (W3C Trace Context, 3.2). Read by its grammar: what is taken for a parent decides
//! whose trace a request joins.

use crate::{SpanId, TraceId};

/// What a `traceparent` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace that the request belongs to.
    pub trace: TraceId,
    /// The caller's span.
    pub span: SpanId,
    /// Whether the caller records its span.
    pub sampled: bool,
}

/// `00-<trace>-<span>-<flags>`.
const LENGTH: usize = 2 + 1 + 32 + 1 + 16 + 1 + 2;

impl TraceParent {
    /// Reads a value; `None` where it is malformed. Of a version that is not known yet the fields of version 0
    /// are read, and what follows them is not looked at.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(LENGTH)?;
        let text = std::str::from_utf8(known).ok()?;
        let mut parts = text.split('-');
        let version = hex(parts.next()?, 2)?;
        let (trace, span) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?);
        let flags = hex(parts.next()?, 2)?;
        let whole = if version == 0 { rest.is_empty() } else { matches!(rest, [] | [b'-', ..]) };
        if version == 0xff || !whole || parts.next().is_some() {
            return None;
        }
        Some(Self {
            trace: TraceId::new(trace)?,
            span: SpanId::new(u64::try_from(span).ok()?)?,
            sampled: flags & 1 == 1,
        })
    }

    /// The value, in version 0.
    #[must_use]
    pub fn value(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// A number of so many digits, all of them lower case.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let good = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    good.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn a_parent_is_read_and_written() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("03", true), ("ff", true)] {
            let read = TraceParent::parse(format!("00-{TRACE}-{SPAN}-{flags}").as_bytes()).unwrap();
            assert_eq!((read.trace.to_string().as_str(), read.span.to_string().as_str()), (TRACE, SPAN));
            assert_eq!(read.sampled, sampled, "{flags}");
            assert_eq!(read.value(), format!("00-{TRACE}-{SPAN}-{:02x}", u8::from(sampled)));
        }
        // Leading zeros are part of an id.
        let small =
            TraceParent { trace: TraceId::new(1).unwrap(), span: SpanId::new(2).unwrap(), sampled: true };
        assert_eq!(TraceParent::parse(small.value().as_bytes()), Some(small));
        assert_eq!(TraceId::random().to_string().len(), 32);
        assert_ne!(SpanId::random(), SpanId::random());
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for good in [format!("01-{TRACE}-{SPAN}-01"), format!("cc-{TRACE}-{SPAN}-01-what-the_future brings")]
        {
            assert!(TraceParent::parse(good.as_bytes()).unwrap().sampled, "{good}");
        }
        assert_eq!(TraceParent::parse(format!("cc-{TRACE}-{SPAN}-01.x").as_bytes()), None);
    }

    #[test]
    fn what_is_malformed_is_no_parent() {
        let upper = TRACE.to_uppercase();
        for bad in [
            String::new(),
            "00".to_owned(),
            TRACE.to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-001"),
            format!("+0-{TRACE}-{SPAN}-01"),
            format!("00-{upper}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}0-{}-01", &SPAN[1..]),
            format!("00_{TRACE}_{SPAN}_01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01"),
        ] {
            assert_eq!(TraceParent::parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(TraceParent::parse(&[0xff; 55]), None);
    }
}
