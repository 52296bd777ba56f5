//! Reading certificate pairs: a chain and the key that belongs to it.

use std::path::Path;

use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::types::Certificate;

/// Which half of a pair is wrong, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The file with the chain.
    #[error("{0}")]
    Cert(String),
    /// The file with the key.
    #[error("{0}")]
    Key(String),
}

fn words(path: &Path, error: &PemError) -> String {
    match error {
        PemError::Io(error) => format!("{}: {error}", path.display()),
        PemError::NoItemsFound => format!("{}: nothing of that kind in PEM form", path.display()),
        other => format!("{}: {other}", path.display()),
    }
}

/// Reads the pair and makes sure that both halves are sound and belong together.
///
/// # Errors
/// [`PairError`] with the file and the reason.
pub fn load_pair(pair: &Certificate) -> Result<CertifiedKey, PairError> {
    let cert = |text: String| PairError::Cert(text);
    let chain = CertificateDer::pem_file_iter(&pair.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| cert(words(&pair.cert, &error)))?;
    if chain.is_empty() {
        return Err(cert(format!("{}: holds no certificate in PEM form", pair.cert.display())));
    }
    let key =
        PrivateKeyDer::from_pem_file(&pair.key).map_err(|error| PairError::Key(words(&pair.key, &error)))?;
    let key = ring::sign::any_supported_type(&key)
        .map_err(|error| PairError::Key(format!("{}: {error}", pair.key.display())))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(PairError::Key(format!("{} is not the key of {}", pair.key.display(), pair.cert.display())))
        }
        Err(error) => Err(cert(format!("{}: {error}", pair.cert.display()))),
    }
}
