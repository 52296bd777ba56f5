//! The certificates of the TLS listener and which one a client gets.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

/// Why the certificates do not hold. The message names the file, never its content.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is no PEM, or has nothing of the kind in it.
    #[error("{}: {what}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is missing or broken.
        what: String,
    },
    /// Certificate and key do not belong together, or the key's kind is not supported.
    #[error("{} and {}: {source}", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What the TLS library said.
        #[source]
        source: rustls::Error,
    },
    /// There is none.
    #[error("no certificate is configured")]
    None,
}

/// A certificate and the names it is for.
#[derive(Debug)]
struct Named {
    exact: Vec<String>,
    /// Without the `*`: `.example.org`.
    wildcard: Vec<String>,
    key: Arc<CertifiedKey>,
}

#[derive(Debug)]
struct ByName {
    all: Vec<Named>,
    default: Arc<CertifiedKey>,
}

impl ByName {
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

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.choose(hello.server_name()))
    }
}

/// The certificates of a TLS listener, ready to serve: TLS 1.2 and 1.3, ALPN `h2` and `http/1.1`.
pub struct Certificates {
    acceptor: TlsAcceptor,
}

impl Certificates {
    /// Reads pairs of certificate chain and key. The first is the default.
    ///
    /// # Errors
    /// [`CertificateError`] for the first pair that does not hold.
    pub fn load(pairs: &[(PathBuf, PathBuf)]) -> Result<Self, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut all = Vec::with_capacity(pairs.len());
        for (cert, key) in pairs {
            let chain = read_chain(cert)?;
            let names = chain.first().map(|leaf| names_of(leaf, cert)).transpose()?.unwrap_or_default();
            let private = read_key(key)?;
            let certified = CertifiedKey::from_der(chain, private, &provider)
                .map_err(|source| CertificateError::Pair { cert: cert.clone(), key: key.clone(), source })?;
            let (wildcard, exact) = names.into_iter().partition::<Vec<_>, _>(|name| name.starts_with("*."));
            let wildcard = wildcard.iter().map(|name| name.trim_start_matches('*').to_owned()).collect();
            all.push(Named { exact, wildcard, key: Arc::new(certified) });
        }
        let default = all.first().map(|named| named.key.clone()).ok_or(CertificateError::None)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| CertificateError::Content { path: PathBuf::new(), what: error.to_string() })?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ByName { all, default }));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    pub(super) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

fn open(path: &Path) -> Result<BufReader<File>, CertificateError> {
    File::open(path)
        .map(BufReader::new)
        .map_err(|source| CertificateError::Read { path: path.to_owned(), source })
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let broken = |what: String| CertificateError::Content { path: path.to_owned(), what };
    let chain = CertificateDer::pem_reader_iter(open(path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| broken(error.to_string()))?;
    if chain.is_empty() {
        return Err(broken("no certificate in it".to_owned()));
    }
    Ok(chain)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    PrivateKeyDer::from_pem_reader(open(path)?).map_err(|_| CertificateError::Content {
        path: path.to_owned(),
        what: "no private key in it".to_owned(),
    })
}

/// The DNS names of a certificate, in lower case.
fn names_of(leaf: &CertificateDer<'_>, path: &Path) -> Result<Vec<String>, CertificateError> {
    use x509_parser::prelude::*;
    let broken = |what: String| CertificateError::Content { path: path.to_owned(), what };
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| broken(error.to_string()))?;
    let names = parsed.subject_alternative_name().map_err(|error| broken(error.to_string()))?;
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    Ok(names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect())
}
