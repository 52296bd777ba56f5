use super::*;

fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).unwrap()
}

fn stamp(activity: &Activity, name: &str, now: u64) {
    activity.touch(&id(name), now, || true);
}

/// Unix time of these tests begins with the steady clock, unless they set it.
fn at(steady: u64) -> Moment {
    Moment { steady, offset: 0 }
}

fn names(response: &LastActive) -> Vec<(&str, u64)> {
    response.entries.iter().map(|(id, stamp)| (id.as_str(), *stamp)).collect()
}

#[test]
fn the_listing_is_strictly_newer_and_the_oldest_first() {
    let activity = Activity::new(100);
    for (name, at) in [("c", 30_000), ("a", 10_000), ("b", 20_000)] {
        stamp(&activity, name, at);
    }
    assert_eq!(names(&activity.since(0, at(40_000))), [("a", 10_000), ("b", 20_000), ("c", 30_000)]);
    let response = activity.since(20_000, at(50_000));
    assert_eq!(names(&response), [("c", 30_000)]);
    assert_eq!((response.now, response.since, response.count), (50_000, 20_000, 3));
}

#[test]
fn a_sandbox_is_stamped_once_a_second() {
    let activity = Activity::new(100);
    stamp(&activity, "a", 10_000);
    stamp(&activity, "a", 10_999);
    assert_eq!(names(&activity.since(0, at(10_000))), [("a", 10_000)]);
    stamp(&activity, "a", 11_000);
    assert_eq!(names(&activity.since(0, at(11_000))), [("a", 11_000)]);
}

#[test]
fn a_stamp_taken_before_a_listing_and_written_after_it_is_in_the_next() {
    let activity = Activity::new(100);
    let first = activity.since(0, at(10_000));
    stamp(&activity, "a", 9_990);
    let second = activity.since(first.now, at(10_000));
    assert_eq!(names(&second), [("a", 10_001)]);
    assert_eq!(second.now, 10_001);
    assert!(activity.since(second.now, at(10_001)).entries.is_empty());
}

#[test]
fn a_reader_sees_every_stamp_once_whoever_sets_the_clock() {
    const HOURS: i64 = 5 * 3_600_000;
    let activity = Activity::new(100);
    let (mut since, mut steady, mut offset) = (0, 10_000, 1_000_000_000_i64);
    for set in [0, HOURS, 0, -HOURS, 0, -100, 0, 2_000, -HOURS, 0, HOURS] {
        stamp(&activity, "a", steady);
        offset += set;
        steady += 10;
        stamp(&activity, "b", steady);
        let now = Moment { steady: steady + 10, offset };
        let response = activity.since(since, now);
        let unix = now.unix(now.steady);
        assert_eq!(names(&response), [("a", unix - 20), ("b", unix - 10)], "after {set}");
        assert_eq!(response.now, unix);
        since = response.now;
        steady += 5_000;
    }
}

#[test]
fn who_asks_from_a_time_that_never_was_gets_everything() {
    let activity = Activity::new(100);
    stamp(&activity, "a", 10_000);
    // Told by a process before this one, when the clock was ahead.
    assert_eq!(names(&activity.since(90_000, at(20_000))), [("a", 10_000)]);
}

#[test]
fn a_reader_misses_nothing_of_what_is_stamped_while_it_reads() {
    let activity = Activity::new(100_000);
    let clock = AtomicU64::new(10_000);
    let mut seen = std::collections::HashSet::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (activity, clock) = (&activity, &clock);
                scope.spawn(move || {
                    for n in 0..5_000 {
                        let now = clock.load(Ordering::Relaxed);
                        stamp(activity, &format!("w{writer}-{n}"), now);
                    }
                })
            })
            .collect();
        let mut since = 0;
        loop {
            let done = writers.iter().all(std::thread::ScopedJoinHandle::is_finished);
            let response = activity.since(since, at(clock.fetch_add(1, Ordering::Relaxed)));
            since = response.now;
            seen.extend(response.entries.into_iter().map(|(id, _)| id));
            if done {
                break;
            }
        }
    });
    assert_eq!(seen.len(), 10_000);
}

#[test]
fn a_long_listing_is_cut_and_its_rest_comes_next() {
    let activity = Activity::new(40_000);
    let name = |n: u64| format!("{n:032}");
    for n in 0..30_000 {
        // All in few moments: the cut falls among equals.
        stamp(&activity, &name(n), 10_000 + n / 10_000);
    }
    let mut seen = std::collections::HashSet::new();
    let (mut since, mut responses) = (0, 0);
    loop {
        let response = activity.since(since, at(50_000));
        assert_eq!(response.count, 30_000);
        assert!(response.to_json().len() <= MAX_RESPONSE_BYTES);
        seen.extend(response.entries.iter().map(|(id, _)| id.clone()));
        responses += 1;
        if response.now >= 50_000 {
            break;
        }
        assert_eq!(response.now, response.entries.last().unwrap().1);
        since = response.now;
    }
    assert_eq!(seen.len(), 30_000);
    assert!(responses > 1);
}

#[test]
fn the_bound_drops_the_longest_idle() {
    let activity = Activity::new(SHARDS * 16);
    for n in 0..100_000 {
        stamp(&activity, &format!("s{n}"), 10_000 + n);
    }
    assert!(activity.len() <= SHARDS * 16, "{}", activity.len());
    let response = activity.since(0, at(200_000));
    assert_eq!(response.entries.last().unwrap().0.as_str(), "s99999");
    assert!(response.entries.first().unwrap().1 > 90_000);
}

#[test]
fn a_reader_that_goes_on_at_a_successor_misses_nothing_and_sees_nothing_twice() {
    let old = Activity::new(100);
    stamp(&old, "a", 10_000);
    let since = old.since(0, at(20_000)).now;
    stamp(&old, "b", 19_990);
    let new = Activity::new(100);
    for (id, at) in old.newer(0) {
        new.take(&id, at, 20_500, || true);
    }
    new.continue_from(old.listed(), &old.cursors(), 20_000);
    let response = new.since(since, at(20_000));
    assert_eq!(names(&response), [("b", 20_001)]);
    // The old process still stamps; some of it comes again and again.
    stamp(&old, "a", 20_001);
    for _ in 0..2 {
        for (id, at) in old.newer(0) {
            new.take(&id, at, 20_500, || true);
        }
    }
    let response = new.since(response.now, at(20_500));
    assert_eq!(names(&response), [("a", 20_002)]);
    assert!(new.since(response.now, at(20_600)).entries.is_empty());
    new.take(&id("c"), 20_500, 20_500, || false);
    assert!(!new.knows(&id("c")), "it was deleted");
}

#[test]
fn what_is_deleted_goes_and_stays_away() {
    let activity = Activity::new(100);
    stamp(&activity, "a", 10_000);
    activity.remove(&id("a"));
    activity.touch(&id("a"), 20_000, || false);
    assert_eq!((activity.len(), activity.knows(&id("a"))), (0, false));
    stamp(&activity, "a", 20_000);
    activity.touch(&id("a"), 30_000, || false);
    assert_eq!(names(&activity.since(0, at(40_000))), [("a", 20_000)]);
}

#[test]
fn the_json_is_what_the_table_says() {
    let response = LastActive { now: 3, since: 0, count: 5, entries: vec![(id("a"), 1), (id("b-c_d"), 2)] };
    assert_eq!(response.to_json(), r#"{"now":3,"since":0,"count":5,"entries":{"a":1,"b-c_d":2}}"#);
    serde_json::from_str::<serde_json::Value>(&response.to_json()).unwrap();
}
