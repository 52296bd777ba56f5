//! The embedded store's document. The only place that knows which YAML library is in use.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use cube_route::SandboxId;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::{Serialize, Serializer};

use crate::yaml_tab::tab_in_indentation;

/// Fields of one record, as text.
pub(crate) type Fields = BTreeMap<String, String>;

/// The whole file (config.md). Numbers and booleans are taken as they are written.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    #[serde(default)]
    pub(crate) sandboxes: UniqueMap<Id, UniqueMap<String, String>>,
    #[serde(default)]
    pub(crate) faulty_backend_set: Vec<String>,
}

impl Document {
    /// Reads `text`; what is wrong with it is said with line and column.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            // More likely a file that is being written than the end of all sandboxes.
            return Err("line 1, column 1: empty; `sandboxes: {}` says that there are none".to_owned());
        }
        serde_yaml::from_str(text).map_err(|error| {
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            if let Some((line, column)) = tab_in_indentation(text, line) {
                return format!("line {line}, column {column}: a tab; YAML is indented with spaces");
            }
            format!("line {line}, column {column}: {}", without_values(&error.to_string()))
        })
    }

    /// Writes the document as YAML.
    pub(crate) fn write(&self) -> Result<String, String> {
        serde_yaml::to_string(self).map_err(|error| error.to_string())
    }
}

/// An error message without the text that was found: it may be a token.
fn without_values(message: &str) -> String {
    match message.split_once("string \"") {
        Some((before, after)) => match after.rsplit_once("\", expected") {
            Some((_, after)) => format!("{before}text, expected{after}"),
            None => format!("{before}text"),
        },
        None => message.to_owned(),
    }
}

/// A sandbox id as a key, checked where it stands so that an error tells the place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id(pub(crate) SandboxId);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        SandboxId::parse(&text).map(Id).map_err(D::Error::custom)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A map in which no key may stand twice: the later one would silently win.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct UniqueMap<K: Ord, V>(pub(crate) BTreeMap<K, V>);

impl<K: Ord, V> Default for UniqueMap<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, K, V> Deserialize<'de> for UniqueMap<K, V>
where
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);

        impl<'de, K, V> Visitor<'de> for Entries<K, V>
        where
            K: Deserialize<'de> + Ord + fmt::Display,
            V: Deserialize<'de>,
        {
            type Value = BTreeMap<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(key) = access.next_key::<K>()? {
                    if map.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("{key} stands twice in this map")));
                    }
                    let value = access.next_value()?;
                    map.insert(key, value);
                }
                Ok(map)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData)).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
sandboxes:
  7C8FBCD45FFE:
    HostIP: 10.0.0.1
    AllowPublicTraffic: false
    8080: 49983
    \"9000\": \"1234\"
    CreatedAt: 1733000000000000000
  7e10: {}
faulty_backend_set: [10.0.0.2]
";

    #[test]
    fn scalars_are_taken_as_written_and_ids_are_folded() {
        let document = Document::read(GOOD).unwrap();
        let ids: Vec<String> = document.sandboxes.0.keys().map(ToString::to_string).collect();
        assert_eq!(ids, ["7c8fbcd45ffe", "7e10"]);
        let fields = &document.sandboxes.0[&Id(SandboxId::parse("7c8fbcd45ffe").unwrap())].0;
        for (name, value) in [
            ("AllowPublicTraffic", "false"),
            ("8080", "49983"),
            ("9000", "1234"),
            ("CreatedAt", "1733000000000000000"),
        ] {
            assert_eq!(fields[name], value);
        }
        assert_eq!(document.faulty_backend_set, ["10.0.0.2"]);
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let document = Document::read(GOOD).unwrap();
        assert_eq!(Document::read(&document.write().unwrap()).unwrap(), document);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, place) in [
            ("sandboxes:\n  ab: {\n", "line 3, column 1"),
            ("sandboxes:\n  ab:\n    HostIP: \"10.0.0.1\n", "line 4, column 1"),
            ("sandboxes:\n  a.b: {}\n", "line 2, column 3"),
            ("sandboxes:\n  ab: {}\n  AB: {}\n", "line 2, column 3"),
            ("sandboxes:\n  ab:\n    HostIP: [1]\n", "line 3, column 13"),
            ("sandbox: {}\n", "line 1, column 1"),
            ("", "line 1, column 1"),
            ("sandboxes:\n  ab:\n\tHostIP: 10.0.0.1\n", "line 3, column 1: a tab; "),
        ] {
            let error = Document::read(text).unwrap_err();
            assert!(error.starts_with(place), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_error_does_not_repeat_what_may_be_a_token() {
        let error = Document::read("sandboxes:\n  ab: example-token\n").unwrap_err();
        assert!(!error.contains("example"), "{error}");
    }
}
