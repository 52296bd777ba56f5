//! Messages, and descriptors along with them, over a Unix stream socket.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Message;

/// The most bytes of one message. A change of the admin API, at most 1 MiB, is the largest; as JSON
/// in JSON it may be six times as long.
const LONGEST: usize = 16 * 1024 * 1024;
/// The most descriptors that the system passes in one message.
const MOST_DESCRIPTORS: usize = 253;
const PIECE: usize = 64 * 1024;

/// One end of a conversation.
pub(super) struct Channel {
    stream: Arc<UnixStream>,
    writing: Arc<Mutex<()>>,
    read: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// Sends only, so that neither end waits for the other to read while both write.
#[derive(Clone)]
pub(super) struct Sender {
    stream: Arc<UnixStream>,
    /// Held over a message, which may go out in several pieces: those of two must not mix.
    writing: Arc<Mutex<()>>,
}

/// A channel that belongs to no runtime.
pub(super) struct Detached {
    stream: std::os::unix::net::UnixStream,
    read: Vec<u8>,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream: Arc::new(stream), writing: Arc::default(), read: Vec::new(), descriptors: Vec::new() }
    }

    pub(super) fn sender(&self) -> Sender {
        Sender { stream: self.stream.clone(), writing: self.writing.clone() }
    }

    pub(super) async fn send(&self, message: &Message) -> io::Result<()> {
        self.sender().send(message).await
    }

    /// The next message; `None`: the other end is gone. May be dropped and called again.
    pub(super) async fn receive(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(message) = self.parse()? {
                return Ok(Some(message));
            }
            let (read, descriptors) =
                self.stream.async_io(Interest::READABLE, || piece(&self.stream)).await?;
            if read.is_empty() {
                return Ok(None);
            }
            self.read.extend_from_slice(&read);
            self.descriptors.extend(descriptors);
            if self.descriptors.len() > MOST_DESCRIPTORS {
                return Err(invalid("too many descriptors"));
            }
        }
    }

    /// The same with a bound on the wait.
    pub(super) async fn receive_within(&mut self, limit: Duration) -> io::Result<Option<Message>> {
        timeout(limit, self.receive()).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }

    /// Descriptors that have come and were not taken.
    pub(super) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// A message that has come in whole.
    fn parse(&mut self) -> io::Result<Option<Message>> {
        let Some((length, rest)) = self.read.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(invalid("a message of more than 16 MiB"));
        }
        let Some(text) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(text).map_err(|error| invalid(&error.to_string()))?;
        self.read.drain(..4 + length);
        Ok(Some(message))
    }

    /// Takes it out of the runtime.
    pub(super) fn detach(self) -> io::Result<Detached> {
        let stream = Arc::into_inner(self.stream).ok_or_else(|| invalid("a sender is left"))?;
        Ok(Detached { stream: stream.into_std()?, read: self.read })
    }
}

impl Detached {
    /// Takes it into the runtime of the caller.
    pub(super) fn attach(self) -> io::Result<Channel> {
        let mut channel = Channel::new(UnixStream::from_std(self.stream)?);
        channel.read = self.read;
        Ok(channel)
    }
}

impl Sender {
    pub(super) async fn send(&self, message: &Message) -> io::Result<()> {
        self.send_with(message, &[]).await
    }

    /// Sends descriptors along with a message.
    pub(super) async fn send_with(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let text = serde_json::to_vec(message).map_err(|error| invalid(&error.to_string()))?;
        if text.len() > LONGEST || descriptors.len() > MOST_DESCRIPTORS {
            return Err(invalid("too much for one message"));
        }
        let length = u32::try_from(text.len()).map_err(|_| invalid("too long"))?;
        let bytes = [&length.to_be_bytes()[..], &text].concat();
        let mut rest = &bytes[..];
        let mut along = descriptors;
        let _writing = self.writing.lock().await;
        while !rest.is_empty() {
            let sent = self.stream.async_io(Interest::WRITABLE, || put(&self.stream, rest, along)).await?;
            along = &[];
            rest = rest.get(sent..).unwrap_or_default();
        }
        Ok(())
    }
}

fn put(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(invalid("too many descriptors"));
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// What has come in, at most [`PIECE`]; nothing at the end.
fn piece(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; PIECE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // Close-on-exec from the first moment: a child must not inherit a listening socket.
    let received =
        recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests;
