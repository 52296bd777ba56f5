use super::*;
use cube_metadata::SandboxState::{Killed, Paused, Pausing, Running};

/// Plays a script on what is known of one sandbox. Steps: `push <state>`, `read <status> <word>`
/// (`-`: none, `!`: no record), `stale <status> <word>` (a read that began before the last push),
/// `note` (the store announces a change of the state string), `resumed`, `deleted`. Gives the state in force after the last.
fn play(script: &str) -> String {
    let mut known = KnownState::default();
    let mut mark = 0;
    for step in script.split(',') {
        let words: Vec<&str> = step.split_whitespace().collect();
        let status = |word: &str| Status::parse(if word == "-" { "" } else { word });
        mark += 1;
        let event = match words[..] {
            ["note"] => {
                known.announced_at = mark;
                continue;
            }
            ["push", state] => StateEvent::Pushed { state: SandboxState::parse(state).unwrap(), at: mark },
            ["resumed"] => StateEvent::Resumed { began: mark - 1, at: mark },
            ["deleted"] => StateEvent::Deleted { at: mark },
            [kind, record, word] => StateEvent::Read {
                status: (record != "!").then(|| status(record)),
                word: status(word),
                began: if kind == "stale" { known.pushed.saturating_sub(1) } else { mark },
                at: mark,
            },
            _ => panic!("{step}"),
        };
        known.apply(event, true);
    }
    match known.state {
        None => "none".to_owned(),
        Some(Status::Unknown) => "unknown".to_owned(),
        Some(Status::Known(state)) => state.to_string(),
    }
}

#[test]
fn the_newest_event_wins() {
    for (script, state) in [
        ("read - -", "none"),
        ("push paused", "paused"),
        ("push paused, push running", "running"),
        // The first Status counts only where nothing else is known.
        ("read paused -", "paused"),
        ("push running, read paused -", "running"),
        ("read running paused", "paused"),
        // Reading a record again never undoes a push.
        ("read paused -, push running, read paused -", "running"),
        ("read - paused, push running, read - paused, read - paused", "running"),
        ("read paused paused, resumed, read paused paused", "running"),
        // A value that changed is an event.
        ("read paused -, push running, read killed -", "killed"),
        ("read - -, push running, read paused -", "paused"),
        ("read running -, read paused -, read running -", "running"),
        ("read - running, push killed, read - paused", "paused"),
        ("push running, read - paused", "paused"),
        // Where both tell something new in one read, the string is the better word.
        ("read running running, read paused pausing", "pausing"),
        // Where only one does, it counts.
        ("read running paused, read killed paused", "killed"),
        // Other words are remembered and pass.
        ("read hibernated -", "unknown"),
        ("read paused -, read hibernated -", "unknown"),
        ("push paused, deleted", "none"),
        ("push paused, deleted, read killed -", "killed"),
    ] {
        assert_eq!(play(script), state, "{script}");
    }
}

#[test]
fn a_push_wins_over_a_read_that_began_before_it() {
    for (script, state) in [
        ("push running, stale paused paused", "running"),
        ("read running running, push paused, stale running resuming", "paused"),
        ("read running running, resumed, stale paused paused", "running"),
        // What such a read said is not remembered: the next one counts.
        ("read - running, push running, stale - paused, read - paused", "paused"),
        ("read paused -, push running, stale killed -, read killed -", "killed"),
    ] {
        assert_eq!(play(script), state, "{script}");
    }
}

#[test]
fn an_announced_change_of_the_string_is_an_event_whatever_it_reads_as() {
    for (script, state) in [
        ("note, read - paused", "paused"),
        // The same word again, after a push.
        ("note, read - paused, push running, note, read - paused", "paused"),
        ("note, read - paused, resumed, note, read - paused", "paused"),
        ("note, read - killed, push running, note, read running killed", "killed"),
        // Announced before the push: the push is newer, whenever the word is read.
        ("note, push running, read - paused", "running"),
        ("note, push running, read - paused, read - paused", "running"),
        ("note, push running, stale - paused, read - paused", "running"),
        ("note, push running, note, read - paused", "paused"),
        // Once: a read that nothing announced tells nothing new.
        ("note, read - paused, push running, read - paused", "running"),
        // It ran out, or was removed.
        ("note, read - paused, note, read - -", "paused"),
        ("note, read - killed, note, read - -", "killed"),
        ("note, read - pausing, note, read - -", "none"),
        ("note, read - pausing, push paused, note, read - -", "paused"),
    ] {
        assert_eq!(play(script), state, "{script}");
    }
}

#[test]
fn a_change_is_awaited_until_a_read_that_began_after_it() {
    let mut known = KnownState { announced_at: 3, ..KnownState::default() };
    let paused = Some(Status::Known(Paused));
    let read = |began| StateEvent::Read { status: None, word: paused, began, at: 9 };
    known.apply(read(2), true);
    assert!(known.has_unread_change());
    known.apply(read(3), true);
    assert!(!known.has_unread_change());
}

#[test]
fn a_change_of_a_string_that_is_gone_leaves_no_trace() {
    let states = StateTable::new(100, true);
    let id = SandboxId::parse("a").unwrap();
    let at = states.next_mark();
    states.change_announced(&id, at);
    assert_eq!(states.len(), 1);
    states.apply(
        &id,
        StateEvent::Read { status: None, word: None, began: states.mark(), at: states.next_mark() },
    );
    assert_eq!(states.len(), 0);
    let ignoring = StateTable::new(100, false);
    ignoring.change_announced(&id, at);
    assert_eq!(ignoring.len(), 0);
}

#[test]
fn when_the_string_runs_out_only_a_change_is_forgotten() {
    for (script, state) in [
        ("read - pausing, read - -", "none"),
        ("read - resuming, read - -", "none"),
        ("read - killing, read - -", "none"),
        ("read - paused, read - -", "paused"),
        ("read - killed, read - -", "killed"),
        ("read - running, read - -", "running"),
        // It takes back what it said, not what others said since.
        ("read - pausing, push paused, read - -", "paused"),
        ("read - pausing, push resuming, read - -", "resuming"),
        ("read - pausing, push pausing, read - -", "none"),
        // And then counts again.
        ("read - pausing, read - -, read - pausing", "pausing"),
    ] {
        assert_eq!(play(script), state, "{script}");
    }
}

#[test]
fn a_status_that_is_removed_takes_back_only_itself() {
    for (script, state) in [
        ("read paused -, read - -", "none"),
        ("read paused -, push killed, read - -", "killed"),
        ("read paused -, read ! -", "none"),
        ("read running -, push killed, read ! -", "killed"),
        // A record that comes back is a new word.
        ("read running -, push killed, read ! -, read running -", "running"),
        ("read running -, push killed, read ! -, read - -", "killed"),
    ] {
        assert_eq!(play(script), state, "{script}");
    }
}

#[test]
fn the_string_is_ignored_where_it_is_not_followed() {
    let mut known = KnownState::default();
    let paused = Some(Status::Known(Paused));
    known.apply(StateEvent::Read { status: Some(None), word: paused, began: 1, at: 1 }, false);
    assert_eq!(known.state, None);
}

fn pushed(known: &mut KnownState, state: SandboxState, at: EventMark) -> StateChange {
    known.apply(StateEvent::Pushed { state, at }, true)
}

#[test]
fn a_life_begins_whatever_tells_of_it() {
    for sleeping in [Paused, Pausing, SandboxState::Resuming] {
        let mut known = KnownState::default();
        pushed(&mut known, sleeping, 1);
        assert!(pushed(&mut known, Running, 2).wakes, "{sleeping}");
        assert!(!pushed(&mut known, Running, 3).wakes);
    }
    let mut known = KnownState::default();
    pushed(&mut known, Paused, 1);
    let running = Some(Status::Known(Running));
    assert!(known.apply(StateEvent::Read { status: None, word: running, began: 2, at: 3 }, true).wakes);
}

#[test]
fn a_resume_begins_one_life_although_a_push_tells_of_it_too() {
    let mut known = KnownState::default();
    pushed(&mut known, Paused, 1);
    // The call begins, the push comes before its response.
    assert!(pushed(&mut known, Running, 2).wakes);
    assert!(!known.apply(StateEvent::Resumed { began: 1, at: 3 }, true).wakes);
    // A sandbox believed running that was resumed all the same has begun one.
    assert!(known.apply(StateEvent::Resumed { began: 3, at: 4 }, true).wakes);
}

#[test]
fn a_kill_during_a_resume_is_not_undone_by_its_response() {
    let mut known = KnownState::default();
    pushed(&mut known, Paused, 1);
    pushed(&mut known, Killed, 2);
    assert_eq!(known.apply(StateEvent::Resumed { began: 1, at: 3 }, true), StateChange::default());
    assert_eq!(known.state, Some(Status::Known(Killed)));
}

#[test]
fn every_push_of_a_kill_kills_and_a_read_only_the_first_time() {
    let mut known = KnownState::default();
    assert!(pushed(&mut known, SandboxState::Killing, 1).kills);
    assert!(pushed(&mut known, Killed, 2).kills);
    let mut known = KnownState::default();
    let read = |at| StateEvent::Read { status: Some(Some(Status::Known(Killed))), word: None, began: at, at };
    assert!(known.apply(read(1), true).kills);
    assert!(!known.apply(read(2), true).kills);
}

#[test]
fn a_reading_that_is_not_in_force_makes_the_next_change_worth_reading() {
    let mut known = KnownState::default();
    let paused = Some(Status::Known(Paused));
    known.apply(StateEvent::Read { status: Some(None), word: paused, began: 1, at: 1 }, true);
    assert!(!known.contradicted());
    pushed(&mut known, Running, 2);
    assert!(known.contradicted());
    let running = Some(Status::Known(Running));
    known.apply(StateEvent::Read { status: Some(None), word: running, began: 3, at: 3 }, true);
    assert!(!known.contradicted());
}

#[test]
fn the_table_is_bounded_and_keeps_nothing_about_the_unknown() {
    let states = StateTable::new(100, true);
    let read = StateEvent::Read { status: None, word: None, began: 0, at: 0 };
    for n in 0..1000 {
        states.apply(&SandboxId::parse(&format!("u{n}")).unwrap(), read);
    }
    assert_eq!(states.len(), 0);
    for n in 0..1000 {
        let id = SandboxId::parse(&format!("s{n}")).unwrap();
        states.apply(&id, StateEvent::Pushed { state: Paused, at: n });
    }
    assert!(states.len() <= 100, "{}", states.len());
}

#[test]
fn a_state_that_is_asked_for_outlives_those_that_are_not() {
    let states = StateTable::new(100, true);
    let kept = SandboxId::parse("kept").unwrap();
    states.apply(&kept, StateEvent::Pushed { state: Killed, at: 1 });
    for n in 0..10_000 {
        assert!(states.get(&kept).is_some(), "after {n}");
        let id = SandboxId::parse(&format!("s{n}")).unwrap();
        states.apply(&id, StateEvent::Pushed { state: Running, at: n });
    }
}
