//! Who may sign the certificate of the control plane (routing.md). There is no way to leave it
//! unverified.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cube_settings::{FileForm, FilePath};
use pingora::protocols::tls::CaType;
use pingora::utils::tls::{WrappedX509, parse_x509};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::connection::CertificateError;

/// The authorities that a certificate must come from.
#[derive(Clone)]
pub struct TlsTrust(Option<Arc<CaType>>);

impl TlsTrust {
    /// Those that the system trusts.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// Those in a PEM file, and no others.
    ///
    /// # Errors
    /// [`CertificateError`] when the file cannot be read, has none in it, or one that is no
    /// certificate of an authority.
    pub fn from_file(path: &Path) -> Result<Self, CertificateError> {
        let broken = |what: String| CertificateError::Cert(format!("{}: {what}", path.display()));
        let pem = std::fs::read(path).map_err(|error| broken(error.to_string()))?;
        let mut all = Vec::new();
        for der in CertificateDer::pem_slice_iter(&pem) {
            let der = der.map_err(|error| broken(error.to_string()))?;
            // What Pingora does with it for each connection, where an error would be late.
            RootCertStore::empty().add(der.clone()).map_err(|error| broken(error.to_string()))?;
            X509Certificate::from_der(&der).map_err(|error| broken(error.to_string()))?;
            all.push(WrappedX509::new(der.to_vec(), parse_x509));
        }
        if all.is_empty() {
            return Err(broken("holds no certificate in PEM form".to_owned()));
        }
        Ok(Self(Some(all.into())))
    }

    /// For Pingora; `None`: what it loaded from the system.
    pub(crate) fn authorities(&self) -> Option<Arc<CaType>> {
        self.0.clone()
    }

    /// For a client that verifies by itself. Of the system's authorities those that can be read.
    #[must_use]
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        match self.raw() {
            // Each of them was added to a store before.
            Some(all) => roots.add_parsable_certificates(all.map(|der| CertificateDer::from_slice(der))),
            None => roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        };
        roots
    }

    fn raw(&self) -> Option<impl Iterator<Item = &Vec<u8>>> {
        self.0.as_ref().map(|all| all.iter().map(WrappedX509::borrow_raw_cert))
    }
}

impl PartialEq for TlsTrust {
    fn eq(&self, other: &Self) -> bool {
        match (self.raw(), other.raw()) {
            (Some(own), Some(others)) => own.eq(others),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for TlsTrust {}

impl fmt::Debug for TlsTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(all) => write!(f, "TlsTrust({} authorities)", all.len()),
            None => f.write_str("TlsTrust(system)"),
        }
    }
}

/// `routing.control_plane.ca_file`: a file of authorities, and what it holds once it was read. It stands for
/// what it holds: two with the same authorities are equal.
#[derive(Debug, Clone)]
pub struct TrustFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it holds; `None`: it was not read.
    pub trust: Option<TlsTrust>,
}

impl PartialEq for TrustFile {
    fn eq(&self, other: &Self) -> bool {
        self.trust == other.trust && (self.trust.is_some() || self.path == other.path)
    }
}

impl FileForm<TrustFile> for FilePath {
    fn read(self) -> TrustFile {
        TrustFile { path: FileForm::<PathBuf>::read(self), trust: None }
    }

    fn write(value: &TrustFile) -> Self {
        FileForm::<PathBuf>::write(&value.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_authority_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.pem");
        assert!(TlsTrust::from_file(&file).is_err(), "there is no file");
        for content in ["", "no pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(&file, content).unwrap();
            let error = TlsTrust::from_file(&file).unwrap_err().to_string();
            assert!(error.contains("ca.pem"), "{error}");
        }
        assert_ne!(format!("{:?}", TlsTrust::system()), "");
        assert_eq!(TlsTrust::system(), TlsTrust::system());
    }
}
