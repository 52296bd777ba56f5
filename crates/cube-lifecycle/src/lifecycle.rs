//! [`Lifecycle`]: states, gate, resume, activity and registry row together, and how events reach them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use cube_metadata::{SandboxState, Snapshot, SnapshotObserver, Status};
use cube_route::SandboxId;
use prometheus::Registry;
use tokio::time::Instant;

use crate::activity::Activity;
use crate::clock::{Clock, SystemClock};
use crate::hold_queue::HoldQueue;
use crate::metrics::Metrics;
use crate::resume::{ResumeClient, ResumesInFlight};
use crate::state_table::{KnownState, StateEvent, StateTable};
use crate::{LastActive, LifecycleError, Settings};

/// What the rest of the proxy does when something happens to a sandbox.
///
/// Called on the thread that learned of it, from [`SnapshotObserver::observed`] too, so a hook
/// must not wait for the read that is under way, nor block.
pub trait LifecycleHooks: Send + Sync + 'static {
    /// It wakes: a new generation begins and its record is to be read again. The gate still holds
    /// requests while this runs.
    fn resumed(&self, id: &SandboxId);

    /// It is being or was killed, or was deleted: whatever runs to it ends and a new generation
    /// begins. The gate refuses already (or, after a deletion, knows nothing of it).
    fn killed(&self, id: &SandboxId);

    /// Its route is to be forgotten and a new generation begins; whether there was one.
    fn forgotten(&self, id: &SandboxId) -> bool;
}

/// Times that the contract fixes and that tests shorten.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// How long a failed resume refuses further ones.
    pub(crate) back_off: Duration,
    /// Between two resumes after connect time-outs to one sandbox.
    pub(crate) timeout_gap: Duration,
    /// How long traffic of a deleted sandbox, which is about to be ended, leaves no stamp.
    pub(crate) gone: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            back_off: Duration::from_secs(1),
            timeout_gap: Duration::from_secs(30),
            gone: Duration::from_secs(10),
        }
    }
}

/// States, gate, resume, last activity and registry row of one process.
pub struct Lifecycle {
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) timing: Timing,
    pub(crate) states: StateTable,
    pub(crate) hold_queue: Arc<HoldQueue>,
    pub(crate) resume_client: ArcSwapOption<ResumeClient>,
    pub(crate) resumes_in_flight: ResumesInFlight,
    pub(crate) activity: Activity,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// When the registry row was last written, unix milliseconds; 0: never.
    pub(crate) last_pushed_ms: AtomicU64,
    hooks: Arc<dyn LifecycleHooks>,
    start: Instant,
}

impl Lifecycle {
    /// Builds it and registers its metrics.
    ///
    /// # Errors
    /// [`LifecycleError`] when `resume.url` cannot be called or a metric is registered already.
    pub fn new(
        settings: Settings,
        hooks: Arc<dyn LifecycleHooks>,
        registry: &Registry,
    ) -> Result<Arc<Self>, LifecycleError> {
        Self::with_timing(settings, Timing::default(), Clock::new(Box::new(SystemClock)), hooks, registry)
    }

    pub(crate) fn with_timing(
        settings: Settings,
        timing: Timing,
        clock: Clock,
        hooks: Arc<dyn LifecycleHooks>,
        registry: &Registry,
    ) -> Result<Arc<Self>, LifecycleError> {
        let resume = settings.resume.as_ref().map(ResumeClient::new).transpose()?.map(Arc::new);
        let metrics = Metrics::new(registry)?;
        Ok(Arc::new(Self {
            timing,
            states: StateTable::new(settings.max_states, settings.follow_redis),
            hold_queue: HoldQueue::new(
                settings.max_held,
                settings.max_held_per_sandbox,
                metrics.held.clone(),
            ),
            resume_client: resume.into(),
            resumes_in_flight: ResumesInFlight::default(),
            activity: Activity::new(settings.max_active),
            clock,
            metrics,
            last_pushed_ms: AtomicU64::new(0),
            hooks,
            start: Instant::now(),
            settings: ArcSwap::from_pointee(settings),
        }))
    }

    /// Applies new settings; who is held keeps the time it was given, a call under way the manager
    /// it was made to. `follow_redis` and the sizes of the tables stay as they are.
    ///
    /// # Errors
    /// [`LifecycleError`] when `resume.url` cannot be called; nothing is changed then.
    pub fn update(&self, settings: Settings) -> Result<(), LifecycleError> {
        // The same manager goes on counting the calls that are under way.
        if settings.resume != self.settings.load().resume {
            let manager = settings.resume.as_ref().map(ResumeClient::new).transpose()?;
            self.resume_client.store(manager.map(Arc::new));
        }
        self.hold_queue.resize(settings.max_held, settings.max_held_per_sandbox);
        self.settings.store(Arc::new(settings));
        Ok(())
    }

    /// The state in force; none where nothing is known.
    #[must_use]
    pub fn state(&self, id: &SandboxId) -> Option<Status> {
        self.states.peek(id)?.state
    }

    /// What the lifecycle metadata says about waking it by itself; none where nobody said.
    #[must_use]
    pub fn auto_resume(&self, id: &SandboxId) -> Option<bool> {
        self.states.peek(id)?.auto_resume
    }

    /// Sandboxes something is known of.
    #[must_use]
    pub fn states_len(&self) -> usize {
        self.states.len()
    }

    /// Requests held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.hold_queue.len()
    }

    /// Applies a state that was pushed to the admin API.
    pub fn push_state(&self, id: &SandboxId, state: SandboxState) {
        let at = self.states.next_mark();
        self.apply(id, StateEvent::Pushed { state, at });
    }

    /// Sets or (`Some(None)`) clears what the lifecycle metadata says about waking by itself.
    pub(crate) fn set_auto_resume(&self, id: &SandboxId, auto_resume: Option<bool>) {
        self.states.update(id, |known| known.auto_resume = auto_resume);
        // Somebody may wait for a resume that is no longer wanted.
        self.hold_queue.notify(id);
    }

    /// Forgets metadata, state, activity and route of a deleted sandbox and ends what runs to it;
    /// whether there was a route.
    pub fn delete(&self, id: &SandboxId) -> bool {
        let had_route = self.hooks.forgotten(id);
        let at = self.states.next_mark();
        self.apply(id, StateEvent::Deleted { at });
        self.forget_activity(id);
        had_route
    }

    /// Forgets the route; whether there was one.
    pub fn forget_route(&self, id: &SandboxId) -> bool {
        self.hooks.forgotten(id)
    }

    /// Notes authorised traffic of `id` now. At most one write a second.
    pub fn touch(&self, id: &SandboxId) {
        self.activity.touch(id, self.clock.steady(), || {
            self.states.peek(id).is_none_or(|known| known.deleted_until_ms <= self.now_ms())
        });
    }

    /// Activity strictly newer than `since` (unix milliseconds), the `now` of an earlier response. Where
    /// the system's clock was set since then, nothing is missed; where it cannot be known what was
    /// meant, everything is listed.
    #[must_use]
    pub fn last_active(&self, since: u64) -> LastActive {
        self.activity.since(since, self.clock.now())
    }

    /// Sandboxes whose activity is known.
    #[must_use]
    pub fn active_len(&self) -> usize {
        self.activity.len()
    }

    /// Marks the moment at which a read of the store begins, for [`Lifecycle::observed_since`].
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.states.mark()
    }

    /// Takes what a read brought that began at the mark `began`. A push since then wins.
    pub fn observed_since(&self, id: &SandboxId, snapshot: &Snapshot, began: u64) {
        let status = snapshot.record.as_ref().map(|record| record.status);
        let at = self.states.next_mark();
        self.apply(id, StateEvent::Read { status, word: snapshot.state, began, at });
        if status.is_none() && self.activity.knows(id) {
            self.forget_activity(id);
        }
    }

    /// Milliseconds since this was built, by the monotonic clock.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Applies `event`, and lets everybody know in the order that is safe: a new generation
    /// before the gate opens, a kill after it has closed, waiters last.
    pub(crate) fn apply(&self, id: &SandboxId, event: StateEvent) {
        let announced = self.states.would_change(id, event).wakes;
        if announced {
            self.hooks.resumed(id);
        }
        let change = self.states.apply(id, event);
        if change.wakes && !announced {
            self.hooks.resumed(id);
        }
        if change.kills {
            self.hooks.killed(id);
        }
        if change.unknown_word {
            tracing::warn!(sandbox = %id, "the state of the sandbox is an unknown word; it passes the gate");
        }
        if change.changed {
            self.hold_queue.notify(id);
        }
    }

    /// Forgets the last activity of a sandbox; requests to it that are still under way leave no new stamp.
    fn forget_activity(&self, id: &SandboxId) {
        let gone = u64::try_from(self.timing.gone.as_millis()).unwrap_or(u64::MAX);
        let until = self.now_ms().saturating_add(gone);
        self.states.update(id, |known| known.deleted_until_ms = until);
        self.activity.remove(id);
    }
}

impl SnapshotObserver for Lifecycle {
    /// As [`Lifecycle::observed_since`] for a read that began after the last push.
    fn observed(&self, id: &SandboxId, snapshot: &Snapshot) {
        self.observed_since(id, snapshot, self.mark());
    }

    fn mark(&self) -> u64 {
        Lifecycle::mark(self)
    }

    fn observed_since(&self, id: &SandboxId, snapshot: &Snapshot, began: u64) {
        Lifecycle::observed_since(self, id, snapshot, began);
    }

    fn state_changed(&self, id: &SandboxId) {
        let at = self.states.next_mark();
        self.states.change_announced(id, at);
    }

    fn interested(&self, id: &SandboxId) -> bool {
        let worth_reading = |known: KnownState| known.has_unread_change() || known.contradicted();
        self.hold_queue.has_waiters(id) || self.states.peek(id).is_some_and(worth_reading)
    }
}

/// The system's time, in unix milliseconds.
pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
