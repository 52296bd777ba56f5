//! The access log (operations.md): the old gateway's fields and ours, written off the request path.
//!
//! A request copies its raw values into a bounded buffer under a short lock and goes on;
//! formatting, escaping, redaction and writing happen on a thread of the log's own. What does not
//! fit or cannot be written is counted and lost: no request ever waits for a disk.

mod encode;
mod entry;
mod fields;
mod format;
mod queue;
mod redact;
mod settings;
mod sink;
#[cfg(test)]
mod tests;
mod values;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use prometheus::IntCounter;

use crate::error::EdgeError;
use crate::metrics::EdgeMetrics;
pub use entry::LogEntry;
pub use fields::Texts;
use format::Formatter;
pub use format::escape_controls;
use queue::Queue;
use redact::Redactor;
use settings::Style;
pub use settings::{Format, Settings};
use sink::{Sink, Writer};
pub use values::{LineValues, UpstreamTry};

impl Style {
    fn formatter(&self) -> Formatter {
        Formatter::new(self.format, Redactor::new(&self.redact_query))
    }
}

/// The open log. Dropping it writes what is queued, for at most a second.
#[derive(Debug)]
pub struct AccessLog {
    queue: Arc<Queue>,
    dropped: IntCounter,
}

impl AccessLog {
    /// Opens the file and starts the thread that writes to it.
    ///
    /// # Errors
    /// [`EdgeError::AccessLog`] when the file cannot be opened now. What happens to it later
    /// costs lines, not requests.
    pub fn open(settings: &Settings, metrics: &EdgeMetrics) -> Result<Self, EdgeError> {
        let path = settings.path.as_deref().unwrap_or("-");
        let failed = |source| EdgeError::AccessLog { path: path.to_owned(), source };
        let sink = Sink::open(path).map_err(failed)?;
        let queue = Arc::new(Queue::default());
        let formatter = settings.style().formatter();
        let writer = Writer::new(sink, metrics.access_log_lines.clone(), metrics.access_log_dropped.clone());
        let work = Arc::clone(&queue);
        thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_all(&work, formatter, writer))
            .map_err(failed)?;
        Ok(Self { queue, dropped: metrics.access_log_dropped.clone() })
    }

    /// Takes a line. Never waits for the disk: what does not fit is counted and lost.
    pub fn submit(&self, entry: &LogEntry<'_>) {
        if !self.queue.push(entry) {
            self.dropped.inc();
        }
    }

    /// Opens the file anew (SIGUSR1), after what is queued was written to the old one. If that
    /// fails the old file stays in use and opening is tried again every second.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Takes another format and other keys to redact, for lines submitted from now on. The path
    /// stays what it was.
    pub fn update(&self, settings: &Settings) {
        self.queue.style(settings.style());
    }

    /// Writes what is queued and ends the thread; gives up after `wait`. Whether all was written.
    /// Lines submitted afterwards are lost and counted.
    pub fn close(&self, wait: Duration) -> bool {
        self.queue.close(wait)
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.close(Duration::from_secs(1));
    }
}

/// Lines are handed to the system in pieces of about this size.
const PIECE: usize = 64 * 1024;

/// What the log's own thread runs: it takes batches from the queue until the queue is closed, and writes their
/// lines.
fn write_all(queue: &Queue, mut formatter: Formatter, mut writer: Writer) {
    let mut out = Vec::with_capacity(PIECE);
    let mut batch = queue::Batch::default();
    loop {
        let order = queue.take(&mut batch);
        let mut styles = order.styles.into_iter().peekable();
        let mut count = 0;
        for (n, (record, text)) in batch.lines().enumerate() {
            while let Some((_, style)) = styles.next_if(|(from, _)| *from <= n) {
                formatter = style.formatter();
            }
            formatter.line(record, text, &mut out);
            count += 1;
            if out.len() >= PIECE {
                writer.write(&out, std::mem::take(&mut count));
                out.clear();
            }
        }
        writer.write(&out, count);
        out.clear();
        out.shrink_to(4 * PIECE);
        batch.clear();
        if let Some((_, style)) = styles.last() {
            formatter = style.formatter();
        }
        if order.reopen {
            writer.reopen();
        }
        if order.close {
            queue.ended();
            return;
        }
    }
}
