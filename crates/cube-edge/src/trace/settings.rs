//! What the configuration says of traces.

use cube_settings::{Described, FileForm, FilePath, SecretFile, Share};
use serde::{Deserialize, Serialize};

use crate::tls_trust::TrustFile;

cube_settings::section! {
    /// The `tracing` section of config.md (fleet.md, Tracing).
    #[derive(Debug, Clone, PartialEq)]
    pub struct TracingSettings in "tracing" {
        /// Where spans go.
        section otlp: OtlpKeys = OtlpKeys::default(),
    }
}

cube_settings::section! {
    /// A collector of spans, as it is written (config.md, `tracing.otlp`).
    #[derive(Debug, Clone, PartialEq)]
    pub struct OtlpKeys in "tracing.otlp" {
        /// `http` or `https`, a host and a path; `None`: no request is traced.
        restart endpoint: Option<String> = None,
        /// By whom the certificate of an `https` endpoint must be signed; `None`: the system's authorities.
        restart ca_file: Option<TrustFile> as Option<FilePath> = None,
        /// Sent with each export.
        restart headers: Vec<HeaderFile> = Vec::new(),
        /// The share of requests that is traced where no trusted peer has decided.
        live sample_ratio: f64 as Share = 0.01,
        /// `service.name`.
        restart service_name: String = "cube-proxy".to_owned(),
    }
}

/// A header whose value is a secret in a file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderFile {
    /// Its name.
    pub name: String,
    /// What holds its value.
    pub file: SecretFile,
}

impl Described for HeaderFile {
    fn words() -> String {
        "`{ name: NAME, file: PATH }`".to_owned()
    }
}

impl FileForm<Self> for HeaderFile {
    fn read(self) -> Self {
        self
    }

    fn write(value: &Self) -> Self {
        value.clone()
    }
}
