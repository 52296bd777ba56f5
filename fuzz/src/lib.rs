//! The corpora of the fuzz targets, as tests run them (fuzz/README.md).
//!
//! A target is a function of bytes that panics where something does not hold; it stands in the `fuzz` module
//! of the crate that it is about. `src/main.rs` hands it to the engine.

use std::path::{Path, PathBuf};

/// Runs `target` on every input of its corpus.
///
/// # Panics
/// Where the corpus is missing or empty, and where the target does, on the input that is named before.
#[expect(
    clippy::panic,
    clippy::print_stderr,
    reason = "it is for tests, and a target says no more than where it failed"
)]
pub fn run_corpus(name: &str, target: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let Ok(entries) = std::fs::read_dir(&directory) else { panic!("no corpus {}", directory.display()) };
    let mut inputs: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "nothing in {}", directory.display());
    for path in inputs {
        let Ok(input) = std::fs::read(&path) else { panic!("{} cannot be read", path.display()) };
        // Shown where the test fails.
        eprintln!("{}", path.display());
        target(&input);
    }
}
