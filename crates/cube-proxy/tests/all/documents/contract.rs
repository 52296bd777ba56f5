//! docs/contract against the code: pages and sections that comments cite are there, every section
//! with a **must** names tests that hold it, and those tests exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_yaml::Value;

use super::{prose, quoted, root};

/// Where a page that is named without its directory may be, the contract first.
const PLACES: [&str; 6] =
    ["docs/contract", "docs", "docs/decisions", ".", "tests/conformance", "benches/kit"];

/// Directories whose files speak of pages.
const SPEAKING: [&str; 7] = ["crates", "benches", "tests", "scripts", "conf", "deploy", ".ci"];

/// What ends the name of a section that is cited without quotation marks.
const SECTION_ENDS: [char; 8] = [')', ';', ':', '.', ',', '"', '@', '`'];

/// Every file below `directory` with one of the extensions.
pub(super) fn files(directory: &Path, extensions: &[&str], into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, extensions, into);
        } else if path.extension().is_some_and(|e| extensions.iter().any(|known| e == *known)) {
            into.push(path);
        }
    }
}

/// The page of that name: the contract's, or another document's.
fn place_of(name: &str) -> Option<PathBuf> {
    PLACES.iter().map(|place| root().join(place).join(name)).find(|path| path.is_file())
}

/// The text in one line, without the marks of comments, so that a citation may go over a line's end.
fn joined(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim().trim_start_matches(['/', '!', '#']).trim());
    lines.collect::<Vec<_>>().join(" ")
}

/// Pages that the text names, each with the section behind it: `errors.md, "When a response is cut"`
/// or, where it is one that begins with a capital, `errors.md, Dialects`.
fn citations(text: &str) -> Vec<(String, Option<String>)> {
    let text = joined(text);
    let mut found = Vec::new();
    for (at, _) in text.match_indices(".md") {
        let (before, after) = (&text[..at], &text[at + 3..]);
        let part = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let name = &before[before.rfind(|c| !part(c)).map_or(0, |end| end + 1)..];
        let name = name.rsplit('/').next().unwrap();
        if name.is_empty() || after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            continue; // an extension, or the beginning of another word
        }
        let section = match after.strip_prefix(',').unwrap_or(after).strip_prefix(" \"") {
            Some(rest) => rest.split('"').next(),
            None => after.strip_prefix(", ").and_then(|rest| rest.split(SECTION_ENDS).next()).map(str::trim),
        };
        let section = section.filter(|section| section.starts_with(|c: char| c.is_ascii_uppercase()));
        found.push((format!("{name}.md"), section.map(str::to_owned)));
    }
    found
}

/// Headings with the text below each, up to the next heading of any level.
pub(super) fn sections(text: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in prose(text).lines() {
        if line.starts_with('#') {
            sections.push((line.trim_start_matches('#').trim().to_owned(), String::new()));
        } else if let Some((_, body)) = sections.last_mut() {
            body.push_str(line);
            body.push('\n');
        }
    }
    sections
}

/// The pages with promises: all of the contract but its index.
fn contract() -> Vec<(String, Vec<(String, String)>)> {
    let mut paths = Vec::new();
    files(&root().join("docs/contract"), &["md"], &mut paths);
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let pages = paths.iter().filter(|path| !path.ends_with("README.md"));
    let pages: Vec<_> =
        pages.map(|path| (name(path), sections(&fs::read_to_string(path).unwrap()))).collect();
    assert!(pages.len() >= 8, "{pages:?}");
    pages
}

/// The text of one section of one page of the contract.
fn section(page: &str, heading: &str) -> String {
    let text = fs::read_to_string(root().join("docs/contract").join(page)).unwrap();
    let found = sections(&text).into_iter().find(|(name, _)| name == heading);
    found.unwrap_or_else(|| panic!("{page} has no section \"{heading}\"")).1
}

/// The return codes of errors.md, as headings of operating.md write them: `330xxx` for `330<status>`.
pub(super) fn return_codes() -> BTreeSet<String> {
    let table = section("errors.md", "Return codes");
    let cells =
        table.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    let codes: BTreeSet<String> =
        cells.flat_map(quoted).map(|code| code.replace("<status>", "xxx")).collect();
    assert!(codes.len() > 15 && codes.iter().all(|code| code.len() == 6), "{codes:?}");
    codes
}

/// The names behind *Held by* in a section.
fn held_by(body: &str) -> Vec<String> {
    let paragraphs = body.split("\n\n").filter(|paragraph| paragraph.trim_start().starts_with("Held by:"));
    paragraphs.flat_map(quoted).collect()
}

/// Names of all tests written in Rust, as the contract names them: the module as a path, without the
/// parts that only say that it is a test.
pub(crate) fn rust_tests() -> BTreeSet<String> {
    let mut paths = Vec::new();
    files(&root().join("crates"), &["rs"], &mut paths);
    let mut names = BTreeSet::new();
    for path in paths {
        let inside = path.strip_prefix(root().join("crates")).unwrap().with_extension("");
        let mut parts: Vec<String> =
            inside.iter().map(|part| part.to_str().unwrap().trim_end_matches("_tests").to_owned()).collect();
        if inside.starts_with("cube-proxy/tests/all") {
            parts.drain(..3);
        } else {
            parts[0] = parts[0].replace('-', "_");
            parts.retain(|part| !["src", "tests", "mod", "lib", "main"].contains(&part.as_str()));
        }
        parts.retain(|part| part != "mod");
        let text = fs::read_to_string(&path).unwrap();
        let mut expected = false;
        for line in text.lines().map(str::trim) {
            expected |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let after = line.trim_start_matches("async ").strip_prefix("fn ");
            if let Some(name) = after.filter(|_| expected) {
                let name = name.split('(').next().unwrap();
                names.insert(format!("{}::{name}", parts.join("::")));
                expected = false;
            }
        }
    }
    assert!(names.len() > 500, "{}", names.len());
    names
}

/// Names of the scenarios under a real systemd, `systemd::name`.
fn systemd_scenarios() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("crates/cube-proxy/tests/systemd/scenarios.py")).unwrap();
    let list = text.split("SCENARIOS = [").nth(1).unwrap().split(']').next().unwrap();
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| format!("systemd::{name}"))
        .collect()
}

/// Names of all black-box cases, each with its page.
pub(super) fn conformance_cases() -> BTreeMap<String, String> {
    let output =
        Command::new("python3").arg(root().join("tests/conformance")).arg("--list").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let named = text.lines().map(|line| line.strip_suffix(']').unwrap().rsplit_once(" [").unwrap());
    named.map(|(name, page)| (name.to_owned(), page.to_owned())).collect()
}

#[test]
fn pages_and_sections_that_code_cites_are_there() {
    let mut paths = Vec::new();
    for directory in SPEAKING {
        files(&root().join(directory), &["rs", "py", "sh", "yaml", "yml", "toml", "json"], &mut paths);
    }
    let mut seen = 0;
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for (name, section) in citations(&text) {
            let page = place_of(&name).unwrap_or_else(|| panic!("{}: no page {name}", path.display()));
            seen += 1;
            let Some(section) = section else { continue };
            let headings = sections(&fs::read_to_string(page).unwrap());
            let there = headings.iter().any(|(heading, _)| *heading == section);
            assert!(there, "{}: {name} has no section \"{section}\"", path.display());
        }
    }
    assert!(seen > 150, "{seen} citations");
}

#[test]
fn every_page_of_the_contract_is_in_its_index() {
    let index = fs::read_to_string(root().join("docs/contract/README.md")).unwrap();
    for (page, _) in contract() {
        assert!(index.contains(&format!("]({page})")), "docs/contract/README.md does not list {page}");
    }
}

#[test]
fn every_section_with_a_promise_names_a_test_that_holds_it() {
    let mut promises = 0;
    for (page, sections) in contract() {
        for (heading, body) in sections {
            let musts = body.matches("**must").count();
            promises += musts;
            assert!(musts == 0 || !held_by(&body).is_empty(), "{page}, \"{heading}\" names no test");
        }
    }
    assert!(promises > 100, "{promises} promises");
}

#[test]
fn every_test_that_the_contract_names_is_there() {
    let (tests, cases) = (&rust_tests() | &systemd_scenarios(), conformance_cases());
    let mut missing = Vec::new();
    for (page, sections) in contract() {
        for (heading, body) in sections {
            for name in held_by(&body) {
                let there = match name.strip_suffix('*') {
                    Some(beginning) => cases.keys().any(|case| case.starts_with(beginning)),
                    None if name.contains("::") => tests.contains(&name),
                    None => cases.contains_key(&name),
                };
                if !there {
                    missing.push(format!("{page}, \"{heading}\": {name}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}

#[test]
fn every_black_box_case_holds_a_promise_of_the_page_it_cites() {
    let held: BTreeMap<String, Vec<String>> = contract()
        .into_iter()
        .map(|(page, sections)| (page, sections.iter().flat_map(|(_, body)| held_by(body)).collect()))
        .collect();
    for (case, page) in conformance_cases() {
        let names = held.get(&page).unwrap_or_else(|| panic!("{case}: no page {page}"));
        let named = names.iter().any(|name| match name.strip_suffix('*') {
            Some(beginning) => case.starts_with(beginning),
            None => *name == case,
        });
        assert!(named, "no section of {page} names {case}");
    }
}

/// Every value of a YAML text with its path.
fn leaves(value: &Value, path: &str, into: &mut BTreeMap<String, Value>) {
    match value.as_mapping() {
        Some(mapping) => {
            for (key, value) in mapping {
                let key = key.as_str().unwrap();
                let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                leaves(value, &path, into);
            }
        }
        None => {
            into.insert(path.to_owned(), value.clone());
        }
    }
}

#[test]
fn names_and_defaults_of_the_configuration_stay() {
    let page = fs::read_to_string(root().join("docs/contract/config.md")).unwrap();
    let block = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    // Says exactly the defaults of the code: `the_annotated_file_says_exactly_the_defaults`.
    let shipped = fs::read_to_string(root().join("conf/cube-proxy.yaml")).unwrap();
    let (mut promised, mut there) = (BTreeMap::new(), BTreeMap::new());
    leaves(&serde_yaml::from_str(block).unwrap(), "", &mut promised);
    leaves(&serde_yaml::from_str(&shipped).unwrap(), "", &mut there);
    assert!(promised.len() > 80, "{} keys", promised.len());
    for (key, default) in promised {
        assert_eq!(there.get(&key), Some(&default), "{key}");
    }
}

#[test]
fn citations_are_found_over_the_end_of_a_line_and_in_any_directory() {
    let text = r#"
        //! One thing (errors.md, "When a
        //! response is cut"), docs/architecture.md, which is none of it; `.md` is no page.
        // Others: connections.md, HTTP/2 and
        // gRPC; (config.md, `limits`)"#;
    let cited = |name: &str, section: Option<&str>| (name.to_owned(), section.map(str::to_owned));
    let want = [
        cited("errors.md", Some("When a response is cut")),
        cited("architecture.md", None),
        cited("connections.md", Some("HTTP/2 and gRPC")),
        cited("config.md", None),
    ];
    assert_eq!(citations(text), want);
}
