//! How the access log is configured.

cube_settings::choice! {
    /// `access_log.format`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Format {
        /// The old gateway's fields between `||`, ours appended.
        #[default]
        Cube = "cube",
        /// One JSON object a line; an absent value is `null`.
        Json = "json",
    }
}

/// Section `access_log` of the configuration, where a path is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The file, or `-` for standard output. A FIFO does too.
    pub path: String,
    /// How a line looks.
    pub format: Format,
    /// Query keys whose values are replaced, compared after percent-decoding and without case.
    pub redact_query: Vec<String>,
}

/// How lines look: what of the settings can change while the log is open.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) format: Format,
    pub(super) redact_query: Vec<String>,
}

impl Settings {
    pub(super) fn style(&self) -> Style {
        Style { format: self.format, redact_query: self.redact_query.clone() }
    }

    /// The keys that are redacted by default.
    pub const REDACT_QUERY: [&str; 9] =
        ["token", "access_token", "signature", "sig", "key", "secret", "password", "auth", "x-amz-signature"];
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path: "-".into(),
            format: Format::default(),
            redact_query: Self::REDACT_QUERY.map(String::from).into(),
        }
    }
}
