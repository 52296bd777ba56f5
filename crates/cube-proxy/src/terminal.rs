//! What a terminal is sent besides text.

use std::ffi::OsStr;
use std::io::IsTerminal;

/// Whether escape sequences may be written there: it is a terminal, and one that knows them.
#[must_use]
pub fn takes_escapes(output: &impl IsTerminal) -> bool {
    output.is_terminal() && !is_dumb(std::env::var_os("TERM").as_deref())
}

/// Whether colours may be: the user has not asked for none either (<https://no-color.org>).
#[must_use]
pub fn takes_colour(output: &impl IsTerminal) -> bool {
    takes_escapes(output) && !wants_none(std::env::var_os("NO_COLOR").as_deref())
}

/// What the command line's own messages are told: their library takes a terminal for a colourful one
/// wherever `CI` is set, whatever `TERM` says.
#[must_use]
pub fn colour_choice() -> clap::ColorChoice {
    let none =
        is_dumb(std::env::var_os("TERM").as_deref()) || wants_none(std::env::var_os("NO_COLOR").as_deref());
    if none { clap::ColorChoice::Never } else { clap::ColorChoice::Auto }
}

fn is_dumb(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| term.is_empty() || term == "dumb")
}

fn wants_none(no_color: Option<&OsStr>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dumb_terminal_and_no_color_are_heard() {
        let os = |text: &'static str| Some(OsStr::new(text));
        assert_eq!([os("dumb"), os(""), os("xterm"), None].map(is_dumb), [true, true, false, false]);
        assert_eq!([os("1"), os(""), None].map(wants_none), [true, false, false]);
    }
}
