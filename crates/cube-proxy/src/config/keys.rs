//! Every key: whether it can change while the proxy runs, and whether it did.
//!
//! The sections that crates declare themselves say it there ([`cube_settings::section!`]); the others say it
//! here.

use std::sync::LazyLock;

pub use cube_settings::Takes;
use cube_settings::{KeyOf, Section};

use super::types::{Config, Otlp, RedisStore, Registry, Resume, Store};

/// Whether a key has the same value in two configurations.
type Same = dyn Fn(&Config, &Config) -> bool + Send + Sync;

/// A key of the file. One that names a file with a secret stands for the secret in it.
pub struct Key {
    /// Dotted path.
    pub name: &'static str,
    /// When another value takes effect.
    pub takes: Takes,
    same: Box<Same>,
}

impl Key {
    /// Whether its value differs between two configurations.
    #[must_use]
    pub fn differs(&self, one: &Config, other: &Config) -> bool {
        !(self.same)(one, other)
    }
}

/// The keys of a section that its crate declares.
fn declared<S: Section>(section: fn(&Config) -> &S) -> Vec<Key> {
    let key = |KeyOf { name, takes, same }: KeyOf<S>| Key {
        name,
        takes,
        same: Box::new(move |one, other| same(section(one), section(other))),
    };
    S::keys().into_iter().map(key).collect()
}

macro_rules! keys {
    ($($name:literal $takes:ident $config:ident => $value:expr;)*) => {
        vec![$(Key {
            name: $name,
            takes: Takes::$takes,
            same: Box::new(|one, other| {
                let one = { let $config = one; $value };
                let other = { let $config = other; $value };
                one == other
            }),
        }),*]
    };
}

fn redis(config: &Config) -> Option<&RedisStore> {
    match &config.store {
        Store::Redis(redis) => Some(redis),
        Store::File(_) => None,
    }
}

/// Of a section that may be off: only where it is on in both is a value another one.
fn resume(config: &Config) -> Option<&Resume> {
    config.resume.as_ref()
}

fn registry(config: &Config) -> Option<&Registry> {
    config.registry.as_ref()
}

fn otlp(config: &Config) -> Option<&Otlp> {
    config.tracing.otlp.as_ref()
}

/// All of them, in the order of the file.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let sections = [
        keys! {
            "node_ip" Restart c => c.node_ip;
            "listen.http" Restart c => &c.listen.http;
            "listen.https" Restart c => &c.listen.https;
            "listen.grpc" Restart c => &c.listen.grpc;
            "listen.admin" Restart c => c.listen.admin;
            "listen.metrics" Restart c => c.listen.metrics;
            "listen.health" Restart c => c.listen.health;
            "listen.proxy_protocol" Live c => &c.listen.proxy_protocol;
            "tls.certificates" Live c => &c.tls.certificates;
            "tls.reload_interval" Live c => c.tls.reload_interval;
            "routing.domains" Live c => &c.routing.domains;
            "routing.trusted_proxies" Live c => &c.routing.trusted_proxies;
            "routing.forward_credentials" Live c => c.routing.forward_credentials;
            "routing.control_plane.url" Live c => c.routing.control_plane.as_ref().map(|to| (&to.host, to.port));
            "routing.control_plane.ca_file" Live c => c.routing.control_plane.as_ref().map(|to| &to.tls);
            "routing.control_plane.hosts" Live c => c.routing.control_plane.as_ref().map(|to| &to.hosts);
            "routing.envd_control_from" Live c => &c.routing.envd_control_from;
            "errors.dialect" Restart c => c.errors.dialect;
            "errors.mask_existence" Live c => c.errors.mask_existence;
            "store.kind" Restart c => redis(c).is_some();
            "store.file" Restart c => match &c.store { Store::File(path) => Some(path), Store::Redis(_) => None };
            "store.redis.url" Restart c => redis(c).map(|redis| &redis.url);
            "store.redis.username" Restart c => redis(c).map(|redis| &redis.username);
            "store.redis.password" Restart c => redis(c).map(|redis| &redis.password);
            "store.redis.sentinel_password" Restart c => redis(c).map(|redis| &redis.sentinel_password);
            "store.redis.ca_file" Restart c => redis(c).map(|redis| &redis.ca_file);
            "store.redis.key_prefixes" Restart c => redis(c).map(|redis| &redis.key_prefixes);
            "store.redis.command_timeout" Restart c => redis(c).map(|redis| redis.command_timeout);
            "store.redis.tracking" Restart c => redis(c).map(|redis| redis.tracking);
        },
        declared(|config| &config.cache),
        keys! {
            "traffic_token.exempt_ports" Live c => &c.traffic_token.exempt_ports;
            "previews.enabled" Live c => c.previews.enabled;
            "previews.max_ttl" Live c => c.previews.max_ttl;
            "previews.cookie" Live c => c.previews.cookie;
            "previews.path_cookie" Live c => c.previews.path_cookie;
            "previews.base_url" Live c => &c.previews.base_url;
            "previews.login_url" Live c => &c.previews.login_url;
            "previews.frame_ancestors" Live c => &c.previews.frame_ancestors;
            "previews.allowed_origins" Live c => &c.previews.allowed_origins;
        },
        declared(|config| &config.lifecycle),
        keys! {
            "resume.url" Live c => resume(c).map(|resume| &resume.url);
            "resume.timeout" Live c => resume(c).map(|resume| resume.timeout);
            "resume.max_concurrent" Live c => resume(c).map(|resume| resume.max_concurrent);
            "resume.token_file" Live c => resume(c).map(|resume| &resume.token);
            "admin.token" Live c => &c.admin.token;
            "registry.enabled" Restart c => registry(c).is_some();
            "registry.proxy_id" Restart c => registry(c).map(|registry| &registry.proxy_id);
            "registry.admin_url" Restart c => registry(c).map(|registry| &registry.admin_url);
            "registry.resume_url" Restart c => registry(c).map(|registry| &registry.resume_url);
            "registry.interval" Restart c => registry(c).map(|registry| registry.interval);
        },
        declared(|config| &config.breaker),
        declared(|config| &config.upstream),
        declared(|config| &config.limits),
        declared(|config| &config.drain),
        declared(|config| &config.response_cache),
        keys! {
            "access_log.path" Restart c => &c.access_log.target;
            "access_log.format" Live c => c.access_log.format;
            "access_log.redact_query" Live c => &c.access_log.redact_query;
            "tracing.otlp.endpoint" Restart c => otlp(c).map(|otlp| &otlp.endpoint);
            "tracing.otlp.ca_file" Restart c => otlp(c).map(|otlp| &otlp.trust);
            "tracing.otlp.headers" Restart c => otlp(c).map(|otlp| &otlp.headers);
            "tracing.otlp.sample_ratio" Live c => c.tracing.sample_ratio;
            "tracing.otlp.service_name" Restart c => otlp(c).map(|otlp| &otlp.service_name);
            "log.level" Live c => c.log.level;
            "log.format" Restart c => c.log.format;
            "server.threads" Restart c => c.server.threads;
            "server.run_dir" Restart c => &c.server.run_dir;
            "server.core_dumps" Restart c => c.server.core_dumps;
        },
    ];
    sections.into_iter().flatten().collect()
});

impl Config {
    /// This configuration with what only a new process can take left as it is in `running`.
    #[must_use]
    pub fn live_over(mut self, running: &Self) -> Self {
        self.cache.keep_running(&running.cache);
        self.lifecycle.keep_running(&running.lifecycle);
        self.breaker.keep_running(&running.breaker);
        self.upstream.keep_running(&running.upstream);
        self.limits.keep_running(&running.limits);
        self.drain.keep_running(&running.drain);
        self.response_cache.keep_running(&running.response_cache);
        let running = running.clone();
        self.node_ip = running.node_ip;
        self.listen = super::types::Listen { proxy_protocol: self.listen.proxy_protocol, ..running.listen };
        // With a listener come certificates, and without one there is nothing to hang them on.
        if self.tls.certificates.is_empty() || running.tls.certificates.is_empty() {
            self.tls.certificates = running.tls.certificates;
        }
        self.errors.dialect = running.errors.dialect;
        self.store = running.store;
        self.registry = running.registry;
        self.access_log.target = running.access_log.target;
        self.tracing.otlp = running.tracing.otlp;
        self.log.format = running.log.format;
        self.server = running.server;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::super::{Environment, Machine, parse};
    use super::*;

    fn config(text: &str) -> Config {
        let machine = Machine { file_limit: 65_536, cpus: 1, host_name: "node".into() };
        parse(text.to_owned(), "x", Path::new(""), &Environment::default(), &machine).unwrap().config
    }

    fn changed(one: &Config, other: &Config) -> Vec<&'static str> {
        KEYS.iter().filter(|key| key.differs(one, other)).map(|key| key.name).collect()
    }

    fn leaves(value: &serde_yaml::Value, path: &str, into: &mut BTreeSet<String>) {
        let serde_yaml::Value::Mapping(mapping) = value else {
            into.insert(path.to_owned());
            return;
        };
        for (key, value) in mapping {
            let key = key.as_str().unwrap();
            leaves(value, &if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }, into);
        }
    }

    #[test]
    fn every_key_of_the_file_is_here() {
        let mut all = BTreeSet::new();
        leaves(&serde_yaml::to_value(super::super::file::File::default()).unwrap(), "", &mut all);
        let known: BTreeSet<_> = KEYS.iter().map(|key| key.name.to_owned()).collect();
        let secret_of = |name: &str| name.strip_suffix("_file").map(str::to_owned);
        let missing: Vec<_> = all
            .iter()
            .filter(|name| {
                !known.contains(*name) && !secret_of(name).is_some_and(|secret| known.contains(&secret))
            })
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
        let unknown: Vec<_> = known.difference(&all).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    const OTHER: &str = "
        node_ip: 10.0.0.9
        listen: {http: [\"127.0.0.1:1\"], grpc: [\"127.0.0.1:2\"], admin: \"127.0.0.1:3\", metrics: null, \
                 health: \"127.0.0.1:4\"}
        errors: {dialect: e2b}
        store: {redis: {url: \"redis://127.0.0.1:1/0\", username: u, password: example-token, \
                sentinel_password: p, key_prefixes: [x], command_timeout: 2s, tracking: false}}
        lifecycle: {follow_redis: false}
        registry: {enabled: true}
        breaker: {shared_set: other}
        upstream: {pool_size: 3, exchange: own}
        response_cache: {enabled: true}
        access_log: {path: /dev/null, format: json}
        tracing: {otlp: {endpoint: \"http://127.0.0.1:4318\", sample_ratio: 1, service_name: x}}
        log: {level: debug, format: json}
        server: {threads: 7, run_dir: /run/x, core_dumps: true}
        limits: {headers: 7}
    ";

    #[test]
    fn a_change_is_named_by_its_key() {
        let (one, other) = (config(""), config("limits: {headers: 7}\nadmin: {token: example-token}"));
        assert_eq!(changed(&one, &other), ["admin.token", "limits.headers"]);
        assert_eq!(changed(&one, &one), [""; 0]);
    }

    #[test]
    fn what_only_a_new_process_can_take_is_left_as_it_is() {
        let (running, new) = (config(""), config(OTHER));
        let of = |takes| move |key: &&Key| key.takes == takes;
        let upgrade: Vec<_> = KEYS.iter().filter(of(Takes::Restart)).collect();
        let differing: Vec<_> = upgrade.iter().filter(|key| key.differs(&running, &new)).collect();
        assert!(differing.len() > 20, "{}", differing.len());
        let held = new.clone().live_over(&running);
        let left: Vec<_> =
            upgrade.iter().filter(|key| key.differs(&running, &held)).map(|key| key.name).collect();
        assert!(left.is_empty(), "{left:?}");
        for key in KEYS.iter().filter(of(Takes::Live)) {
            assert!(!key.differs(&new, &held), "{} takes effect", key.name);
        }
    }
}
