//! What hostile bytes may not do to the reading of a configuration (fuzz/README.md).

use std::path::Path;

use super::{Environment, Machine, Origin, Reads, parse_reading};

/// The file: it is judged, and every problem is placed within it. Files that it names are not looked at.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let machine = Machine { file_limit: 65_536, cpus: 2, host_name: "node-1".to_owned() };
    let base = Path::new("/nonexistent");
    let read = parse_reading(
        text.to_owned(),
        "cube-proxy.yaml",
        base,
        &Environment::default(),
        &machine,
        Reads::Only(&[]),
    );
    let Err(error) = read else { return };
    assert!(!error.problems.is_empty(), "an error without a problem");
    // One more: the reader says what a file lacks behind its last line.
    let lines = text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count() + 1;
    for problem in &error.problems {
        assert!(!problem.message.is_empty(), "a problem without words");
        if let Origin::File(Some((line, column))) = problem.origin {
            assert!((1..=lines).contains(&line) && column >= 1, "{line}:{column} of {lines} lines");
        }
    }
    assert!(!error.to_string().is_empty());
}

#[cfg(test)]
mod tests {
    use cube_fuzz::run_corpus;

    #[test]
    fn corpora_of_fuzzing() {
        run_corpus("configuration", super::configuration);
    }
}
