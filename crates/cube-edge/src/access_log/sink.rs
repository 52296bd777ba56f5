//! Where lines go, and what happens when they cannot.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prometheus::IntCounter;

/// How often a file that cannot be opened is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A file (or FIFO), or standard output.
#[derive(Debug)]
pub(super) struct Sink {
    file: File,
    /// `None` for standard output, which is never opened anew.
    path: Option<PathBuf>,
}

impl Sink {
    /// Opens `path`; `-` is standard output.
    pub(super) fn open(path: &str) -> io::Result<Self> {
        if path == "-" {
            // A descriptor of its own: standard output's buffer would hold lines back.
            let fd = io::stdout().as_fd().try_clone_to_owned()?;
            return Ok(Self { file: fd.into(), path: None });
        }
        Ok(Self { file: open(Path::new(path))?, path: Some(path.into()) })
    }

    /// Whether the file was removed: what is written to it, nobody will read.
    fn removed(&self) -> bool {
        self.path.is_some() && self.file.metadata().is_ok_and(|file| file.nlink() == 0)
    }
}

fn open(path: &Path) -> io::Result<File> {
    let fifo = path.metadata().is_ok_and(|file| file.file_type().is_fifo());
    // Reading, too, keeps the opening of a FIFO from waiting for a reader.
    OpenOptions::new().append(true).create(!fifo).read(fifo).mode(0o640).open(path)
}

/// Writes to a sink, counts what is lost, and reports the beginning and the end of trouble.
#[derive(Debug)]
pub(super) struct Writer {
    sink: Sink,
    written: IntCounter,
    lost: IntCounter,
    /// The last write ended within a line.
    torn: bool,
    /// Lines lost since the trouble began.
    trouble: u64,
    /// When to open the file again; it could not be opened, or was removed.
    reopen_at: Option<Instant>,
}

impl Writer {
    pub(super) fn new(sink: Sink, written: IntCounter, lost: IntCounter) -> Self {
        Self { sink, written, lost, torn: false, trouble: 0, reopen_at: None }
    }

    /// Opens the file anew; the old one stays in use if that fails.
    pub(super) fn reopen(&mut self) {
        let Some(path) = &self.sink.path else {
            return;
        };
        match open(path) {
            Ok(file) => {
                self.sink.file = file;
                self.torn = false;
                self.reopen_at = None;
            }
            Err(error) => {
                if self.reopen_at.is_none() {
                    tracing::error!(path = %path.display(), %error, "the access log cannot be opened");
                }
                self.reopen_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Writes `count` whole lines, or counts those it cannot write.
    pub(super) fn write(&mut self, lines: &[u8], count: u64) {
        if lines.is_empty() {
            return;
        }
        let removed = self.sink.removed();
        if self.reopen_at.map_or(removed, |at| at <= Instant::now()) {
            self.reopen();
        }
        let (rest, result) = if removed && self.reopen_at.is_some() {
            (lines, Err(io::ErrorKind::NotFound.into()))
        } else {
            self.put(lines)
        };
        let lost = count_lines(rest);
        self.written.inc_by(count.saturating_sub(lost));
        self.lost.inc_by(lost);
        match result {
            Err(error) if self.trouble == 0 => {
                tracing::error!(%error, "the access log cannot be written: lines are lost");
            }
            Ok(()) if self.trouble > 0 => {
                tracing::info!(lost = self.trouble, "the access log is written again");
                self.trouble = 0;
            }
            _ => {}
        }
        self.trouble += lost;
    }

    /// What was not written, and why.
    fn put<'a>(&mut self, lines: &'a [u8]) -> (&'a [u8], io::Result<()>) {
        if self.torn {
            // What follows a broken line begins a new one.
            if let Err(error) = self.sink.file.write_all(b"\n") {
                return (lines, Err(error));
            }
            self.torn = false;
        }
        let mut rest = lines;
        while !rest.is_empty() {
            match self.sink.file.write(rest) {
                Ok(0) => return (rest, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    let (done, after) = rest.split_at_checked(count).unwrap_or((rest, &[]));
                    self.torn = done.last() != Some(&b'\n');
                    rest = after;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (rest, Err(error)),
            }
        }
        (rest, Ok(()))
    }
}

/// Each line has one end, since no value can hold another.
fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}
