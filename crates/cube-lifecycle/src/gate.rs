//! The gate: may a request go on, must it wait, or is it refused (lifecycle.md, "The gate").

use std::sync::Arc;

use cube_metadata::{SandboxState, Status};
use cube_route::SandboxId;
use tokio::time::{Instant, sleep_until};

use crate::Lifecycle;
use crate::places::Place;
use crate::resume::Joined;

/// What the gate says about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Go on.
    Pass,
    /// Call [`Lifecycle::hold`].
    Hold,
    /// Answer with this.
    Refuse(Refusal),
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The state changed: read the record afresh and judge again from the token on.
    Changed,
    /// The resume that this request waited for has ended well, or the state changed meanwhile: read
    /// the record afresh and judge again from the token on, with `may_resume` false from now on.
    Resumed,
    /// Answer with this.
    Refuse(Refusal),
}

/// Why the gate refuses (errors.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Still changing after the wait: `310503`, Retry-After 2, a 409 in the `e2b` dialect.
    Pausing,
    /// Asleep and not to be woken: `310503`, Retry-After 5.
    Paused,
    /// Waking it failed, a moment ago or now: `310503`, Retry-After 5.
    ResumeFailed,
    /// The manager refused for a quota: `310429`.
    ResumeQuota,
    /// Being removed, or removed: `310410`.
    Killed,
    /// As many requests wait as may: `310503`, Retry-After 5.
    TooManyHeld,
}

impl Refusal {
    /// All six.
    pub const ALL: [Refusal; 6] = [
        Refusal::Pausing,
        Refusal::Paused,
        Refusal::ResumeFailed,
        Refusal::ResumeQuota,
        Refusal::Killed,
        Refusal::TooManyHeld,
    ];

    /// The value of the label `verdict` in `cube_proxy_gate_verdicts_total`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::Pausing => "pausing",
            Refusal::Paused => "paused",
            Refusal::ResumeFailed => "resume_failed",
            Refusal::ResumeQuota => "resume_quota",
            Refusal::Killed => "killed",
            Refusal::TooManyHeld => "too_many_held",
        }
    }
}

/// What would become of a request that came now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// It would go on.
    Pass,
    /// It would be held until the change under way has ended, at most `pause_wait`.
    Wait,
    /// It would be held while the sandbox is resumed.
    Wake,
    /// It would be refused.
    Refuse(Refusal),
}

/// What the table says should become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stance {
    Pass,
    /// Wait for the change to end.
    Wait,
    /// Have it resumed and wait for that.
    Wake,
    /// Asleep, and it stays so.
    Asleep,
    Killed,
}

impl Lifecycle {
    /// The verdict on a request that has shown its token. One look-up.
    #[must_use]
    pub fn gate(&self, id: &SandboxId) -> Gate {
        match self.stance(id, true) {
            Stance::Pass => {
                self.metrics.pass();
                Gate::Pass
            }
            Stance::Wait | Stance::Wake => {
                self.metrics.hold();
                Gate::Hold
            }
            Stance::Asleep => self.refuse(Refusal::Paused),
            Stance::Killed => self.refuse(Refusal::Killed),
        }
    }

    fn refuse(&self, refusal: Refusal) -> Gate {
        self.metrics.refused(refusal);
        Gate::Refuse(refusal)
    }

    /// The refusal that a request would end in if nobody waited and nobody was woken: what a
    /// preflight stands for (errors.md, "CORS"). Not counted as a verdict.
    #[must_use]
    pub fn gate_without_hold(&self, id: &SandboxId) -> Option<Refusal> {
        match self.stance(id, false) {
            Stance::Pass => None,
            Stance::Wait | Stance::Wake => Some(self.unchanged(id)),
            Stance::Asleep => Some(Refusal::Paused),
            Stance::Killed => Some(Refusal::Killed),
        }
    }

    /// What would become of a request that came now, for operators. Nothing is counted, held or
    /// woken.
    #[must_use]
    pub fn outlook(&self, id: &SandboxId) -> Outlook {
        match self.stance(id, true) {
            Stance::Pass => Outlook::Pass,
            Stance::Wait => Outlook::Wait,
            Stance::Wake => self.flights.refused(id).map_or(Outlook::Wake, Outlook::Refuse),
            Stance::Asleep => Outlook::Refuse(Refusal::Paused),
            Stance::Killed => Outlook::Refuse(Refusal::Killed),
        }
    }

    /// The refusal of a request whose wait is over.
    fn unchanged(&self, id: &SandboxId) -> Refusal {
        match self.state(id) {
            Some(Status::Known(SandboxState::Paused)) => Refusal::Paused,
            _ => Refusal::Pausing,
        }
    }

    /// Holds a request until the state changes, the resume has ended, or the time is up.
    ///
    /// `request_id` goes to the manager if this request is the first that asks for the resume.
    /// `may_resume`: false once this request was answered [`Held::Resumed`]. A sandbox that sleeps
    /// again then makes it wait as a change does, since another request may have it woken.
    /// Dropping the future frees the place and cancels no resume.
    ///
    /// The wait for a change is at most `pause_wait` a call. Who calls it again, after
    /// [`Held::Changed`], bounds the sum.
    pub async fn hold(self: &Arc<Self>, id: &SandboxId, request_id: &str, may_resume: bool) -> Held {
        let held = match self.stance(id, may_resume) {
            Stance::Pass => Held::Changed,
            Stance::Killed => Held::Refuse(Refusal::Killed),
            Stance::Asleep => Held::Refuse(Refusal::Paused),
            Stance::Wait => match self.places.take(id) {
                Some(place) => self.wait_for_change(id, &place, may_resume).await,
                None => Held::Refuse(Refusal::TooManyHeld),
            },
            Stance::Wake => match (self.flights.refused(id), self.places.take(id)) {
                (Some(refusal), _) => Held::Refuse(refusal),
                (None, Some(place)) => self.wait_for_resume(id, &place, request_id).await,
                (None, None) => Held::Refuse(Refusal::TooManyHeld),
            },
        };
        if let Held::Refuse(refusal) = held {
            self.metrics.refused(refusal);
        }
        held
    }

    async fn wait_for_change(&self, id: &SandboxId, place: &Place, may_resume: bool) -> Held {
        let until = Instant::now() + self.settings.load().pause_wait;
        loop {
            let changed = place.changed();
            // Anything else is judged again by the caller, since the token comes before it.
            if self.stance(id, may_resume) != Stance::Wait {
                return Held::Changed;
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => return Held::Refuse(self.unchanged(id)),
            }
        }
    }

    /// Once a call is joined the request's one resume is used up, so the end is never `Changed`.
    async fn wait_for_resume(self: &Arc<Self>, id: &SandboxId, place: &Place, request_id: &str) -> Held {
        let still = || self.stance(id, true) == Stance::Wake;
        let flight = match self.join(id, request_id, still) {
            Joined::Flight(flight) => flight,
            Joined::Refused(refusal) => return Held::Refuse(refusal),
            Joined::NotNeeded => return Held::Changed,
        };
        let ended = flight.ended();
        tokio::pin!(ended);
        loop {
            let changed = place.changed();
            match self.stance(id, true) {
                // `pausing` in mid-flight is the past that the resume undoes.
                Stance::Wake | Stance::Wait => {}
                // Whoever told of the change: this request has had its resume.
                Stance::Pass | Stance::Killed | Stance::Asleep => return Held::Resumed,
            }
            tokio::select! {
                biased;
                end = &mut ended => return match end {
                    Ok(()) => Held::Resumed,
                    Err(refusal) => Held::Refuse(refusal),
                },
                () = changed => {}
            }
        }
    }

    pub(crate) fn stance(&self, id: &SandboxId, may_resume: bool) -> Stance {
        let Some(known) = self.states.get(id) else { return Stance::Pass };
        let Some(Status::Known(state)) = known.state else { return Stance::Pass };
        let resumes = || self.resume.load().is_some();
        match state {
            SandboxState::Running => Stance::Pass,
            SandboxState::Killing | SandboxState::Killed => Stance::Killed,
            SandboxState::Pausing => Stance::Wait,
            SandboxState::Resuming if resumes() && may_resume => Stance::Wake,
            SandboxState::Resuming => Stance::Wait,
            SandboxState::Paused if !resumes() || known.auto_resume == Some(false) => Stance::Asleep,
            SandboxState::Paused if may_resume => Stance::Wake,
            SandboxState::Paused => Stance::Wait,
        }
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
