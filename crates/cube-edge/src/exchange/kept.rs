//! What a request leaves for the next one on the same thread: a session of Pingora's, which is dear to
//! build, and a timer, which is dear to set.

use std::cell::RefCell;
use std::future::Future;
use std::io::Cursor;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::LocalKey;

use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use tokio::time::{Instant, Sleep, sleep_until};

/// The most of either that a thread keeps.
const MOST: usize = 64;

thread_local! {
    // Boxed, since each is moved in and out, and is large.
    #[allow(clippy::vec_box)]
    static SESSIONS: RefCell<Vec<Box<Session>>> = const { RefCell::new(Vec::new()) };
    static TIMERS: RefCell<Vec<Pin<Box<Sleep>>>> = const { RefCell::new(Vec::new()) };
}

fn take<T>(kept: &'static LocalKey<RefCell<Vec<T>>>) -> Option<T> {
    kept.try_with(|kept| kept.borrow_mut().pop()).ok()?
}

fn keep<T>(kept: &'static LocalKey<RefCell<Vec<T>>>, one: T) {
    // Where the thread ends, it is dropped.
    let _ = kept.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.len() < MOST {
            kept.push(one);
        }
    });
}

/// A session whose client's side is `client`; and the client's side that it has where it has no client.
pub(super) fn session(client: ServerSession) -> (Box<Session>, Box<ServerSession>) {
    let kept = take(&SESSIONS);
    let new = || Box::new(Session::new_h1(Box::new(Cursor::new(Vec::new()))));
    let mut session = kept.unwrap_or_else(new);
    let none = std::mem::replace(&mut session.downstream_session, Box::new(client));
    (session, none)
}

/// Drops the client's side and keeps the session, in which the hooks leave nothing else.
pub(super) fn keep_session(mut session: Box<Session>, none: Box<ServerSession>) {
    session.downstream_session = none;
    keep(&SESSIONS, session);
}

/// Tells when a time is over that most often is put off before. It is set anew only when it goes off.
#[derive(Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready when `due` is over.
    pub(super) fn poll(&mut self, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let kept = || take(&TIMERS).unwrap_or_else(|| Box::pin(sleep_until(due)));
        let timer = self.0.get_or_insert_with(kept);
        if timer.deadline() > due {
            timer.as_mut().reset(due);
        }
        loop {
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(timer) = self.0.take() {
            keep(&TIMERS, timer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_goes_off_when_it_is_due_whatever_an_earlier_request_left_it_at() {
        for left_at in [5, 20, 100] {
            let now = Instant::now();
            let mut earlier = Timer::default();
            poll_fn(|cx| {
                assert!(earlier.poll(now + Duration::from_secs(left_at), cx).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(earlier);
            let mut timer = Timer::default();
            poll_fn(|cx| timer.poll(now + Duration::from_secs(20), cx)).await;
            assert_eq!(now.elapsed(), Duration::from_secs(20), "left at {left_at}");
        }
    }
}
