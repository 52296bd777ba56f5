//! Settings of the Redis store, and the servers and credentials that they mean.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use cube_settings::{FilePath, NonZeroSpan, Secret, SecretFile};

use crate::StoreError;

cube_settings::section! {
    /// Settings of the Redis store (config.md, `store.redis`).
    #[derive(Clone, PartialEq)]
    pub struct RedisSettings in "store.redis" {
        /// `redis`, `rediss`, `redis-sentinel`, `rediss-sentinel`, `redis-cluster`, `rediss-cluster`
        /// (metadata.md); may hold user, password and database index.
        restart url: Secret = Secret::new("redis://127.0.0.1:6379/0"),
        /// The user; it wins over the one in the URL.
        restart username: Option<String> = None,
        /// The password; it wins over the one in the URL.
        restart password: Option<Secret> = None,
        /// A file with it in place of `password`.
        restart password_file: Option<SecretFile> as Option<FilePath> = None,
        /// For the Sentinels themselves; the servers' password is never tried on them.
        restart sentinel_password: Option<Secret> = None,
        /// A file with it in place of `sentinel_password`.
        restart sentinel_password_file: Option<SecretFile> as Option<FilePath> = None,
        /// PEM file of the authorities a TLS server must be signed by; `None`: the system's.
        restart ca_file: Option<PathBuf> as Option<FilePath> = None,
        /// Key prefixes of records, the first that has one wins; none is a prefix of another.
        restart key_prefixes: Vec<String> =
            ["cube:v1:shared:sandbox:proxy:", "sandbox:proxy:", "bypass_host_proxy:"].map(str::to_owned).to_vec(),
        /// How long one command may take. A lookup takes two tries and never more than two and a
        /// half times this.
        restart command_timeout: Duration as NonZeroSpan = Duration::from_secs(1),
        /// Whether changes are to be pushed.
        restart tracking: bool = true,
    }
    beside {
        /// The set of nodes that must not be dialled (config.md, `breaker.shared_set`).
        faulty_set: String = "faulty_backend_set".to_owned(),
    }
}

impl RedisSettings {
    /// The servers' password, from wherever it is.
    #[must_use]
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref().or_else(|| self.password_file.as_ref()?.secret())
    }

    /// The Sentinels' password, from wherever it is.
    #[must_use]
    pub fn sentinel_password(&self) -> Option<&Secret> {
        self.sentinel_password.as_ref().or_else(|| self.sentinel_password_file.as_ref()?.secret())
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("RedisSettings")
            .field("username", &self.username)
            .field("ca_file", &self.ca_file)
            .field("key_prefixes", &self.key_prefixes)
            .field("command_timeout", &self.command_timeout)
            .field("tracking", &self.tracking)
            .field("faulty_set", &self.faulty_set)
            .finish_non_exhaustive()
    }
}

/// How the servers are organised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    Single,
    /// With the name of the service.
    Sentinel(String),
    Cluster,
}

/// Servers, credentials and TLS, as URL and settings say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionTarget {
    pub(crate) layout: Layout,
    /// Server, Sentinels, or some nodes of the Cluster. A v6 address is in brackets.
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) tls: bool,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) sentinel_username: Option<String>,
    pub(crate) sentinel_password: Option<Secret>,
    pub(crate) database: Option<u8>,
}

impl ConnectionTarget {
    /// Reads the URL and puts the separate credentials over it. Messages never repeat the URL.
    pub(crate) fn of(settings: &RedisSettings) -> Result<Self, StoreError> {
        let url = Url::parse(settings.url.expose_text())
            .map_err(|error| invalid(&format!("store.redis.url: {error}")))?;
        let (tls, plain) = match url.scheme().strip_prefix("rediss") {
            Some(rest) => (true, rest),
            None => (false, url.scheme().strip_prefix("redis").unwrap_or("?")),
        };
        let query =
            |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        let layout = match plain {
            "" => Layout::Single,
            "-sentinel" => Layout::Sentinel(
                query("sentinelServiceName")
                    .filter(|name| !name.is_empty())
                    .ok_or_else(|| invalid("store.redis.url: sentinelServiceName is missing"))?,
            ),
            "-cluster" => Layout::Cluster,
            _ => {
                return Err(invalid(
                    "store.redis.url: the scheme is none of redis[s], redis[s]-sentinel, redis[s]-cluster",
                ));
            }
        };
        let default_port = if matches!(layout, Layout::Sentinel(_)) { 26379 } else { 6379 };
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or_else(|| invalid("store.redis.url: no host"))?;
        let mut hosts = vec![(host.to_owned(), url.port().unwrap_or(default_port))];
        for (_, node) in url.query_pairs().filter(|(key, _)| key == "node") {
            hosts
                .push(host_and_port(&node).ok_or_else(|| invalid("store.redis.url: node is not host:port"))?);
        }
        let database = match url.path().trim_start_matches('/') {
            "" => None,
            index => {
                Some(index.parse().map_err(|_| invalid("store.redis.url: the database is not 0 to 255"))?)
            }
        };
        if layout == Layout::Cluster && database.is_some_and(|index| index != 0) {
            return Err(invalid("store.redis.url: a Cluster has only database 0"));
        }
        let username = match &settings.username {
            Some(name) => Some(name.clone()),
            None => Some(decoded(url.username())?),
        };
        let password = match settings.password() {
            Some(password) => Some(password.clone()),
            None => Secret::non_empty(decoded(url.password().unwrap_or_default())?),
        };
        Ok(Self {
            layout,
            hosts,
            tls,
            username: username.filter(|name| !name.is_empty()),
            password,
            sentinel_username: query("sentinelUsername"),
            sentinel_password: settings
                .sentinel_password()
                .cloned()
                .or_else(|| query("sentinelPassword").and_then(Secret::non_empty)),
            database,
        })
    }
}

fn decoded(text: &str) -> Result<String, StoreError> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(Cow::into_owned).map_err(|_| invalid("store.redis.url: user or password is not UTF-8"))
}

fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = !host.is_empty() && !host.contains(':');
    (bare || (host.starts_with('[') && host.ends_with(']'))).then_some(())?;
    Some((host.to_owned(), port.parse().ok()?))
}

fn invalid(message: &str) -> StoreError {
    StoreError::Invalid(message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<ConnectionTarget, StoreError> {
        ConnectionTarget::of(&RedisSettings { url: Secret::new(url), ..RedisSettings::default() })
    }

    #[test]
    fn each_scheme_leads_to_its_layout() {
        let hosts =
            |list: &[(&str, u16)]| list.iter().map(|(h, p)| ((*h).to_owned(), *p)).collect::<Vec<_>>();
        let single = target("redis://10.0.0.1").unwrap();
        assert_eq!((single.layout, single.tls, single.database), (Layout::Single, false, None));
        assert_eq!(single.hosts, hosts(&[("10.0.0.1", 6379)]));
        let six = target("rediss://[::1]:7000/3").unwrap();
        assert_eq!((six.hosts, six.tls, six.database), (hosts(&[("[::1]", 7000)]), true, Some(3)));
        let sentinel =
            target("redis-sentinel://a/2?sentinelServiceName=mymaster&node=b:26380&node=[::1]:26381")
                .unwrap();
        assert_eq!(sentinel.layout, Layout::Sentinel("mymaster".into()));
        assert_eq!(sentinel.hosts, hosts(&[("a", 26379), ("b", 26380), ("[::1]", 26381)]));
        assert_eq!(sentinel.database, Some(2));
        let cluster = target("rediss-cluster://a:7000?node=b:7001").unwrap();
        assert_eq!((cluster.layout, cluster.tls), (Layout::Cluster, true));
        assert_eq!(cluster.hosts, hosts(&[("a", 7000), ("b", 7001)]));
    }

    #[test]
    fn separate_credentials_win_over_those_of_the_url() {
        let url = "redis://url-user:url%2Dpass@a";
        let from_url = target(url).unwrap();
        assert_eq!(from_url.username.as_deref(), Some("url-user"));
        assert_eq!(from_url.password.unwrap().expose_text(), "url-pass");
        let settings = RedisSettings {
            url: Secret::new(url),
            username: Some("other".to_owned()),
            password: Secret::non_empty("other-pass"),
            ..RedisSettings::default()
        };
        let target = ConnectionTarget::of(&settings).unwrap();
        assert_eq!(target.username.as_deref(), Some("other"));
        assert_eq!(target.password.unwrap().expose_text(), "other-pass");
        assert_eq!(target.sentinel_password, None, "the servers' password is not for the Sentinels");
    }

    #[test]
    fn what_is_wrong_is_refused_without_repeating_a_password() {
        for url in [
            "",
            "http://a",
            "redisx://example-pass@a",
            "redis://:example-pass@",
            "redis://:example-pass@a/x",
            "redis://:example-pass@a/256",
            "redis-sentinel://:example-pass@a",
            "redis-cluster://:example-pass@a/1",
            "redis-cluster://:example-pass@a?node=b",
            "redis://:example-pass@a:99999",
        ] {
            let error = target(url).unwrap_err().to_string();
            assert!(error.starts_with("store.redis.url: ") && !error.contains("example"), "{url}: {error}");
        }
    }

    #[test]
    fn settings_show_no_password() {
        let settings = RedisSettings {
            url: Secret::new("redis://:example-pass@a"),
            password: Secret::non_empty("example-pass"),
            ..RedisSettings::default()
        };
        assert!(!format!("{settings:?}").contains("example"));
    }
}
