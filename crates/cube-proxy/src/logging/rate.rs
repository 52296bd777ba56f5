//! A bound on what one place in the program may write to the log.
//!
//! A fault that every request meets would otherwise write a line a request, fill the disk, and hide
//! every other line. A kind of message is the place that writes it, so what is remembered is
//! bounded by the program itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of one kind in one window.
const MOST: u32 = 50;
/// How long a window is.
const WINDOW: Duration = Duration::from_secs(10);

/// Lets no more than [`MOST`] lines of a kind through in a [`WINDOW`], and says how many it left
/// out once the window is over, before the next line of any kind.
pub(super) struct LogRateLimit {
    begun: Instant,
    kinds: Mutex<HashMap<Identifier, Kind>>,
    /// The window that lines were last left out in, plus one; 0: nothing is to be told.
    to_tell: AtomicU64,
}

struct Kind {
    place: &'static Metadata<'static>,
    window: u64,
    written: u32,
    left_out: u64,
}

/// The line that tells of others.
const TOLD: &str = "lines_left_out";

impl LogRateLimit {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), kinds: Mutex::default(), to_tell: AtomicU64::new(0) }
    }

    /// Whether a line from `place` may be written at `now`.
    fn allows(&self, place: &'static Metadata<'static>, now: Instant) -> bool {
        let window = self.window(now);
        let mut kinds = self.kinds.lock();
        let kind = kinds.entry(place.callsite()).or_insert(Kind { place, window, written: 0, left_out: 0 });
        if kind.window != window {
            kind.window = window;
            kind.written = 0;
        }
        let allowed = kind.written < MOST;
        if allowed {
            kind.written += 1;
        } else {
            kind.left_out += 1;
            self.to_tell.store(window + 1, Ordering::Relaxed);
        }
        allowed
    }

    /// What was left out in windows that are over at `now`, and is not told yet.
    fn left_out(&self, now: Instant) -> Vec<(&'static Metadata<'static>, u64)> {
        let window = self.window(now);
        let last = self.to_tell.load(Ordering::Relaxed);
        if last == 0 || last > window {
            return Vec::new();
        }
        self.to_tell.store(0, Ordering::Relaxed);
        let mut kinds = self.kinds.lock();
        let some = kinds.values_mut().filter(|kind| kind.left_out > 0);
        some.map(|kind| (kind.place, std::mem::take(&mut kind.left_out))).collect()
    }

    fn window(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begun).as_secs() / WINDOW.as_secs()
    }
}

impl<S: Subscriber> Layer<S> for LogRateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let place = event.metadata();
        if place.name() == TOLD {
            return true;
        }
        let now = Instant::now();
        for (place, count) in self.left_out(now) {
            let (target, line) = (place.target(), place.line());
            tracing::warn!(name: TOLD, count, at = target, line, "lines of one kind were left out");
        }
        self.allows(place, now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Counts what gets through.
    #[derive(Clone, Default)]
    struct Through(Arc<Mutex<HashMap<String, u32>>>);

    impl<S: Subscriber> Layer<S> for Through {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            struct Message(String);
            impl tracing::field::Visit for Message {
                fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                    if field.name() == "message" {
                        self.0 = format!("{value:?}");
                    }
                }
            }
            let mut message = Message(String::new());
            event.record(&mut message);
            *self.0.lock().entry(message.0).or_default() += 1;
        }
    }

    fn line(n: u32) {
        tracing::warn!(n, "one kind");
    }

    #[test]
    fn a_kind_that_floods_is_bounded_and_others_are_not() {
        let through = Through::default();
        let subscriber = tracing_subscriber::registry().with(LogRateLimit::new()).with(through.clone());
        tracing::subscriber::with_default(subscriber, || {
            (0..1000).for_each(line);
            tracing::warn!("another kind");
        });
        let through = through.0.lock();
        assert_eq!((through.get("one kind"), through.get("another kind")), (Some(&MOST), Some(&1)));
    }

    #[test]
    fn what_was_left_out_is_told_once_when_its_window_is_over() {
        let limit = LogRateLimit::new();
        let place = tracing::metadata!(
            name: "place", target: "here", level: tracing::Level::WARN,
            fields: &[], callsite: &CALLSITE, kind: tracing::metadata::Kind::EVENT
        );
        let place: &'static Metadata<'static> = Box::leak(Box::new(place));
        let (now, later) = (limit.begun, limit.begun + WINDOW);
        let allowed = (0..MOST + 7).filter(|_| limit.allows(place, now)).count();
        assert_eq!(allowed, MOST as usize);
        assert!(limit.left_out(now).is_empty(), "the window is not over");
        let told: Vec<_> = limit.left_out(later).iter().map(|(_, count)| *count).collect();
        assert_eq!(told, [7]);
        assert!(limit.left_out(later).is_empty(), "told already");
        assert!(limit.allows(place, later), "a new window");
    }

    struct Callsite;
    static CALLSITE: Callsite = Callsite;

    impl tracing::callsite::Callsite for Callsite {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}
        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("nobody asks")
        }
    }
}
