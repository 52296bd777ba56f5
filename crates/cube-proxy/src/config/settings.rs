//! From the configuration to what each crate is told.

use std::sync::Arc;

use cube_metadata::{FileStore, MetadataStore, RedisSettings, RedisStore, StoreError};
use cube_route::preview::LinkBase;
use cube_route::{Rules, RulesError};

use super::types::{Config, Dialect, RedisStore as RedisConfig, Store};

impl Config {
    /// `lifecycle` and `resume`, for the lifecycle.
    #[must_use]
    pub fn lifecycle(&self) -> cube_lifecycle::Settings {
        let resume = self.resume.as_ref().map(|resume| cube_lifecycle::ResumeSettings {
            url: resume.url.to_string().trim_end_matches('/').to_owned(),
            timeout: resume.timeout,
            max_concurrent: resume.max_concurrent,
            token: resume.token.clone(),
        });
        cube_lifecycle::Settings { resume, ..self.lifecycle.clone() }
    }

    /// `registry`, for the lifecycle; `None`: not announced.
    #[must_use]
    pub fn registry(&self) -> Option<cube_lifecycle::RegistrySettings> {
        let registry = self.registry.as_ref()?;
        Some(cube_lifecycle::RegistrySettings {
            proxy_id: registry.proxy_id.clone(),
            admin_url: registry.admin_url.clone(),
            resume_url: registry.resume_url.clone(),
            node_ip: self.node_ip,
            interval: registry.interval,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
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
        Ok(match &self.store {
            Store::File(path) => FileStore::open(path, registry)?,
            Store::Redis(redis) => {
                let settings = redis.settings(&self.breaker.shared_set);
                RedisStore::connect(settings, self.lifecycle.follow_redis, registry)?
            }
        })
    }
}

impl RedisConfig {
    /// `store.redis`, with the key of the shared faulty set, for cube-metadata.
    #[must_use]
    pub fn settings(&self, faulty_set: &str) -> RedisSettings {
        RedisSettings {
            url: self.url.clone(),
            username: self.username.clone(),
            password: self.password.clone(),
            sentinel_password: self.sentinel_password.clone(),
            ca_file: self.ca_file.clone(),
            key_prefixes: self.key_prefixes.clone(),
            command_timeout: self.command_timeout,
            tracking: self.tracking,
            faulty_set: faulty_set.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        let Store::Redis(redis) = &config.store else { panic!("{:?}", config.store) };
        let (ours, theirs) = (redis.settings(&config.breaker.shared_set), RedisSettings::default());
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        assert_eq!(ours.url, theirs.url);
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
        assert_eq!(resume.url, "http://127.0.0.1:8083/base");
        assert_eq!(config.registry().unwrap().interval.as_millis(), 500);
        assert!(config.rules().unwrap().client_id_suffix());
        assert_eq!(config.breaker.min_sandboxes, 7);
        let Store::Redis(redis) = &config.store else { panic!("{:?}", config.store) };
        let settings = redis.settings(&config.breaker.shared_set);
        assert_eq!(
            (settings.password.unwrap().expose_text(), settings.faulty_set.as_str()),
            ("example-token", "bad")
        );
    }
}
