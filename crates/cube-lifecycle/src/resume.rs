//! Resuming a sandbox: one call at a time for each, shared by all requests that wait for it
//! (lifecycle.md, "Resume").

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cube_route::SandboxId;
use cube_settings::SecretFile;
use http::{HeaderValue, StatusCode};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::gate::GateDecision;
use crate::metrics::ResumeOutcome;
use crate::resume_client::{ResumeEndpoint, authorization};
use crate::state_table::StateEvent;
use crate::{GateRefusal, Lifecycle, LifecycleError, ResumeSettings};

/// The manager and the bounds on asking it.
pub(crate) struct ResumeClient {
    endpoint: ResumeEndpoint,
    /// `Authorization`, where there is a token.
    authorization: Option<HeaderValue>,
    timeout: Duration,
    calls: Arc<Semaphore>,
}

impl ResumeClient {
    pub(crate) fn new(settings: &ResumeSettings) -> Result<Self, LifecycleError> {
        Ok(Self {
            endpoint: ResumeEndpoint::parse(settings.url.as_deref().unwrap_or_default())?,
            authorization: settings
                .token_file
                .as_ref()
                .and_then(SecretFile::secret)
                .map(authorization)
                .transpose()?,
            timeout: settings.timeout,
            calls: Arc::new(Semaphore::new(settings.max_concurrent.min(Semaphore::MAX_PERMITS))),
        })
    }

    async fn ask(&self, id: &SandboxId, request_id: &str) -> ResumeOutcome {
        let call = self.endpoint.call(id, request_id, self.authorization.as_ref());
        match timeout(self.timeout, call).await {
            Ok(Ok(StatusCode::OK)) => ResumeOutcome::Resumed,
            Ok(Ok(StatusCode::TOO_MANY_REQUESTS)) => ResumeOutcome::Quota,
            Ok(Ok(status)) => {
                tracing::warn!(sandbox = %id, status = status.as_u16(), "the manager did not resume");
                ResumeOutcome::Failed
            }
            Ok(Err(error)) => {
                tracing::warn!(sandbox = %id, %error, "the manager cannot be asked to resume");
                ResumeOutcome::Failed
            }
            Err(_) => {
                tracing::warn!(sandbox = %id, "the manager did not resume in time");
                ResumeOutcome::TimedOut
            }
        }
    }
}

type ResumeEnd = Option<Result<(), GateRefusal>>;

/// A call under way, as one waiter sees it.
pub(crate) struct ResumeInFlight(watch::Receiver<ResumeEnd>);

impl ResumeInFlight {
    pub(crate) async fn ended(mut self) -> Result<(), GateRefusal> {
        match self.0.wait_for(Option::is_some).await.map(|end| *end) {
            Ok(Some(end)) => end,
            // The task was ended from outside: the process stops.
            Ok(None) | Err(_) => Err(GateRefusal::ResumeFailed),
        }
    }
}

/// What [`Lifecycle::join`] found or began.
pub(crate) enum JoinedResume {
    InFlight(ResumeInFlight),
    Refused(GateRefusal),
    /// No call is needed: the sandbox is awake by now.
    NotNeeded,
}

enum ResumeSlot {
    Calling(watch::Receiver<ResumeEnd>),
    /// The last call failed a moment ago; whoever asks gets the same refusal.
    Failed(GateRefusal),
}

/// Calls under way and failures of the last moment, by sandbox.
#[derive(Default)]
pub(crate) struct ResumesInFlight(Mutex<HashMap<SandboxId, ResumeSlot, ahash::RandomState>>);

impl ResumesInFlight {
    /// The refusal that a request gets at once while the last failure is recent.
    pub(crate) fn refused(&self, id: &SandboxId) -> Option<GateRefusal> {
        match self.0.lock().get(id) {
            Some(ResumeSlot::Failed(refusal)) => Some(*refusal),
            _ => None,
        }
    }
}

/// Removes the entry of [`ResumesInFlight`] when the task ends, however it ends.
struct ClearOnDrop {
    lifecycle: Arc<Lifecycle>,
    id: SandboxId,
}

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.lifecycle.resumes_in_flight.0.lock().remove(&self.id);
    }
}

impl Lifecycle {
    /// Joins the call for `id`, or makes it while `still` says that it is needed.
    pub(crate) fn join(
        self: &Arc<Self>,
        id: &SandboxId,
        request_id: &str,
        still: impl FnOnce() -> bool,
    ) -> JoinedResume {
        let Some(manager) = self.resume_client.load_full() else { return JoinedResume::NotNeeded };
        let mut resumes_in_flight = self.resumes_in_flight.0.lock();
        match resumes_in_flight.get(id) {
            Some(ResumeSlot::Calling(in_flight)) => {
                return JoinedResume::InFlight(ResumeInFlight(in_flight.clone()));
            }
            Some(ResumeSlot::Failed(refusal)) => return JoinedResume::Refused(*refusal),
            None => {}
        }
        // A call that succeeded sets the state before it gives up its slot. So whoever finds no
        // slot, and looked at the state before, looks again here.
        if !still() {
            return JoinedResume::NotNeeded;
        }
        let Ok(permit) = Arc::clone(&manager.calls).try_acquire_owned() else {
            self.metrics.resume(ResumeOutcome::Crowded);
            return JoinedResume::Refused(GateRefusal::ResumeFailed);
        };
        let (tell, in_flight) = watch::channel(None);
        resumes_in_flight.insert(id.clone(), ResumeSlot::Calling(in_flight.clone()));
        drop(resumes_in_flight);
        let clear = ClearOnDrop { lifecycle: Arc::clone(self), id: id.clone() };
        let request_id = request_id.to_owned();
        // A task of its own: a waiter that leaves takes nothing from the others.
        tokio::spawn(async move {
            let refusal = clear.lifecycle.run_resume(&manager, &clear.id, &request_id).await;
            drop(permit);
            match refusal {
                None => {
                    drop(clear);
                    tell.send_replace(Some(Ok(())));
                }
                Some(refusal) => {
                    clear
                        .lifecycle
                        .resumes_in_flight
                        .0
                        .lock()
                        .insert(clear.id.clone(), ResumeSlot::Failed(refusal));
                    tell.send_replace(Some(Err(refusal)));
                    sleep(clear.lifecycle.timing.back_off).await;
                }
            }
        });
        JoinedResume::InFlight(ResumeInFlight(in_flight))
    }

    /// One call, and what follows from its end.
    async fn run_resume(
        &self,
        manager: &ResumeClient,
        id: &SandboxId,
        request_id: &str,
    ) -> Option<GateRefusal> {
        let began = self.states.mark();
        let start = Instant::now();
        let outcome = manager.ask(id, request_id).await;
        self.metrics.resume_seconds.observe(start.elapsed().as_secs_f64());
        self.metrics.resume(outcome);
        match outcome {
            ResumeOutcome::Resumed => {
                let at = self.states.next_mark();
                self.apply(id, StateEvent::Resumed { began, at });
                None
            }
            ResumeOutcome::Quota => Some(GateRefusal::ResumeQuota),
            ResumeOutcome::Failed | ResumeOutcome::TimedOut | ResumeOutcome::Crowded => {
                Some(GateRefusal::ResumeFailed)
            }
        }
    }

    /// A connect time-out to a sandbox believed awake (lifecycle.md, "Resume"): has it resumed
    /// where its lifecycle metadata says `auto_resume`, at most once in 30 s, and waits for that.
    /// True: it was resumed; read the record afresh and judge again from the token on. False: it
    /// is not to be, was not, or was tried a moment ago.
    pub async fn resume_after_timeout(self: &Arc<Self>, id: &SandboxId, request_id: &str) -> bool {
        if self.resume_client.load().is_none() || self.decide(id, true) != GateDecision::Pass {
            return false;
        }
        let now = self.now_ms();
        let gap = u64::try_from(self.timing.timeout_gap.as_millis()).unwrap_or(u64::MAX);
        let due = self.states.update(id, |known| {
            let due = known.auto_resume == Some(true)
                && known.resume_tried_ms.is_none_or(|tried| now.saturating_sub(tried) >= gap);
            if due {
                known.resume_tried_ms = Some(now);
            }
            due
        });
        if !due {
            return false;
        }
        let Some(_slot) = self.hold_queue.enter(id) else { return false };
        match self.join(id, request_id, || true) {
            JoinedResume::InFlight(in_flight) => in_flight.ended().await.is_ok(),
            JoinedResume::Refused(_) | JoinedResume::NotNeeded => false,
        }
    }
}

#[cfg(test)]
mod tests;
