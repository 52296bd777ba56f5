//! What a process hands to its successor (lifecycle.md, "Across a hot restart").

use cube_metadata::Status;
use cube_route::SandboxId;
use serde::{Deserialize, Serialize};

use crate::Lifecycle;
use crate::clock::steady_of;
use crate::state_table::KnownState;

/// What is known about one sandbox. A field that is missing says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StateRow {
    /// The sandbox's id.
    pub id: String,
    /// The state in force; a word that is none of the six: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `auto_resume` of the lifecycle metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// Whether its record was read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read: bool,
    /// The record's `Status` as last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_status: Option<String>,
    /// The state string as last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_word: Option<String>,
    /// Whether somebody pushed a state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pushed: bool,
    /// How long its traffic leaves no stamp, since it was deleted; milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub gone_ms: u64,
}

/// How far the listings of activity have come. A field that is missing says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListingCursors {
    /// The moment of the newest, unix milliseconds.
    pub listed: u64,
    /// What to take from it for the steady clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// The `now` of the last responses, unix milliseconds, and the moment of the steady clock that each
    /// was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cursors: Vec<(u64, u64)>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The word of a state; one that is none of the six is written as one that is none.
fn word(status: Option<Status>) -> Option<String> {
    status.map(|status| match status {
        Status::Known(state) => state.as_str().to_owned(),
        Status::Unknown => "?".to_owned(),
    })
}

fn status(word: Option<&String>) -> Option<Status> {
    word.and_then(|word| Status::parse(word))
}

impl Lifecycle {
    /// States and lifecycle metadata of all sandboxes.
    #[must_use]
    pub fn export_states(&self) -> Vec<StateRow> {
        let now = self.now_ms();
        let row = |(id, known): (SandboxId, KnownState)| StateRow {
            id: id.as_str().to_owned(),
            state: word(known.state),
            auto_resume: known.auto_resume,
            read: known.last_status.is_some(),
            last_status: word(known.last_status.flatten()),
            last_word: word(known.last_state_string),
            pushed: known.pushed != 0,
            gone_ms: known.deleted_until_ms.saturating_sub(now),
        };
        self.states.all().into_iter().map(row).collect()
    }

    /// Takes what the process before this one knew, before the first request.
    pub fn import_states(&self, rows: &[StateRow]) {
        // A read that began before is ignored where the other process knew more.
        let mark = self.states.next_mark();
        let now = self.now_ms();
        for row in rows {
            let Ok(id) = SandboxId::parse(&row.id) else { continue };
            self.states.update(&id, |known| {
                known.state = status(row.state.as_ref());
                known.auto_resume = row.auto_resume;
                known.last_status = row.read.then(|| status(row.last_status.as_ref()));
                known.last_state_string = status(row.last_word.as_ref());
                known.pushed = if row.pushed { mark } else { 0 };
                known.deleted_until_ms = if row.gone_ms > 0 { now.saturating_add(row.gone_ms) } else { 0 };
            });
        }
    }

    /// The steady clock that [`Lifecycle::export_activity`] asks by, milliseconds.
    #[must_use]
    pub fn steady_ms(&self) -> u64 {
        self.clock.steady()
    }

    /// A moment of the steady clock in unix milliseconds, as the system's clock stands now.
    #[must_use]
    pub fn unix_ms_of(&self, steady: u64) -> u64 {
        self.clock.now().unix(steady)
    }

    /// Stamps newer than `since` (milliseconds of [`Lifecycle::steady_ms`]; 0: all), for another
    /// process: in unix milliseconds, and what to take from those for the steady clock, which is the
    /// same in all processes, whoever sets the system's.
    #[must_use]
    pub fn export_activity(&self, since: u64) -> (Vec<(SandboxId, u64)>, i64) {
        let now = self.clock.now();
        let mut rows = self.activity.newer(since);
        for (_, stamp) in &mut rows {
            *stamp = now.unix(*stamp);
        }
        (rows, now.offset)
    }

    /// Takes stamps that another process made; `offset` came along with them, unless that process
    /// is of a version that did not know it.
    pub fn import_activity(&self, rows: &[(String, u64)], offset: Option<i64>) {
        let now = self.clock.now();
        let offset = offset.unwrap_or(now.offset);
        for (id, stamp) in rows {
            let Ok(id) = SandboxId::parse(id) else { continue };
            self.activity.take(&id, steady_of(*stamp, offset), now.steady, || {
                self.states.peek(&id).is_none_or(|known| known.deleted_until_ms <= self.now_ms())
            });
        }
    }

    /// How far the listings of activity have come.
    #[must_use]
    pub fn listing_cursors(&self) -> ListingCursors {
        let now = self.clock.now();
        ListingCursors {
            listed: now.unix(self.activity.listed()),
            offset: Some(now.offset),
            cursors: self.activity.cursors(),
        }
    }

    /// Goes on where the listings of the process before this one ended: whoever asks for what is
    /// newer than the last `now` of that one misses nothing. To be called after
    /// [`Lifecycle::import_activity`].
    pub fn continue_from(&self, listings: &ListingCursors) {
        let now = self.clock.now();
        let listed = steady_of(listings.listed, listings.offset.unwrap_or(now.offset));
        self.activity.continue_from(listed, &listings.cursors, now.steady);
    }
}

#[cfg(test)]
mod tests;
