//! A sign of life while something takes long.

use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::terminal;

/// A command that takes no longer than this shows no progress.
const SOON: Duration = Duration::from_secs(1);

/// Waits for `work`; on a terminal says what it is and how long it has taken, once a second, and
/// takes that back in the end.
pub(super) async fn with<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let begun = Instant::now();
    let mut shown = false;
    loop {
        tokio::select! {
            done = &mut work => {
                if shown {
                    show("\r\x1b[K");
                }
                return done;
            }
            () = tokio::time::sleep(SOON) => {
                if terminal::takes_escapes(&std::io::stderr()) {
                    shown = true;
                    show(&format!("\r\x1b[K{what} ... {} s", begun.elapsed().as_secs()));
                }
            }
        }
    }
}

fn show(text: &str) {
    // A terminal that takes no text has nobody in front of it.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
