//! A body that comes in: where its data is, and where it ends.

use bytes::{Buf, Bytes, BytesMut};
use cube_http1::{ChunkWatch, Malformed};

/// The most that is handed on in one piece.
const PIECE: usize = 64 * 1024;

/// Reads one body out of the bytes that come in.
#[derive(Debug)]
pub(super) enum Body {
    /// So many bytes are still to come; 0: it is over.
    Length(u64),
    Chunked(ChunkWatch),
    /// Until the connection ends.
    Close,
}

impl Body {
    pub(super) fn is_over(&self) -> bool {
        match self {
            Body::Length(left) => *left == 0,
            Body::Chunked(watch) => watch.is_over(),
            Body::Close => false,
        }
    }

    /// The next piece of data, and whether the body ends with it; none where more has to come in first.
    ///
    /// # Errors
    /// [`Malformed`] where chunks do not follow their grammar.
    pub(super) fn next(&mut self, from: &mut BytesMut) -> Result<Option<(Bytes, bool)>, Malformed> {
        let count = match self {
            Body::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(from.len()).min(PIECE);
                *left -= count as u64;
                count
            }
            Body::Chunked(watch) => {
                from.advance(watch.framing(from)?);
                if watch.is_over() {
                    return Ok(Some((Bytes::new(), true)));
                }
                let piece = from.split_to(watch.data(from.len().min(PIECE))).freeze();
                // The end most often comes with the last piece.
                from.advance(watch.framing(from)?);
                return Ok((!piece.is_empty()).then(|| (piece, watch.is_over())));
            }
            Body::Close => from.len().min(PIECE),
        };
        Ok((count > 0).then(|| (from.split_to(count).freeze(), self.is_over())))
    }
}
