//! When a head that comes in piece by piece is worth reading.

use memchr::memmem;

/// A head that is not whole yet. It is read from its beginning when it may be whole, or has become twice
/// as long: an upstream that lets it drip in costs no more than one that sends it at once.
#[derive(Debug, Default)]
pub(super) struct Growing {
    /// No empty line ends before.
    searched: usize,
    /// How long it was when it was read last.
    tried: usize,
}

impl Growing {
    /// Whether these bytes, of which the first ones are as they were, are worth reading now.
    pub(super) fn is_worth_reading(&mut self, bytes: &[u8]) -> bool {
        let worth = bytes.len() >= 2 * self.tried || self.may_be_whole(bytes);
        // The beginning of an empty line may be there already.
        self.searched = bytes.len().saturating_sub(2);
        if worth {
            self.tried = bytes.len();
        }
        worth
    }

    fn may_be_whole(&self, bytes: &[u8]) -> bool {
        let new = bytes.get(self.searched..).unwrap_or_default();
        [&b"\n\r\n"[..], b"\n\n"].iter().any(|end| memmem::find(new, end).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a head is read that comes in pieces of this size, and how many bytes that are.
    fn read(head: &[u8], size: usize) -> (usize, usize) {
        let mut growing = Growing::default();
        let lengths = (1..=head.len().div_ceil(size)).map(|pieces| (pieces * size).min(head.len()));
        let read: Vec<usize> = lengths.filter(|length| growing.is_worth_reading(&head[..*length])).collect();
        assert_eq!(read.last(), Some(&head.len()), "the whole of it is read");
        (read.len(), read.iter().sum())
    }

    #[test]
    fn a_head_that_drips_in_is_read_a_few_times() {
        let head = |end: &str| format!("HTTP/1.1 200 OK\r\nX: {}{end}", "a".repeat(1 << 20)).into_bytes();
        for end in ["\r\n\r\n", "\n\n", "\n\r\n", "\r\n\n"] {
            let head = head(end);
            for size in [1, 2, 3, 1000] {
                let (times, bytes) = read(&head, size);
                assert!(times < 30 && bytes < 4 * head.len(), "{times} times, {bytes} bytes");
            }
            assert_eq!(read(&head, head.len()), (1, head.len()));
        }
    }

    #[test]
    fn each_head_is_read_when_it_ends() {
        // Whole before it is twice as long as when it was read last.
        let mut growing = Growing::default();
        assert!(growing.is_worth_reading(b"HTTP/1.1 200 OK\r\nX: a\r\n\r"));
        assert!(growing.is_worth_reading(b"HTTP/1.1 200 OK\r\nX: a\r\n\r\n"));
        assert!(!growing.is_worth_reading(b"HTTP/1.1 200 OK\r\nX: a\r\n\r\nX"));
    }
}
