//! How a line looks. A value cannot leave its field: whatever a client sends, there is one line a
//! request with its fields in their places.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{Local, TimeZone};

use super::encode::{Put, three_digits};
use super::entry::QueuedEntry;
use super::fields::{self, LineParts, LineWriter, Texts};
use super::redact::Redactor;
use super::settings::Format;

/// Turns entries of the queue into lines.
#[derive(Debug)]
pub(super) struct Formatter {
    format: Format,
    redactor: Redactor,
    clock: LocalTime,
}

impl Formatter {
    pub(super) fn new(format: Format, redactor: Redactor) -> Self {
        Self { format, redactor, clock: LocalTime::default() }
    }

    /// Appends one line, its end included.
    pub(super) fn line(&mut self, record: &QueuedEntry, packed: &[u8], out: &mut Vec<u8>) {
        let texts = record.texts(packed);
        let request_uri = self.redactor.redact(texts.request_uri);
        let args = request_uri.iter().position(|b| *b == b'?').and_then(|at| request_uri.get(at + 1..));
        let uri = self.redactor.redact(texts.uri);
        let parts = LineParts {
            values: &record.values,
            upstreams: &record.upstreams,
            texts: Texts { request_uri: &request_uri, uri: &uri, ..texts },
            args: args.unwrap_or_default(),
            time: self.clock.text(record.values.time),
        };
        match self.format {
            Format::Cube => {
                // All texts in one pass without a branch, which is a vector or two: hardly a line
                // has anything to escape.
                let clean = !packed.iter().fold(false, |found, byte| found | special(*byte));
                fields::write(&mut Cube { out, first: true, clean }, &parts);
                out.push(b'\n');
            }
            Format::Json => {
                out.push(b'{');
                fields::write(&mut Json { out, first: true }, &parts);
                out.extend_from_slice(b"}\n");
            }
        }
    }
}

/// The old gateway's format.
struct Cube<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
    /// No text has anything to escape.
    clean: bool,
}

impl Cube<'_> {
    fn next(&mut self) {
        if !std::mem::take(&mut self.first) {
            self.out.extend_from_slice(b"||");
        }
    }
}

impl LineWriter for Cube<'_> {
    fn text(&mut self, _: &str, value: &[u8]) {
        self.next();
        match value {
            b"" => self.out.push(b'-'),
            b"-" => self.out.extend_from_slice(b"\\x2D"),
            _ if self.clean => self.out.extend_from_slice(value),
            _ => escape(value, self.out),
        }
    }

    fn plain(&mut self, _: &str, value: Option<impl Put>) {
        self.next();
        match value {
            Some(value) => value.put(self.out),
            None => self.out.push(b'-'),
        }
    }

    fn number(&mut self, name: &str, value: Option<impl Put>) {
        self.plain(name, value);
    }

    fn named(&mut self, _: &str, _: Option<impl Put>) {}
}

/// Control bytes, bytes from 0x7F up, the separator, backslash and quote.
fn special(byte: u8) -> bool {
    !(0x20..0x7F).contains(&byte) | (byte == b'|') | (byte == b'\\') | (byte == b'"')
}

/// What is [`special`] as `\xHH`.
fn escape(value: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| special(*byte)) {
        let (clean, after) = rest.split_at_checked(at).unwrap_or_default();
        out.extend_from_slice(clean);
        let Some((byte, after)) = after.split_first() else { return };
        out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 15)]);
        rest = after;
    }
    out.extend_from_slice(rest);
}

/// One JSON object a line.
struct Json<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl Json<'_> {
    fn key(&mut self, name: &str) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        name.put(self.out);
        self.out.extend_from_slice(b"\":");
    }

    fn string(&mut self, value: &str) {
        let from = self.out.len();
        // Writing a string to memory does not fail.
        let _ = serde_json::to_writer(&mut *self.out, value);
        let written = self.out.get(from..).unwrap_or_default();
        if let Cow::Owned(escaped) = escape_controls(written) {
            self.out.truncate(from);
            self.out.extend_from_slice(&escaped);
        }
    }
}

impl LineWriter for Json<'_> {
    fn text(&mut self, name: &str, value: &[u8]) {
        self.key(name);
        if value.is_empty() {
            return self.out.extend_from_slice(b"null");
        }
        self.string(&String::from_utf8_lossy(value));
    }

    fn plain(&mut self, name: &str, value: Option<impl Put>) {
        self.key(name);
        match value {
            Some(value) => {
                self.out.push(b'"');
                value.put(self.out);
                self.out.push(b'"');
            }
            None => self.out.extend_from_slice(b"null"),
        }
    }

    fn named(&mut self, name: &str, value: Option<impl Put>) {
        self.plain(name, value);
    }

    fn number(&mut self, name: &str, value: Option<impl Put>) {
        self.key(name);
        match value {
            Some(value) => value.put(self.out),
            None => self.out.extend_from_slice(b"null"),
        }
    }
}

/// Local time as text; the part down to the second is kept, since most lines share it.
#[derive(Debug, Default)]
struct LocalTime {
    second: Option<u64>,
    text: String,
}

impl LocalTime {
    /// `YYYY-MM-DDTHH:MM:SS.mmm`.
    fn text(&mut self, time: SystemTime) -> &str {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.second != Some(since.as_secs()) {
            let unix = i64::try_from(since.as_secs()).unwrap_or(0);
            self.second = Some(since.as_secs());
            self.text = match Local.timestamp_opt(unix, 0).earliest() {
                Some(local) => local.format("%Y-%m-%dT%H:%M:%S").to_string(),
                None => "-".into(),
            };
        }
        const WHOLE: usize = "YYYY-MM-DDTHH:MM:SS".len();
        self.text.truncate(WHOLE);
        self.text.push('.');
        self.text.extend(three_digits(since.subsec_millis()).map(char::from));
        &self.text
    }
}

/// JSON without the control characters that its grammar allows in a string (U+007F to U+009F), for
/// lines that people read in a terminal: some take U+009B for the beginning of a command.
#[must_use]
pub fn escape_controls(json: &[u8]) -> Cow<'_, [u8]> {
    if !json.iter().any(|byte| matches!(byte, 0x7f | 0xc2)) {
        return Cow::Borrowed(json);
    }
    let mut out = Vec::with_capacity(json.len() + 16);
    let mut rest = json;
    loop {
        rest = match rest {
            [0x7f, rest @ ..] => {
                out.extend_from_slice(b"\\u007f");
                rest
            }
            // U+0080 to U+009F in UTF-8.
            [0xc2, low @ 0x80..=0x9f, rest @ ..] => {
                out.extend_from_slice(format!("\\u00{low:02x}").as_bytes());
                rest
            }
            [byte, rest @ ..] => {
                out.push(*byte);
                rest
            }
            [] => return Cow::Owned(out),
        };
    }
}
