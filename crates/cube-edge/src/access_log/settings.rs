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

cube_settings::section! {
    /// The `access_log` section of config.md.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Settings in "access_log" {
        /// The file, or `-` for standard output; a FIFO does too. `None`: no access log.
        restart path: Option<String> = None,
        /// How a line looks.
        live format: Format = Format::Cube,
        /// Query keys whose values are replaced, compared after percent-decoding and without case.
        live redact_query: Vec<String> as Vec<Lowercase> = Settings::REDACT_QUERY.map(String::from).into(),
    }
}

cube_settings::written_as_text! {
    struct Lowercase for String { read: |text| Ok(text.to_lowercase()), write: Clone::clone }
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
