//! How connects to nodes ended: a state machine of the time, without a clock of its own.
//!
//! A node is here only while something is wrong with it. Closed: failed connects are collected,
//! one a sandbox; as many different sandboxes as it takes open the breaker, one connect that works
//! forgets them all. Open: refused until its time is up, then one probe at a time. A probe that
//! works closes it. A probe that fails tells of one sandbox only: it opens the breaker for twice
//! the time, but until as many sandboxes have failed as it takes to open one, the others of the
//! node still get their probe. So a dead sandbox that is asked for all the time cannot keep its
//! neighbours away.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use cube_route::SandboxId;

use crate::Settings;

/// The most nodes kept; the one that has been quiet for longest goes first.
pub(crate) const MAX_NODES: usize = 4096;

/// Whether a node may be dialled now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialDecision {
    /// Dial.
    Yes,
    /// Dial as the node's only probe: this connect decides whether the breaker closes. The ticket is held
    /// until the outcome is reported or the probe is released.
    Probe(u64),
    /// Do not dial.
    No,
}

#[derive(Debug)]
struct OpenBreaker {
    /// The node is refused until then.
    until: Instant,
    /// How long it was refused this time, before jitter.
    step: Duration,
    /// The ticket of the probe under way.
    probe: Option<u64>,
}

#[derive(Debug)]
struct TroubledNode {
    /// The sandboxes whose connects failed, and when each did last: never more than it takes.
    failed: Vec<(SandboxId, Instant)>,
    open: Option<OpenBreaker>,
    touched: Instant,
}

/// How a reported connect changed the breaker of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BreakerChange {
    Nothing,
    /// The breaker opened.
    Tripped,
    /// The breaker closed.
    Healed,
}

/// All nodes with something wrong.
#[derive(Debug, Default)]
pub(crate) struct NodeTable {
    map: HashMap<IpAddr, TroubledNode, ahash::RandomState>,
    tickets: u64,
}

impl NodeTable {
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.map.iter().filter(|(_, node)| node.open.is_some()).map(|(ip, _)| *ip)
    }

    /// Whether `sandbox` (where the caller says so) may be dialled on the node `ip`.
    pub(crate) fn check(
        &mut self,
        ip: IpAddr,
        sandbox: Option<&SandboxId>,
        now: Instant,
        settings: &Settings,
    ) -> DialDecision {
        let Some(node) = self.map.get_mut(&ip) else { return DialDecision::Yes };
        let Some(open) = &mut node.open else { return DialDecision::Yes };
        let tried = sandbox.is_none_or(|sandbox| node.failed.iter().any(|(id, _)| id == sandbox));
        let others_turn = !tried && node.failed.len() < settings.min_sandboxes;
        if open.probe.is_some() || (now < open.until && !others_turn) {
            return DialDecision::No;
        }
        if now >= open.until {
            // A new round of probes: any sandbox may be the one that finds the node well.
            node.failed.clear();
        }
        self.tickets += 1;
        open.probe = Some(self.tickets);
        node.touched = now;
        DialDecision::Probe(self.tickets)
    }

    /// A connect to the node worked, or was refused by it, which only a node that lives does.
    pub(crate) fn connect_succeeded(&mut self, ip: IpAddr) -> BreakerChange {
        match self.map.remove(&ip) {
            Some(TroubledNode { open: Some(_), .. }) => BreakerChange::Healed,
            _ => BreakerChange::Nothing,
        }
    }

    /// A connect to the node failed in a way that counts against the node.
    pub(crate) fn failed(
        &mut self,
        ip: IpAddr,
        sandbox: &SandboxId,
        probe: Option<u64>,
        now: Instant,
        settings: &Settings,
    ) -> BreakerChange {
        self.make_room(ip, now, settings);
        let node = self.map.entry(ip).or_insert_with(|| TroubledNode {
            failed: Vec::new(),
            open: None,
            touched: now,
        });
        node.touched = now;
        let window = settings.window;
        if node.open.is_none() {
            node.failed.retain(|(id, at)| id != sandbox && now.saturating_duration_since(*at) < window);
            node.failed.push((sandbox.clone(), now));
            if node.failed.len() < settings.min_sandboxes.max(1) {
                return BreakerChange::Nothing;
            }
            let until = now + jitter(settings.open_min);
            node.open = Some(OpenBreaker { until, step: settings.open_min, probe: None });
            return BreakerChange::Tripped;
        }
        // Connects that began before the breaker opened tell nothing new.
        if let (Some(open), Some(_)) = (&mut node.open, probe)
            && open.probe == probe
        {
            open.probe = None;
            if now >= open.until {
                open.step = open.step.saturating_mul(2).clamp(settings.open_min, settings.open_max);
                open.until = now + jitter(open.step);
            }
            if !node.failed.iter().any(|(id, _)| id == sandbox) {
                node.failed.push((sandbox.clone(), now));
            }
        }
        BreakerChange::Nothing
    }

    /// A probe ended without telling anything about the node.
    pub(crate) fn release_probe(&mut self, ip: IpAddr, probe: u64) {
        if let Some(open) = self.map.get_mut(&ip).and_then(|node| node.open.as_mut())
            && open.probe == Some(probe)
        {
            open.probe = None;
        }
    }

    /// Forgets what is too old to count: failed connects outside the window, and open breakers
    /// that nobody has asked about for longer than they would stay open.
    pub(crate) fn expire(&mut self, now: Instant, settings: &Settings) {
        self.map.retain(|_, node| match &node.open {
            None => now.saturating_duration_since(node.touched) < settings.window,
            Some(open) => open.probe.is_some() || now < open.until + settings.open_max,
        });
    }

    fn make_room(&mut self, ip: IpAddr, now: Instant, settings: &Settings) {
        if self.map.len() < MAX_NODES || self.map.contains_key(&ip) {
            return;
        }
        self.expire(now, settings);
        if self.map.len() >= MAX_NODES
            && let Some(quiet) = self.map.iter().min_by_key(|(_, node)| node.touched).map(|(ip, _)| *ip)
        {
            self.map.remove(&quiet);
        }
    }
}

/// A tenth more or less, so that replicas do not probe in step.
fn jitter(step: Duration) -> Duration {
    step.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests;
