//! Where lines of JSON are written: without the control characters that JSON's grammar allows.

use std::io::{self, Write};

/// Writes to another writer what [`cube_edge::escape_controls`] makes of each line.
pub(super) struct Escaped<W>(pub(super) W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A line comes whole, so that no character is in two pieces.
        self.0.write_all(&cube_edge::escape_controls(line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_control_character_is_in_a_line_and_its_values_are_what_they_were() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || Escaped(writer.clone()));
        let registry = tracing_subscriber::registry().with(layer.json().flatten_event(true));
        let value = "a\u{7f}\u{9b}2J\u{e9}";
        tracing::subscriber::with_default(registry, || tracing::info!(value, "it"));
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(!text.trim_end_matches('\n').contains(char::is_control), "{text:?}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["value"], value);
    }
}
