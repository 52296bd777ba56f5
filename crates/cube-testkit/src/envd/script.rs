//! The commands that a scripted sandbox knows. Nothing is run: each is a line in a table.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

/// What a command does that its listeners see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// Bytes on standard output.
    Stdout(Vec<u8>),
    /// Bytes on standard error.
    Stderr(Vec<u8>),
    /// The end, with the exit code.
    Exited(i32),
    /// The end by a signal.
    Killed,
    /// The stream ends cleanly without its last message.
    Vanished,
    /// The stream breaks.
    Broke,
}

/// A running command: its standard input and where its events go.
pub(super) struct Shell<F> {
    pub(super) stdin: UnboundedReceiver<Vec<u8>>,
    pub(super) tell: F,
}

impl<F: FnMut(Event)> Shell<F> {
    /// Runs statements one after the other (`;`, `&&`) and tells the end.
    pub(super) async fn run(mut self, line: &str) {
        // What redirects is no end of a statement.
        let line = line.replace(">&2", ">2");
        for statement in line.split([';', '&']).map(str::trim).filter(|statement| !statement.is_empty()) {
            if let Some(end) = self.statement(statement).await {
                return (self.tell)(end);
            }
        }
        (self.tell)(Event::Exited(0));
    }

    async fn statement(&mut self, statement: &str) -> Option<Event> {
        let (statement, to_stderr) = match statement.strip_suffix(">2") {
            Some(rest) => (rest.trim(), true),
            None => (statement, false),
        };
        let (word, rest) = statement.split_once(' ').unwrap_or((statement, ""));
        let number = |text: &str| text.trim().parse::<f64>().unwrap_or_default();
        match word {
            "echo" => {
                let text = format!("{}\n", rest.trim_matches(['"', '\''])).into_bytes();
                (self.tell)(if to_stderr { Event::Stderr(text) } else { Event::Stdout(text) });
            }
            "sleep" => tokio::time::sleep(Duration::from_secs_f64(number(rest))).await,
            // Standard input to standard output until it is closed.
            "cat" => {
                while let Some(bytes) = self.stdin.recv().await {
                    (self.tell)(Event::Stdout(bytes));
                }
            }
            // A number a line, each that many seconds after the one before: `count 10 0.1`.
            "count" => {
                let (to, pause) = rest.split_once(' ').unwrap_or((rest, "0"));
                let pause = Duration::from_secs_f64(number(pause));
                let mut next = 0;
                while f64::from(next) < number(to) {
                    next += 1;
                    (self.tell)(Event::Stdout(format!("{next}\n").into_bytes()));
                    tokio::time::sleep(pause).await;
                }
            }
            // That many KiB in pieces of four: `spew 1024`.
            "spew" => {
                let mut left = number(rest);
                while left > 0.0 {
                    (self.tell)(Event::Stdout(vec![b'x'; 4096]));
                    left -= 4.0;
                    tokio::task::yield_now().await;
                }
            }
            "exit" => return Some(Event::Exited(rest.trim().parse().unwrap_or_default())),
            "vanish" => return Some(Event::Vanished),
            "break" => return Some(Event::Broke),
            _ => {
                (self.tell)(Event::Stderr(format!("sh: {word}: not found\n").into_bytes()));
                return Some(Event::Exited(127));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(line: &str) -> Vec<Event> {
        let (input, stdin) = tokio::sync::mpsc::unbounded_channel();
        input.send(b"in".to_vec()).unwrap();
        drop(input);
        let mut told = Vec::new();
        Shell { stdin, tell: |event| told.push(event) }.run(line).await;
        told
    }

    #[tokio::test]
    async fn statements_follow_each_other_until_one_ends_the_command() {
        let out = |text: &str| Event::Stdout(text.into());
        assert_eq!(
            run("echo \"a b\"; cat && exit 3; echo c").await,
            [out("a b\n"), out("in"), Event::Exited(3)]
        );
        assert_eq!(run("echo a >&2").await, [Event::Stderr(b"a\n".into()), Event::Exited(0)]);
        assert_eq!(run("count 2 0").await, [out("1\n"), out("2\n"), Event::Exited(0)]);
        assert_eq!(run("nonsense").await.last(), Some(&Event::Exited(127)));
    }
}
