//! The part of the configuration that decides what a host means.

use crate::error::RulesError;
use crate::host::ClientHost;
use crate::request::ListenerKind;

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
    pub(crate) fn allow(&self, domain: Option<&str>, listener: ListenerKind) -> bool {
        if self.domains.is_empty() {
            return true;
        }
        match domain {
            Some(domain) => self.domains.iter().any(|known| known.eq_ignore_ascii_case(domain)),
            None => listener == ListenerKind::Grpc,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(domains: &[&str]) -> Result<Rules, RulesError> {
        Rules::new(&domains.iter().map(ToString::to_string).collect::<Vec<_>>(), false)
    }

    #[test]
    fn domains_are_folded_and_lose_one_trailing_dot() {
        let rules = rules(&["Cube.App.", "x"]).unwrap();
        assert_eq!(rules.domains(), ["cube.app".into(), "x".into()]);
    }

    #[test]
    fn a_domain_that_no_host_can_have_is_refused_by_name() {
        for bad in [
            "",
            ".",
            ".cube.app",
            "*.cube.app",
            "cube.app:80",
            "cube.app:",
            "10.0.0.1",
            "[::1]",
            "a b",
            "a..",
        ] {
            assert_eq!(rules(&["good.example", bad]), Err(RulesError::Domain(bad.to_owned())), "{bad:?}");
        }
    }

    #[test]
    fn a_bare_label_needs_no_domain_on_the_grpc_listener_only() {
        let rules = rules(&["cube.app"]).unwrap();
        assert!(rules.allow(None, ListenerKind::Grpc));
        assert!(!rules.allow(None, ListenerKind::Data));
        assert!(rules.allow(Some("CUBE.app"), ListenerKind::Data));
        assert!(!rules.allow(Some("x.cube.app"), ListenerKind::Grpc));
        assert!(Rules::default().allow(None, ListenerKind::Data));
    }
}
