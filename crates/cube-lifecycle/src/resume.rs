//! Waking a sandbox: one call at a time for each, shared by all who wait (lifecycle.md, "Resume").

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cube_route::SandboxId;
use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::call::Endpoint;
use crate::gate::Stance;
use crate::metrics::ResumeOutcome;
use crate::states::Event;
use crate::{BearerToken, Lifecycle, LifecycleError, Refusal, ResumeSettings};

/// The manager and the bounds on asking it.
pub(crate) struct Manager {
    endpoint: Endpoint,
    token: Option<BearerToken>,
    timeout: Duration,
    calls: Arc<Semaphore>,
}

impl Manager {
    pub(crate) fn new(settings: &ResumeSettings) -> Result<Self, LifecycleError> {
        Ok(Self {
            endpoint: Endpoint::parse(&settings.url)?,
            token: settings.token.clone(),
            timeout: settings.timeout,
            calls: Arc::new(Semaphore::new(settings.max_concurrent.min(Semaphore::MAX_PERMITS))),
        })
    }

    async fn ask(&self, id: &SandboxId, request_id: &str) -> ResumeOutcome {
        let call = self.endpoint.call(id, request_id, self.token.as_ref());
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

type End = Option<Result<(), Refusal>>;

/// A call under way, as one waiter sees it.
pub(crate) struct Flight(watch::Receiver<End>);

impl Flight {
    pub(crate) async fn ended(mut self) -> Result<(), Refusal> {
        match self.0.wait_for(Option::is_some).await.map(|end| *end) {
            Ok(Some(end)) => end,
            // The task was ended from outside: the process stops.
            Ok(None) | Err(_) => Err(Refusal::ResumeFailed),
        }
    }
}

/// What became of the wish to have a sandbox resumed.
pub(crate) enum Joined {
    Flight(Flight),
    Refused(Refusal),
    /// It is awake by now.
    NotNeeded,
}

enum Slot {
    Calling(watch::Receiver<End>),
    /// The last call failed a moment ago; who asks is told the same.
    Failed(Refusal),
}

/// Calls under way and failures of the last moment, by sandbox.
#[derive(Default)]
pub(crate) struct Flights(Mutex<HashMap<SandboxId, Slot, ahash::RandomState>>);

impl Flights {
    /// What a request is told at once while the last failure is fresh.
    pub(crate) fn refused(&self, id: &SandboxId) -> Option<Refusal> {
        match self.0.lock().get(id) {
            Some(Slot::Failed(refusal)) => Some(*refusal),
            _ => None,
        }
    }
}

/// Takes the slot away when the task ends, however it ends.
struct Clear {
    lifecycle: Arc<Lifecycle>,
    id: SandboxId,
}

impl Drop for Clear {
    fn drop(&mut self) {
        self.lifecycle.flights.0.lock().remove(&self.id);
    }
}

impl Lifecycle {
    /// Joins the call for `id`, or makes it while `still` says that it is needed.
    pub(crate) fn join(
        self: &Arc<Self>,
        id: &SandboxId,
        request_id: &str,
        still: impl FnOnce() -> bool,
    ) -> Joined {
        let Some(manager) = self.resume.load_full() else { return Joined::NotNeeded };
        let mut flights = self.flights.0.lock();
        match flights.get(id) {
            Some(Slot::Calling(flight)) => return Joined::Flight(Flight(flight.clone())),
            Some(Slot::Failed(refusal)) => return Joined::Refused(*refusal),
            None => {}
        }
        // A call that succeeded sets the state before it gives up its slot. So whoever finds no
        // slot, and looked at the state before, looks again here.
        if !still() {
            return Joined::NotNeeded;
        }
        let Ok(permit) = Arc::clone(&manager.calls).try_acquire_owned() else {
            self.metrics.resume(ResumeOutcome::Crowded);
            return Joined::Refused(Refusal::ResumeFailed);
        };
        let (tell, flight) = watch::channel(None);
        flights.insert(id.clone(), Slot::Calling(flight.clone()));
        drop(flights);
        let clear = Clear { lifecycle: Arc::clone(self), id: id.clone() };
        let request_id = request_id.to_owned();
        // A task of its own: a waiter that leaves takes nothing from the others.
        tokio::spawn(async move {
            let refusal = clear.lifecycle.fly(&manager, &clear.id, &request_id).await;
            drop(permit);
            match refusal {
                None => {
                    drop(clear);
                    tell.send_replace(Some(Ok(())));
                }
                Some(refusal) => {
                    clear.lifecycle.flights.0.lock().insert(clear.id.clone(), Slot::Failed(refusal));
                    tell.send_replace(Some(Err(refusal)));
                    sleep(clear.lifecycle.timing.back_off).await;
                }
            }
        });
        Joined::Flight(Flight(flight))
    }

    /// One call, and what follows from its end.
    async fn fly(&self, manager: &Manager, id: &SandboxId, request_id: &str) -> Option<Refusal> {
        let began = self.states.mark();
        let start = Instant::now();
        let outcome = manager.ask(id, request_id).await;
        self.metrics.resume_seconds.observe(start.elapsed().as_secs_f64());
        self.metrics.resume(outcome);
        match outcome {
            ResumeOutcome::Resumed => {
                let at = self.states.next_mark();
                self.learn(id, Event::Resumed { began, at });
                None
            }
            ResumeOutcome::Quota => Some(Refusal::ResumeQuota),
            ResumeOutcome::Failed | ResumeOutcome::TimedOut | ResumeOutcome::Crowded => {
                Some(Refusal::ResumeFailed)
            }
        }
    }

    /// A connect time-out to a sandbox believed awake (lifecycle.md, "Resume"): has it resumed
    /// where its lifecycle metadata says `auto_resume`, at most once in 30 s, and waits for that.
    /// True: it was resumed; read the record afresh and judge again from the token on. False: it
    /// is not to be, was not, or was tried a moment ago.
    pub async fn resume_after_timeout(self: &Arc<Self>, id: &SandboxId, request_id: &str) -> bool {
        if self.resume.load().is_none() || self.stance(id, true) != Stance::Pass {
            return false;
        }
        let now = self.now_ms();
        let gap = u64::try_from(self.timing.timeout_gap.as_millis()).unwrap_or(u64::MAX);
        let due = self.states.update(id, |known| {
            let due = known.auto_resume == Some(true)
                && known.tried_ms.is_none_or(|tried| now.saturating_sub(tried) >= gap);
            if due {
                known.tried_ms = Some(now);
            }
            due
        });
        if !due {
            return false;
        }
        let Some(_place) = self.places.take(id) else { return false };
        match self.join(id, request_id, || true) {
            Joined::Flight(flight) => flight.ended().await.is_ok(),
            Joined::Refused(_) | Joined::NotNeeded => false,
        }
    }
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
