//! Between the requests and the log's thread: two buffers that change places.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::entry::{LogEntry, QueuedEntry};
use super::settings::Style;

/// The most lines that wait.
const MAX_LINES: usize = 16_384;
/// The most bytes of text that wait.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// A buffer that grew beyond this gives its memory back.
const KEPT_BYTES: usize = 1024 * 1024;
/// For how long lines gather before they are written together.
const GATHER: Duration = Duration::from_millis(20);

/// Lines that wait, their texts one after the other.
#[derive(Debug, Default)]
pub(super) struct Batch {
    records: Vec<QueuedEntry>,
    texts: Vec<u8>,
}

impl Batch {
    /// Each line with its part of the texts.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&QueuedEntry, &[u8])> {
        let mut rest = self.texts.as_slice();
        self.records.iter().map(move |record| {
            let (text, after) = rest.split_at_checked(record.size()).unwrap_or_default();
            rest = after;
            (record, text)
        })
    }

    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.texts.clear();
        self.texts.shrink_to(KEPT_BYTES);
    }

    fn half_full(&self) -> bool {
        self.records.len() >= MAX_LINES / 2 || self.texts.len() >= MAX_BYTES / 2
    }
}

/// What to do after the lines that were taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// Open the file anew.
    pub(super) reopen: bool,
    /// From the line of that number on, write in this way.
    pub(super) styles: Vec<(usize, Style)>,
    /// End.
    pub(super) close: bool,
}

#[derive(Debug, Default)]
struct State {
    waiting: Batch,
    order: Order,
    ended: bool,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    end: Condvar,
}

impl Queue {
    /// Takes a line; false when it is full or closed.
    pub(super) fn push(&self, entry: &LogEntry<'_>) -> bool {
        let mut state = self.state.lock();
        if state.order.close || state.waiting.records.len() >= MAX_LINES {
            return false;
        }
        let (was_empty, was_half) = (state.waiting.records.is_empty(), state.waiting.half_full());
        let Some(record) = QueuedEntry::pack(entry, &mut state.waiting.texts, MAX_BYTES) else {
            return false;
        };
        state.waiting.records.push(record);
        let wake = was_empty || (!was_half && state.waiting.half_full());
        drop(state);
        // Only the first line and the one that fills half the buffer wake the thread: between
        // them it gathers.
        if wake {
            self.wake.notify_one();
        }
        true
    }

    pub(super) fn reopen(&self) {
        self.state.lock().order.reopen = true;
        self.wake.notify_one();
    }

    pub(super) fn style(&self, style: Style) {
        let mut state = self.state.lock();
        let waiting = state.waiting.records.len();
        state.order.styles.push((waiting, style));
        drop(state);
        self.wake.notify_one();
    }

    /// Closes it; whether the thread ended within `wait`.
    pub(super) fn close(&self, wait: Duration) -> bool {
        let mut state = self.state.lock();
        state.order.close = true;
        self.wake.notify_one();
        self.end.wait_while_for(&mut state, |state| !state.ended, wait);
        state.ended
    }

    /// Waits for lines or an order, and exchanges `batch`, which is empty, for what there is.
    pub(super) fn take(&self, batch: &mut Batch) -> Order {
        let mut state = self.state.lock();
        self.wake.wait_while(&mut state, |state| {
            state.waiting.records.is_empty() && state.order == Order::default()
        });
        self.wake.wait_while_for(
            &mut state,
            |state| !state.waiting.half_full() && state.order == Order::default(),
            GATHER,
        );
        std::mem::swap(&mut state.waiting, batch);
        let order = std::mem::take(&mut state.order);
        state.order.close = order.close;
        order
    }

    /// Says that nothing more is written.
    pub(super) fn ended(&self) {
        self.state.lock().ended = true;
        self.end.notify_all();
    }
}
