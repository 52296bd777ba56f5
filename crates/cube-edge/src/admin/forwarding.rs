//! Which process answers the admin API, and who else must hear what it was told.
//!
//! After an upgrade requests still come to the old process, over connections that were open before;
//! its successor answers them. And the old process still serves streams: it is told every change
//! that the admin API of its successor takes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::response::AdminResponse;

/// How long changes are kept for a draining process that is on its way from one main process to
/// the next, and how many bytes of them.
const KEEP: Duration = Duration::from_secs(60);
const KEEP_BYTES: usize = 16 * 1024 * 1024;
/// Changes that a draining process may be behind before it is given up.
const BEHIND: usize = 65_536;
/// How long the response to a change waits for the draining processes to have heard of it.
const HEARD: Duration = Duration::from_secs(1);
/// How long draining processes that will link are waited for.
const LINK: Duration = Duration::from_secs(2);
/// How long a response of the successor is waited for, as a rule.
pub(super) const FORWARD_TIMEOUT: Duration = Duration::from_secs(10);

/// A request that changed something, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The path of the POST, e.g. `/admin/state`.
    pub path: String,
    /// Its body.
    pub body: Bytes,
}

/// What a draining process is told.
#[derive(Debug)]
pub enum DrainerCommand {
    /// A change; to be said when it has been taken.
    Push(Push, Option<oneshot::Sender<()>>),
    /// Open the access log anew.
    Reopen,
    /// The service is being stopped: `drain.stop_timeout` counts from now.
    Stop,
    /// The draining process is to end its streams at once.
    StopNow,
}

/// A request that the successor is to answer.
#[derive(Debug)]
pub struct ForwardedRequest {
    /// Its method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Its body.
    pub body: Bytes,
    /// Takes status and JSON body of the response.
    pub reply: oneshot::Sender<(u16, Bytes)>,
}

#[derive(Debug, Clone)]
enum Whose {
    Ours,
    Nobodys,
    Theirs(mpsc::Sender<ForwardedRequest>),
}

/// Whose request it is.
pub(super) enum Owner<'a> {
    /// This process, while this is held.
    This(LocalRequest<'a>),
    /// The process at the other end.
    Successor(mpsc::Sender<ForwardedRequest>),
}

/// Decides for each request to the admin API whether this process or its successor responds, and tells the
/// draining processes of changes.
pub struct AdminForwarding {
    whose: watch::Sender<Whose>,
    running: watch::Sender<usize>,
    under_way: watch::Sender<usize>,
    others: Mutex<Others>,
}

#[derive(Default)]
struct Others {
    listening: Vec<mpsc::Sender<DrainerCommand>>,
    /// How many draining processes are expected to listen soon. After `believed_until` no change waits for them
    /// any more.
    expected: usize,
    believed_until: Option<Instant>,
    recent: VecDeque<Recent>,
    recent_bytes: usize,
    /// When access logs were to be opened anew, which one that comes late has not heard either.
    reopened: Option<Instant>,
    /// The service is being stopped (`false`) or is over (`true`).
    stopping: Option<bool>,
}

struct Recent {
    at: Instant,
    push: Push,
    /// One for each of those that were expected then.
    awaited: Vec<oneshot::Sender<()>>,
}

impl Default for AdminForwarding {
    fn default() -> Self {
        Self {
            whose: watch::Sender::new(Whose::Ours),
            running: watch::Sender::new(0),
            under_way: watch::Sender::new(0),
            others: Mutex::default(),
        }
    }
}

/// Counts a request that this process responds to, for as long as it lives.
pub(super) struct LocalRequest<'a>(&'a AdminForwarding);

impl Drop for LocalRequest<'_> {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running = running.saturating_sub(1));
    }
}

/// Counts a request that came, or is about to, and has no response yet, whichever process responds; for as long
/// as it lives.
pub struct PendingRequest<'a>(&'a AdminForwarding);

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|under_way| *under_way = under_way.saturating_sub(1));
    }
}

impl AdminForwarding {
    /// Counts a request as under way until what is returned is dropped, wherever it is answered.
    #[must_use]
    pub fn under_way(&self) -> PendingRequest<'_> {
        self.under_way.send_modify(|under_way| *under_way += 1);
        PendingRequest(self)
    }

    /// Returns when every request that came to this process has its response: one that has handed
    /// over must not end before, though the successor answers.
    pub async fn answered(&self) {
        let answered = async {
            // The sender lives in self.
            let _ = self.under_way.subscribe().wait_for(|under_way| *under_way == 0).await;
        };
        if timeout(FORWARD_TIMEOUT, answered).await.is_err() {
            tracing::warn!("a request to the admin API has no response at the end of this process");
        }
    }

    /// Waits while the forwarding is between two processes.
    pub(super) async fn turn(&self) -> Owner<'_> {
        let mut whose = self.whose.subscribe();
        loop {
            // Counted before the look, so that whoever closes the forwarding either sees it or is seen.
            self.running.send_modify(|running| *running += 1);
            let running = LocalRequest(self);
            let now = whose.borrow_and_update().clone();
            match now {
                Whose::Ours => return Owner::This(running),
                Whose::Theirs(successor) => return Owner::Successor(successor),
                Whose::Nobodys => drop(running),
            }
            // The sender lives in self.
            let _ = whose.changed().await;
        }
    }

    /// Lets no further request in and returns when the last one is done. They wait until
    /// [`AdminForwarding::open`] or [`AdminForwarding::hand_over`].
    pub async fn close(&self) {
        self.whose.send_replace(Whose::Nobodys);
        // The sender lives in self.
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// Requests are answered here again.
    pub fn open(&self) {
        self.whose.send_replace(Whose::Ours);
    }

    /// From now on requests are answered by whoever takes them from the other end of `successor`.
    pub fn hand_over(&self, successor: mpsc::Sender<ForwardedRequest>) {
        self.whose.send_replace(Whose::Theirs(successor));
    }

    /// This process has taken over: so many others still have streams and will listen in a moment.
    /// Changes wait for them, too.
    pub fn expect(&self, others: usize) {
        let mut known = self.others.lock();
        known.expected = others;
        known.believed_until = Some(Instant::now() + LINK);
    }

    /// What a draining process is to be told from now on, after the changes of the last minute, of
    /// which it may have missed some. It ends when that process does not keep up.
    pub fn listen(&self) -> mpsc::Receiver<DrainerCommand> {
        let (sender, words) = mpsc::channel(BEHIND);
        let mut others = self.others.lock();
        others.prune();
        others.expected = others.expected.saturating_sub(1);
        for recent in &mut others.recent {
            // There is room for all of it in a new channel: no more is kept.
            let _ = sender.try_send(DrainerCommand::Push(recent.push.clone(), recent.awaited.pop()));
        }
        if others.reopened.is_some_and(|at| at.elapsed() <= KEEP) {
            let _ = sender.try_send(DrainerCommand::Reopen);
        }
        if let Some(now) = others.stopping {
            let _ = sender.try_send(stop_word(now));
        }
        others.listening.push(sender);
        words
    }

    /// Tells the draining processes of a change.
    pub(super) fn tell(&self, path: &str, body: &[u8]) -> Acknowledgements {
        let push = Push { path: path.to_owned(), body: Bytes::copy_from_slice(body) };
        let mut waiting = Vec::new();
        let mut others = self.others.lock();
        let mut awaited = Vec::new();
        if others.believed_until.is_some_and(|until| Instant::now() < until) {
            for _ in 0..others.expected {
                let (heard, wait) = oneshot::channel();
                awaited.push(heard);
                waiting.push(wait);
            }
        }
        others.recent_bytes += push.size();
        others.recent.push_back(Recent { at: Instant::now(), push: push.clone(), awaited });
        others.prune();
        others.listening.retain(|listener| {
            let (heard, wait) = oneshot::channel();
            waiting.push(wait);
            listener.try_send(DrainerCommand::Push(push.clone(), Some(heard))).is_ok()
        });
        Acknowledgements(waiting)
    }

    /// Tells the draining processes to open their access logs anew.
    pub fn reopen(&self) {
        let mut others = self.others.lock();
        others.reopened = Some(Instant::now());
        others.listening.retain(|listener| listener.try_send(DrainerCommand::Reopen).is_ok());
    }

    /// Tells the draining processes that the service is being stopped, or, with `now`, that it is
    /// over.
    pub fn stop(&self, now: bool) {
        let mut others = self.others.lock();
        others.stopping = Some(now);
        others.listening.retain(|listener| listener.try_send(stop_word(now)).is_ok());
    }

    /// The draining processes hear what was said so far and nothing more.
    pub fn dismiss(&self) {
        self.others.lock().listening.clear();
    }
}

fn stop_word(now: bool) -> DrainerCommand {
    if now { DrainerCommand::StopNow } else { DrainerCommand::Stop }
}

impl Push {
    fn size(&self) -> usize {
        self.path.len() + self.body.len()
    }
}

impl Others {
    fn prune(&mut self) {
        while let Some(recent) = self.recent.front() {
            let few = self.recent_bytes <= KEEP_BYTES && self.recent.len() <= BEHIND / 2;
            if few && recent.at.elapsed() <= KEEP {
                return;
            }
            self.recent_bytes = self.recent_bytes.saturating_sub(recent.push.size());
            self.recent.pop_front();
        }
    }
}

/// What the draining processes that were told of a change will confirm.
pub(super) struct Acknowledgements(Vec<oneshot::Receiver<()>>);

impl Acknowledgements {
    /// Waits until all have heard or are gone, at most a second.
    pub(super) async fn heard(self) {
        let all = async {
            for heard in self.0 {
                // An error: that process is gone.
                let _ = heard.await;
            }
        };
        if timeout(HEARD, all).await.is_err() {
            tracing::warn!("a draining process of before an upgrade does not take changes");
        }
    }
}

/// Has the successor answer, which it may take `patience` for.
pub(super) async fn ask(
    successor: &mpsc::Sender<ForwardedRequest>,
    method: &str,
    target: &str,
    body: &[u8],
    patience: Duration,
) -> AdminResponse {
    let (reply, response) = oneshot::channel();
    let forwarded = ForwardedRequest {
        method: method.to_owned(),
        target: target.to_owned(),
        body: Bytes::copy_from_slice(body),
        reply,
    };
    let ask = async {
        successor.send(forwarded).await.ok()?;
        response.await.ok()
    };
    let answered = timeout(patience, ask).await.ok().flatten();
    match answered.and_then(|(status, body)| Some((StatusCode::from_u16(status).ok()?, body))) {
        Some((status, body)) => AdminResponse { status, kind: "application/json", body },
        None => AdminResponse::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "the process that took over does not answer",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn requests_wait_while_the_desk_is_closed_and_then_go_where_it_went() {
        let forwarding = Arc::new(AdminForwarding::default());
        let Owner::This(running) = forwarding.turn().await else { panic!("it is ours") };
        let closing = tokio::spawn({
            let forwarding = forwarding.clone();
            async move { forwarding.close().await }
        });
        tokio::task::yield_now().await;
        assert!(!closing.is_finished(), "a request is being answered");
        drop(running);
        closing.await.unwrap();
        let mut waiting = Box::pin(forwarding.turn());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        forwarding.open();
        assert!(matches!(waiting.await, Owner::This(_)));
        let (successor, mut forwarded_requests) = mpsc::channel(1);
        forwarding.hand_over(successor);
        let Owner::Successor(successor) = forwarding.turn().await else { panic!("it is theirs") };
        let answering = tokio::spawn(async move {
            let forwarded = forwarded_requests.recv().await.unwrap();
            forwarded.reply.send((200, forwarded.body)).unwrap();
            drop(forwarded_requests);
        });
        let response = ask(&successor, "POST", "/admin/x", b"{}", FORWARD_TIMEOUT).await;
        assert_eq!((response.status, &response.body[..]), (StatusCode::OK, &b"{}"[..]));
        answering.await.unwrap();
        assert_eq!(
            ask(&successor, "GET", "/", b"", FORWARD_TIMEOUT).await.status,
            StatusCode::SERVICE_UNAVAILABLE
        );
    }

    #[tokio::test]
    async fn a_change_waits_until_everybody_has_heard_and_late_comers_hear_of_it_too() {
        let forwarding = AdminForwarding::default();
        forwarding.tell("/admin/state", b"1").heard().await;
        let mut words = forwarding.listen();
        assert!(matches!(words.recv().await, Some(DrainerCommand::Push(push, None)) if push.body == "1"));
        let mut told = Box::pin(forwarding.tell("/admin/state", b"2").heard());
        assert!(futures_util::poll!(&mut told).is_pending());
        let Some(DrainerCommand::Push(push, Some(heard))) = words.recv().await else { panic!("a change") };
        assert_eq!(push.body, "2");
        heard.send(()).unwrap();
        told.await;
        drop(words);
        forwarding.tell("/admin/state", b"3").heard().await;
        assert!(forwarding.others.lock().listening.is_empty(), "it is gone");
    }

    #[tokio::test]
    async fn a_change_waits_for_those_that_are_on_their_way() {
        let forwarding = AdminForwarding::default();
        forwarding.expect(1);
        let mut told = Box::pin(forwarding.tell("/admin/state", b"1").heard());
        assert!(futures_util::poll!(&mut told).is_pending());
        let mut words = forwarding.listen();
        assert!(futures_util::poll!(&mut told).is_pending(), "it has not taken it yet");
        let Some(DrainerCommand::Push(_, Some(heard))) = words.recv().await else { panic!("a change") };
        heard.send(()).unwrap();
        told.await;
        // Nobody else is expected.
        let mut told = Box::pin(forwarding.tell("/admin/state", b"2").heard());
        assert!(futures_util::poll!(&mut told).is_pending());
        drop(words);
        told.await;
    }

    #[tokio::test]
    async fn late_comers_hear_of_a_stop_and_of_a_log_that_was_moved() {
        let forwarding = AdminForwarding::default();
        let mut early = forwarding.listen();
        forwarding.reopen();
        forwarding.stop(false);
        let mut late = forwarding.listen();
        for words in [&mut early, &mut late] {
            assert!(matches!(words.recv().await, Some(DrainerCommand::Reopen)));
            assert!(matches!(words.recv().await, Some(DrainerCommand::Stop)));
        }
        forwarding.stop(true);
        assert!(matches!(forwarding.listen().recv().await, Some(DrainerCommand::Reopen)));
        assert!(matches!(late.recv().await, Some(DrainerCommand::StopNow)));
    }

    #[test]
    fn what_is_kept_for_late_comers_is_bounded() {
        let forwarding = AdminForwarding::default();
        let big = vec![b'x'; 1 << 20];
        for _ in 0..40 {
            forwarding.tell("/admin/meta/upsert", &big);
        }
        let others = forwarding.others.lock();
        assert!(others.recent_bytes <= KEEP_BYTES && others.recent.len() <= 16, "{}", others.recent.len());
    }
}
