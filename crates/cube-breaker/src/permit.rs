//! The permit to dial, on which the outcome of the connect is reported.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cube_route::SandboxId;

use crate::Breaker;

/// How a connect failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectFailure {
    /// Timed out: counts against the node.
    TimedOut,
    /// Network or host unreachable: counts against the node.
    Unreachable,
    /// Refused: a port is closed in one sandbox, and the node lives.
    Refused,
    /// Anything else: says nothing about the node.
    Other,
}

/// The permit to dial one address once. Reporting costs one load while nothing is wrong anywhere.
/// Dropped without a report, a permit that was a probe lets the next one through. Only new connections
/// are reported: one from a pool says nothing about the node now.
pub struct DialPermit {
    breaker: Arc<Breaker>,
    /// `None` where the sandbox is on this node itself: its connects tell nothing about another node.
    node: Option<IpAddr>,
    /// The ticket of the probe that it is, if it is one.
    probe: Option<u64>,
    reported: AtomicBool,
}

impl DialPermit {
    pub(crate) fn new(breaker: &Arc<Breaker>, node: Option<IpAddr>, probe: Option<u64>) -> Self {
        Self { breaker: Arc::clone(breaker), node, probe, reported: AtomicBool::new(false) }
    }

    /// The connection was made.
    pub fn connected(&self) {
        self.reported.store(true, Ordering::Relaxed);
        if let Some(node) = self.node {
            self.breaker.connect_succeeded(node);
        }
    }

    /// The connect to `sandbox` failed.
    pub fn failed(&self, sandbox: &SandboxId, failure: ConnectFailure) {
        let Some(node) = self.node else { return };
        match failure {
            ConnectFailure::TimedOut | ConnectFailure::Unreachable => {
                self.reported.store(true, Ordering::Relaxed);
                self.breaker.failed(node, sandbox, self.probe);
            }
            ConnectFailure::Refused => {
                self.reported.store(true, Ordering::Relaxed);
                self.breaker.connect_succeeded(node);
            }
            ConnectFailure::Other => {}
        }
    }
}

impl Drop for DialPermit {
    fn drop(&mut self) {
        if let (Some(node), Some(probe), false) = (self.node, self.probe, *self.reported.get_mut()) {
            self.breaker.release_probe(node, probe);
        }
    }
}

impl fmt::Debug for DialPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("node", &self.node).field("probe", &self.probe).finish_non_exhaustive()
    }
}
