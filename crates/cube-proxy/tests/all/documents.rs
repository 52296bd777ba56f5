//! What the documents say against what there is: links, return codes and reasons, keys, commands,
//! metrics.

mod contract;
mod security;

pub(crate) use contract::rust_tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cube_edge::Reason;

use crate::support::binary;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every page with its text.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = Vec::new();
    for directory in ["", "docs", "docs/contract", "docs/decisions", "tests/conformance"] {
        for entry in fs::read_dir(root().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                pages.push((path, text));
            }
        }
    }
    assert!(pages.len() > 8, "{pages:?}");
    pages
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// The text without its blocks of code.
fn prose(text: &str) -> String {
    let mut inside = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// The names of the headings, as links write them.
fn anchors(text: &str) -> BTreeSet<String> {
    let slug = |heading: &str| {
        let kept = heading.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
        kept.collect::<String>().replace(' ', "-")
    };
    prose(text)
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| slug(line.trim_start_matches('#')))
        .collect()
}

/// Targets of `[text](target)`.
pub(crate) fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let parts = prose.split("](").skip(1);
    parts.filter_map(|part| part.split(')').next()).map(str::to_owned).collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<String> {
    prose(text).split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn links_lead_somewhere() {
    for (path, text) in pages() {
        for link in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(f, a)| (f, Some(a)));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", path.display());
            if let Some(anchor) = anchor {
                let there = anchors(&fs::read_to_string(&target).unwrap());
                assert!(there.contains(anchor), "{}: {link}", path.display());
            }
        }
    }
}

#[test]
fn every_page_is_in_the_index() {
    let index = page("README.md");
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let listed = !name.ends_with(".md") || name == "README.md" || index.contains(&format!("({name})"));
        assert!(listed, "docs/README.md does not list {name}");
    }
}

#[test]
fn the_operations_guide_has_every_return_code_and_reason() {
    let text = page("operating.md");
    let anchors = anchors(&text);
    for code in contract::return_codes() {
        assert!(anchors.contains(&code), "no heading {code}");
    }
    let quoted: BTreeSet<String> = quoted(&text).into_iter().collect();
    for reason in Reason::ALL {
        assert!(quoted.contains(reason.as_str()), "no word on the reason {}", reason.as_str());
    }
    let rules = fs::read_to_string(root().join("deploy/prometheus/cube-proxy.rules.yml")).unwrap();
    let runbooks: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
    assert_eq!(runbooks.len(), rules.matches("- alert: ").count(), "a runbook an alert");
    for runbook in runbooks {
        let anchor = runbook.strip_prefix("file:///usr/share/doc/cube-proxy/operating.md#").unwrap();
        assert!(anchors.contains(anchor), "no heading {anchor}");
    }
}

#[test]
fn files_that_the_architecture_names_are_there() {
    let crates = root().join("crates");
    let section = page("architecture.md");
    let section = section.split("## Where something is").nth(1).and_then(|rest| rest.split("\n## ").next());
    let mut found = 0;
    for line in section.expect("the section").lines().filter(|line| line.starts_with('|')) {
        let mut directory = crates.clone();
        for file in quoted(line).iter().filter(|file| file.ends_with(".rs") || file.ends_with('/')) {
            let path = if file.contains("/src/") { crates.join(file) } else { directory.join(file) };
            assert!(path.exists(), "{}: {file}", line);
            if file.contains("/src/") {
                directory = path.parent().expect("a directory").to_owned();
            }
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}

/// `a/{b,c}.rs` as the two paths it stands for.
fn alternatives(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        Some((before, (names, after))) => {
            names.split(',').map(|name| format!("{before}{}{after}", name.trim())).collect()
        }
        None => vec![path.to_owned()],
    }
}

#[test]
fn source_files_that_pages_name_are_there() {
    let mut there = Vec::new();
    for directory in ["crates", "benches"] {
        contract::files(&root().join(directory), &["rs"], &mut there);
    }
    let mut found = 0;
    for (path, text) in pages() {
        let named = quoted(&text)
            .into_iter()
            .filter(|word| word.contains('/') && !word.contains('<') && word.ends_with(".rs"));
        for file in named.flat_map(|word| alternatives(&word)) {
            let known = there.iter().any(|known| known.ends_with(&file));
            assert!(known, "{}: there is no {file}", path.display());
            found += 1;
        }
    }
    assert!(found > 60, "{found}");
}

#[test]
fn the_contract_lists_every_route_of_the_admin_api() {
    let text = page("contract/lifecycle.md");
    for (method, path) in cube_edge::admin_routes() {
        assert!(
            text.contains(&format!("`{method} {path}")),
            "docs/contract/lifecycle.md has no {method} {path}"
        );
    }
}

#[test]
fn keys_and_variables_that_pages_name_exist() {
    let reference = page("configuration.md");
    let keys: BTreeSet<&str> =
        reference.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
    let sections: BTreeSet<&str> = keys.iter().filter_map(|key| key.split('.').next()).collect();
    let known =
        |key: &str| keys.contains(key) || keys.iter().any(|known| known.starts_with(&format!("{key}.")));
    for (path, text) in pages() {
        for word in quoted(&text) {
            let key = word.split(':').next().unwrap();
            let plain =
                key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._".contains(&b));
            let file = [".md", ".rs", ".yaml", ".json", ".conf", ".sock", ".pid", ".toml"];
            let section = key.split_once('.').map(|(section, _)| section);
            if plain
                && section.is_some_and(|s| sections.contains(s))
                && !file.iter().any(|f| key.ends_with(f))
            {
                assert!(known(key), "{}: {key} is no key", path.display());
            }
        }
        for name in text.split(|c: char| !c.is_ascii_uppercase() && c != '_' && !c.is_ascii_digit()) {
            if name.starts_with("CUBE_PROXY_") && name.contains("__") && !name.ends_with('_') {
                assert!(reference.contains(&format!("`{name}`")), "{}: {name}", path.display());
            }
        }
    }
}

#[test]
fn commands_that_pages_show_are_commands() {
    let mut seen = BTreeSet::new();
    for (path, text) in pages() {
        for line in text.lines() {
            for part in line.split("cube-proxy ").skip(1) {
                let word: String = part.chars().take_while(|c| c.is_ascii_lowercase()).collect();
                if part[word.len()..].starts_with(" -c ") && seen.insert(word.clone()) {
                    let help = Command::new(binary()).args([&word, "--help"]).output().unwrap();
                    assert!(help.status.success(), "{}: cube-proxy {word}", path.display());
                }
            }
        }
    }
    assert!(seen.contains("run") && seen.contains("top") && seen.contains("explain"), "{seen:?}");
}

#[test]
fn long_help_names_what_is_not_obvious() {
    let output = Command::new(binary()).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for shown in ["Examples:", "Exit codes:", "64", "conf/cube-proxy.yaml", "docs/configuration.md"] {
        assert!(help.contains(shown), "no {shown} in\n{help}");
    }
}
