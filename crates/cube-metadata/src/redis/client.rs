//! fred clients with every limit set (docs/architecture.md, "fred"): several are off by default.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::types::RespVersion;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig, TlsConfig,
    TlsConnector, TlsHostMapping, UnresponsiveConfig,
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::StoreError;
use crate::redis::settings::{ConnectionTarget, RedisSettings};

/// Commands that may wait for the connection; beyond it they fail at once.
const MAX_WAITING: usize = 10_000;
/// Invalidation messages (each with many keys) that may wait to be read. fred makes nine channels
/// of this size for a client.
const MAX_PUSHES: usize = 4096;
/// Between attempts to connect: back within half a second of the server's return.
const RECONNECT_MS: (u32, u32) = (50, 400);
const RECONNECT_JITTER_MS: u32 = 50;

/// Makes clients that differ only in the server they talk to.
pub(crate) struct Connector {
    target: ConnectionTarget,
    tls: Option<TlsConnector>,
    command_timeout: Duration,
}

impl Connector {
    pub(crate) fn new(settings: &RedisSettings) -> Result<Self, StoreError> {
        let target = ConnectionTarget::of(settings)?;
        let tls = if target.tls { Some(tls(settings)?) } else { None };
        Ok(Self { target, tls, command_timeout: settings.command_timeout })
    }

    pub(crate) fn target(&self) -> &ConnectionTarget {
        &self.target
    }

    /// A client for a server that holds records.
    pub(crate) fn server(&self, host: &str, port: u16) -> Client {
        self.client(Config {
            version: RespVersion::RESP3,
            username: self.target.username.clone(),
            password: self.target.password.as_ref().map(|secret| secret.expose_text().to_owned()),
            database: self.target.database,
            ..self.config(host, port)
        })
    }

    /// A client for a Sentinel, with the credentials that are meant for Sentinels.
    pub(crate) fn sentinel(&self, host: &str, port: u16) -> Client {
        self.client(Config {
            username: self.target.sentinel_username.clone(),
            password: self.target.sentinel_password.as_ref().map(|secret| secret.expose_text().to_owned()),
            ..self.config(host, port)
        })
    }

    fn config(&self, host: &str, port: u16) -> Config {
        let mut server = Server::new(host, port);
        // A certificate names a v6 address without the brackets that a URL puts around it.
        if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            server.tls_server_name = Some(address.into());
        }
        Config {
            // The first failure comes back to us at once, and the first attempt is not delayed.
            fail_fast: true,
            server: ServerConfig::Centralized { server },
            tls: self.tls.clone().map(|connector| TlsConfig { connector, hostnames: TlsHostMapping::None }),
            ..Config::default()
        }
    }

    fn client(&self, config: Config) -> Client {
        let performance = PerformanceConfig {
            default_command_timeout: self.command_timeout,
            broadcast_channel_capacity: MAX_PUSHES,
            ..PerformanceConfig::default()
        };
        let connection = ConnectionConfig {
            connection_timeout: self.command_timeout,
            internal_command_timeout: self.command_timeout,
            // Tries are ours to count: fred would repeat a command without telling.
            max_command_attempts: 1,
            max_command_buffer_len: MAX_WAITING,
            unresponsive: UnresponsiveConfig {
                max_timeout: Some(self.command_timeout.saturating_mul(2)),
                interval: Duration::from_millis(500),
            },
            // A server that begins to ask for a password is connected to afresh.
            reconnect_on_auth_error: true,
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        let (first, longest) = RECONNECT_MS;
        let mut policy = ReconnectPolicy::new_exponential(0, first, longest, 2);
        policy.set_jitter(RECONNECT_JITTER_MS);
        Client::new(config, Some(performance), Some(connection), Some(policy))
    }
}

/// TLS with verification, against the configured authorities or the system's.
fn tls(settings: &RedisSettings) -> Result<TlsConnector, StoreError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &settings.ca_file {
        let cannot =
            |why: String| StoreError::Invalid(format!("store.redis.ca_file {}: {why}", path.display()));
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| cannot(error.to_string()))? {
            let certificate = certificate.map_err(|error| cannot(error.to_string()))?;
            roots.add(certificate).map_err(|error| cannot(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(cannot("no certificate in it".to_owned()));
        }
    } else {
        // One unreadable certificate of the system must not keep the others from being used.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            let why = "TLS to Redis: the system has no certificate authorities; set store.redis.ca_file";
            return Err(StoreError::Invalid(why.to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Invalid(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(config))
}
