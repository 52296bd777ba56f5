//! What a stored response is found by. Everything that the sandbox sees of a request, but for the
//! headers, which `Vary` names, and what tells one client from another: its address and its
//! request id.

use cube_resolver::RouteEntry;
use cube_route::{RoutingForm, SandboxTarget};

/// The parts of a key.
#[derive(Clone)]
pub(crate) struct KeyParts<'a> {
    /// Sandbox, generation, and content of its record.
    pub(crate) entry: &'a RouteEntry,
    /// The port, and the form in which the request names the sandbox.
    pub(crate) target: &'a SandboxTarget,
    /// `X-Forwarded-Proto` as the sandbox sees it.
    pub(crate) scheme: &'a str,
    /// `Host` as the sandbox sees it.
    pub(crate) upstream_host: &'a [u8],
    /// `X-Forwarded-Host` as the sandbox sees it: it differs from `Host` where that is masked, and
    /// an application builds its links from it.
    pub(crate) client_host: &'a [u8],
    /// `X-Forwarded-Prefix` as the sandbox sees it.
    pub(crate) prefix: Option<&'a str>,
    /// Path and query as they go upstream.
    pub(crate) upstream_target: &'a [u8],
}

impl KeyParts<'_> {
    /// The key. No two different requests have the same: numbers have a fixed length, and texts
    /// theirs before them.
    pub(crate) fn key(&self) -> Vec<u8> {
        let texts = [
            self.entry.id.as_str().as_bytes(),
            self.scheme.as_bytes(),
            self.upstream_host,
            self.client_host,
            self.prefix.unwrap_or_default().as_bytes(),
            self.upstream_target,
        ];
        let mut key = Vec::with_capacity(texts.iter().map(|text| text.len() + 8).sum::<usize>() + 19);
        key.extend_from_slice(&self.entry.generation.get().to_le_bytes());
        key.extend_from_slice(&self.entry.revision.get().to_le_bytes());
        key.extend_from_slice(&self.target.port.get().to_le_bytes());
        key.push(match self.target.form {
            RoutingForm::Host => 0,
            RoutingForm::Header => 1,
            RoutingForm::Path => 2,
        });
        for text in texts {
            key.extend_from_slice(&(text.len() as u64).to_le_bytes());
            key.extend_from_slice(text);
        }
        key
    }
}
