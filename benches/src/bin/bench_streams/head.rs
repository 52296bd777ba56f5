//! Reading an HTTP/1.1 head from a socket.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// No head of a benchmark is longer.
const MOST: usize = 16 * 1024;

/// A head, and what came in behind it.
pub(crate) struct Head {
    /// The head with its empty line.
    pub(crate) text: String,
    /// Bytes read with it that are not its own.
    pub(crate) rest: Vec<u8>,
}

/// The next head; `None` where the peer is done.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Head>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok(Some(Head { text: String::from_utf8_lossy(&bytes).into_owned(), rest }));
        }
        if bytes.len() > MOST {
            return Err(io::Error::other("a head without end"));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return if bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    }
}
