//! A certificate authority of the test's own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::within;

/// Signs certificates, and makes clients that trust only what it signed.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new one.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    /// Its own certificate.
    #[must_use]
    pub fn root(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// Writes `<name>.pem` and `<name>.key` for these host names; the two paths.
    #[must_use]
    pub fn issue(&self, directory: &Path, name: &str, hosts: &[&str]) -> (PathBuf, PathBuf) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(hosts).expect("host names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let (chain, secret) = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
        std::fs::write(&chain, certificate.pem()).expect("a writable directory");
        std::fs::write(&secret, key.serialize_pem()).expect("a writable directory");
        (chain, secret)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

/// Connects and checks the certificate for `name`; `alpn` as offered.
pub(crate) async fn connect(
    address: SocketAddr,
    root: &CertificateDer<'static>,
    name: &str,
    alpn: &[&str],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let stream = within("a connection", TcpStream::connect(address)).await.expect("a connection");
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from(name.to_owned()).expect("a server name");
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    within("a TLS handshake", handshake).await.expect("a TLS handshake")
}
