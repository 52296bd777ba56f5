//! The gate: may a request go on, must it wait, or is it refused (lifecycle.md, "The gate").

use std::sync::Arc;

use cube_metadata::{SandboxState, Status};
use cube_route::SandboxId;
use tokio::time::{Instant, sleep_until};

use crate::Lifecycle;
use crate::hold_queue::HeldSlot;
use crate::resume::JoinedResume;

/// What the caller does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateVerdict {
    /// Forward the request.
    Pass,
    /// Call [`Lifecycle::hold`].
    Hold,
    /// Respond with the error of this refusal.
    Refuse(GateRefusal),
}

/// How the holding of a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldOutcome {
    /// The state changed: read the record afresh and judge again from the token on.
    Changed,
    /// The resume that this request waited for has ended well, or the state changed meanwhile: read
    /// the record afresh and judge again from the token on, with `may_resume` false from now on.
    Resumed,
    /// Respond with the error of this refusal.
    Refuse(GateRefusal),
}

/// Why the gate refuses (errors.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GateRefusal {
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

impl GateRefusal {
    /// All refusals.
    pub const ALL: [GateRefusal; 6] = [
        GateRefusal::Pausing,
        GateRefusal::Paused,
        GateRefusal::ResumeFailed,
        GateRefusal::ResumeQuota,
        GateRefusal::Killed,
        GateRefusal::TooManyHeld,
    ];

    /// The value of the label `verdict` in `cube_proxy_gate_verdicts_total`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            GateRefusal::Pausing => "pausing",
            GateRefusal::Paused => "paused",
            GateRefusal::ResumeFailed => "resume_failed",
            GateRefusal::ResumeQuota => "resume_quota",
            GateRefusal::Killed => "killed",
            GateRefusal::TooManyHeld => "too_many_held",
        }
    }
}

/// What the gate would do with a request that came now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateForecast {
    /// It would be forwarded.
    Pass,
    /// It would be held until the change under way has ended, at most `pause_wait`.
    Wait,
    /// It would be held while the sandbox is resumed.
    Wake,
    /// It would be refused.
    Refuse(GateRefusal),
}

/// What the gate decides about a request, by the sandbox's state (lifecycle.md, "The gate").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateDecision {
    Pass,
    /// Hold the request until the change under way has ended.
    Wait,
    /// Have the sandbox resumed and wait for that.
    Wake,
    /// Refuse: the sandbox is paused and is not to be resumed.
    Asleep,
    Killed,
}

impl Lifecycle {
    /// The gate's verdict on a request that has passed the token check. One lookup.
    #[must_use]
    pub fn gate(&self, id: &SandboxId) -> GateVerdict {
        match self.decide(id, true) {
            GateDecision::Pass => {
                self.metrics.pass();
                GateVerdict::Pass
            }
            GateDecision::Wait | GateDecision::Wake => {
                self.metrics.hold();
                GateVerdict::Hold
            }
            GateDecision::Asleep => self.refuse(GateRefusal::Paused),
            GateDecision::Killed => self.refuse(GateRefusal::Killed),
        }
    }

    fn refuse(&self, refusal: GateRefusal) -> GateVerdict {
        self.metrics.refused(refusal);
        GateVerdict::Refuse(refusal)
    }

    /// The refusal that a request would end in if nobody waited and nobody was woken: what a
    /// preflight stands for (errors.md, "CORS"). Not counted as a verdict.
    #[must_use]
    pub fn gate_without_hold(&self, id: &SandboxId) -> Option<GateRefusal> {
        match self.decide(id, false) {
            GateDecision::Pass => None,
            GateDecision::Wait | GateDecision::Wake => Some(self.refusal_after_wait(id)),
            GateDecision::Asleep => Some(GateRefusal::Paused),
            GateDecision::Killed => Some(GateRefusal::Killed),
        }
    }

    /// What would become of a request that came now, for operators. Nothing is counted, held or
    /// woken.
    #[must_use]
    pub fn forecast(&self, id: &SandboxId) -> GateForecast {
        match self.decide(id, true) {
            GateDecision::Pass => GateForecast::Pass,
            GateDecision::Wait => GateForecast::Wait,
            GateDecision::Wake => {
                self.resumes_in_flight.refused(id).map_or(GateForecast::Wake, GateForecast::Refuse)
            }
            GateDecision::Asleep => GateForecast::Refuse(GateRefusal::Paused),
            GateDecision::Killed => GateForecast::Refuse(GateRefusal::Killed),
        }
    }

    /// The refusal of a request whose wait is over.
    fn refusal_after_wait(&self, id: &SandboxId) -> GateRefusal {
        match self.state(id) {
            Some(Status::Known(SandboxState::Paused)) => GateRefusal::Paused,
            _ => GateRefusal::Pausing,
        }
    }

    /// Holds a request until the state changes, the resume has ended, or the time is up.
    ///
    /// `request_id` goes to the manager if this request is the first that asks for the resume.
    /// `may_resume`: false once this request got [`HoldOutcome::Resumed`]. A sandbox that sleeps
    /// again then makes it wait as a change does, since another request may have it woken.
    /// Dropping the future frees the slot and cancels no resume.
    ///
    /// The wait for a change is at most `pause_wait` a call. Who calls it again, after
    /// [`HoldOutcome::Changed`], bounds the sum.
    pub async fn hold(self: &Arc<Self>, id: &SandboxId, request_id: &str, may_resume: bool) -> HoldOutcome {
        let held = match self.decide(id, may_resume) {
            GateDecision::Pass => HoldOutcome::Changed,
            GateDecision::Killed => HoldOutcome::Refuse(GateRefusal::Killed),
            GateDecision::Asleep => HoldOutcome::Refuse(GateRefusal::Paused),
            GateDecision::Wait => match self.hold_queue.enter(id) {
                Some(slot) => self.wait_for_change(id, &slot, may_resume).await,
                None => HoldOutcome::Refuse(GateRefusal::TooManyHeld),
            },
            GateDecision::Wake => match (self.resumes_in_flight.refused(id), self.hold_queue.enter(id)) {
                (Some(refusal), _) => HoldOutcome::Refuse(refusal),
                (None, Some(slot)) => self.wait_for_resume(id, &slot, request_id).await,
                (None, None) => HoldOutcome::Refuse(GateRefusal::TooManyHeld),
            },
        };
        if let HoldOutcome::Refuse(refusal) = held {
            self.metrics.refused(refusal);
        }
        held
    }

    async fn wait_for_change(&self, id: &SandboxId, slot: &HeldSlot, may_resume: bool) -> HoldOutcome {
        let until = Instant::now() + self.settings.load().pause_wait;
        loop {
            let changed = slot.changed();
            // Anything else is judged again by the caller, since the token comes before it.
            if self.decide(id, may_resume) != GateDecision::Wait {
                return HoldOutcome::Changed;
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => return HoldOutcome::Refuse(self.refusal_after_wait(id)),
            }
        }
    }

    /// Once a call is joined the request's one resume is used up, so the end is never `Changed`.
    async fn wait_for_resume(
        self: &Arc<Self>,
        id: &SandboxId,
        slot: &HeldSlot,
        request_id: &str,
    ) -> HoldOutcome {
        let still = || self.decide(id, true) == GateDecision::Wake;
        let in_flight = match self.join(id, request_id, still) {
            JoinedResume::InFlight(in_flight) => in_flight,
            JoinedResume::Refused(refusal) => return HoldOutcome::Refuse(refusal),
            JoinedResume::NotNeeded => return HoldOutcome::Changed,
        };
        let ended = in_flight.ended();
        tokio::pin!(ended);
        loop {
            let changed = slot.changed();
            match self.decide(id, true) {
                // `pausing` in mid-flight is the past that the resume undoes.
                GateDecision::Wake | GateDecision::Wait => {}
                // Whatever changed the state: this request has had its resume.
                GateDecision::Pass | GateDecision::Killed | GateDecision::Asleep => {
                    return HoldOutcome::Resumed;
                }
            }
            tokio::select! {
                biased;
                end = &mut ended => return match end {
                    Ok(()) => HoldOutcome::Resumed,
                    Err(refusal) => HoldOutcome::Refuse(refusal),
                },
                () = changed => {}
            }
        }
    }

    pub(crate) fn decide(&self, id: &SandboxId, may_resume: bool) -> GateDecision {
        let Some(known) = self.states.get(id) else { return GateDecision::Pass };
        let Some(Status::Known(state)) = known.state else { return GateDecision::Pass };
        let resumes = || self.resume_client.load().is_some();
        match state {
            SandboxState::Running => GateDecision::Pass,
            SandboxState::Killing | SandboxState::Killed => GateDecision::Killed,
            SandboxState::Pausing => GateDecision::Wait,
            SandboxState::Resuming if resumes() && may_resume => GateDecision::Wake,
            SandboxState::Resuming => GateDecision::Wait,
            SandboxState::Paused if !resumes() || known.auto_resume == Some(false) => GateDecision::Asleep,
            SandboxState::Paused if may_resume => GateDecision::Wake,
            SandboxState::Paused => GateDecision::Wait,
        }
    }
}

#[cfg(test)]
mod tests;
