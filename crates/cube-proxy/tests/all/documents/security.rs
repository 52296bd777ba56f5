//! docs/security.md against the tests: each defence names what holds it.

use super::contract::{conformance_cases, rust_tests, sections};
use super::{page, quoted};

#[test]
fn every_defence_names_tests_that_are_there() {
    let (tests, cases) = (rust_tests(), conformance_cases());
    let mut defences = 0;
    let mut missing = Vec::new();
    for (heading, body) in sections(&page("security.md")) {
        let rows = body.lines().filter(|line| line.starts_with("| ") && !line.contains("| held by |"));
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
            let [tried, _, held] = cells[..] else { panic!("{heading}: {row}") };
            let named = quoted(held);
            assert!(!named.is_empty(), "{heading}: nothing holds {tried}");
            missing
                .extend(named.into_iter().filter(|name| !tests.contains(name) && !cases.contains_key(name)));
            defences += 1;
        }
    }
    assert!(defences > 30, "{defences} defences");
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}
