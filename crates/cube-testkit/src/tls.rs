//! A certificate authority of the test's own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{Client, within};

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
        // A name of its own, or OpenSSL takes what it signs for self-signed.
        params.distinguished_name.push(DnType::CommonName, "Example Authority");
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    /// Its own certificate.
    #[must_use]
    pub fn root(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// The same as clients read it from a file.
    #[must_use]
    pub fn root_pem(&self) -> String {
        self.issuer.pem()
    }

    /// Writes `<name>.pem` and `<name>.key` for these host names; the two paths.
    #[must_use]
    pub fn issue(&self, directory: &Path, name: &str, hosts: &[&str]) -> (PathBuf, PathBuf) {
        self.issue_for(directory, name, hosts, Duration::from_secs(365 * 24 * 3600))
    }

    /// The same, expiring so long from now.
    #[must_use]
    pub fn issue_for(
        &self,
        directory: &Path,
        name: &str,
        hosts: &[&str],
        life: Duration,
    ) -> (PathBuf, PathBuf) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(hosts).expect("host names");
        params.not_after = (SystemTime::now() + life).into();
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let (chain, secret) = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
        std::fs::write(&chain, certificate.pem()).expect("a writable directory");
        std::fs::write(&secret, key.serialize_pem()).expect("a writable directory");
        (chain, secret)
    }
}

impl Authority {
    /// Writes its own certificate as PEM; the path.
    #[must_use]
    pub fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(format!("{name}.pem"));
        std::fs::write(&path, self.issuer.pem()).expect("a writable directory");
        path
    }

    /// Serves TLS on 127.0.0.1 with a certificate for `hosts`, in front of a plain `origin`.
    pub async fn front(&self, hosts: &[&str], origin: SocketAddr) -> TlsFront {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(hosts).expect("host names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key).into())
            .expect("a pair");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let names = Arc::<Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&names);
        let accepting = async move {
            let mut serving = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                serving.spawn(async move {
                    let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                    seen.lock().unwrap().push(tls.get_ref().1.server_name().map(str::to_owned));
                    let Ok(mut plain) = TcpStream::connect(origin).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
                });
            }
        };
        TlsFront { address, names, task: tokio::spawn(accepting).abort_handle() }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

/// A server's TLS in front of a plain origin; ends when it is dropped.
pub struct TlsFront {
    address: SocketAddr,
    names: Arc<Mutex<Vec<Option<String>>>>,
    task: AbortHandle,
}

impl TlsFront {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server names that were asked for, a handshake each.
    #[must_use]
    pub fn names(&self) -> Vec<Option<String>> {
        self.names.lock().unwrap().clone()
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.task.abort();
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

/// A client that takes any certificate and says which one it got.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

/// A connection of a [`TlsClient`].
pub struct TlsSession {
    /// The server's certificate, DER.
    pub certificate: Vec<u8>,
    /// Whether a session was taken up again.
    pub resumed: bool,
    /// The connection.
    pub client: Client,
}

impl TlsClient {
    /// One that speaks only that version: `1.2` or `1.3`. It keeps the sessions it was given.
    #[must_use]
    pub fn of(version: &str) -> Self {
        let version = if version == "1.2" { &rustls::version::TLS12 } else { &rustls::version::TLS13 };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .expect("a version")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TakesAny(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self(Arc::new(config))
    }

    /// The same client offering these protocols by ALPN, in place of `http/1.1`.
    #[must_use]
    pub fn offering(mut self, protocols: &[&str]) -> Self {
        let config = Arc::make_mut(&mut self.0);
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        self
    }

    /// Connects and asks for `name`: a host name, or an address, which is not sent.
    ///
    /// # Errors
    /// What the connection or the handshake says.
    pub async fn connect(&self, address: SocketAddr, name: &str) -> std::io::Result<TlsSession> {
        self.connect_after(address, b"", name).await
    }

    /// The same, where something is sent before the handshake begins.
    ///
    /// # Errors
    /// What the connection or the handshake says.
    pub async fn connect_after(
        &self,
        address: SocketAddr,
        before: &[u8],
        name: &str,
    ) -> std::io::Result<TlsSession> {
        let mut stream = within("a connection", TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        stream.write_all(before).await?;
        let name = ServerName::try_from(name.to_owned()).expect("a server name");
        let handshake = TlsConnector::from(self.0.clone()).connect(name, stream);
        let stream = within("a TLS handshake", handshake).await?;
        let session = stream.get_ref().1;
        let certificate = session.peer_certificates().and_then(<[_]>::first).expect("a certificate").to_vec();
        let resumed = session.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        Ok(TlsSession { certificate, resumed, client: Client::over(stream) })
    }
}

/// The first certificate of a file that [`Authority::issue`] wrote, DER.
#[must_use]
pub fn certificate_in(chain: &Path) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject;
    CertificateDer::from_pem_file(chain).expect("a certificate").to_vec()
}

#[derive(Debug)]
struct TakesAny(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for TakesAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
