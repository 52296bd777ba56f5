//! What is known about sandboxes, and which of three sources is believed (lifecycle.md, "State
//! of a sandbox").
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
pub(crate) type Mark = u64;

/// Something that was learned about the state of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// The admin API was told.
    Pushed { state: SandboxState, at: Mark },
    /// The manager answered 200 to a resume call that was sent at `began`.
    Resumed { began: Mark, at: Mark },
    /// The store was read; `status` is none where there is no record.
    Read { status: Option<Option<Status>>, word: Option<Status>, began: Mark, at: Mark },
    /// The sandbox was deleted through the admin API.
    Deleted { at: Mark },
}

/// What an event did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Change {
    /// The state is another than before.
    pub(crate) changed: bool,
    /// A life of the sandbox begins: connections to the one before are of no use.
    pub(crate) wakes: bool,
    /// Whatever runs to the sandbox is to end.
    pub(crate) kills: bool,
    /// A word that is none of the six was taken as state.
    pub(crate) strange: bool,
}

/// What is known about one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Known {
    /// The state in force.
    pub(crate) state: Option<Status>,
    /// From the lifecycle metadata; none where nobody said.
    pub(crate) auto_resume: Option<bool>,
    /// When a resume after a connect time-out was last tried (monotonic milliseconds).
    pub(crate) tried_ms: Option<u64>,
    /// Until when activity of the sandbox is no sign of life, since it was deleted (monotonic
    /// milliseconds).
    pub(crate) gone_until_ms: u64,
    /// The record's `Status` as last read; the outer none: no record was read.
    pub(crate) last_status: Option<Option<Status>>,
    /// The state string as last read; one that was never read is as good as one that is not set.
    pub(crate) last_word: Option<Status>,
    /// When the last push came. Reads that began before it are not believed.
    pub(crate) pushed: Mark,
    /// When the store last announced a change of the state string that was not read yet; 0: there
    /// is none.
    noted: Mark,
    /// When the last life began.
    woken: Mark,
}

const RUNNING: Option<Status> = Some(Status::Known(SandboxState::Running));

fn sleeps(state: Option<Status>) -> bool {
    matches!(
        state,
        Some(Status::Known(SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming))
    )
}

fn dies(state: Option<Status>) -> bool {
    matches!(state, Some(Status::Known(SandboxState::Killing | SandboxState::Killed)))
}

impl Known {
    /// Takes `event` in.
    pub(crate) fn learn(&mut self, event: Event, follow: bool) -> Change {
        let before = self.state;
        match event {
            Event::Pushed { state, at } => {
                self.state = Some(Status::Known(state));
                self.pushed = at;
            }
            // A kill that was learned of while the call was under way is not undone by its answer.
            Event::Resumed { .. } if dies(before) => return Change::default(),
            Event::Resumed { at, .. } => {
                self.state = RUNNING;
                self.pushed = at;
            }
            Event::Deleted { at } => *self = Self { pushed: at, ..Self::default() },
            Event::Read { word, began, .. } if self.pushed > began => {
                // The push came after the change was announced, so the word is old news for good.
                if self.is_noted() && self.noted < self.pushed {
                    self.noted = 0;
                    self.last_word = word;
                }
                return Change::default();
            }
            Event::Read { status, word, began, .. } => {
                let told = follow && self.read_word(word, began);
                match status {
                    Some(status) => {
                        self.gone_until_ms = 0;
                        self.read_status(status, told);
                    }
                    // A record that is gone says as little as one without the field; an id that
                    // never had one leaves no trace.
                    None if self.last_status.is_some() => self.read_status(None, told),
                    None => {}
                }
            }
        }
        let wakes = match event {
            // A push that told of it while the call was under way has begun the new life.
            Event::Resumed { began, .. } => !(before == RUNNING && self.woken > began),
            Event::Deleted { .. } => false,
            _ => sleeps(before) && !sleeps(self.state) && !dies(self.state),
        };
        if wakes {
            self.woken = match event {
                Event::Pushed { at, .. }
                | Event::Resumed { at, .. }
                | Event::Read { at, .. }
                | Event::Deleted { at } => at,
            };
        }
        let changed = before != self.state;
        Change {
            changed,
            wakes,
            kills: match event {
                Event::Pushed { .. } => dies(self.state),
                Event::Deleted { .. } => true,
                _ => changed && dies(self.state),
            },
            strange: changed && self.state == Some(Status::Unknown),
        }
    }

    /// The state string, read from `began` on; whether it told something new.
    fn read_word(&mut self, word: Option<Status>, began: Mark) -> bool {
        let last = std::mem::replace(&mut self.last_word, word);
        // A change that was announced after the read began is for the next read.
        let announced = (self.is_noted() && self.noted <= began).then(|| std::mem::take(&mut self.noted));
        let new = match announced {
            Some(noted) => noted > self.pushed,
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

    /// The record's `Status`. `told`: the state string of the same read told something new, which
    /// is the better word.
    fn read_status(&mut self, status: Option<Status>, told: bool) {
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
    pub(crate) fn is_noted(&self) -> bool {
        self.noted != 0
    }

    /// Whether what was last read is not what is in force. The next change must then be read when
    /// it happens: a later one may read as the value that is already known.
    pub(crate) fn contradicted(&self) -> bool {
        let other = |last: Option<Status>| last.is_some() && last != self.state;
        other(self.last_word) || other(self.last_status.flatten())
    }
}

/// The table, bounded by use.
pub(crate) struct States {
    known: Cache<SandboxId, Known, UnitWeighter, ahash::RandomState>,
    marks: AtomicU64,
    follow: bool,
}

impl States {
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

    /// The mark of now, for a read that begins.
    pub(crate) fn mark(&self) -> Mark {
        self.marks.load(Ordering::SeqCst)
    }

    /// A new mark, for an event.
    pub(crate) fn next_mark(&self) -> Mark {
        self.marks.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// What is known; counts as use.
    pub(crate) fn get(&self, id: &SandboxId) -> Option<Known> {
        self.known.get(id)
    }

    /// What is known; no use of it.
    pub(crate) fn peek(&self, id: &SandboxId) -> Option<Known> {
        self.known.peek(id)
    }

    /// What `event` would do now.
    pub(crate) fn preview(&self, id: &SandboxId, event: Event) -> Change {
        self.peek(id).unwrap_or_default().learn(event, self.follow)
    }

    /// Takes `event` in.
    pub(crate) fn learn(&self, id: &SandboxId, event: Event) -> Change {
        self.update(id, |known| known.learn(event, self.follow))
    }

    /// Notes that the store announced a change of the state string; [`Event::Read`] tells what
    /// it is.
    pub(crate) fn noted(&self, id: &SandboxId, at: Mark) {
        if self.follow {
            self.update(id, |known| known.noted = at);
        }
    }

    /// Changes what is known in one step. Nothing is kept of a sandbox that nothing is known of.
    pub(crate) fn update<T>(&self, id: &SandboxId, change: impl FnOnce(&mut Known) -> T) -> T
    where
        T: Default,
    {
        let mut change = Some(change);
        let mut once = |known: &mut Known| change.take().map(|change| change(known)).unwrap_or_default();
        let mut out = T::default();
        let entry = self.known.entry(id, None, |_, known| {
            out = once(known);
            if *known == Known::default() { EntryAction::Remove } else { EntryAction::Retain(()) }
        });
        if let EntryResult::Vacant(guard) = entry {
            let mut known = Known::default();
            out = once(&mut known);
            if known != Known::default() {
                // Fails only where somebody removed the placeholder; nobody does.
                let _ = guard.insert(known);
            }
        }
        out
    }

    /// Everything that is known now.
    pub(crate) fn all(&self) -> Vec<(SandboxId, Known)> {
        self.known.iter().collect()
    }

    /// Sandboxes in the table.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
#[path = "states_tests.rs"]
mod tests;
