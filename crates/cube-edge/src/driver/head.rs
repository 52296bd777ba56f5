//! A request's head as its bytes come in: what the engine does not say about it.

use memchr::memchr_iter;

/// What one read may bring beyond a head, which is the beginning of a body.
const SLACK: usize = 16 * 1024;

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
    /// Bytes of the request line.
    line: usize,
    spaces: usize,
    line_over: bool,
}

impl HeadWatch {
    pub(crate) fn new(limits: HeadLimits) -> Self {
        Self { limits, bytes: 0, lines: 0, line: 0, spaces: 0, line_over: false }
    }

    /// Another head begins.
    pub(crate) fn restart(&mut self) {
        *self = Self::new(self.limits);
    }

    /// Takes bytes in; whether they show a request line that the engine would rewrite instead of
    /// refusing it (a control byte or a space in the target).
    pub(crate) fn take(&mut self, bytes: &[u8]) -> bool {
        self.bytes += bytes.len();
        self.lines += memchr_iter(b'\n', bytes).count();
        if self.line_over {
            return false;
        }
        let mut bad = false;
        let mut after_cr = false;
        for byte in bytes {
            match byte {
                // Empty lines before the request line are ignored (RFC 9112, 2.2).
                b'\r' | b'\n' if self.line == 0 => continue,
                b'\n' => {
                    self.line_over = true;
                    return bad || self.spaces != 2;
                }
                b' ' => self.spaces += 1,
                0..=0x1f | 0x7f if *byte != b'\r' => bad = true,
                _ => {}
            }
            bad |= after_cr;
            after_cr = *byte == b'\r';
            self.line += 1;
        }
        bad
    }

    /// The status to refuse the head with that is over its limit already; none while it is not.
    pub(crate) fn over(&self) -> Option<u16> {
        if self.bytes <= self.limits.head.saturating_add(SLACK) {
            return None;
        }
        Some(if self.line_over { 431 } else { 414 })
    }

    /// What a 400 of the engine is about, whose own bounds are fixed.
    pub(crate) fn why_refused(&self) -> u16 {
        // The method, two spaces and the version are less than this.
        if self.line > self.limits.target.saturating_add(64) {
            414
        } else if self.lines > self.limits.headers.saturating_add(2) {
            431
        } else {
            400
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> HeadWatch {
        HeadWatch::new(HeadLimits { head: 1000, headers: 10, target: 100 })
    }

    #[test]
    fn a_line_that_would_be_rewritten_is_bad_however_it_comes_in() {
        for (line, bad) in [
            ("GET / HTTP/1.1\r\n", false),
            ("\r\n\r\nGET / HTTP/1.1\r\n", false),
            ("GET /%20 HTTP/1.1\n", false),
            ("GET /a b HTTP/1.1\r\n", true),
            ("GET  / HTTP/1.1\r\n", true),
            ("GET /\ta HTTP/1.1\r\n", true),
            ("GET /\x01 HTTP/1.1\r\n", true),
            ("GET /\x7f HTTP/1.1\r\n", true),
            ("GET /a\rb HTTP/1.1\r\n", true),
            ("GET /\r\n", true),
        ] {
            assert_eq!(watch().take(line.as_bytes()), bad, "{line:?}");
        }
        let mut piecewise = watch();
        assert!(
            "GET /a b HTTP/1.1\r\n".bytes().map(|byte| piecewise.take(&[byte])).fold(false, |a, b| a | b)
        );
        let mut piecewise = watch();
        assert!(
            !"GET /ab HTTP/1.1\r\n\r\n".bytes().map(|byte| piecewise.take(&[byte])).fold(false, |a, b| a | b)
        );
    }

    #[test]
    fn what_comes_after_the_line_is_not_looked_at() {
        assert!(!watch().take(b"GET / HTTP/1.1\r\nA: b  c\x01\r\n\r\n"));
    }

    #[test]
    fn a_head_is_refused_while_it_comes_in() {
        let mut endless = watch();
        endless.take(b"GET / HTTP/1.1\r\n");
        assert_eq!(endless.over(), None);
        endless.take(&vec![b'a'; 20_000]);
        assert_eq!(endless.over(), Some(431));
        let mut line = watch();
        line.take(&vec![b'a'; 20_000]);
        assert_eq!((line.over(), line.why_refused()), (Some(414), 414));
        line.restart();
        assert_eq!(line.over(), None);
    }

    #[test]
    fn too_many_fields_are_told_from_a_bad_head() {
        let mut head = watch();
        head.take(b"GET / HTTP/1.1\r\n");
        head.take("A: b\r\n".repeat(10).as_bytes());
        assert_eq!(head.why_refused(), 400);
        head.take("A: b\r\n".repeat(300).as_bytes());
        assert_eq!(head.why_refused(), 431);
    }
}
