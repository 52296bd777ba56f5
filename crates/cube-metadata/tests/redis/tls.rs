//! TLS with verification.

use std::path::Path;

use cube_metadata::{MetadataStore, RedisSettings, StoreError};
use cube_settings::Secret;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::server::{Redis, free_port};
use crate::{connect, id};

/// An authority in `directory`/ca.pem, and a server with a certificate of it for `name`.
fn server(directory: &Path, name: &str) -> Redis {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let file = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let port = free_port();
    let arguments = [
        "--port",
        "0",
        "--tls-port",
        &port.to_string(),
        "--tls-auth-clients",
        "no",
        "--tls-ca-cert-file",
        &file("ca.pem", authority.pem()),
        "--tls-cert-file",
        &file("cert.pem", certificate.pem()),
        "--tls-key-file",
        &file("key.pem", key.serialize_pem()),
    ];
    Redis::start_on(port, &arguments.map(str::to_owned))
}

#[tokio::test]
async fn a_server_with_a_certificate_of_the_authority_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let redis = server(directory.path(), "127.0.0.1");
    let url = format!("rediss://127.0.0.1:{}", redis.port);
    let ca_file = Some(directory.path().join("ca.pem"));
    let store = connect(RedisSettings { url: Secret::new(url), ca_file, ..RedisSettings::default() });
    store.fetch(&id("ab")).await.unwrap();
}

#[tokio::test]
async fn a_certificate_for_another_name_or_of_another_authority_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let redis = server(directory.path(), "redis.example");
    let url = format!("rediss://127.0.0.1:{}", redis.port);
    let settings = RedisSettings {
        url: Secret::new(url),
        ca_file: Some(directory.path().join("ca.pem")),
        ..RedisSettings::default()
    };
    let error = connect(settings.clone()).fetch(&id("ab")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
    let elsewhere = tempfile::tempdir().unwrap();
    let other = server(elsewhere.path(), "127.0.0.1");
    let url = format!("rediss://127.0.0.1:{}", other.port);
    let error =
        connect(RedisSettings { url: Secret::new(url), ..settings }).fetch(&id("ab")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
    let said = error.to_string();
    let server = format!("127.0.0.1:{}: ", other.port);
    assert!(said.contains(&server) && !said.contains("{"), "{said}");
}
