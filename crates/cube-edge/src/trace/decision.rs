//! Whether a request is traced, and as part of which trace.

use cube_otlp::{TraceId, TraceParent};
use http::{HeaderMap, HeaderName};

pub(super) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(super) static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The parent that a request names; `None`: none, or a malformed one, which begins a new trace.
pub(super) fn parent_of(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(&TRACEPARENT).iter();
    let parent = TraceParent::parse(values.next()?.as_bytes())?;
    values.next().is_none().then_some(parent)
}

/// Whether a request is traced, and its trace. A trusted peer has decided for it, where it names a parent;
/// otherwise every client could have all of its requests traced. `draw` is from 0 to less than 1, and nothing
/// that a client can choose, as its trace id is.
pub(super) fn decide(parent: Option<TraceParent>, trusted: bool, ratio: f64, draw: f64) -> Option<TraceId> {
    let sampled = match parent {
        Some(parent) if trusted => parent.sampled,
        _ => draw < ratio,
    };
    sampled.then(|| parent.map_or_else(TraceId::random, |parent| parent.trace))
}

/// `tracestate` in one line.
pub(super) fn trace_state(headers: &HeaderMap) -> String {
    let values = headers.get_all(&TRACESTATE).iter();
    values.filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn headers(list: &[&str]) -> HeaderMap {
        list.iter().map(|value| (TRACEPARENT.clone(), value.parse().unwrap())).collect()
    }

    fn parent(sampled: bool) -> Option<TraceParent> {
        let flags = u8::from(sampled);
        parent_of(&headers(&[&format!("00-{TRACE}-b7ad6b7169203331-{flags:02x}")]))
    }

    #[test]
    fn a_trusted_parent_decides_either_way() {
        for draw in [0.0, 0.999] {
            for ratio in [0.0, 0.5, 1.0] {
                let followed = decide(parent(true), true, ratio, draw);
                assert_eq!(followed.map(|trace| trace.to_string()).as_deref(), Some(TRACE));
                assert_eq!(decide(parent(false), true, ratio, draw), None);
            }
        }
    }

    #[test]
    fn of_others_the_trace_is_taken_and_the_ratio_decides() {
        for sampled in [true, false] {
            let taken = decide(parent(sampled), false, 0.25, 0.2);
            assert_eq!(taken.map(|trace| trace.to_string()).as_deref(), Some(TRACE));
            assert_eq!(decide(parent(sampled), false, 0.25, 0.25), None);
            assert_eq!(decide(parent(sampled), false, 0.0, 0.0), None);
        }
        for trusted in [true, false] {
            let (one, other) = (decide(None, trusted, 1.0, 0.9), decide(None, trusted, 1.0, 0.9));
            assert!(one.is_some() && one != other, "a trace of its own");
            assert_eq!(decide(None, trusted, 0.5, 0.5), None);
        }
    }

    #[test]
    fn a_malformed_parent_and_two_of_them_are_none() {
        let good = format!("00-{TRACE}-b7ad6b7169203331-01");
        assert!(parent_of(&headers(&[&good])).is_some());
        assert_eq!(parent_of(&headers(&[&good, &good])), None);
        assert_eq!(parent_of(&headers(&[&good[1..]])), None);
        assert_eq!(parent_of(&headers(&[])), None);
    }
}
