//! What the stream and the phases of a request tell each other of it, by way of its connection.

use std::sync::atomic::Ordering;

use super::Conn;
use crate::connection::body::Framing;

impl Conn {
    /// The next response's head waits for the first piece of its body, so that both leave in one
    /// write. Only for a request without a body: there Pingora reads on while it waits for
    /// the upstream, and that read sends a head whose body is late.
    pub(crate) fn join_next_head(&self) {
        self.request.join_head.store(true, Ordering::Relaxed);
    }

    /// The next response's `Connection` names `Upgrade`, beside what Pingora says there.
    pub(crate) fn nominate_upgrade(&self) {
        self.request.nominate_upgrade.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_nominate_upgrade(&self) -> bool {
        self.request.nominate_upgrade.load(Ordering::Relaxed)
            && self.request.nominate_upgrade.swap(false, Ordering::Relaxed)
    }

    /// How the end of the body is told; to be said before any of it is read, and once more when it
    /// becomes a tunnel.
    pub(crate) fn frame_body(&self, framing: Framing) {
        self.request.framing.store(framing.pack(), Ordering::Release);
    }

    /// What was said of it since the last time.
    pub(in crate::connection) fn take_framing(&self) -> Option<Framing> {
        if self.request.framing.load(Ordering::Acquire) == Framing::UNSAID {
            return None;
        }
        Framing::unpack(self.request.framing.swap(Framing::UNSAID, Ordering::AcqRel))
    }

    /// Pingora has been given a head of that many bytes.
    pub(in crate::connection) fn note_head_given(&self, bytes: usize) {
        self.request.head_given.store(bytes, Ordering::Relaxed);
    }

    /// The bytes of the head as Pingora was given them: it has to have read just as many.
    pub(crate) fn head_given(&self) -> usize {
        self.request.head_given.load(Ordering::Relaxed)
    }

    /// The body does not follow the grammar of its coding.
    pub(in crate::connection) fn note_misframed(&self) {
        self.request.misframed.store(true, Ordering::Relaxed);
    }

    /// Whether a read has failed because of that.
    pub(crate) fn is_misframed(&self) -> bool {
        self.request.misframed.load(Ordering::Relaxed)
    }

    pub(crate) fn take_join_head(&self) -> bool {
        self.request.join_head.load(Ordering::Relaxed)
            && self.request.join_head.swap(false, Ordering::Relaxed)
    }

    /// What has come in looks like a request line that Pingora rewrites.
    pub(crate) fn note_odd_line(&self, line: Vec<u8>) {
        *self.request.odd_line.lock() = line;
        self.request.has_odd_line.store(true, Ordering::Release);
    }

    /// The line that was noted last; `None` where it was taken already.
    pub(crate) fn take_odd_line(&self) -> Option<Vec<u8>> {
        let has = self.request.has_odd_line.load(Ordering::Acquire);
        (has && self.request.has_odd_line.swap(false, Ordering::AcqRel))
            .then(|| std::mem::take(&mut *self.request.odd_line.lock()))
    }
}
