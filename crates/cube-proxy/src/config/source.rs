//! From text and environment to the file's values: unknown keys, overrides, and where each value
//! was written.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use serde_yaml::{Mapping, Value};

use super::error::{Origin, Problem};
use super::path::{KeyPath, Step, locate};
use super::types::Config;

/// What an override is named after.
const PREFIX: &str = "CUBE_PROXY_";

/// Environment variables, as the process or a test has them.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// Those of this process.
    #[must_use]
    pub fn process() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// These with one more.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// The value of one of them.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Something that does not hold, before it is known where it was written.
pub(super) type Fault = (KeyPath, String);

/// The text of the file and which keys the environment set, to tell where a value came from.
pub(super) struct Source {
    text: String,
    overrides: Vec<(KeyPath, String)>,
}

impl Source {
    /// Names the place of each fault.
    pub(super) fn place(&self, faults: Vec<Fault>) -> Vec<Problem> {
        let mut problems: Vec<Problem> = faults
            .into_iter()
            .map(|(path, message)| {
                let origin = match self.overrides.iter().find(|(key, _)| key.holds(&path)) {
                    Some((_, name)) => Origin::Environment(name.clone()),
                    None => Origin::File(locate(&self.text, &path)),
                };
                Problem { origin, key: path.to_string(), message }
            })
            .collect();
        problems.sort_by_key(|problem| match problem.origin {
            Origin::File(place) => place.unwrap_or_default(),
            Origin::Environment(_) => (usize::MAX, 0),
        });
        problems
    }
}

/// What was read, and what in it could not be: that is left out of `file`, so that the rest can be
/// judged too.
pub(super) struct Reading {
    pub(super) file: Config,
    pub(super) source: Source,
    pub(super) warnings: Vec<String>,
    pub(super) faults: Vec<Fault>,
    pub(super) broken: Broken,
}

/// What was left out because it could not be read.
#[derive(Debug, Default)]
pub(super) struct Broken {
    /// Keys that have their defaults instead.
    keys: Vec<KeyPath>,
    /// Items that their lists lack, where they are written.
    items: Vec<KeyPath>,
}

impl Broken {
    /// Whether a fault of `key` would be about a default.
    pub(super) fn hides(&self, key: &KeyPath) -> bool {
        let above_an_item = self.items.iter().any(|item| item.0.len() > key.0.len() + 1 && key.holds(item));
        above_an_item || self.keys.iter().any(|broken| key.holds(broken) || broken.holds(key))
    }

    /// Whether everything in `key` is what the author wrote.
    pub(super) fn spares(&self, key: &KeyPath) -> bool {
        !self.hides(key) && !self.items.iter().any(|item| key.holds(item))
    }

    /// The path in the file of what is at `path` now that items before it are gone.
    pub(super) fn as_written(&self, path: &KeyPath) -> KeyPath {
        let mut written = KeyPath::default();
        for step in &path.0 {
            let mut step = step.clone();
            if let Step::Index(index) = &mut step {
                let of_this_list = |item: &KeyPath| match item.0.split_last() {
                    Some((Step::Index(gone), list)) if list == written.0 => Some(*gone),
                    _ => None,
                };
                let mut gone: Vec<usize> = self.items.iter().filter_map(of_this_list).collect();
                gone.sort_unstable();
                for gone in gone {
                    *index += usize::from(gone <= *index);
                }
            }
            written.0.push(step);
        }
        written
    }

    fn add(&mut self, written: KeyPath) {
        let items = matches!(written.0.last(), Some(Step::Index(_)));
        if items { &mut self.items } else { &mut self.keys }.push(written);
    }
}

/// Reads the file's text with the environment's overrides.
///
/// # Errors
/// Where the text is no YAML, or so far off that there is nothing to go on with.
pub(super) fn read(text: String, environment: &Environment) -> Result<Reading, Vec<Problem>> {
    let mut source = Source { text, overrides: Vec::new() };
    let mut value = parse(&source.text)?;
    let known = serde_yaml::to_value(Config::default()).unwrap_or_default();
    let mut faults = Vec::new();
    check_keys(&mut value, &known, &KeyPath::default(), &mut faults);
    let warnings = overrides(&mut value, &known, environment, &mut source.overrides, &mut faults);
    // A key that does not exist hides nothing; an override that is no YAML left the file's value.
    let mut broken = Broken::default();
    match values(value, &mut faults, &mut broken) {
        Some(file) => Ok(Reading { file, source, warnings, faults, broken }),
        None => Err(source.place(faults)),
    }
}

/// The file's values, without those that are of the wrong kind.
fn values(mut value: Value, faults: &mut Vec<Fault>, broken: &mut Broken) -> Option<Config> {
    loop {
        let error = match serde_path_to_error::deserialize::<_, Config>(value.clone()) {
            Ok(file) => return Some(file),
            Err(error) => error,
        };
        let path = KeyPath::from(error.path());
        let found = at(&mut value, &path.0).cloned().unwrap_or_default();
        let written = broken.as_written(&path);
        faults.push((written.clone(), in_our_words(&error.inner().to_string(), &path, &found)));
        broken.add(written);
        // Each round takes something away, so that there is an end.
        if !remove(&mut value, &path) {
            return None;
        }
    }
}

/// The value at the end of these steps.
fn at<'a>(value: &'a mut Value, steps: &[Step]) -> Option<&'a mut Value> {
    steps.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Key(key), Value::Mapping(mapping)) => mapping.get_mut(key.as_str()),
        (Step::Index(index), Value::Sequence(list)) => list.get_mut(*index),
        _ => None,
    })
}

/// Takes away what is there; whether anything was.
fn remove(value: &mut Value, path: &KeyPath) -> bool {
    let Some((last, parents)) = path.0.split_last() else { return false };
    match (last, at(value, parents)) {
        (Step::Key(key), Some(Value::Mapping(mapping))) => mapping.remove(key.as_str()).is_some(),
        (Step::Index(index), Some(Value::Sequence(list))) if *index < list.len() => {
            list.remove(*index);
            true
        }
        _ => false,
    }
}

/// The one place where YAML is read.
fn parse(text: &str) -> Result<Value, Vec<Problem>> {
    match serde_yaml::from_str::<Value>(text) {
        Ok(Value::Null) => Ok(Value::Mapping(Mapping::new())),
        Ok(value @ Value::Mapping(_)) => Ok(value),
        Ok(_) => Err(vec![Problem {
            origin: Origin::File(Some((1, 1))),
            key: String::new(),
            message: "the file must be a mapping of sections, e.g. `listen:`".to_owned(),
        }]),
        Err(error) => {
            let place = error.location().map(|place| (place.line(), place.column()));
            let tab = place.and_then(|(line, _)| cube_metadata::tab_in_indentation(text, line));
            Err(vec![Problem {
                origin: Origin::File(tab.or(place)),
                key: String::new(),
                message: match tab {
                    Some(_) => "a tab; YAML is indented with spaces".to_owned(),
                    None => without_place(&error.to_string()),
                },
            }])
        }
    }
}

/// A message without the place that the YAML reader adds; ours stands before it.
fn without_place(message: &str) -> String {
    message.split(" at line ").next().unwrap_or(message).to_owned()
}

/// A message in the words of the file rather than of the program. `found`: what is there.
fn in_our_words(message: &str, path: &KeyPath, found: &Value) -> String {
    if message.contains("expected a sequence") {
        let list = match found {
            Value::String(text) if !is_secret(path) => as_list(text),
            _ => "[one, another]".to_owned(),
        };
        return format!("must be a list, written {list}");
    }
    message
        .replace("expected u32", "expected a whole number of at most 4294967295")
        .replace("expected u16", "expected a whole number of at most 65535")
        .replace("unknown field", "unknown key")
        .replace("missing field", "missing key")
}

/// One text, or several between commas, as a list is written.
fn as_list(text: &str) -> String {
    let items: Vec<String> = text.split(',').map(|item| format!("{:?}", item.trim())).collect();
    format!("[{}]", items.join(", "))
}

/// Reports every key that the format does not have, and takes it away. A section with nothing in it is a default one.
fn check_keys(value: &mut Value, known: &Value, path: &KeyPath, faults: &mut Vec<Fault>) {
    let Value::Mapping(known) = known else { return };
    if value.is_null() {
        *value = Value::Mapping(Mapping::new());
    }
    let Value::Mapping(mapping) = value else {
        faults.push((path.clone(), "must be a section with keys of its own".to_owned()));
        *value = Value::Mapping(Mapping::new());
        return;
    };
    mapping.retain(|key, value| {
        let Value::String(key) = key else {
            faults.push((path.clone(), "a key here is no text".to_owned()));
            return false;
        };
        let path = path.key(key);
        let Some(known) = known.get(key.as_str()) else {
            let names: Vec<&str> = known.keys().filter_map(Value::as_str).collect();
            faults.push((path, format!("unknown key; known here: {}", names.join(", "))));
            return false;
        };
        check_keys(value, known, &path, faults);
        true
    });
}

/// Every key that holds a value of its own, by the name of its environment variable.
pub(super) fn variables(known: &Value, path: &KeyPath, into: &mut BTreeMap<String, KeyPath>) {
    let Value::Mapping(sections) = known else {
        let parts: Vec<String> = path
            .0
            .iter()
            .filter_map(|step| match step {
                Step::Key(key) => Some(key.to_ascii_uppercase()),
                Step::Index(_) => None,
            })
            .collect();
        into.insert(format!("{PREFIX}{}", parts.join("__")), path.clone());
        return;
    };
    for (key, value) in sections {
        if let Some(key) = key.as_str() {
            variables(value, &path.key(key), into);
        }
    }
}

fn overrides(
    value: &mut Value,
    known: &Value,
    environment: &Environment,
    set: &mut Vec<(KeyPath, String)>,
    faults: &mut Vec<Fault>,
) -> Vec<String> {
    let mut names = BTreeMap::new();
    variables(known, &KeyPath::default(), &mut names);
    let mut warnings = Vec::new();
    for (name, raw) in &environment.0 {
        let name = name.to_string_lossy();
        if !name.starts_with(PREFIX) {
            continue;
        }
        let Some(path) = names.get(name.as_ref()) else {
            warnings.push(format!("{name} is no key of the configuration and is ignored"));
            continue;
        };
        set.push((path.clone(), name.clone().into_owned()));
        match override_value(path, raw) {
            Ok(new) => put(value, path, new),
            Err(message) => faults.push((path.clone(), message)),
        }
    }
    warnings
}

/// An override is YAML. For a secret the reading must be the text itself, so that a `#` or a
/// leading zero in it is never lost without a word.
fn override_value(path: &KeyPath, raw: &OsStr) -> Result<Value, String> {
    let raw = raw.to_str().ok_or("is not UTF-8")?;
    if raw == "-" {
        return Ok(Value::String(raw.to_owned()));
    }
    let value = serde_yaml::from_str::<Value>(raw);
    if !is_secret(path) {
        return value.map_err(|error| {
            let why = without_place(&error.to_string());
            // An IPv6 address, most likely.
            let hint = match raw.starts_with('[') {
                true => format!(
                    "; text that begins with [ goes in quotes, {raw:?}, and in a list so: {}",
                    as_list(raw)
                ),
                false => String::new(),
            };
            format!("is not YAML: {why}{hint}")
        });
    }
    match value {
        Ok(Value::Null) if matches!(raw.trim(), "" | "null" | "~") => Ok(Value::Null),
        Ok(Value::String(text)) if text == raw.trim() || raw.trim_start().starts_with(['\'', '"']) => {
            Ok(Value::String(text))
        }
        _ => Err("a secret that YAML reads as something else: put quotes around it".to_owned()),
    }
}

fn is_secret(path: &KeyPath) -> bool {
    let last = path.0.last();
    ["password", "sentinel_password", "token", "url"]
        .iter()
        .any(|name| matches!(last, Some(Step::Key(key)) if key == name))
}

fn put(value: &mut Value, path: &KeyPath, new: Value) {
    let mut at = value;
    for step in &path.0 {
        let Step::Key(key) = step else { return };
        if !at.is_mapping() {
            *at = Value::Mapping(Mapping::new());
        }
        let Value::Mapping(mapping) = at else { return };
        at = mapping.entry(Value::String(key.clone())).or_insert(Value::Null);
    }
    *at = new;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str, environment: &[(&str, &str)]) -> Vec<Problem> {
        match read(text.to_owned(), &environment.iter().copied().collect()) {
            Ok(reading) => reading.source.place(reading.faults),
            Err(problems) => problems,
        }
    }

    fn file(text: &str, environment: &[(&str, &str)]) -> Config {
        let reading = read(text.to_owned(), &environment.iter().copied().collect());
        let Reading { file, faults, .. } = reading.map_err(|problems| format!("{problems:?}")).unwrap();
        assert_eq!(faults, []);
        file
    }

    fn place(line: usize, column: usize) -> Origin {
        Origin::File(Some((line, column)))
    }

    #[test]
    fn an_empty_file_and_empty_sections_are_the_defaults() {
        for text in ["", "# nothing\n", "limits:\n  # body: 1KiB\nlisten:\n", "{}"] {
            assert_eq!(file(text, &[]), Config::default(), "{text:?}");
        }
    }

    #[test]
    fn every_unknown_key_is_named_with_its_place() {
        let found = problems("limits:\n  bodyy: 1KiB\n  body: 1KiB\nlisten_: {}\n", &[]);
        let places: Vec<_> = found.iter().map(|p| (p.key.as_str(), p.origin.clone())).collect();
        assert_eq!(places, [("limits.bodyy", place(2, 3)), ("listen_", place(4, 1))]);
        assert!(found[0].message.starts_with("unknown key"), "{}", found[0].message);

        let found = problems("tls:\n  certificates:\n    - { cert: a, key: b, kee: c }\n", &[]);
        assert_eq!((found[0].key.as_str(), &found[0].origin), ("tls.certificates[0].kee", &place(3, 26)));
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_named_with_its_place() {
        for (text, key, at, words) in [
            ("upstream:\n  connect_timeout: fast\n", "upstream.connect_timeout", (2, 3), "such as 500ms"),
            ("errors: {dialect: french}\n", "errors.dialect", (1, 10), "expected `cube` or `e2b`"),
            ("limits:\n\n  headers: -1\n", "limits.headers", (3, 3), "whole number"),
            (
                "traffic_token:\n  exempt_ports: [1, 70000]\n",
                "traffic_token.exempt_ports[1]",
                (2, 21),
                "65535",
            ),
            ("listen: 7\n", "listen", (1, 1), "section"),
            ("listen:\n  http: 0.0.0.0:80\n", "listen.http", (2, 3), "[\"0.0.0.0:80\"]"),
            ("routing:\n  forward_credentials: \"yes\"\n", "routing.forward_credentials", (2, 3), "bool"),
            ("tls:\n  certificates: [{cert: a}]\n", "tls.certificates[0]", (2, 18), "missing key `key`"),
        ] {
            let found = problems(text, &[]);
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].key.as_str(), &found[0].origin), (key, &place(at.0, at.1)), "{text}");
            assert!(found[0].message.contains(words), "{}", found[0].message);
        }
    }

    #[test]
    fn text_that_is_no_yaml_is_named_with_its_place() {
        for (text, line) in
            [("listen: [1, 2\n  x: {\n", 2), ("a: b: c\n", 1), ("- 1\n", 1), ("limits:\n\thead: 1\n", 2)]
        {
            let found = problems(text, &[]);
            let Origin::File(Some((at, _))) = found[0].origin else { panic!("{found:?}") };
            assert_eq!(at, line, "{text:?}: {found:?}");
        }
        let found = problems("drain: {}\nlimits:\n  body: 1\n  body: 2\n", &[]);
        assert!(found[0].message.contains("duplicate") && found[0].message.contains("body"), "{found:?}");
    }

    #[test]
    fn items_are_named_where_they_are_written_although_others_are_left_out() {
        let found = problems("traffic_token:\n  exempt_ports: [x, 1, 70000, 2, y]\n", &[]);
        let keys: Vec<&str> = found.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, [0, 2, 4].map(|at| format!("traffic_token.exempt_ports[{at}]")));
    }

    #[test]
    fn everything_of_the_wrong_kind_is_told_at_once() {
        let text = "limits:\n  headers: many\n  bodyy: 1\n  head: [1]\nlisten:\n  http: 1.2.3.4:80\n\
                    tls:\n  certificates: [{cert: a}, {cert: b, key: c, x: d}]\nlog: loud\n";
        let found = problems(text, &[("CUBE_PROXY_DRAIN__DELAY", "soon")]);
        let keys: Vec<&str> = found.iter().map(|problem| problem.key.as_str()).collect();
        let certificates = ["tls.certificates[0]", "tls.certificates[1].x"];
        let want = ["limits.headers", "limits.bodyy", "limits.head", "listen.http"];
        assert_eq!(keys, [&want[..], &certificates, &["log", "drain.delay"]].concat(), "{found:?}");
    }

    #[test]
    fn a_list_is_told_as_it_is_written() {
        for (raw, written) in [
            ("127.0.0.1:8081", "must be a list, written [\"127.0.0.1:8081\"]"),
            ("127.0.0.1:1, 127.0.0.1:2", "must be a list, written [\"127.0.0.1:1\", \"127.0.0.1:2\"]"),
            ("8081", "must be a list, written [one, another]"),
            ("[::]:8081", "in a list so: [\"[::]:8081\"]"),
        ] {
            let found = problems("", &[("CUBE_PROXY_LISTEN__HTTP", raw)]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].message.contains(written), "{raw}: {found:?}");
            assert_eq!(found[0].origin, Origin::Environment("CUBE_PROXY_LISTEN__HTTP".into()));
        }
    }

    #[test]
    fn a_tab_is_called_a_tab() {
        for (text, at) in [("limits:\n\thead: 1\n", (2, 1)), ("limits:\n  head: 1KiB\n  \tbody: 1\n", (3, 3))]
        {
            let found = problems(text, &[]);
            assert!(found[0].message.starts_with("a tab; "), "{found:?}");
            assert_eq!(found[0].origin, place(at.0, at.1), "{text:?}");
        }
    }

    #[test]
    fn every_key_can_be_overridden() {
        let mut names = BTreeMap::new();
        variables(&serde_yaml::to_value(Config::default()).unwrap(), &KeyPath::default(), &mut names);
        for name in [
            "CUBE_PROXY_NODE_IP",
            "CUBE_PROXY_LISTEN__HTTP",
            "CUBE_PROXY_STORE__REDIS__URL",
            "CUBE_PROXY_ROUTING__CONTROL_PLANE__HOSTS",
            "CUBE_PROXY_TLS__CERTIFICATES",
            "CUBE_PROXY_RESPONSE_CACHE__MAX_OBJECT",
            "CUBE_PROXY_ADMIN__TOKEN",
        ] {
            assert!(names.contains_key(name), "{name}");
        }
        let read = file(
            "errors: {dialect: cube}\n",
            &[
                ("CUBE_PROXY_ERRORS__DIALECT", "e2b"),
                ("CUBE_PROXY_LISTEN__HTTP", "[\"127.0.0.1:1\", \"127.0.0.1:2\"]"),
                ("CUBE_PROXY_STORE__REDIS__PASSWORD", "example-token"),
                ("CUBE_PROXY_STORE__REDIS__USERNAME", ""),
                ("CUBE_PROXY_LIMITS__HEADERS", "7"),
                ("CUBE_PROXY_ACCESS_LOG__PATH", "-"),
                ("CUBE_PROXY_ROUTING__CONTROL_PLANE__URL", "http://10.0.0.5:3000"),
            ],
        );
        assert_eq!(read.errors.dialect, cube_edge::Dialect::E2b);
        assert_eq!(read.listen.http, ["127.0.0.1:1", "127.0.0.1:2"].map(|text| text.parse().unwrap()));
        assert_eq!(read.store.redis.password.unwrap().expose_text(), "example-token");
        assert_eq!(read.store.redis.username, None);
        assert_eq!(read.limits.headers, 7);
        assert_eq!(read.access_log.path.as_deref(), Some("-"));
        assert_eq!(read.routing.control_plane.url.as_deref(), Some("http://10.0.0.5:3000"));
    }

    #[test]
    fn a_bad_override_names_the_variable_and_never_a_secret() {
        let found = problems("", &[("CUBE_PROXY_LIMITS__HEADER_TIMEOUT", "soon")]);
        assert_eq!(found[0].origin, Origin::Environment("CUBE_PROXY_LIMITS__HEADER_TIMEOUT".into()));
        assert_eq!(found[0].key, "limits.header_timeout");
        for raw in ["917263", "#hush", "hush #hush", "[hush", "{hush: 1}", "1e99"] {
            let found = problems("", &[("CUBE_PROXY_ADMIN__TOKEN", raw)]);
            assert!(found[0].message.contains("quotes"), "{raw}: {found:?}");
            assert!(!format!("{found:?}").contains(raw.trim_matches(['[', '#'])), "{found:?}");
        }
        let token = file("", &[("CUBE_PROXY_ADMIN__TOKEN", "'0917#'")]).admin.token.unwrap();
        assert_eq!(token.expose_text(), "0917#");
    }

    #[test]
    fn other_names_with_the_prefix_are_ignored_with_a_warning() {
        let environment: Environment =
            [("CUBE_PROXY_PORT", "tcp://10.0.0.1:80"), ("CUBE_PROXY_LIMITS", "{}"), ("HOME", "/")]
                .into_iter()
                .collect();
        let Reading { file, warnings, .. } =
            read(String::new(), &environment).map_err(|p| format!("{p:?}")).unwrap();
        assert_eq!(file, Config::default());
        assert_eq!(warnings.len(), 2);
        assert!(warnings.iter().any(|warning| warning.contains("CUBE_PROXY_PORT ")), "{warnings:?}");
    }
}
