//! From the configuration to what each crate is told.

use std::path::Path;
use std::sync::Arc;

use cube_metadata::{FileStore, MetadataStore, RedisSettings, RedisStore, StoreError, StoreKind};
use cube_route::preview::LinkBase;
use cube_route::{Rules, RulesError};

use super::types::{Config, Dialect};

impl Config {
    /// `lifecycle` and `resume`, for the lifecycle.
    #[must_use]
    pub fn lifecycle(&self) -> cube_lifecycle::Settings {
        let resume = self.resume.url.is_some().then(|| self.resume.clone());
        cube_lifecycle::Settings { resume, ..self.lifecycle.clone() }
    }

    /// `registry`, for the lifecycle; `None`: not announced.
    #[must_use]
    pub fn registry(&self) -> Option<cube_lifecycle::RegistrySettings> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let registry =
            || cube_lifecycle::RegistrySettings { node_ip: self.node_ip, version, ..self.registry.clone() };
        self.registry.enabled.then(registry)
    }

    /// `store.redis`, with the key of the shared faulty set.
    #[must_use]
    pub fn redis(&self) -> RedisSettings {
        RedisSettings { faulty_set: self.breaker.shared_set.clone(), ..self.store.redis.clone() }
    }

    /// `routing.domains` and the dialect, for cube-route.
    ///
    /// # Errors
    /// [`RulesError`] when a domain is none; the configuration check has found it before.
    pub fn rules(&self) -> Result<Rules, RulesError> {
        Rules::new(&self.routing.domains, self.errors.dialect == Dialect::E2b)
    }

    /// Where preview links lead: `previews.base_url`, else the first routing domain at the listener's port;
    /// `None`: neither says it.
    #[must_use]
    pub fn preview_base(&self) -> Option<LinkBase> {
        if let Some(base) = &self.previews.base_url {
            return Some(base.clone());
        }
        let domain = self.routing.domains.first()?;
        let https = self.listen.https.first();
        let port = https.or(self.listen.http.first()).map(|address| address.port());
        Some(LinkBase::new(https.is_some(), domain, port))
    }

    /// Opens the store that the configuration names; needs a tokio runtime. Redis may be away.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the settings do not hold or the file is broken.
    pub fn open_store(&self, registry: &prometheus::Registry) -> Result<Arc<dyn MetadataStore>, StoreError> {
        Ok(match (self.store.kind, &self.store.file) {
            (StoreKind::File, path) => FileStore::open(path.as_deref().unwrap_or(Path::new("")), registry)?,
            (StoreKind::Redis, _) => {
                RedisStore::connect(self.redis(), self.lifecycle.follow_redis, registry)?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Environment, Machine, parse};
    use super::*;

    fn config(text: &str) -> Config {
        let machine = Machine { file_limit: 65_536, cpus: 1, host_name: "node".into() };
        parse(text.to_owned(), "x", Path::new(""), &Environment::default(), &machine).unwrap().config
    }

    #[test]
    fn the_defaults_of_the_file_are_the_defaults_of_the_crates() {
        let config = config("");
        assert_eq!(config.cache, cube_resolver::Settings::default());
        assert_eq!(config.breaker, cube_breaker::Settings::default());
        assert_eq!(config.lifecycle(), cube_lifecycle::Settings::default());
        assert!(config.redis() == RedisSettings::default());
        assert_eq!(config.rules().unwrap(), Rules::default());
    }

    #[test]
    fn what_is_configured_arrives() {
        let config = config(
            "errors: {dialect: e2b}\nresume: {url: \"http://127.0.0.1:8083/base/\", timeout: 1s}\n\
             registry: {enabled: true, interval: 500ms}\nrouting: {domains: [cube.test]}\n\
             store: {redis: {password: example-token}}\nbreaker: {shared_set: bad, min_sandboxes: 7}",
        );
        let resume = config.lifecycle().resume.unwrap();
        assert_eq!(resume.url.as_deref(), Some("http://127.0.0.1:8083/base"));
        assert_eq!(config.registry().unwrap().interval.as_millis(), 500);
        assert!(config.rules().unwrap().client_id_suffix());
        assert_eq!(config.breaker.min_sandboxes, 7);
        let settings = config.redis();
        assert_eq!(
            (settings.password.unwrap().expose_text(), settings.faulty_set.as_str()),
            ("example-token", "bad")
        );
    }
}
