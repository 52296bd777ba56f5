//! The chunked coding by its grammar (RFC 9112, 7.1), byte for byte as it comes in.
//!
//! Pingora's own reader lets pass what another recipient would cut elsewhere: anything in an
//! extension, a size line without a size, trailers that are no headers. Where two recipients disagree
//! about the end of a body, what follows it is a request for one of them.

/// The most bytes of a line that says a chunk's size, its end left out.
const LINE: u32 = 4 * 1024;
/// So much of such a line is free: the digits that every size can be written with.
const FREE: u32 = 16;
/// The most bytes of such lines, without what is free of each, beyond the bytes of data behind them. A body
/// that goes on for long may have an extension at each chunk; one of extensions alone ends.
const EXCESS: u64 = 16 * 1024;
/// The most bytes of the trailer section, and the most fields.
const TRAILERS: u32 = 16 * 1024;
const TRAILER_FIELDS: u16 = 100;

/// The bytes are no chunked body, or one with more framing than is read (docs/contract/connections.md, "Framing").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Follows one chunked body (docs/contract/connections.md, "Framing").
#[derive(Debug, Default)]
pub struct ChunkWatch {
    state: State,
    /// The size being read, then what is left of the chunk.
    size: u64,
    /// Bytes of the size line under way, then of the trailer section.
    line: u32,
    /// Bytes of size lines, beyond those of data. Never more than [`EXCESS`] and one line.
    excess: u64,
    /// Trailer fields begun.
    fields: u16,
}

/// What the next byte is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// The first digit of a size.
    #[default]
    Size,
    MoreSize,
    /// White space behind a size or an extension: another extension has to follow.
    BeforeSemicolon,
    /// Behind `;`.
    BeforeName,
    Name,
    /// White space behind the name of an extension.
    BehindName,
    /// Behind `=`.
    BeforeValue,
    Value,
    Quoted,
    QuotedPair,
    BehindQuoted,
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    /// The first byte of a line behind the last chunk.
    Trailer,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    LastLineFeed,
    Over,
}

impl ChunkWatch {
    /// Whether the last byte of the body has been seen.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// How many of the next bytes belong to the body: all, unless it ends in them.
    ///
    /// # Errors
    /// [`Malformed`] at the first byte that the grammar does not allow.
    pub fn follow(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut at = 0;
        while self.state != State::Over {
            let Some(byte) = bytes.get(at) else { break };
            if self.state == State::Data {
                at += self.skip_data(bytes.len() - at);
            } else {
                self.step(*byte)?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// How many of the next bytes are framing: those before the data of the next chunk, or all up to
    /// the end of the body.
    ///
    /// # Errors
    /// [`Malformed`] at the first byte that the grammar does not allow.
    pub fn framing(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut at = 0;
        while !matches!(self.state, State::Over | State::Data) {
            let Some(byte) = bytes.get(at) else { break };
            self.step(*byte)?;
            at += 1;
        }
        Ok(at)
    }

    /// How many of the next `available` bytes, behind the framing, are data.
    pub fn data(&mut self, available: usize) -> usize {
        if self.state == State::Data { self.skip_data(available) } else { 0 }
    }

    fn skip_data(&mut self, available: usize) -> usize {
        let count = usize::try_from(self.size).unwrap_or(usize::MAX).min(available);
        self.size -= count as u64;
        if self.size == 0 {
            self.state = State::DataReturn;
        }
        count
    }

    /// Takes a byte of framing, within the bounds.
    fn step(&mut self, byte: u8) -> Result<(), Malformed> {
        use State::*;
        let before = self.state;
        self.state = self.next(byte)?;
        match (before, self.state) {
            (SizeLineFeed, _) => {
                self.excess += u64::from(self.line.saturating_sub(FREE));
                self.excess = self.excess.saturating_sub(self.size);
                self.line = 0;
            }
            (DataReturn | DataLineFeed | LastLineFeed, _) | (_, SizeLineFeed | LastLineFeed) => {}
            (Trailer, _) => {
                self.fields += 1;
                self.line += 1;
            }
            _ => self.line += 1,
        }
        let line = if self.fields > 0 { TRAILERS } else { LINE };
        let within = self.line <= line && self.excess <= EXCESS && self.fields <= TRAILER_FIELDS;
        if within { Ok(()) } else { Err(Malformed) }
    }

    fn next(&mut self, byte: u8) -> Result<State, Malformed> {
        use State::*;
        Ok(match (self.state, byte) {
            (Size | MoreSize, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.add_digit(byte)?;
                MoreSize
            }
            (MoreSize | BehindQuoted | Name | Value | BeforeSemicolon | BehindName, b';') => BeforeName,
            (MoreSize | BehindQuoted | Name | Value, b'\r') => SizeLineFeed,
            (MoreSize | BehindQuoted | Value | BeforeSemicolon, b' ' | b'\t') => BeforeSemicolon,
            (BeforeName, b' ' | b'\t') => BeforeName,
            (BeforeName | Name, byte) if is_token(byte) => Name,
            (Name | BehindName, b' ' | b'\t') => BehindName,
            (Name | BehindName, b'=') => BeforeValue,
            (BeforeValue, b' ' | b'\t') => BeforeValue,
            (BeforeValue, b'"') => Quoted,
            (BeforeValue | Value, byte) if is_token(byte) => Value,
            (Quoted, b'"') => BehindQuoted,
            (Quoted, b'\\') => QuotedPair,
            (Quoted | QuotedPair, byte) if is_text(byte) => Quoted,
            (SizeLineFeed, b'\n') if self.size == 0 => Trailer,
            (SizeLineFeed, b'\n') => Data,
            (DataReturn, b'\r') => DataLineFeed,
            (DataLineFeed, b'\n') => Size,
            (Trailer, b'\r') => LastLineFeed,
            (Trailer | TrailerName, byte) if is_token(byte) => TrailerName,
            (TrailerName, b':') => TrailerValue,
            (TrailerValue, b'\r') => TrailerLineFeed,
            (TrailerValue, byte) if is_text(byte) => TrailerValue,
            (TrailerLineFeed, b'\n') => Trailer,
            (LastLineFeed, b'\n') => Over,
            _ => return Err(Malformed),
        })
    }

    fn add_digit(&mut self, byte: u8) -> Result<(), Malformed> {
        let digit = char::from(byte).to_digit(16).ok_or(Malformed)?;
        // No number of digits is too many as long as the size is one that can be counted.
        self.size =
            self.size.checked_mul(16).and_then(|size| size.checked_add(digit.into())).ok_or(Malformed)?;
        Ok(())
    }
}

/// `tchar` (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What a field value, a quoted string or a quoted pair may hold (RFC 9110, 5.5, 5.6.4).
fn is_text(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In one piece and byte for byte; both must agree.
    fn follow(body: &[u8]) -> Result<usize, Malformed> {
        let whole = ChunkWatch::default().follow(body);
        let mut watch = ChunkWatch::default();
        let mut count = 0;
        let pieces = body.iter().try_for_each(|byte| {
            count += watch.follow(&[*byte])?;
            Ok(())
        });
        assert_eq!(whole, pieces.map(|()| count), "{}", body.escape_ascii());
        whole
    }

    #[test]
    fn what_the_grammar_allows_ends_where_it_says() {
        for body in [
            &b"0\r\n\r\n"[..],
            b"4\r\nbody\r\n0\r\n\r\n",
            b"0004\r\nbody\r\n000\r\n\r\n",
            b"A\r\n0123456789\r\na\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n",
            b"4;a\r\nbody\r\n0;b=c\r\n\r\n",
            b"4 ; a = b\t;c;d=\"e;\\\"\xff\" ;f\r\nbody\r\n0\r\n\r\n",
            b"0\r\nX-Sum: 1\r\nY:\r\nZ:\ta b\xe4 \r\n\r\n",
        ] {
            assert_eq!(follow(body), Ok(body.len()), "{}", body.escape_ascii());
            let ahead = [body, b"GET / HTTP/1.1\r\n\r\n"].concat();
            assert_eq!(follow(&ahead), Ok(body.len()), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn what_the_grammar_does_not_allow_is_malformed() {
        for body in [
            // sizes
            &b"\r\nbody\r\n0\r\n\r\n"[..],
            b"\r\n\r\n",
            b" 4\r\nbody\r\n0\r\n\r\n",
            b"4 \r\nbody\r\n0\r\n\r\n",
            b"4\nbody\r\n0\r\n\r\n",
            b"4\rbody\r\n0\r\n\r\n",
            b"0x4\r\nbody\r\n0\r\n\r\n",
            b"+4\r\nbody\r\n0\r\n\r\n",
            b"-1\r\nbody\r\n0\r\n\r\n",
            b"4 4\r\nbody\r\n0\r\n\r\n",
            b"1fffffffffffffffff\r\nbody",
            // data
            b"4\r\nbodyX\r\n0\r\n\r\n",
            b"4\r\nbody\n0\r\n\r\n",
            b"4\r\nbody\r0\r\n\r\n",
            b"4\r\nbody0\r\n\r\n",
            // extensions
            b";a=b\r\n\r\n",
            b"5;a\nb\r\nbodyy\r\n0\r\n\r\n",
            b"5;a\0b\r\nbodyy\r\n0\r\n\r\n",
            b"5;\r\nbodyy\r\n0\r\n\r\n",
            b"5;a=\r\nbodyy\r\n0\r\n\r\n",
            b"5;=b\r\nbodyy\r\n0\r\n\r\n",
            b"5;a b\r\nbodyy\r\n0\r\n\r\n",
            b"5;a=b c\r\nbodyy\r\n0\r\n\r\n",
            b"5;a=\"b\r\nbodyy\r\n0\r\n\r\n",
            b"5;a=\"b\"c\r\nbodyy\r\n0\r\n\r\n",
            b"5;a \r\nbodyy\r\n0\r\n\r\n",
            b"5;a\rb\r\nbodyy\r\n0\r\n\r\n",
            b"5;\xe4\r\nbodyy\r\n0\r\n\r\n",
            // trailers
            b"0\r\nGET /x HTTP/1.1\r\n\r\n",
            b"0\r\nX T: 1\r\n\r\n",
            b"0\r\n X: 1\r\n\r\n",
            b"0\r\nX: 1\r\n folded\r\n\r\n",
            b"0\r\nX : 1\r\n\r\n",
            b"0\r\n: 1\r\n\r\n",
            b"0\r\nX: a\0b\r\n\r\n",
            b"0\r\nX: a\nb\r\n\r\n",
            b"0\r\nX: a\rb\r\n\r\n",
            b"0\r\n\n",
            b"0\n\r\n",
        ] {
            assert_eq!(follow(body), Err(Malformed), "{}", body.escape_ascii());
        }
    }

    /// The smallest number of repetitions of `unit`, between `before` and `after`, that is refused.
    fn refused_at(before: &str, unit: &str, after: &str) -> usize {
        let (mut taken, mut refused) = (0, 64 * 1024);
        while refused - taken > 1 {
            let count = (taken + refused) / 2;
            match follow_at_once(&[before, &unit.repeat(count), after].concat()) {
                Ok(_) => taken = count,
                Err(Malformed) => refused = count,
            }
        }
        refused
    }

    fn follow_at_once(body: &str) -> Result<usize, Malformed> {
        ChunkWatch::default().follow(body.as_bytes())
    }

    #[test]
    fn framing_is_bounded() {
        // A line, by its extension and by its digits.
        assert_eq!(refused_at("1;", "a", "\r\nx\r\n0\r\n\r\n"), 4095);
        assert_eq!(refused_at("", "0", "\r\n\r\n"), 4097);
        // All lines beyond the data: 1,000 bytes of each are not free.
        let line = format!("1;{}\r\nx\r\n", "a".repeat(1014));
        assert_eq!(refused_at("", &line, "0\r\n\r\n"), 17);
        // Trailers: 100 fields, and 16 KiB with the ends of the lines.
        assert_eq!(refused_at("0\r\n", "a:\r\n", "\r\n"), 101);
        assert_eq!(refused_at("0\r\na:", "b", "\r\n\r\n"), 16 * 1024 - 3);
    }

    #[test]
    fn extensions_go_on_for_as_long_as_data_does() {
        let chunk = format!("40;{}\r\n{}\r\n", "a".repeat(60), "x".repeat(64));
        let body = format!("{}0\r\n\r\n", chunk.repeat(2_000));
        assert_eq!(follow_at_once(&body), Ok(body.len()));
    }

    #[test]
    fn data_counts_for_no_line() {
        let body = format!("{}0\r\na: b\r\n\r\n", "2\r\nxy\r\n".repeat(20_000));
        assert_eq!(follow(body.as_bytes()), Ok(body.len()));
    }
}
