//! One certificate pair: what its two files hold, and whether that holds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ahash::RandomState;
use cube_settings::{Described, FileForm, NonZeroSpan};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// An operator is told this long before a certificate expires.
const SOON: Duration = Duration::from_secs(14 * DAY);
const DAY: u64 = 24 * 3600;

/// Why a certificate does not hold, and which of its files is to blame. The message names the file,
/// never its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The file with the chain.
    #[error("{0}")]
    Cert(String),
    /// The file with the key.
    #[error("{0}")]
    Key(String),
    /// There is no certificate at all, or TLS itself cannot be set up.
    #[error("{0}")]
    Unusable(String),
}

cube_settings::section! {
    /// The `tls` section of config.md: certificates of the https listener.
    #[derive(Debug, Clone, PartialEq)]
    pub struct TlsSettings in "tls" {
        /// The first is the default, for clients that name no or an unknown host.
        live certificates: Vec<CertificateFiles> = Vec::new(),
        /// How often the files are looked at for a change.
        live reload_interval: Duration as NonZeroSpan = Duration::from_secs(10),
    }
}

/// The files of a pair (`tls.certificates`), both PEM and both named: there is no default to fall back to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// The certificate, then its intermediates.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Described for CertificateFiles {
    fn words() -> String {
        "`{ cert: PATH, key: PATH }`".to_owned()
    }
}

impl FileForm<Self> for CertificateFiles {
    fn read(self) -> Self {
        self
    }

    fn write(value: &Self) -> Self {
        value.clone()
    }
}

/// What the two files held when they were read, whether it holds or not.
pub(super) struct FileContents {
    cert: Result<Vec<u8>, CertificateError>,
    key: Result<Vec<u8>, CertificateError>,
}

impl FileContents {
    pub(super) fn read(files: &CertificateFiles) -> Self {
        let read = |path: &Path| {
            // Opening a FIFO waits for whoever writes to it, and nothing would be looked at again.
            let found = std::fs::metadata(path).and_then(|found| {
                if found.is_file() {
                    std::fs::read(path)
                } else {
                    Err(std::io::Error::other("no regular file"))
                }
            });
            found.map_err(|error| format!("{}: {error}", path.display()))
        };
        Self {
            cert: read(&files.cert).map_err(CertificateError::Cert),
            key: read(&files.key).map_err(CertificateError::Key),
        }
    }

    /// Tells this content from another. Times and sizes would not: files that are renamed into
    /// place within one tick of the clock can have the same.
    pub(super) fn print(&self, hasher: &RandomState) -> u64 {
        let text = |half: &Result<Vec<u8>, CertificateError>| match half {
            Ok(bytes) => (true, bytes.clone()),
            Err(error) => (false, error.to_string().into_bytes()),
        };
        hasher.hash_one((text(&self.cert), text(&self.key)))
    }
}

/// A pair that holds: both halves are sound and belong together.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// DNS names of the certificate, in lower case.
    pub(super) names: Vec<String>,
    pub(super) key: Arc<CertifiedKey>,
    /// Unix seconds.
    expires: i64,
}

impl Certificate {
    /// Reads a pair.
    ///
    /// # Errors
    /// [`CertificateError`] with the file and the reason.
    pub fn read(files: &CertificateFiles) -> Result<Self, CertificateError> {
        Self::parse(files, FileContents::read(files), &rustls::crypto::ring::default_provider())
    }

    pub(super) fn parse(
        files: &CertificateFiles,
        content: FileContents,
        provider: &CryptoProvider,
    ) -> Result<Self, CertificateError> {
        let cert = |what: String| CertificateError::Cert(format!("{}: {what}", files.cert.display()));
        let key = |what: String| CertificateError::Key(format!("{}: {what}", files.key.display()));
        let (chain, secret) = (content.cert?, content.key?);
        let chain = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| cert(broken(&error)))?;
        let leaf = chain.first().ok_or_else(|| cert("holds no certificate in PEM form".to_owned()))?;
        let (names, expires) = look_into(leaf).map_err(cert)?;
        let secret = PrivateKeyDer::from_pem_slice(&secret).map_err(|error| {
            key(match error {
                PemError::NoItemsFound => "holds no private key in PEM form".to_owned(),
                other => broken(&other),
            })
        })?;
        let secret =
            provider.key_provider.load_private_key(secret).map_err(|error| key(error.to_string()))?;
        let certified = CertifiedKey::new(chain, secret);
        match certified.keys_match() {
            Ok(()) => Ok(Self { names, key: Arc::new(certified), expires }),
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(key(format!("is not the key of {}", files.cert.display())))
            }
            Err(error) => Err(cert(error.to_string())),
        }
    }

    /// When it expires, unix seconds.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.expires
    }

    /// How its end looks at `now`.
    #[must_use]
    pub fn standing(&self, now: SystemTime) -> CertificateExpiry {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let left = self.expires.saturating_sub(i64::try_from(now).unwrap_or(i64::MAX));
        match u64::try_from(left) {
            Err(_) | Ok(0) => CertificateExpiry::Expired,
            Ok(left) if left <= SOON.as_secs() => CertificateExpiry::Expiring { days: left / DAY },
            Ok(_) => CertificateExpiry::Good,
        }
    }
}

/// How near the end of a certificate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateExpiry {
    /// More than 14 days away.
    Good,
    /// At most 14 days away.
    Expiring {
        /// Whole days that are left.
        days: u64,
    },
    /// Past: clients refuse it.
    Expired,
}

impl CertificateExpiry {
    /// What an operator should know, if anything.
    #[must_use]
    pub fn warning(self) -> Option<String> {
        match self {
            CertificateExpiry::Good => None,
            CertificateExpiry::Expiring { days: 0 } => {
                Some("the certificate expires within a day".to_owned())
            }
            CertificateExpiry::Expiring { days: 1 } => Some("the certificate expires in 1 day".to_owned()),
            CertificateExpiry::Expiring { days } => Some(format!("the certificate expires in {days} days")),
            CertificateExpiry::Expired => Some("the certificate has expired: clients refuse it".to_owned()),
        }
    }
}

/// What is wrong with the PEM, without a word of what it holds: the library's messages show it.
fn broken(error: &PemError) -> String {
    match error {
        PemError::MissingSectionEnd { .. } => "the PEM form is cut off".to_owned(),
        _ => "is no sound PEM form".to_owned(),
    }
}

/// DNS names in lower case, and when it expires.
fn look_into(leaf: &CertificateDer<'_>) -> Result<(Vec<String>, i64), String> {
    let (_, parsed) =
        X509Certificate::from_der(leaf).map_err(|error| format!("is no certificate: {error}"))?;
    let names = parsed.subject_alternative_name().map_err(|error| format!("its names: {error}"))?;
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let dns = names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    Ok((dns.collect(), parsed.validity().not_after.timestamp()))
}
