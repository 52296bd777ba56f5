//! The certificates of the TLS listener: which one a client gets, and how new ones come in.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ahash::RandomState;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use super::certificate::{Certificate, CertificateError, CertificateExpiry, CertificateFiles, FileContents};
use crate::metrics::EdgeMetrics;

/// The files are looked at no more often than this.
const SHORTEST_LOOK: Duration = Duration::from_millis(50);

/// A certificate and the names it is for.
#[derive(Debug)]
struct NamedCertificate {
    exact: Vec<String>,
    /// Without the `*`: `.example.org`.
    wildcard: Vec<String>,
    key: Arc<CertifiedKey>,
}

/// The certificates in force.
#[derive(Debug)]
struct InForce {
    all: Vec<NamedCertificate>,
    default: Arc<CertifiedKey>,
}

impl InForce {
    /// `None` when there is no certificate.
    fn of<'a>(certificates: impl Iterator<Item = &'a Certificate>) -> Option<Self> {
        let all: Vec<NamedCertificate> = certificates
            .map(|certificate| {
                let names = certificate.names.iter().cloned();
                let (wildcard, exact) = names.partition::<Vec<_>, _>(|name| name.starts_with("*."));
                let wildcard = wildcard.iter().map(|name| name.trim_start_matches('*').to_owned()).collect();
                NamedCertificate { exact, wildcard, key: certificate.key.clone() }
            })
            .collect();
        let default = all.first()?.key.clone();
        Some(Self { all, default })
    }

    /// Exact name, then wildcard (one label), then the first of the list.
    fn choose(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let Some(name) = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase()) else {
            return self.default.clone();
        };
        let exact = self.all.iter().find(|named| named.exact.contains(&name));
        let found = exact.or_else(|| {
            let parent = name.find('.').and_then(|dot| name.get(dot..))?;
            self.all.iter().find(|named| named.wildcard.iter().any(|suffix| suffix == parent))
        });
        found.map_or_else(|| self.default.clone(), |named| named.key.clone())
    }
}

/// What the TLS library asks at each handshake. The library's own configuration stays the same for
/// the life of the process, and with it the keys of session tickets: a client may take up its
/// session again after any number of new certificates.
#[derive(Debug)]
struct Current(ArcSwap<InForce>);

impl ResolvesServerCert for Current {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load().choose(hello.server_name()))
    }
}

/// A pair that is looked after.
struct Watched {
    files: CertificateFiles,
    /// The certificate that handshakes are made with.
    certificate: Certificate,
    /// What was read last, whether it held or not: it is judged, and spoken of, once.
    seen: u64,
    /// What was last said about its end.
    said: CertificateExpiry,
}

/// Certificates that were read and hold, to be put in force by [`Certificates::replace`].
pub struct NewCertificates(Vec<Watched>);

/// The certificates of a TLS listener, ready to serve: TLS 1.2 and 1.3, ALPN `h2` and `http/1.1`.
pub struct Certificates {
    acceptor: TlsAcceptor,
    current: Arc<Current>,
    watched: Mutex<Vec<Watched>>,
    hasher: RandomState,
    metrics: Arc<EdgeMetrics>,
}

impl Certificates {
    /// Reads pairs of certificate chain and key. The first is the default.
    ///
    /// # Errors
    /// [`CertificateError`] for the first pair that does not hold.
    pub(crate) fn load(
        files: &[CertificateFiles],
        metrics: Arc<EdgeMetrics>,
    ) -> Result<Self, CertificateError> {
        let hasher = RandomState::new();
        let watched = read(files, &hasher)?;
        let none = || CertificateError::Unusable("no certificate is configured".to_owned());
        let in_force = InForce::of(watched.iter().map(|watched| &watched.certificate)).ok_or_else(none)?;
        let current = Arc::new(Current(ArcSwap::from_pointee(in_force)));
        let unusable = |error: rustls::Error| CertificateError::Unusable(error.to_string());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Sessions are taken up again by tickets, in 1.2 too: nothing is kept for a client that
        // may never come back.
        config.ticketer = ring::Ticketer::new().map_err(unusable)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let this = Self { acceptor, current, watched: Mutex::default(), hasher, metrics };
        this.replace(NewCertificates(watched));
        Ok(this)
    }

    /// Reads other pairs, which change nothing yet.
    ///
    /// # Errors
    /// [`CertificateError`] for the first pair that does not hold.
    pub fn prepare(&self, files: &[CertificateFiles]) -> Result<NewCertificates, CertificateError> {
        read(files, &self.hasher).map(NewCertificates)
    }

    /// Puts other pairs in force, for handshakes that begin from now on. None at all changes
    /// nothing: the listener is open.
    pub fn replace(&self, new: NewCertificates) {
        let mut watched = self.watched.lock();
        if !self.publish(&new.0) {
            return;
        }
        for gone in watched.iter() {
            self.metrics.certificate_gone(&label(&gone.files));
        }
        for new in &new.0 {
            self.metrics.certificate_expires(&label(&new.files), new.certificate.expires());
        }
        *watched = new.0;
    }

    /// Looks at the files: pairs that changed and hold are put in force, those that do not hold
    /// leave the old one there and are spoken of once. Reads files, so it may block.
    pub fn look(&self) {
        let now = SystemTime::now();
        let mut watched = self.watched.lock();
        let mut changed = false;
        for watched in watched.iter_mut() {
            changed |= self.look_at(watched);
            let standing = watched.certificate.standing(now);
            if standing != watched.said {
                watched.said = standing;
                if let Some(warning) = standing.warning() {
                    tracing::warn!(certificate = label(&watched.files), "{warning}");
                }
            }
        }
        if changed {
            self.publish(&watched);
        }
    }

    /// Looks at the files for as long as the process serves, so often that a change is in force
    /// within `interval` (`tls.reload_interval`, asked for anew each time).
    pub async fn follow(self: Arc<Self>, interval: impl Fn() -> Duration) {
        loop {
            tokio::time::sleep((interval() / 2).max(SHORTEST_LOOK)).await;
            let this = self.clone();
            if tokio::task::spawn_blocking(move || this.look()).await.is_err() {
                tracing::error!("certificates are no longer looked after");
                return;
            }
        }
    }

    pub(super) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }

    /// Whether another certificate is to be put in force.
    fn look_at(&self, watched: &mut Watched) -> bool {
        let content = FileContents::read(&watched.files);
        let seen = content.print(&self.hasher);
        if seen == watched.seen {
            return false;
        }
        watched.seen = seen;
        let certificate = label(&watched.files);
        match Certificate::parse(&watched.files, content, &ring::default_provider()) {
            Ok(new) => {
                self.metrics.certificate_expires(&certificate, new.expires());
                watched.certificate = new;
                tracing::info!(certificate, "a new certificate is in force");
                true
            }
            Err(error) => {
                tracing::error!(certificate, "the old certificate stays in force: {error}");
                false
            }
        }
    }

    /// Whether there was a certificate to put in force.
    fn publish(&self, watched: &[Watched]) -> bool {
        let in_force = InForce::of(watched.iter().map(|watched| &watched.certificate));
        let some = in_force.is_some();
        if let Some(in_force) = in_force {
            self.current.0.store(Arc::new(in_force));
        }
        some
    }
}

fn read(files: &[CertificateFiles], hasher: &RandomState) -> Result<Vec<Watched>, CertificateError> {
    let provider = ring::default_provider();
    let now = SystemTime::now();
    let one = |files: &CertificateFiles| {
        let content = FileContents::read(files);
        let seen = content.print(hasher);
        let certificate = Certificate::parse(files, content, &provider)?;
        // What is to be said now, the check of the configuration has said.
        let said = certificate.standing(now);
        Ok(Watched { files: files.clone(), certificate, seen, said })
    };
    files.iter().map(one).collect()
}

/// The certificate in metrics and messages: its file as configured.
fn label(files: &CertificateFiles) -> String {
    files.cert.display().to_string()
}
