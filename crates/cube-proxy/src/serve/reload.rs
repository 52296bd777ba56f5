//! SIGHUP: the configuration read again, judged as a whole, then put in force as far as a running
//! process can (operations.md, Configuration).

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use cube_edge::{CertificateError, Certificates, Gateway, Reconfiguration};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use tokio::sync::Notify;

use super::edge_settings;
use crate::config::{self, Config, Environment, KEYS, Takes};
use crate::error::StartError;
use crate::logging;

/// Reads the configuration again when it is asked to.
pub(super) struct Reload {
    /// The file as named on the command line; `None`: there is none to read again.
    file: Option<PathBuf>,
    running: ArcSwap<Config>,
    gateway: Arc<Gateway>,
    certificates: Option<Arc<Certificates>>,
    asked: Notify,
    metrics: Metrics,
}

struct Metrics {
    applied: IntCounter,
    refused: IntCounter,
    last_successful: IntGauge,
}

impl Metrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let reloads = IntCounterVec::new(
            Opts::new("cube_proxy_config_reloads_total", "Configurations read again at SIGHUP."),
            &["outcome"],
        )?;
        let last_successful = IntGauge::new(
            "cube_proxy_config_last_reload_successful",
            "1 when the configuration that was read last is in force, as far as a running process can take it.",
        )?;
        registry.register(Box::new(reloads.clone()))?;
        registry.register(Box::new(last_successful.clone()))?;
        last_successful.set(1);
        Ok(Self {
            applied: reloads.with_label_values(&["applied"]),
            refused: reloads.with_label_values(&["refused"]),
            last_successful,
        })
    }
}

impl Reload {
    /// For a process that serves with `running`, read from `file`.
    ///
    /// # Errors
    /// [`StartError`] when its metrics are registered already.
    pub(super) fn new(
        file: Option<PathBuf>,
        running: Config,
        gateway: Arc<Gateway>,
        certificates: Option<Arc<Certificates>>,
        registry: &Registry,
    ) -> Result<Arc<Self>, StartError> {
        let metrics = Metrics::new(registry).map_err(super::not_assembled)?;
        Ok(Arc::new(Self {
            file,
            running: ArcSwap::from_pointee(running),
            gateway,
            certificates,
            asked: Notify::new(),
            metrics,
        }))
    }

    /// The configuration in force.
    pub(super) fn running(&self) -> Arc<Config> {
        self.running.load_full()
    }

    /// Asks for the configuration to be read again; returns at once.
    pub(super) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Reads again when asked, and looks after the certificates. To be spawned once.
    pub(super) async fn run(self: Arc<Self>) {
        if let Some(certificates) = &self.certificates {
            let this = self.clone();
            tokio::spawn(certificates.clone().follow(move || this.running.load().tls.reload_interval));
        }
        loop {
            self.asked.notified().await;
            let this = self.clone();
            // Reading a configuration reads files, which may block.
            match tokio::task::spawn_blocking(move || this.again()).await {
                Ok(Ok(())) => {
                    self.metrics.last_successful.set(1);
                    self.metrics.applied.inc();
                }
                Ok(Err(error)) => self.refuse(&error.to_string()),
                Err(error) => self.refuse(&error.to_string()),
            }
        }
    }

    fn refuse(&self, error: &str) {
        self.metrics.last_successful.set(0);
        self.metrics.refused.inc();
        for line in error.lines() {
            tracing::error!("the new configuration does not hold, the old one stays in force: {line}");
        }
    }

    /// Nothing is changed until everything is known to hold.
    fn again(&self) -> Result<(), StartError> {
        let Some(file) = &self.file else {
            tracing::info!("SIGHUP: there is no configuration file to read again");
            return Ok(());
        };
        // A FIFO would be waited for, and nothing be read again after it; a file that is empty just
        // now is being written.
        if let Ok(found) = std::fs::metadata(file)
            && (!found.is_file() || found.len() == 0)
        {
            let source = std::io::Error::other("no regular file, or empty");
            return Err(StartError::File { path: file.clone(), source });
        }
        let running = self.running();
        let mut loaded = config::load(file, &Environment::process())?;
        let mut wanted = loaded.config.clone();
        // Where none is configured the process has found one for itself.
        wanted.server.run_dir = wanted.server.run_dir.or_else(|| running.server.run_dir.clone());
        if wanted.errors.dialect != running.errors.dialect
            || wanted.upstream.pool_size != running.upstream.pool_size
        {
            // Other defaults follow from these two, which only a new process can take: without them
            // nothing that follows from them may come into force.
            loaded = config::load(file, &as_running(&running))?;
        }
        let new = loaded.config.live_over(&running);
        let others = new.tls.certificates != running.tls.certificates;
        let certificates = self
            .certificates
            .as_ref()
            .filter(|_| others)
            .map(|current| Ok::<_, CertificateError>((current, current.prepare(&new.tls.certificates)?)))
            .transpose()
            .map_err(|error| StartError::Assembly(format!("tls.certificates: {error}")))?;
        let settings = Reconfiguration {
            settings: edge_settings::of(&new)?,
            resolver: new.cache.clone(),
            lifecycle: new.lifecycle(),
            breaker: new.breaker.clone(),
            access_log: edge_settings::access_log(&new),
            admin_token: new.admin.token().cloned(),
        };
        self.gateway.update(settings).map_err(super::not_assembled)?;
        match (certificates, &self.certificates) {
            (Some((current, others)), _) => current.replace(others),
            // The same files may hold others by now.
            (None, Some(current)) => current.look(),
            (None, None) => {}
        }
        logging::set_level(new.log.level);
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        tell(&running, &wanted, &new);
        self.running.store(Arc::new(new));
        Ok(())
    }
}

/// The environment that makes what is read resolve as the running process would.
fn as_running(running: &Config) -> Environment {
    let dialect = running.errors.dialect.as_str();
    Environment::process()
        .with("CUBE_PROXY_ERRORS__DIALECT", dialect)
        .with("CUBE_PROXY_UPSTREAM__POOL_SIZE", &running.upstream.pool_size.to_string())
}

/// Says by key what came into force and what did not; never a value, which may be a secret.
fn tell(running: &Config, wanted: &Config, new: &Config) {
    let names = |keys: Vec<&'static str>| keys.join(", ");
    let changed = names(KEYS.iter().filter(|key| !(key.same)(running, new)).map(|key| key.name).collect());
    let left = KEYS.iter().filter(|key| !(key.same)(wanted, new));
    // What only follows from such a key is not the operator's to change.
    let left = names(
        left.filter(|key| key.takes == Takes::Restart || key.name == "tls.certificates")
            .map(|key| key.name)
            .collect(),
    );
    if changed.is_empty() {
        tracing::info!(
            "the configuration was read again: nothing has changed that a running process can take"
        );
    } else {
        tracing::info!(changed, "the configuration was read again and is in force");
    }
    if !left.is_empty() {
        tracing::warn!(keys = left, "these take effect with an upgrade or a restart only");
    }
}
