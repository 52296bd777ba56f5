//! docs/configuration.md, made from what the code knows: names, order and types from the sections,
//! defaults and meaning from conf/cube-proxy.yaml (which a test keeps equal to the code's).
//!
//! `UPDATE_DOCS=1 cargo test -p cube-proxy --lib reference` writes it; without the variable the
//! test fails where the committed page differs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_yaml::Value;

use super::path::{KeyPath, Step};
use super::source;
use super::types::Config;
use super::{KEYS, Takes};
use cube_settings::{Section, Shape};

const HEAD: &str = "\
# Configuration

<!-- Made from the code and conf/cube-proxy.yaml: UPDATE_DOCS=1 cargo test -p cube-proxy --lib reference -->

One YAML file; every key has a default, so an empty file is a configuration. Unknown keys are
errors. `cube-proxy check -c FILE` names each fault with file, line, column and key.
[conf/cube-proxy.yaml](../conf/cube-proxy.yaml) is the same as below in the form of a file, ready to
be copied.

- **time**: `500ms`, `3s`, `10m`, `1h`; **size**: `64KiB`, `256MiB`, `1GiB` or plain bytes.
- Relative paths begin at the directory of the file.
- **Live**: SIGHUP reads the file again and takes what is marked so; the rest needs an upgrade or a
  restart ([operating.md](operating.md#change-the-configuration-of-a-running-proxy)).
- **Environment**: each key can be overridden by the variable named beside it, the value written as
  YAML: `CUBE_PROXY_LISTEN__HTTP='[\"0.0.0.0:80\"]'`, `CUBE_PROXY_LIMITS__BODY=1GiB`. Other variables that
  begin with `CUBE_PROXY_` are ignored with a warning.
- **Secrets**: `password`, `token` and the like are never shown in logs, errors or answers. A `*_file`
  beside one holds it in a file of its own, one line.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The comments of an annotated file by the path of the key below them.
fn comments(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    // The open sections with their indentation.
    let mut open: Vec<(usize, String)> = Vec::new();
    let mut comment = String::new();
    for line in text.lines() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        if let Some(words) = body.strip_prefix('#') {
            if !comment.is_empty() {
                comment.push(' ');
            }
            comment.push_str(words.trim());
        } else if body.is_empty() {
            comment.clear();
        } else if let Some((key, _)) = body.split_once(':') {
            open.retain(|(depth, _)| *depth < indent);
            open.push((indent, key.to_owned()));
            let path = open.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join(".");
            found.insert(path, std::mem::take(&mut comment));
        }
    }
    found
}

/// A value on one line, as one would write it.
fn flow(value: &Value) -> String {
    match value {
        Value::Sequence(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) if text.parse::<f64>().is_ok() || text.contains([':', '[', '#', '-']) => {
            format!("\"{text}\"")
        }
        Value::String(text) => text.clone(),
        other => serde_yaml::to_string(other).unwrap().trim().to_owned(),
    }
}

struct Page {
    text: String,
    comments: BTreeMap<String, String>,
    /// The key of each meaning, since one that is said twice is right for one of them at most.
    told: BTreeMap<String, String>,
    defaults: Value,
    variables: BTreeMap<String, String>,
}

impl Page {
    fn keys(&mut self, path: &str, keys: &[(&'static str, Shape)]) {
        for (key, shape) in keys {
            let path = if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
            match shape {
                Shape::Section(inner) => self.keys(&path, inner),
                Shape::Value(kind) => self.key(&path, kind),
            }
        }
    }

    fn key(&mut self, path: &str, kind: &str) {
        let default = path.split('.').fold(&self.defaults, |value, key| &value[key]);
        let meaning = self.comments.get(path).cloned().unwrap_or_default();
        assert!(!meaning.is_empty(), "{path} has no comment of its own in conf/cube-proxy.yaml");
        if let Some(other) = self.told.insert(meaning.clone(), path.to_owned()) {
            panic!("{path} and {other} have the same comment in conf/cube-proxy.yaml");
        }
        let default = flow(default);
        let variable = &self.variables[path];
        let _ = write!(
            self.text,
            "\n### `{path}`\n\n{meaning}\n\n- {kind}; default `{default}`\n- {}\n- `{variable}`\n",
            live(path),
        );
    }
}

/// When a changed value counts.
fn live(path: &str) -> &'static str {
    match KEYS.iter().find(|key| key.name == path).map(|key| key.takes) {
        Some(Takes::Live) => "live at SIGHUP",
        Some(Takes::Restart) => "needs an upgrade or a restart",
        None => panic!("{path}: KEYS does not say when it takes effect"),
    }
}

fn page() -> String {
    let text = std::fs::read_to_string(root().join("conf/cube-proxy.yaml")).unwrap();
    let mut variables = BTreeMap::new();
    source::variables(&serde_yaml::to_value(Config::default()).unwrap(), &KeyPath::default(), &mut variables);
    let by_path = variables.into_iter().map(|(name, path)| {
        let keys = path.0.iter().map(|step| match step {
            Step::Key(key) => key.clone(),
            Step::Index(at) => at.to_string(),
        });
        (keys.collect::<Vec<_>>().join("."), name)
    });
    let mut page = Page {
        text: HEAD.to_owned(),
        comments: comments(&text),
        told: BTreeMap::new(),
        defaults: serde_yaml::from_str(&text).unwrap(),
        variables: by_path.collect(),
    };
    for (name, shape) in &Config::described() {
        let _ = write!(page.text, "\n## {name}\n");
        match shape {
            Shape::Section(keys) => page.keys(name, keys),
            Shape::Value(kind) => page.key(name, kind),
        }
    }
    page.text
}

#[test]
fn the_reference_is_what_the_code_says() {
    let path = root().join("docs/configuration.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(page.lines()).find(|(have, want)| have != want);
    assert!(committed == page, "docs/configuration.md is old, write it with UPDATE_DOCS=1: {differs:?}");
}

#[test]
fn comments_belong_to_the_keys_below_them() {
    let found =
        comments("# a\n# b\nx: 1\n\n# of y\ny:\n  # of z\n  z: 1\n  w: 2\n  # more\n  v: [1,\n    2]\n");
    let want = [("x", "a b"), ("y", "of y"), ("y.v", "more"), ("y.w", ""), ("y.z", "of z")];
    assert_eq!(found.iter().map(|(k, c)| (k.as_str(), c.as_str())).collect::<Vec<_>>(), want);
}
