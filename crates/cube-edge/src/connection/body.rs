//! Where the body of an HTTP/1.1 request ends, by the grammar of RFC 9112: what comes behind it is the
//! next request, and Pingora does not get to see it before its time.

use cube_http1::{ChunkWatch, Malformed};

/// How the end of a request's body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes; 0: there is no body.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// There is no end: a tunnel after a 101.
    Tunnel,
}

impl Framing {
    const TUNNEL: u64 = u64::MAX;
    const CHUNKED: u64 = u64::MAX - 1;
    /// What no framing packs to.
    pub(super) const UNSAID: u64 = u64::MAX - 2;

    /// For an atomic; a length that no body can have becomes one that none can have either.
    pub(super) fn pack(self) -> u64 {
        match self {
            Framing::Length(length) => length.min(Self::UNSAID - 1),
            Framing::Chunked => Self::CHUNKED,
            Framing::Tunnel => Self::TUNNEL,
        }
    }

    pub(super) fn unpack(packed: u64) -> Option<Self> {
        match packed {
            Self::UNSAID => None,
            Self::CHUNKED => Some(Framing::Chunked),
            Self::TUNNEL => Some(Framing::Tunnel),
            length => Some(Framing::Length(length)),
        }
    }
}

/// Follows one body.
#[derive(Debug)]
pub(super) enum BodyWatch {
    Left(u64),
    Chunked(ChunkWatch),
    Tunnel,
}

impl BodyWatch {
    pub(super) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => BodyWatch::Left(length),
            Framing::Chunked => BodyWatch::Chunked(ChunkWatch::default()),
            Framing::Tunnel => BodyWatch::Tunnel,
        }
    }

    /// Whether the body is over.
    pub(super) fn is_over(&self) -> bool {
        match self {
            BodyWatch::Left(left) => *left == 0,
            BodyWatch::Chunked(watch) => watch.is_over(),
            BodyWatch::Tunnel => false,
        }
    }

    /// How many of the next bytes belong to the body.
    ///
    /// # Errors
    /// [`Malformed`] where chunks do not follow their grammar.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            BodyWatch::Left(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= count as u64;
                Ok(count)
            }
            BodyWatch::Chunked(watch) => watch.follow(bytes),
            BodyWatch::Tunnel => Ok(bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_framing_survives_its_packing() {
        for framing in [Framing::Length(0), Framing::Length(1 << 60), Framing::Chunked, Framing::Tunnel] {
            assert_eq!(Framing::unpack(framing.pack()), Some(framing));
        }
        for length in [u64::MAX, u64::MAX - 1, u64::MAX - 2] {
            assert!(matches!(Framing::unpack(Framing::Length(length).pack()), Some(Framing::Length(_))));
        }
        assert_eq!(Framing::unpack(Framing::UNSAID), None);
    }

    #[test]
    fn a_body_ends_at_its_length_or_last_chunk_and_a_tunnel_never() {
        let mut length = BodyWatch::new(Framing::Length(5));
        assert_eq!((length.follow(b"abc"), length.is_over()), (Ok(3), false));
        assert_eq!((length.follow(b"deGET"), length.is_over()), (Ok(2), true));
        assert!(BodyWatch::new(Framing::Length(0)).is_over());
        let mut chunked = BodyWatch::new(Framing::Chunked);
        assert_eq!((chunked.follow(b"0\r\n\r\nGET"), chunked.is_over()), (Ok(5), true));
        let mut tunnel = BodyWatch::new(Framing::Tunnel);
        assert_eq!((tunnel.follow(b"0\r\n\r\nGET"), tunnel.is_over()), (Ok(8), false));
    }
}
