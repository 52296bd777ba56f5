//! Standard error that goes to systemd's journal: a priority before each line, in the form of
//! `sd-daemon(3)`, and no time, which the journal keeps itself.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether standard error is the stream that `JOURNAL_STREAM` names by device and inode. It may have
/// been inherited by a process whose standard error is another one.
pub(crate) fn is_stderr() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let Ok(found) = rustix::fs::fstat(std::io::stderr()) else { return false };
    stream.to_str() == Some(format!("{}:{}", found.st_dev, found.st_ino).as_str())
}

/// What is put before a line that tells of a failure of the whole process.
pub(crate) const ERROR: &str = "<3>";

/// Another format with the priority before each line.
pub(super) struct Prioritised<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str(priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => ERROR,
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_has_its_priority_first_and_no_time() {
        let written = Written::default();
        let writer = written.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .map_event_format(Prioritised);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(n = 1, "look");
            tracing::error!("alas");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert!(lines[0].starts_with("<4> WARN ") && lines[0].ends_with("look n=1"), "{text}");
        assert!(lines[1].starts_with("<3>ERROR ") && lines[1].ends_with("alas"), "{text}");
    }

    #[test]
    fn the_standard_error_of_a_test_is_no_journal() {
        assert!(!is_stderr());
    }
}
