//! Every key: whether it can change while the proxy runs, and whether it did.

use std::sync::LazyLock;

pub use cube_settings::Takes;
use cube_settings::{KeyOf, Section};

use super::types::Config;

/// A key of the file.
pub type Key = KeyOf<Config>;

/// All of them, in the order of the file.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(Config::keys);

impl Config {
    /// This configuration with what only a new process can take left as it is in `running`.
    #[must_use]
    pub fn live_over(mut self, running: &Self) -> Self {
        self.keep_running(running);
        // With a listener come certificates, and without one there is nothing to hang them on.
        if self.tls.certificates.is_empty() || running.tls.certificates.is_empty() {
            self.tls.certificates.clone_from(&running.tls.certificates);
        }
        self.otlp.clone_from(&running.otlp);
        self
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

    fn changed(one: &Config, other: &Config) -> Vec<&'static str> {
        KEYS.iter().filter(|key| !(key.same)(one, other)).map(|key| key.name).collect()
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
        server: {threads: 7, run_dir: /run/x}
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
        let differing: Vec<_> = upgrade.iter().filter(|key| !(key.same)(&running, &new)).collect();
        assert!(differing.len() > 20, "{}", differing.len());
        let held = new.clone().live_over(&running);
        let left: Vec<_> =
            upgrade.iter().filter(|key| !(key.same)(&running, &held)).map(|key| key.name).collect();
        assert!(left.is_empty(), "{left:?}");
        for key in KEYS.iter().filter(of(Takes::Live)) {
            assert!((key.same)(&new, &held), "{} takes effect", key.name);
        }
    }
}
