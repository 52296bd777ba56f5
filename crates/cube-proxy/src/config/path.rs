//! Paths of keys (`tls.certificates[0].cert`), and where in the file they are written.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// One step from a value to a value in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Under this key of a mapping.
    Key(String),
    /// At this place of a list.
    Index(usize),
}

/// The way from the top of the file to a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct KeyPath(pub(super) Vec<Step>);

impl KeyPath {
    /// Reads the dotted form. For names of our own only: they hold no dots or brackets.
    pub(super) fn dotted(text: &str) -> Self {
        let mut steps = Vec::new();
        for part in text.split('.') {
            let mut pieces = part.split('[');
            steps.extend(pieces.next().filter(|key| !key.is_empty()).map(|key| Step::Key(key.to_owned())));
            steps.extend(pieces.filter_map(|at| at.trim_end_matches(']').parse().ok()).map(Step::Index));
        }
        Self(steps)
    }

    /// The path of `key` in the mapping at this path.
    pub(super) fn key(&self, key: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Self(steps)
    }

    /// Whether `other` is this path or lies within it.
    pub(super) fn holds(&self, other: &KeyPath) -> bool {
        other.0.starts_with(&self.0)
    }
}

impl From<&serde_path_to_error::Path> for KeyPath {
    fn from(path: &serde_path_to_error::Path) -> Self {
        use serde_path_to_error::Segment;
        Self(
            path.iter()
                .filter_map(|segment| match segment {
                    Segment::Seq { index } => Some(Step::Index(*index)),
                    Segment::Map { key } => Some(Step::Key(key.clone())),
                    Segment::Enum { .. } | Segment::Unknown => None,
                })
                .collect(),
        )
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if at == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Line and column, from 1, of the key (or list item) at `path`; where it is not written, of the
/// closest thing around it that is.
///
/// The YAML reader tells a position only with an error. So the file is read once more along the
/// path, with an error made where it ends.
pub(super) fn locate(text: &str, path: &KeyPath) -> Option<(usize, usize)> {
    (1..=path.0.len()).rev().find_map(|length| {
        let reached = Cell::new(false);
        let seek = Seek { path: path.0.get(..length)?, reached: &reached };
        let error = seek.deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
        let place = error.location().filter(|_| reached.get())?;
        Some((place.line(), place.column()))
    })
}

/// Walks to the end of the path and fails there.
struct Seek<'a> {
    path: &'a [Step],
    reached: &'a Cell<bool>,
}

impl Seek<'_> {
    fn stop<E: Error>(&self) -> E {
        self.reached.set(true);
        E::custom("here")
    }
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.path.first() {
            Some(Step::Key(_)) => deserializer.deserialize_map(self),
            Some(Step::Index(_)) => deserializer.deserialize_seq(self),
            None => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the path")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Step::Key(key), rest)) = self.path.split_first() else { return Err(self.stop()) };
        while let Some(is_it) =
            map.next_key_seed(IsKey { key, last: rest.is_empty(), reached: self.reached })?
        {
            if is_it {
                map.next_value_seed(Seek { path: rest, reached: self.reached })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((Step::Index(index), rest)) = self.path.split_first() else { return Err(self.stop()) };
        for _ in 0..*index {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        list.next_element_seed(Seek { path: rest, reached: self.reached })?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(self.stop())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Err(self.stop())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Err(self.stop())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Err(self.stop())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Err(self.stop())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Err(self.stop())
    }
}

/// Reads one key; fails on the wanted one where the path ends with it.
struct IsKey<'a> {
    key: &'a str,
    last: bool,
    reached: &'a Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for IsKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for IsKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        if text == self.key && self.last {
            self.reached.set(true);
            return Err(E::custom("here"));
        }
        Ok(text == self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
listen:
  http: [\"0.0.0.0:8081\", 7]
tls:
  certificates:
    - cert: a.pem
      key: a.key
    - { cert: b.pem, key: b.key }
limits:
  body: 1KiB
1: number
";

    fn at(path: &str) -> Option<(usize, usize)> {
        locate(TEXT, &KeyPath::dotted(path))
    }

    #[test]
    fn keys_and_items_are_found_where_they_are_written() {
        assert_eq!(at("listen"), Some((2, 1)));
        assert_eq!(at("listen.http"), Some((3, 3)));
        assert_eq!(at("listen.http[0]"), Some((3, 10)));
        assert_eq!(at("listen.http[1]"), Some((3, 26)));
        assert_eq!(at("tls.certificates[0].key"), Some((7, 7)));
        assert_eq!(at("tls.certificates[1]"), Some((8, 7)));
        assert_eq!(at("tls.certificates[1].key"), Some((8, 22)));
        assert_eq!(at("limits.body"), Some((10, 3)));
        assert_eq!(at("1"), Some((11, 1)));
    }

    #[test]
    fn what_is_not_written_is_placed_at_what_is_around_it() {
        assert_eq!(at("limits.head"), Some((9, 1)));
        assert_eq!(at("limits.body.deeper"), Some((10, 3)));
        assert_eq!(at("listen.http[9]"), Some((3, 3)));
        assert_eq!(at("drain.delay"), None);
        assert_eq!(at(""), None);
    }

    #[test]
    fn a_path_reads_back_as_it_is_shown() {
        for text in ["node_ip", "listen.http[1]", "tls.certificates[0].cert"] {
            assert_eq!(KeyPath::dotted(text).to_string(), text);
        }
    }
}
