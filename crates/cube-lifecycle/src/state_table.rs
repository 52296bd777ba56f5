//! The lifecycle states of sandboxes, and which of three sources wins (lifecycle.md, "State of a
//! sandbox").
//!
//! Order comes from marks, not from clocks: every event takes the next mark, and a read carries
//! the mark that was current when it began. A read that began before the last push may have seen
//! the store as it was before that push, so it is a tie, which the push wins; what such a read
//! says is not remembered either, so that the next read still counts.
//!
//! A change of the state string that the store announced takes its mark when it is announced, and
//! is an event whatever it reads as, a word that is known already too. The read that follows tells
//! only which word it was.

use std::sync::atomic::{AtomicU64, Ordering};

use cube_metadata::{SandboxState, Status};
use cube_route::SandboxId;
use quick_cache::sync::{Cache, DefaultLifecycle, EntryAction, EntryResult};
use quick_cache::{OptionsBuilder, UnitWeighter};

/// How many events there had been at some moment.
pub(crate) type EventMark = u64;

/// Something that was learned about the state of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StateEvent {
    /// A state was pushed to the admin API.
    Pushed { state: SandboxState, at: EventMark },
    /// The manager responded 200 to a resume call that was sent at `began`.
    Resumed { began: EventMark, at: EventMark },
    /// The store was read; `status` is none where there is no record.
    Read { status: Option<Option<Status>>, word: Option<Status>, began: EventMark, at: EventMark },
    /// The sandbox was deleted through the admin API.
    Deleted { at: EventMark },
}

/// How an event changed the state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StateChange {
    /// The state is another than before.
    pub(crate) changed: bool,
    /// The sandbox wakes: connections from before are of no use.
    pub(crate) wakes: bool,
    /// All streams to the sandbox are to end.
    pub(crate) kills: bool,
    /// The state is now a word that is none of the six.
    pub(crate) unknown_word: bool,
}

/// What is known about one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct KnownState {
    /// The state in force.
    pub(crate) state: Option<Status>,
    /// From the lifecycle metadata; none where nobody said.
    pub(crate) auto_resume: Option<bool>,
    /// When a resume after a connect time-out was last tried (monotonic milliseconds).
    pub(crate) resume_tried_ms: Option<u64>,
    /// Until when activity of the sandbox is no sign of life, since it was deleted (monotonic
    /// milliseconds).
    pub(crate) deleted_until_ms: u64,
    /// The record's `Status` as last read; the outer none: no record was read.
    pub(crate) last_status: Option<Option<Status>>,
    /// The state string as last read; one that was never read is as good as one that is not set.
    pub(crate) last_state_string: Option<Status>,
    /// When the last push came. Reads that began before it are not believed.
    pub(crate) pushed: EventMark,
    /// When the store last announced a change of the state string that was not read yet; 0: there
    /// is none.
    announced_at: EventMark,
    /// When the sandbox last woke.
    woken: EventMark,
}

const RUNNING: Option<Status> = Some(Status::Known(SandboxState::Running));

fn is_asleep(state: Option<Status>) -> bool {
    matches!(
        state,
        Some(Status::Known(SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming))
    )
}

fn is_ending(state: Option<Status>) -> bool {
    matches!(state, Some(Status::Known(SandboxState::Killing | SandboxState::Killed)))
}

impl KnownState {
    /// Applies `event` to the state of one sandbox.
    pub(crate) fn apply(&mut self, event: StateEvent, follow: bool) -> StateChange {
        let before = self.state;
        match event {
            StateEvent::Pushed { state, at } => {
                self.state = Some(Status::Known(state));
                self.pushed = at;
            }
            // A kill that was learned of while the call was under way is not undone by its response.
            StateEvent::Resumed { .. } if is_ending(before) => return StateChange::default(),
            StateEvent::Resumed { at, .. } => {
                self.state = RUNNING;
                self.pushed = at;
            }
            StateEvent::Deleted { at } => *self = Self { pushed: at, ..Self::default() },
            StateEvent::Read { word, began, .. } if self.pushed > began => {
                // The push came after the change was announced, so the word is old news for good.
                if self.has_unread_change() && self.announced_at < self.pushed {
                    self.announced_at = 0;
                    self.last_state_string = word;
                }
                return StateChange::default();
            }
            StateEvent::Read { status, word, began, .. } => {
                let told = follow && self.apply_state_string(word, began);
                match status {
                    Some(status) => {
                        self.deleted_until_ms = 0;
                        self.apply_status(status, told);
                    }
                    // A record that is gone says as little as one without the field; an id that
                    // never had one leaves no trace.
                    None if self.last_status.is_some() => self.apply_status(None, told),
                    None => {}
                }
            }
        }
        let wakes = match event {
            // A push of `running` that came while the call was under way has woken it already.
            StateEvent::Resumed { began, .. } => !(before == RUNNING && self.woken > began),
            StateEvent::Deleted { .. } => false,
            _ => is_asleep(before) && !is_asleep(self.state) && !is_ending(self.state),
        };
        if wakes {
            self.woken = match event {
                StateEvent::Pushed { at, .. }
                | StateEvent::Resumed { at, .. }
                | StateEvent::Read { at, .. }
                | StateEvent::Deleted { at } => at,
            };
        }
        let changed = before != self.state;
        StateChange {
            changed,
            wakes,
            kills: match event {
                StateEvent::Pushed { .. } => is_ending(self.state),
                StateEvent::Deleted { .. } => true,
                _ => changed && is_ending(self.state),
            },
            unknown_word: changed && self.state == Some(Status::Unknown),
        }
    }

    /// Applies the state string of a read that began at `began`; whether it was news.
    fn apply_state_string(&mut self, word: Option<Status>, began: EventMark) -> bool {
        let last = std::mem::replace(&mut self.last_state_string, word);
        // A change that was announced after the read began is for the next read.
        let announced = (self.has_unread_change() && self.announced_at <= began)
            .then(|| std::mem::take(&mut self.announced_at));
        let new = match announced {
            Some(announced_at) => announced_at > self.pushed,
            None => last != word,
        };
        match word {
            Some(_) if !new => return false,
            Some(_) => self.state = word,
            // It ran out. `paused` and `killed` are steady and stay; a change that nobody ended
            // is forgotten.
            None => {
                let changing = matches!(
                    last,
                    Some(Status::Known(
                        SandboxState::Pausing | SandboxState::Resuming | SandboxState::Killing
                    ))
                );
                if changing && self.state == last {
                    self.state = None;
                }
            }
        }
        word.is_some()
    }

    /// Applies the record's `Status`. `told`: the state string of the same read was news, and wins.
    fn apply_status(&mut self, status: Option<Status>, told: bool) {
        match self.last_status.replace(status) {
            None if self.state.is_none() => self.state = status,
            None => {}
            Some(last) if last == status || told => {}
            // The field was removed: only what it said itself goes.
            Some(last) if status.is_none() => self.state = self.state.filter(|state| Some(*state) != last),
            Some(_) => self.state = status,
        }
    }

    /// Whether a change of the state string was announced and not read yet.
    pub(crate) fn has_unread_change(&self) -> bool {
        self.announced_at != 0
    }

    /// Whether what was last read is not what is in force. The next change must then be read when
    /// it happens: a later one may read as the value that is already known.
    pub(crate) fn contradicted(&self) -> bool {
        let other = |last: Option<Status>| last.is_some() && last != self.state;
        other(self.last_state_string) || other(self.last_status.flatten())
    }
}

/// The states of all sandboxes, the least used of which are evicted.
pub(crate) struct StateTable {
    known: Cache<SandboxId, KnownState, UnitWeighter, ahash::RandomState>,
    marks: AtomicU64,
    follow: bool,
}

impl StateTable {
    pub(crate) fn new(max: usize, follow: bool) -> Self {
        let max = max.max(1);
        let weight = u64::try_from(max).unwrap_or(u64::MAX);
        let options = OptionsBuilder::new().estimated_items_capacity(max).weight_capacity(weight).build();
        let hasher = ahash::RandomState::new();
        let known = match options {
            Ok(options) => Cache::with_options(options, UnitWeighter, hasher, DefaultLifecycle::default()),
            // Only an option that was not given makes it fail.
            Err(_) => Cache::with(max, weight, UnitWeighter, hasher, DefaultLifecycle::default()),
        };
        Self { known, marks: AtomicU64::new(0), follow }
    }

    /// The current mark, for a read that begins.
    pub(crate) fn mark(&self) -> EventMark {
        self.marks.load(Ordering::SeqCst)
    }

    /// The next mark, for an event that happens now.
    pub(crate) fn next_mark(&self) -> EventMark {
        self.marks.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// What is known of a sandbox; counts as a use of it.
    pub(crate) fn get(&self, id: &SandboxId) -> Option<KnownState> {
        self.known.get(id)
    }

    /// What is known of a sandbox; does not count as a use of it.
    pub(crate) fn peek(&self, id: &SandboxId) -> Option<KnownState> {
        self.known.peek(id)
    }

    /// What applying `event` would change now.
    pub(crate) fn would_change(&self, id: &SandboxId, event: StateEvent) -> StateChange {
        self.peek(id).unwrap_or_default().apply(event, self.follow)
    }

    /// Applies `event` to the state of the sandbox `id`.
    pub(crate) fn apply(&self, id: &SandboxId, event: StateEvent) -> StateChange {
        self.update(id, |known| known.apply(event, self.follow))
    }

    /// Notes that the store announced a change of the state string; [`StateEvent::Read`] tells what
    /// it is.
    pub(crate) fn change_announced(&self, id: &SandboxId, at: EventMark) {
        if self.follow {
            self.update(id, |known| known.announced_at = at);
        }
    }

    /// Changes what is known in one step. Nothing is kept of a sandbox that nothing is known of.
    pub(crate) fn update<T>(&self, id: &SandboxId, change: impl FnOnce(&mut KnownState) -> T) -> T
    where
        T: Default,
    {
        let mut change = Some(change);
        let mut once = |known: &mut KnownState| change.take().map(|change| change(known)).unwrap_or_default();
        let mut out = T::default();
        let entry = self.known.entry(id, None, |_, known| {
            out = once(known);
            if *known == KnownState::default() { EntryAction::Remove } else { EntryAction::Retain(()) }
        });
        if let EntryResult::Vacant(guard) = entry {
            let mut known = KnownState::default();
            out = once(&mut known);
            if known != KnownState::default() {
                // Fails only where somebody removed the placeholder; nobody does.
                let _ = guard.insert(known);
            }
        }
        out
    }

    /// Everything that is known now.
    pub(crate) fn all(&self) -> Vec<(SandboxId, KnownState)> {
        self.known.iter().collect()
    }

    /// Sandboxes in the table.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests;
