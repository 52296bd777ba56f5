//! A request's head as its bytes come in: what Pingora does not say about it.

use memchr::{memchr, memchr_iter};

/// What one read may bring beyond a head, which is the beginning of a body.
const SLACK: usize = 16 * 1024;

/// The method, two spaces and the version are less than this.
const LINE: usize = 64;

/// `limits` as far as they concern a head.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeadLimits {
    pub(crate) head: usize,
    pub(crate) headers: usize,
    pub(crate) target: usize,
}

/// Watches one head after the other.
#[derive(Debug)]
pub(crate) struct HeadWatch {
    limits: HeadLimits,
    bytes: usize,
    /// Line feeds so far.
    lines: usize,
    /// Bytes of the request line so far.
    line: usize,
    /// What earlier reads brought of it.
    partial: Vec<u8>,
    line_over: bool,
    /// An empty line before the request line is cut after its CR.
    cut_empty_line: bool,
    /// What the last line has so far.
    last_line: LastLine,
}

/// The beginning of a line, as far as the end of a head hangs on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastLine {
    Empty,
    /// A CR and nothing else.
    Return,
    Text,
}

impl HeadWatch {
    pub(crate) fn new(limits: HeadLimits) -> Self {
        Self {
            limits,
            bytes: 0,
            lines: 0,
            line: 0,
            partial: Vec::new(),
            line_over: false,
            cut_empty_line: false,
            last_line: LastLine::Empty,
        }
    }

    /// Begins anew, for the head of the next request.
    pub(crate) fn restart(&mut self) {
        *self = Self::new(self.limits);
    }

    /// How many of the next bytes are empty lines before the request line, which are ignored (RFC 9112,
    /// 2.2): clients of old send one after a body. `None`: a CR that ends no line.
    pub(crate) fn empty_lines(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.line > 0 || self.line_over {
            return Some(0);
        }
        let mut count = 0;
        for byte in bytes {
            match (self.cut_empty_line, byte) {
                (true, b'\n') => self.cut_empty_line = false,
                (true, _) => return None,
                (false, b'\r') => self.cut_empty_line = true,
                (false, b'\n') => {}
                (false, _) => break,
            }
            count += 1;
        }
        Some(count)
    }

    /// Where the head ends in the next bytes, which is behind its empty line; none where it goes on.
    /// Lines end with a line feed, as Pingora has it.
    pub(crate) fn end_in(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut start = 0;
        for at in memchr_iter(b'\n', bytes) {
            self.lines += 1;
            self.begin_line(bytes.get(start..at).unwrap_or_default());
            let line = std::mem::replace(&mut self.last_line, LastLine::Empty);
            if line != LastLine::Text {
                return Some(at + 1);
            }
            start = at + 1;
        }
        self.begin_line(bytes.get(start..).unwrap_or_default());
        None
    }

    fn begin_line(&mut self, piece: &[u8]) {
        self.last_line = match (self.last_line, piece) {
            (line, []) => line,
            (LastLine::Empty, [b'\r']) => LastLine::Return,
            _ => LastLine::Text,
        };
    }

    /// Takes bytes in. Gives back a request line that Pingora would rewrite instead of refusing
    /// it: one with a control byte or a space in its target.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.bytes += bytes.len();
        if self.line_over {
            return None;
        }
        // Empty lines before the request line are ignored (RFC 9112, 2.2).
        let blank = if self.line == 0 {
            bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
        } else {
            0
        };
        let bytes = bytes.get(blank..).unwrap_or_default();
        let end = memchr(b'\n', bytes);
        let piece = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        self.line += piece.len();
        self.line_over = end.is_some();
        if end.is_none() {
            // As long as a target may be; a longer line is refused for its length.
            if self.line <= self.limits.target.saturating_add(LINE) {
                self.partial.extend_from_slice(piece);
            }
            return None;
        }
        let mut line = std::mem::take(&mut self.partial);
        if line.is_empty() {
            return is_rewritten(piece).then(|| piece.to_vec());
        }
        line.extend_from_slice(piece);
        is_rewritten(&line).then_some(line)
    }

    /// Bytes taken in since the head began.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The status to refuse the head with that is over its limit already; none while it is not.
    pub(crate) fn over(&self) -> Option<u16> {
        if self.bytes <= self.limits.head.saturating_add(SLACK) {
            return None;
        }
        Some(if self.line_over { 431 } else { 414 })
    }

    /// What a 400 of Pingora is about, whose own bounds are fixed.
    pub(crate) fn why_refused(&self) -> u16 {
        if self.line > self.limits.target.saturating_add(LINE) {
            414
        } else if self.lines > self.limits.headers.saturating_add(2) {
            431
        } else {
            400
        }
    }
}

/// Whether Pingora would percent-encode something of this request line.
fn is_rewritten(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let spaces = line.iter().filter(|byte| **byte == b' ').count();
    spaces > 2 || line.iter().any(u8::is_ascii_control)
}

/// Whether `seen`, which looked like a request line, is the one that Pingora has made `line`
/// of: same method, same version.
pub(crate) fn is_line_of(seen: &[u8], line: &[u8]) -> bool {
    let (seen, line) = (seen.trim_ascii_end(), line.trim_ascii());
    let method = line.split(|byte| *byte == b' ').next();
    let version = line.rsplit(|byte| *byte == b' ').next();
    seen.split(|byte| *byte == b' ').next() == method && seen.rsplit(|byte| *byte == b' ').next() == version
}

/// A response's head whose `Connection` names `Upgrade` too: an `Upgrade` belongs to one hop, and only
/// counts where it is nominated (RFC 9110, 7.8). Pingora writes that header itself.
pub(super) fn nominating_upgrade(head: &[u8]) -> Vec<u8> {
    const LINE: &[u8] = b"\r\nconnection: ";
    let line = head.windows(LINE.len()).position(|bytes| bytes.eq_ignore_ascii_case(LINE));
    let Some((before, after)) = line.and_then(|start| head.split_at_checked(start + LINE.len())) else {
        return head.to_vec();
    };
    [before, b"Upgrade, ", after].concat()
}

#[cfg(test)]
mod tests;
