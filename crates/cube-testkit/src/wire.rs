//! HTTP/1.1 framing, read and written byte for byte. Both sides of the proxy speak through this.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A connection with the bytes that were read from it but not yet asked for.
pub struct Wire<S> {
    io: S,
    buffer: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// A fresh connection.
    pub fn new(io: S) -> Self {
        Self { io, buffer: BytesMut::with_capacity(64 * 1024) }
    }

    /// The connection itself.
    pub fn io(&mut self) -> &mut S {
        &mut self.io
    }

    /// The connection and what was read ahead.
    pub fn into_parts(self) -> (S, BytesMut) {
        (self.io, self.buffer)
    }

    /// Writes all of it at once.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.io.write_all(bytes.as_ref()).await?;
        self.io.flush().await
    }

    /// Writes one chunk of a chunked body.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn send_chunk(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let bytes = bytes.as_ref();
        let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
        framed.extend_from_slice(bytes);
        framed.extend_from_slice(b"\r\n");
        self.send(framed).await
    }

    /// Ends what is written; reading goes on.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.io.shutdown().await
    }

    /// The bytes up to and including the first empty line; `None` when the connection ends before
    /// a byte of them.
    ///
    /// # Errors
    /// `UnexpectedEof` when it ends within them.
    pub async fn head(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.until(b"\r\n\r\n").await
    }

    /// A line with its end; `None` when the connection ends before it.
    ///
    /// # Errors
    /// `UnexpectedEof` when it ends within it.
    pub async fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.until(b"\n").await
    }

    /// Exactly that many bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` when the connection ends before.
    pub async fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.split_to(count).to_vec())
    }

    /// Bytes as they come, at least one; empty at the end of the connection.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn some(&mut self, most: usize) -> io::Result<Vec<u8>> {
        if self.buffer.is_empty() && !self.fill().await? {
            return Ok(Vec::new());
        }
        let count = most.min(self.buffer.len());
        Ok(self.buffer.split_to(count).to_vec())
    }

    /// Everything until the connection ends, cleanly or not.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(piece) = crate::within("the end of the connection", self.some(usize::MAX)).await {
            if piece.is_empty() {
                break;
            }
            all.extend_from_slice(&piece);
        }
        all
    }

    /// The next chunk of a chunked body; empty for the last one, with the trailers after it.
    ///
    /// # Errors
    /// `UnexpectedEof` when the connection ends before it, `InvalidData` when it is no chunk.
    pub async fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let line = self.line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let text = String::from_utf8_lossy(&line);
        let size = text.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, format!("not the size of a chunk: {text:?}"))
        })?;
        if size == 0 {
            while self.line().await?.ok_or(io::ErrorKind::UnexpectedEof)? != b"\r\n" {}
            return Ok(Vec::new());
        }
        let data = self.exactly(size).await?;
        self.exactly(2).await?;
        Ok(data)
    }

    async fn until(&mut self, mark: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut searched = 0;
        loop {
            let from = searched.min(self.buffer.len());
            if let Some(at) = self.buffer[from..].windows(mark.len()).position(|window| window == mark) {
                return Ok(Some(self.buffer.split_to(from + at + mark.len()).to_vec()));
            }
            searched = self.buffer.len().saturating_sub(mark.len() - 1);
            if !self.fill().await? {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                let left = String::from_utf8_lossy(&self.buffer).into_owned();
                self.buffer.advance(self.buffer.len());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("cut after {left:?}")));
            }
        }
    }

    async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.reserve(64 * 1024);
        Ok(self.io.read_buf(&mut self.buffer).await? > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn wire_with(bytes: &[u8]) -> Wire<tokio::io::DuplexStream> {
        let (mut far, near) = tokio::io::duplex(1024);
        far.write_all(bytes).await.unwrap();
        Wire::new(near)
    }

    #[tokio::test]
    async fn a_head_ends_at_the_empty_line_and_the_rest_stays() {
        let mut wire = wire_with(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest").await;
        assert_eq!(wire.head().await.unwrap().unwrap(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(wire.some(10).await.unwrap(), b"rest");
        assert!(wire.head().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_cut_head_is_an_error_and_no_head_is_none() {
        let mut wire = wire_with(b"GET / HT").await;
        assert_eq!(wire.head().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(wire_with(b"").await.head().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn chunks_come_one_by_one_and_trailers_are_skipped() {
        let mut wire = wire_with(b"3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nT: 1\r\n\r\nnext").await;
        assert_eq!(wire.chunk().await.unwrap(), b"abc");
        assert_eq!(wire.chunk().await.unwrap(), b"d");
        assert_eq!(wire.chunk().await.unwrap(), b"");
        assert_eq!(wire.some(9).await.unwrap(), b"next");
        assert!(wire_with(b"3\r\nab").await.chunk().await.is_err());
    }
}
