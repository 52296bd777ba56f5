//! As much of Redis's protocol as a test needs.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::net::TcpStream;

use crate::Wire;

/// What Redis replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+` or `$`.
    Text(Vec<u8>),
    /// `:`.
    Number(i64),
    /// Absent.
    Nil,
    /// `*`.
    List(Vec<Reply>),
}

impl Reply {
    /// As text, bytes that are no UTF-8 replaced.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Reply::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => format!("{other:?}"),
        }
    }
}

/// A response that begins with `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisError(pub String);

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The connection's error outside, Redis's reply inside.
pub(crate) type ReplyResult = io::Result<Result<Reply, RedisError>>;

pub(crate) async fn exchange(wire: &mut Wire<TcpStream>, words: &[&str]) -> ReplyResult {
    let mut out = Vec::new();
    encode(words, &mut out);
    wire.send(out).await?;
    read(wire).await
}

/// Adds a command as it goes over the wire.
pub(crate) fn encode<W: AsRef<str>>(words: &[W], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words.iter().map(AsRef::as_ref) {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

/// Reads one response.
pub(crate) fn read(wire: &mut Wire<TcpStream>) -> Pin<Box<dyn Future<Output = ReplyResult> + Send + '_>> {
    Box::pin(async move {
        let line = wire.line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let rest = String::from_utf8_lossy(&line[1..]).trim_end().to_owned();
        let count = rest.parse::<i64>();
        Ok(Ok(match (line[0], count) {
            (b'+', _) => Reply::Text(rest.into_bytes()),
            (b'-', _) => return Ok(Err(RedisError(rest))),
            (b':', Ok(number)) => Reply::Number(number),
            (b'$' | b'*', Ok(-1)) => Reply::Nil,
            (b'$', Ok(length)) => {
                let length = usize::try_from(length).expect("a length");
                let mut bytes = wire.exactly(length + 2).await?;
                bytes.truncate(length);
                Reply::Text(bytes)
            }
            (b'*', Ok(count)) => {
                let mut items = Vec::new();
                for _ in 0..count {
                    match read(wire).await? {
                        Ok(item) => items.push(item),
                        Err(error) => return Ok(Err(error)),
                    }
                }
                Reply::List(items)
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, rest)),
        }))
    })
}
