//! Word to those who stream from a sandbox that is no longer the one they reached.

use cube_route::SandboxId;

use crate::Generation;

/// The record was deleted, or its CreatedAt or SandboxIP changed: streams of generations older
/// than `before` end as on a kill (metadata.md "Revocation").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The sandbox.
    pub id: SandboxId,
    /// The first generation that may go on.
    pub before: Generation,
}
