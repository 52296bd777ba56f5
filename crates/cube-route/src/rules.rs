//! The part of the configuration that decides what a host means.

use crate::error::RulesError;
use crate::host::ClientHost;
use crate::request::Listener;

/// What `routing.domains` and the dialect say about hosts. Read only; swapped whole on reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    domains: Box<[Box<str>]>,
    client_id_suffix: bool,
}

impl Rules {
    /// `domains`: the base domains that hosts may have, one trailing dot ignored; none given: any.
    /// `client_id_suffix`: an id in the host form ends at its first hyphen (the `e2b` dialect).
    ///
    /// # Errors
    /// [`RulesError::Domain`] names the first entry that is not a plain domain name.
    pub fn new(domains: &[String], client_id_suffix: bool) -> Result<Self, RulesError> {
        let domains = domains
            .iter()
            .map(|text| match ClientHost::parse(text) {
                Some(host) if host.ip().is_none() && !text.contains(':') => {
                    Ok(host.name().to_ascii_lowercase().into_boxed_str())
                }
                _ => Err(RulesError::Domain(text.clone())),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { domains, client_id_suffix })
    }

    /// The domains, folded to lower case; empty: any.
    #[must_use]
    pub fn domains(&self) -> &[Box<str>] {
        &self.domains
    }

    /// Whether an id in the host form ends at its first hyphen.
    #[must_use]
    pub fn client_id_suffix(&self) -> bool {
        self.client_id_suffix
    }

    /// Whether what follows the first label lets that label name something. `None`: a bare label,
    /// enough on the gRPC listener and wherever no domain is configured.
    pub(crate) fn allow(&self, domain: Option<&str>, listener: Listener) -> bool {
        if self.domains.is_empty() {
            return true;
        }
        match domain {
            Some(domain) => self.domains.iter().any(|known| known.eq_ignore_ascii_case(domain)),
            None => listener == Listener::Grpc,
        }
    }
}
